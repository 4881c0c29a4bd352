//! The files of a world: shared memory with initial contents from a pager.
//!
//! Each file of [`World::FILES`] has the same initial contents as in the model (`model/inode.rs`) and in the
//! kernel's child (`linux/child.rs`). The engine gets them from a [`Pager`] on first use. The functions do
//! the work of a kernel's file system around the engine: checks of lengths and offsets, reads and writes
//! through the page cache. `calls.rs` calls these functions; a new call on files gets a function here.
//! `cases/files.txt` has the rules that are easy to miss.

use std::collections::BTreeSet;
use std::sync::Mutex;

use freehold::counted::Counted;
use freehold::engine::Engine;
use freehold::file::{File, FileAccess, IoError, Mapping, Object, Pager};
use freehold::platform::Platform as _;
use freehold::report::maps::MapName;
use freehold::{PageIndex, PageRange, Pfn};
use freehold_machine::Machine;
use freehold_pagetable::Format;

use crate::op::*;
use crate::world::World;

type Res<T> = Result<T, i32>;

/// Supplies the initial contents of each page. After a page was truncated, supplies zeroes for it.
struct Initial {
    /// Number of the inode. The number determines the contents.
    inode: u8,
    /// Pages that were truncated, and are zero from then on.
    discarded: Mutex<BTreeSet<PageIndex>>,
}

impl Initial {
    /// Returns the end of the pages that have initial contents.
    fn end(&self) -> PageIndex {
        PageIndex::new(World::INODES[self.inode as usize].div_ceil(PAGE))
    }
}

impl<F: Format> Pager<Machine<F>> for Initial {
    fn read_page(&self, machine: &Machine<F>, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        machine.zero_frame(frame);
        let discarded = self.discarded.lock().expect("no panic under the lock");
        let first = index.byte();
        if index < self.end() && !discarded.contains(&index) {
            let end = World::INODES[self.inode as usize].min(first + PAGE);
            let bytes: Vec<u8> = (first..end).map(|at| World::initial(self.inode, at)).collect();
            machine.write_frame(frame, 0, &bytes);
        }
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        let gone = PageRange::new(pages.start, pages.end.min(self.end()));
        self.discarded.lock().expect("no panic under the lock").extend(gone);
    }
}

/// The open files of [`World::FILES`].
pub(super) struct Files<F: Format> {
    /// The open files, by [`FileId`].
    open: Vec<Counted<File<Machine<F>>>>,
    /// The page caches, by inode.
    inodes: Vec<Counted<Mapping<Machine<F>>>>,
}

impl<F: Format> Files<F> {
    /// Creates all files.
    pub(super) fn new(kernel: &Counted<Engine<Machine<F>>>) -> Self {
        let inode = |(inode, size): (usize, &u64)| {
            let pager = Initial { inode: inode as u8, discarded: Mutex::new(BTreeSet::new()) };
            Mapping::new(kernel, pager, *size, true).expect("memory for a file")
        };
        let inodes: Vec<_> = World::INODES.iter().enumerate().map(inode).collect();
        let open = World::FILES.iter().map(|desc| {
            // The engine's `append` is the attribute of an append-only inode, so O_APPEND of a descriptor
            // does not set it.
            let access = FileAccess::READ_WRITE.read(desc.read).write(desc.write);
            File::new(&inodes[desc.inode as usize], access, "file").expect("memory for a file")
        });
        Files { open: open.collect(), inodes }
    }

    /// Returns an open file.
    pub(super) fn get(&self, file: FileId) -> &Counted<File<Machine<F>>> {
        &self.open[file as usize]
    }

    /// Returns the file of an object.
    pub(super) fn which(&self, object: &Object<Machine<F>>) -> Option<MapFile> {
        let Object::File(file) = object else { return None };
        let inode = self.inodes.iter().position(|inode| Counted::ptr_eq(inode, file.mapping()));
        Some(inode.map_or(MapFile::SharedAnon, |n| MapFile::Inode(n as u8)))
    }

    /// Returns true if a line of the maps belongs to a file or to shared memory.
    pub(super) fn is_file(&self, name: &MapName<Machine<F>>) -> bool {
        matches!(name, MapName::Object(Object::File(_)))
    }

    /// Checks the page caches.
    pub(super) fn check(&self) {
        self.inodes.iter().for_each(|inode| inode.check());
    }

    /// Implements `ftruncate`, with the checks of a kernel's system call layer.
    pub(super) fn truncate(&self, file: FileId, len: u64) -> Res<u64> {
        let file = self.get(file);
        if len > i64::MAX as u64 || !file.access().write {
            return Err(libc::EINVAL);
        }
        file.mapping().truncate(len).map(|()| 0).map_err(|_| libc::EIO)
    }

    /// Implements `pwrite`.
    pub(super) fn write(&self, file: FileId, off: u64, len: u64, seed: u8) -> Res<u64> {
        let (file, append) = (self.get(file), World::FILES[file as usize].append);
        if off > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        if !file.access().write {
            return Err(libc::EBADF);
        }
        let off = if append { file.mapping().size() } else { off };
        let data: Vec<u8> = (0..len).map(|n| seed.wrapping_add(n as u8)).collect();
        let done = file.mapping().write_at(off, &data).map_err(|_| libc::EIO)?;
        Ok(done as u64)
    }

    /// Implements `pread`.
    pub(super) fn read(&self, file: FileId, off: u64, len: u64) -> Res<Vec<u8>> {
        let file = self.get(file);
        if off > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        if !file.access().read {
            return Err(libc::EBADF);
        }
        let mut bytes = vec![0; len as usize];
        let done = file.mapping().read_at(off, &mut bytes).map_err(|_| libc::EIO)?;
        bytes.truncate(done);
        Ok(bytes)
    }
}
