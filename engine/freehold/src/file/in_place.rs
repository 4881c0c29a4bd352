//! The pages of a file for address spaces without an MMU (`nommu/`): either the file's own frames, if they
//! are contiguous, or copies.
//!
//! Without page tables, a mapping needs contiguous frames, and a removed page cannot be unmapped.
//! `nommu/mmap.rs` therefore holds a [`PagesStay`] while it chooses between the file's frames and copies.
//! This value holds the file's invalidate lock for reading, so that no page leaves the cache. Shared memory
//! gets contiguous frames from [`lay_out`](Mapping::lay_out), before its first page is added. The caller
//! holds no lock of an address space. `tests/nommu/files.rs` tests the choice, and `tests/nommu/truncate.rs`
//! tests truncation of mapped files.

use super::{
    Mapping,
    cache::{radix::Stay, reading::State},
    mapping::FillError,
    read::Look,
};
use crate::{Pfn, platform::Platform, wait::Rounds};
use core::ops::ControlFlow;
use freehold_sync::RwSemReadGuard;
use freehold_vmspace::{PageIndex, PageRange, Run};

/// The right to use pages of a file in place. Holds the invalidate lock of the file for reading, so pages can
/// enter the cache but cannot leave it.
pub(crate) struct PagesStay<'m, P: Platform> {
    /// The file whose pages stay.
    mapping: &'m Mapping<P>,
    lock: RwSemReadGuard<'m, P>,
}

impl<P: Platform> Mapping<P> {
    /// Keeps the file's pages in the cache.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, until the value is dropped.
    pub(crate) fn pages_stay(&self) -> PagesStay<'_, P> {
        PagesStay { mapping: self, lock: self.invalidate.read() }
    }

    /// Brings all pages of shared memory into the cache in contiguous frames, if none of its pages is there
    /// yet. Does nothing if a page is already there, or for any other kind of file. Without an MMU only a
    /// file in contiguous frames can be mapped shared. mmap calls this function for the first mapping. A file
    /// system calls this function when it sets the size of an empty file, so that programs can write to the
    /// file before they map it.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or no contiguous memory, or if a page cannot be read. The cache is then
    /// unchanged.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing. The caller holds no lock of an address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.lay_out().unwrap();
    /// assert_eq!(file.present_pages(), 4);
    /// ```
    pub fn lay_out(&self) -> Result<(), FillError> {
        self.retry_when_short(|| self.lay_out_and_stay().map(drop))
    }

    /// Brings pages into the cache like [`lay_out`](Self::lay_out). No page can leave the cache until the
    /// returned value is dropped.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing; then for reading, until the value is dropped.
    pub(crate) fn lay_out_and_stay(&self) -> Result<PagesStay<'_, P>, FillError> {
        loop {
            let lock = self.write_to_fill(PageRange::ALL)?;
            let pages = PageRange::new(PageIndex::ZERO, self.end());
            let empty = self.is_absent(Stay::locked(&lock), pages);
            let applies = self.is_shmem() && self.huge.is_none() && !pages.is_empty();
            let added = if applies && empty { self.add_run(&lock, pages, 0, 0)? } else { None };
            let Some(reads) = added else { return Ok(PagesStay { mapping: self, lock: lock.downgrade() }) };
            drop(lock);
            self.finish_run(reads).inspect_err(|_| self.drop_read(pages))?;
        }
    }

    /// Drops pages that this task has read into frames of a run, unless they are in use or were written.
    fn drop_read(&self, pages: PageRange) {
        let lock = self.invalidate.write();
        let _: ControlFlow<()> = self.cache.each(Stay::locked(&lock), pages, |index, word| {
            if let Some(pfn) = self.drop_if_clean(&lock, index, word) {
                self.pages_went(1);
                // The frame came from the platform, as a part of a run, and returns to it.
                if self.files().platform().frame(pfn).put() {
                    self.files().memory().free_charged(pfn);
                }
            }
            ControlFlow::Continue(())
        });
        self.prune(&lock, pages);
    }

    /// Fills the frame `to` with the current contents of a page. Bytes beyond the end of the file are zeroes.
    /// The page itself does not stay in the cache if it was not there before, and takes no frame from the
    /// caches of free frames, because free memory should stay contiguous.
    ///
    /// # Errors
    ///
    /// Fails if the page cannot be read.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing, which is released before the page is read; then the locks of
    /// [`fill`](Self::fill).
    pub(crate) fn copy_page(&self, index: PageIndex, to: Pfn) -> Result<(), FillError> {
        let page = PageRange::one(index);
        let (mut read, mut rounds) = (false, Rounds::new());
        while index < self.end() {
            if self.is_direct() {
                match self.try_fill(index) {
                    Err(FillError::BeyondEnd) => {}
                    filled => filled?,
                }
            }
            let lock = self.write_to_fill(page)?;
            match self.look(&lock, index) {
                Look::Lost => return Err(FillError::Lost),
                Look::Vacant if self.pager().reads_zeroes() => break,
                Look::Vacant if index < self.end() && !self.is_direct() => {
                    let reads = self.add_run(&lock, page, 0, 0)?;
                    drop(lock);
                    read = true;
                    reads.map_or(Ok(()), |reads| self.finish_run(reads))?;
                }
                Look::Vacant => {}
                Look::Swapped(_) => {
                    drop(lock);
                    match self.try_fill(index) {
                        Err(FillError::BeyondEnd) => {}
                        filled => filled?,
                    }
                }
                Look::Reading => {
                    drop(lock);
                    if self.wait_for_read(index)? == State::Failed {
                        return Err(FillError::Io);
                    }
                }
                Look::Cached => {
                    // Copied under the lock, so that the task that has read the page finds it unused and
                    // drops it. No page moves while the lock is held for writing.
                    let Some(cached) = self.get_page(index) else { continue };
                    self.files().platform().copy_frame(to, *cached);
                    self.zero_beyond_end(index, to);
                    drop((cached, lock));
                    if read {
                        self.drop_read(page);
                    }
                    return Ok(());
                }
            }
            rounds.again::<P>()?;
        }
        self.files().platform().zero_frame(to);
        Ok(())
    }
}

impl<P: Platform> PagesStay<'_, P> {
    /// Returns true if this value keeps the pages of `mapping`.
    pub fn is_of(&self, mapping: &Mapping<P>) -> bool {
        core::ptr::eq(self.mapping, mapping)
    }

    /// Returns the file's own frames of `pages`, if the frames are contiguous. `pages` must not be empty. For
    /// shared memory these are the frames in the cache. For a read-only mapping these may be the frames of a
    /// backing store that consists of memory.
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
            // A page may have moved before `Run::share` took references to the frames. No page moves
            // afterwards, so one more check is enough.
            return run.filter(|_| frame(0).is_some_and(|page| *page == first) && in_a_row());
        }
        let frames = if write { None } else { self.mapping.pager().in_memory(pages) };
        frames
            .filter(|frames| frames.count() >= count.get())
            .map(|frames| Run::foreign(memory, frames.first(), count))
    }
}
