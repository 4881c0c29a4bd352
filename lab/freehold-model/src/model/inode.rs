//! Inodes: the contents of files, truncation and holes.
//!
//! An [`Inode`] is shared by all processes and all mappings of its file, or is the memory of one shared
//! anonymous mapping. `file.rs` checks arguments, and `fault.rs` reads and writes pages. The initial contents
//! depend only on the number of the inode, so that the model, the engine (`engine/files.rs`) and the kernel's
//! child (`linux/child.rs`) begin with the same bytes. Offsets and sizes are in bytes, keys of pages are page
//! numbers in the file. `cases/files.txt` has the rules of truncation and holes.

use super::*;

/// A file's contents. Pages that were never written are absent and read as zeros.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    /// Length in bytes.
    pub(super) size: u64,
    /// The pages that were written, by number.
    data: BTreeMap<u64, Box<Bytes>>,
}

impl Inode {
    /// Returns a file of zeroes.
    pub(super) fn empty(size: u64) -> Inode {
        Inode { size, data: BTreeMap::new() }
    }
    /// Returns the file with its initial contents.
    pub(super) fn initial(number: u8) -> Inode {
        let size = World::INODES[number as usize];
        let mut inode = Inode::empty(size);
        for index in 0..inode.pages() {
            let end = (size - index * PAGE).min(PAGE);
            let page = inode.page_mut(index);
            for at in 0..end {
                page[at as usize] = World::initial(number, index * PAGE + at);
            }
        }
        inode
    }
    /// Number of pages up to the end of the file.
    pub(super) fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE)
    }
    /// Returns a page for changes.
    pub(super) fn page_mut(&mut self, index: u64) -> &mut Bytes {
        self.data.entry(index).or_insert_with(|| Box::new([0; PAGE as usize]))
    }
    /// Returns a byte of a page.
    pub(super) fn byte(&self, index: u64, at: usize) -> u8 {
        self.data.get(&index).map_or(0, |page| page[at])
    }
    /// Returns a page, if it was written.
    pub(super) fn page(&self, index: u64) -> Option<&Bytes> {
        self.data.get(&index).map(|page| &**page)
    }
    /// Returns a copy of a page.
    pub(super) fn copy(&self, index: u64) -> Bytes {
        self.data.get(&index).map_or([0; PAGE as usize], |page| **page)
    }
    /// Drops whole pages.
    pub(super) fn punch(&mut self, first: u64, end: u64) {
        self.data.retain(|n, _| !(first..end).contains(n));
    }
    /// Returns the bytes of the last page between the end of the file and `to`. Stores through mappings may
    /// have changed these bytes.
    pub(super) fn behind_end(&mut self, to: u64) -> &mut [u8] {
        let (size, end) = (self.size, to.min(page_up(self.size)));
        match self.data.get_mut(&(size / PAGE)) {
            Some(page) if size < end => &mut page[(size % PAGE) as usize..][..(end - size) as usize],
            _ => &mut [],
        }
    }
    /// Stores bytes at offset `off`.
    pub(super) fn write(&mut self, off: u64, bytes: impl Iterator<Item = u8>) {
        let mut at = off;
        for byte in bytes {
            self.page_mut(at / PAGE)[(at % PAGE) as usize] = byte;
            at += 1;
        }
        self.size = self.size.max(at);
    }
    /// Sets the length. Bytes behind a smaller length are dropped.
    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.data.retain(|n, _| *n < size.div_ceil(PAGE));
            if let Some(page) = self.data.get_mut(&(size / PAGE)) {
                page[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}
