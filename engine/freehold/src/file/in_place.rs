//! A file's pages as programs without an MMU map them: in frames that follow each other, or as copies of
//! them.

use super::{Mapping, cache::radix::Stay, mapping::FillError};
use crate::{Pfn, platform::Platform};
use freehold_sync::RwSemReadGuard;
use freehold_vmspace::{PageIndex, PageRange, Run};

/// The invalidate lock of a file held for reading: pages may come into its cache, and do not go.
pub(crate) struct PagesStay<'m, P: Platform> {
    mapping: &'m Mapping<P>,
    lock: RwSemReadGuard<'m, P>,
}

impl<P: Platform> Mapping<P> {
    /// Keeps the file's pages where they are.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, until the value is dropped.
    pub(crate) fn pages_stay(&self) -> PagesStay<'_, P> {
        PagesStay { mapping: self, lock: self.invalidate.read() }
    }

    /// Brings the whole of shared memory into the cache, in frames that follow each other, if none of its
    /// pages is there yet; otherwise, and for any other file, does nothing. Without an MMU only such a
    /// file can be mapped shared. The first mapping does this by itself; a file system does it
    /// beforehand, when it gives an empty file its size, so that a file may be written first and mapped
    /// then.
    ///
    /// # Errors
    ///
    /// No memory, or none in one piece, or a page could not be read; nothing happened.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing. The caller holds no lock of an address space.
    pub fn lay_out(&self) -> Result<(), FillError> {
        self.lay_out_and_stay().map(drop)
    }

    /// As [`lay_out`](Self::lay_out); keeps the pages where they are then.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing; afterwards for reading, until the value is dropped.
    pub(crate) fn lay_out_and_stay(&self) -> Result<PagesStay<'_, P>, FillError> {
        let lock = self.invalidate.write();
        let pages = PageRange::new(PageIndex::ZERO, self.end());
        let empty = self.is_absent(Stay::locked(&lock), pages);
        if self.is_shmem() && self.huge.is_none() && !pages.is_empty() && empty {
            self.add_run(&lock, pages, 0)?;
        }
        Ok(PagesStay { mapping: self, lock: lock.downgrade() })
    }
}

impl<P: Platform> PagesStay<'_, P> {
    /// Whether it keeps the pages of this file.
    pub fn is_of(&self, mapping: &Mapping<P>) -> bool {
        core::ptr::eq(self.mapping, mapping)
    }

    /// The file's own pages, of which there is at least one, where they lie in frames that follow each other:
    /// those of shared memory in its cache, or, for a mapping that only reads, those of a store that is
    /// memory itself.
    pub fn own(&self, pages: PageRange, write: bool) -> Option<Run<P>> {
        if pages.end > self.mapping.end() {
            return None;
        }
        let memory = self.mapping.files().memory();
        let count = pages.len();
        if self.mapping.is_shmem() {
            let frame = |n| self.mapping.get_after_move(&self.lock, pages.start + n);
            let first = *frame(0)?;
            let follow = |n| frame(n).is_some_and(|page| *page == first.add(n));
            let in_a_row = || (1..count.get()).all(follow);
            let run = in_a_row().then(|| Run::share(memory, first, count)).flatten();
            // None has moved before it had a reference of ours; none does since.
            return run.filter(|_| frame(0).is_some_and(|page| *page == first) && in_a_row());
        }
        let frames = if write { None } else { self.mapping.pager().in_memory(pages) };
        frames
            .filter(|frames| frames.count() >= count.get())
            .map(|frames| Run::foreign(memory, frames.first(), count))
    }

    /// Fills a frame with a page as it is now; with zeroes beyond the end of the file.
    ///
    /// # Errors
    ///
    /// The page could not be read.
    pub fn copy(&self, index: PageIndex, to: Pfn) -> Result<(), FillError> {
        let platform = self.mapping.files().platform();
        if index >= self.mapping.end() {
            platform.zero_frame(to);
            return Ok(());
        }
        let Some(cached) = self.mapping.get_after_move(&self.lock, index) else {
            return self.mapping.read(&self.lock, index, to);
        };
        platform.copy_frame(to, *cached);
        self.mapping.zero_beyond_end(index, to);
        Ok(())
    }
}
