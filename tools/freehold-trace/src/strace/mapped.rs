//! Gives each mapped file in strace output a number, because events name files by number. In `NAME.trace` the
//! numbers are recorded.
//!
//! The file of a call follows from the path that option -y shows, or from the descriptors that the process
//! has used (the rules are in `descriptors.rs`). `mod.rs` calls [`Mapped::file`] for each call, and stores
//! the number in the event. Two files with one number would share memory in the replay; one file with two
//! numbers would not share its memory. The list of files is a [`Files`], as in `trace.rs`. The test is
//! `files_of_mappings_are_distinguished` (`tests.rs`).

use super::call::Made;
use super::descriptors::{Descriptors, Known};
use crate::descriptor::{self, Descriptor};
use crate::error::Bad;
use crate::files::Files;
use crate::{CallName, FileInfo};
use std::collections::BTreeMap;

const MAP_SHARED_VALIDATE: u64 = 3;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
/// The bits of mmap's flags that select the kind of mapping.
const MAP_TYPE: u64 = 0xf;

/// The files that were mapped so far.
#[derive(Default)]
pub(super) struct Mapped {
    /// All files by number.
    files: Files,
    /// Numbers of the files whose path strace has shown.
    by_path: BTreeMap<Vec<u8>, u32>,
    /// The highest number so far.
    count: u32,
}

impl Mapped {
    /// Returns all files.
    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the number of the file that a call has mapped, created or changed. Returns `None` for other
    /// calls, and if the file is not known. `line` is the number of the line. For a nameless file, this
    /// number becomes a part of the file's name.
    pub(super) fn file(
        &mut self,
        made: &Made<'_>,
        known: &mut Descriptors,
        line: u32,
    ) -> Result<Option<u32>, Bad> {
        let Some(value) = made.value() else { return Ok(None) };
        match made.name {
            CallName::Mmap if made.args[3] & MAP_ANONYMOUS == 0 => self.mmap(made, value, known, line),
            CallName::MemfdCreate => {
                let Ok(descriptor) = i32::try_from(value) else { return Ok(None) };
                let file = self.define(format!("memfd of line {line}"), Some(0))?;
                known.set(descriptor, Known { shared: Some(file), mapped: None });
                Ok(Some(file))
            }
            name if name.is_of_descriptors() => {
                let again = opened_again(made).map(|from| known.get(from));
                follow(made, value, known);
                if let Some(again) = again {
                    known.set(descriptor(value), again);
                }
                Ok(again.and_then(|again| again.shared))
            }
            CallName::Ftruncate => self.ftruncate(made, known, line),
            CallName::Fallocate => Ok(self.named_or_known(made, descriptor(made.args[0]), known)?),
            _ => Ok(None),
        }
    }

    /// Returns the file that an mmap has mapped at `at`. An unknown file gets a number.
    fn mmap(
        &mut self,
        made: &Made<'_>,
        at: u64,
        known: &mut Descriptors,
        line: u32,
    ) -> Result<Option<u32>, Bad> {
        let [_, length, _, flags, number, _] = made.args;
        let number = descriptor(number);
        let shared = matches!(flags & MAP_TYPE, 1 | MAP_SHARED_VALIDATE);
        let before = known.get(number);
        if let Some(file) = before.shared.filter(|_| shared && may_be_known(made)) {
            return Ok(Some(file));
        }
        if let Some(path) = made.note {
            return self.of_path(path).map(Some);
        }
        let fixed = flags & MAP_FIXED != 0;
        let same = before.mapped.filter(|(_, start, end)| fixed && (*start..*end).contains(&at));
        if let Some((file, ..)) = same {
            return Ok(Some(file));
        }
        let file = self.define(format!("descriptor {number} of line {line}"), None)?;
        known.set(number, Known { mapped: Some((file, at, at.saturating_add(length))), ..before });
        Ok(Some(file))
    }

    /// Returns the file whose length an ftruncate has set. An unknown file gets a number.
    fn ftruncate(&mut self, made: &Made<'_>, known: &mut Descriptors, line: u32) -> Result<Option<u32>, Bad> {
        let (number, size) = (descriptor(made.args[0]), made.args[1]);
        let file = match self.named_or_known(made, number, known)? {
            Some(file) => file,
            None => {
                let file = self.define(format!("descriptor {number} of line {line}"), None)?;
                known.set(number, Known { shared: Some(file), mapped: None });
                file
            }
        };
        self.files.set_size(file, size);
        Ok(Some(file))
    }

    /// Returns the file of a descriptor: the file of its shared mappings, or the file of the path that strace
    /// shows.
    fn named_or_known(
        &mut self,
        made: &Made<'_>,
        number: i32,
        known: &Descriptors,
    ) -> Result<Option<u32>, Bad> {
        match (known.get(number).shared, made.note) {
            (Some(file), _) if may_be_known(made) => Ok(Some(file)),
            (_, Some(path)) => self.of_path(path).map(Some),
            (_, None) => Ok(None),
        }
    }

    /// Returns the number of the file at `path`. A new path gets a number.
    fn of_path(&mut self, path: &[u8]) -> Result<u32, Bad> {
        if let Some(file) = self.by_path.get(path) {
            return Ok(*file);
        }
        let file = self.define(String::from_utf8_lossy(path).into_owned(), None)?;
        self.by_path.insert(path.to_vec(), file);
        Ok(file)
    }

    /// Adds a file, and returns its number.
    fn define(&mut self, path: String, size: Option<u64>) -> Result<u32, Bad> {
        let id = self.count + 1;
        self.files.define(FileInfo { id, size, huge: None, tmpfs: None, path })?;
        self.count = id;
        Ok(id)
    }
}

/// Applies a call that opened, copied or closed descriptors to the known descriptors.
fn follow(made: &Made<'_>, value: u64, known: &mut Descriptors) {
    match descriptor::done(made.name, &made.args, value) {
        Some(Descriptor::Opened(number, _) | Descriptor::Closed(number)) => known.forget(number..=number),
        Some(Descriptor::Copied(from, to)) => known.set(to as i32, known.get(from as i32)),
        Some(Descriptor::ClosedRange { closed: Some((first, last)), .. }) => known.forget(first..=last),
        Some(Descriptor::ClosedRange { closed: None, .. }) | None => {}
    }
}

/// Returns the descriptor whose file the call opens again by its name in /proc.
fn opened_again(made: &Made<'_>) -> Option<i32> {
    let opens = matches!(made.name, CallName::Open | CallName::Openat);
    let number = made.note.filter(|_| opens)?.strip_prefix(b"/proc/self/fd/")?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// Returns true if the descriptor may still refer to the known file: strace shows no path, or the path of a
/// memfd.
fn may_be_known(made: &Made<'_>) -> bool {
    made.note.is_none_or(|path| path.starts_with(b"/memfd:"))
}

/// Returns an argument as a descriptor. The kernel uses only the lower 32 bits.
fn descriptor(arg: u64) -> i32 {
    arg as i32
}
