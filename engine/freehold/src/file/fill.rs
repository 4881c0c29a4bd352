//! Pages that come: from the pager, from a program, or as part of a longer file.

use crate::{
    PAGE_SIZE, Pfn,
    file::{CachedPage, FillError, LOST, Mapping, NewPage, cache::radix::Locked, zero},
    platform::Platform,
    wait::Rounds,
};
use freehold_sync::{RwSemReadGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex};

impl<P: Platform> Mapping<P> {
    /// Brings a page inside the file into the cache, unless it is there.
    ///
    /// # Errors
    ///
    /// See [`FillError`]; nothing happened.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably: a truncation may wait for another page's pager. The pager
    /// is called under it. The caller holds no lock of an address space.
    pub fn fill(&self, index: PageIndex) -> Result<(), FillError> {
        loop {
            let pages_stay = self.stay_to_fill(index)?;
            let size = self.size();
            if index.get() >= self.pages_of(size) {
                return Err(FillError::BeyondEnd);
            }
            let Some(huge) = &self.huge else {
                return self.fill_inside(&pages_stay, index, size - index.byte());
            };
            match self.fill_huge(&pages_stay, huge, index) {
                Ok(()) => return Ok(()),
                Err(not_made) => {
                    drop(pages_stay);
                    huge.after(self.files().memory(), not_made)?;
                }
            }
        }
    }

    /// As [`fill`](Self::fill), of a page of 4 KiB, with which so many bytes of the file begin.
    fn fill_inside(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        bytes: u64,
    ) -> Result<(), FillError> {
        if self.is_direct() {
            return self.fill_direct(pages_stay, index, bytes);
        }
        self.fill_page(pages_stay, index, |platform, pfn| {
            self.pager().read_page(platform, index, pfn).map_err(|_| FillError::Io)?;
            // The last page reads as zeroes beyond the end of the file.
            if bytes < PAGE_SIZE {
                zero(platform, pfn, bytes..PAGE_SIZE);
            }
            Ok(())
        })
    }

    /// Makes a page with these contents, and lets `put` publish it, unless the file has that page already.
    /// `put` runs in one read section, in which it may lock a page table: a fault that finds the page waits
    /// for that lock, and then meets the entry.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill); `put` did not run.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading. Of shared memory alone, so that nobody waits for storage behind it.
    pub(crate) fn insert_page(
        &self,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        debug_assert!(self.is_shmem());
        let pages_stay = self.invalidate.read_killable()?;
        if index >= self.end() {
            return Err(FillError::BeyondEnd);
        }
        let fill = |platform: &P, pfn| {
            contents(platform, pfn);
            Ok(())
        };
        self.add_page(&pages_stay, index, fill, |page| {
            // Locked, so that it does not move before it is mapped; nobody else knows of it yet.
            let identity = self.files().memory().try_lock_frame(page.pfn());
            debug_assert!(identity.is_some(), "a new page is locked by somebody");
            if identity.is_some() {
                put(page);
            }
        })
    }

    /// As [`fill`](Self::fill), for a page that lies beyond the end and that the caller, which holds
    /// `content` for writing, is about to make part of the file: it starts as zeroes.
    pub(super) fn fill_new(&self, index: PageIndex) -> Result<(), FillError> {
        let pages_stay = self.stay_to_fill(index)?;
        if self.is_direct() {
            return self.fill_direct(&pages_stay, index, 0);
        }
        self.fill_page(&pages_stay, index, |platform, pfn| {
            platform.zero_frame(pfn);
            Ok(())
        })
    }

    fn fill_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        // The page of a faster fault is as good.
        self.add_page(pages_stay, index, contents, |page| {
            page.publish();
        })
    }

    /// Makes a page with these contents, and lets `put` publish it, unless there is one in the cache.
    fn add_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        // Made only when there is something to be put there: a call for pages that cannot be had leaves no
        // nodes behind.
        let word = self.word(pages_stay, index);
        // Relaxed: a hint that saves work; the compare-and-swap decides. What is lost stays so under the
        // lock.
        match word.map_or(0, |word| word.load(Relaxed)) {
            0 => {}
            LOST => return Err(FillError::Lost),
            _ => return Ok(()),
        }
        let platform = self.files().platform();
        let charge = self.charge_pages(PageCount::ONE)?;
        let pfn = self.files().memory().alloc_cache(self.cache_page(), index)?;
        let filled = contents(platform, pfn).and_then(|()| match word {
            Some(word) => Ok(word),
            None => Ok(self.cache_word(pages_stay, index)?),
        });
        let published = filled.map(|word| NewPage::put(platform, word, pfn, put));
        match published {
            Ok(true) => {
                self.invalidate.came(1);
                charge.keep();
            }
            _ => self.files().memory().put_frame(pfn),
        }
        published.map(drop)
    }

    /// Fills a frame with a page as its store has it.
    pub(super) fn read(&self, lock: &impl Locked, index: PageIndex, to: Pfn) -> Result<(), FillError> {
        // Relaxed: it does not change under the lock that the caller holds.
        if self.word(lock, index).is_some_and(|word| word.load(Relaxed) == LOST) {
            return Err(FillError::Lost);
        }
        self.pager().read_page(self.files().platform(), index, to).map_err(|_| FillError::Io)?;
        self.zero_beyond_end(index, to);
        Ok(())
    }

    pub(super) fn zero_beyond_end(&self, index: PageIndex, pfn: Pfn) {
        let end = self.size().saturating_sub(index.byte()).min(PAGE_SIZE);
        if end < PAGE_SIZE {
            zero(self.files().platform(), pfn, end..PAGE_SIZE);
        }
    }

    /// A page inside the file, brought into the cache if need be.
    pub(super) fn page(&self, index: PageIndex) -> Result<CachedPage<'_, P>, FillError> {
        let mut rounds = Rounds::new();
        loop {
            match self.get_page(index) {
                Some(page) => return Ok(page),
                None => self.fill(index)?,
            }
            rounds.again::<P>()?;
        }
    }
}
