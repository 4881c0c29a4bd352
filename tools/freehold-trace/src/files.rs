//! The files that a recording has defined so far.
//!
//! A recording defines a file in a line of its own before the first call that maps it; sizes and huge-page
//! properties may follow in further lines. The readers (`trace.rs`, `strace/mapped.rs`) fill the list, and
//! the planner looks files up by number (`plan/files.rs`). The list only grows. Its memory is limited,
//! because a damaged recording may define any number of files. A new property of files needs a line of its
//! own in `trace.rs` (`Seen::comment`) and in `TraceWriter::file`.

use crate::error::Bad;
use crate::{FileInfo, TmpfsHuge};
use std::collections::BTreeMap;

/// Maximum memory in bytes that the list of files may use.
const MAX_BYTES: usize = 128 << 20;

/// A list of files, with an index by number.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// All files in the order of their definition.
    list: Vec<FileInfo>,
    /// Position in `list` by number.
    index: BTreeMap<u32, usize>,
    /// Memory that the list uses, in bytes.
    bytes: usize,
}

impl Files {
    /// Returns all files in the order of their definition.
    pub(crate) fn all(&self) -> &[FileInfo] {
        &self.list
    }

    /// Returns the file with this number.
    pub(crate) fn get(&self, id: u32) -> Option<&FileInfo> {
        self.index.get(&id).map(|index| &self.list[*index])
    }

    /// Sets the size of a file that is already defined.
    pub(crate) fn set_size(&mut self, id: u32, size: u64) {
        if let Some(file) = self.index.get(&id).and_then(|index| self.list.get_mut(*index)) {
            file.size = Some(size);
        }
    }

    /// Sets the size of a file's huge pages, in bytes.
    pub(crate) fn set_huge(&mut self, id: u32, bytes: u64) -> Result<(), Bad> {
        self.defined(id)?.huge = Some(bytes);
        Ok(())
    }

    /// Sets the huge-page policy of the tmpfs that contains the file.
    pub(crate) fn set_tmpfs(&mut self, id: u32, huge: TmpfsHuge) -> Result<(), Bad> {
        self.defined(id)?.tmpfs = Some(huge);
        Ok(())
    }

    /// Returns the file with this number. Fails if the file is not defined.
    fn defined(&mut self, id: u32) -> Result<&mut FileInfo, Bad> {
        let file = self.index.get(&id).and_then(|index| self.list.get_mut(*index));
        file.ok_or(Bad::UnknownFile(id))
    }

    /// Adds a file. Fails if the number is in use or the list is too large.
    pub(crate) fn define(&mut self, file: FileInfo) -> Result<(), Bad> {
        let bytes = self.bytes.saturating_add(file.path.len() + 2 * size_of::<FileInfo>());
        if bytes > MAX_BYTES {
            return Err(Bad::TooMany("bytes taken by the list of files", MAX_BYTES as u64));
        }
        if self.index.contains_key(&file.id) {
            return Err(Bad::Duplicate("file", file.id));
        }
        self.bytes = bytes;
        self.index.insert(file.id, self.list.len());
        self.list.push(file);
        Ok(())
    }
}
