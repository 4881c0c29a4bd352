//! Adding pages to the cache. A page is read from the pager, filled by a program, or zeroed when a file
//! grows.
//!
//! A page is added with the invalidate lock held for reading, so several tasks can add pages, but no task
//! removes pages at the same time. The pager may sleep and is called under this lock. The caller must
//! therefore hold no lock of an address space. If two tasks add the same page, only the first
//! compare-and-swap of the word succeeds, and the page of the second task is freed.
//!
//! `cache/new_page.rs` describes a page that is not published yet. `remove.rs` removes pages. `kinds/huge.rs`
//! adds pages to files of huge pages, and `kinds/direct.rs` adds frames of storage.
//!
//! The page must have its contents and its record before it is published, because lookups take no lock. A new
//! way to fill a page calls `add_page`, which keeps this order. A fill that fails leaves the cache unchanged
//! and leaves no tree nodes behind. `shuttle_engine/waiting.rs` fills from a backing store whose reads take
//! long, concurrently with truncation.

use crate::{
    PAGE_SIZE, Pfn,
    file::{CachedPage, FillError, LOST, MAX_BYTES, Mapping, NewPage, cache::radix::Locked, zero},
    platform::Platform,
    wait::Rounds,
};
use freehold_sync::{RwSemReadGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex};

impl<P: Platform> Mapping<P> {
    /// Brings a page inside the file into the cache, unless the page is already there.
    ///
    /// # Errors
    ///
    /// Fails with a [`FillError`]; the cache is then unchanged.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading. A fatal signal ends the wait for the lock, because a truncation that
    /// holds the lock may itself wait for another page's pager. The pager is called under the lock. The
    /// caller holds no lock of an address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, error::FillError, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.fill(PageIndex::new(3)).unwrap();
    /// assert_eq!(file.present_pages(), 1);
    /// assert_eq!(file.fill(PageIndex::new(4)), Err(FillError::BeyondEnd));
    /// ```
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

    /// Brings a page into the cache, unless the page is already there. The page may lie beyond the end of the
    /// file: it is then part of the memory in use, but not visible until the file grows, and reads as zeroes
    /// then. A truncation, even to the same size, and a hole remove such pages.
    ///
    /// # Errors
    ///
    /// Fails like [`fill`](Self::fill). Fails with `Unsupported` for a page beyond the end of a file that is
    /// not shared memory of 4 KiB pages, and with `BeyondEnd` beyond the largest size of a file.
    ///
    /// # Locks
    ///
    /// The content lock for writing; then the locks of `fill`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// file.reserve(PageIndex::new(4)).unwrap();
    /// assert_eq!((file.size(), file.present_pages()), (PAGE_SIZE, 1));
    /// file.truncate(PAGE_SIZE).unwrap();
    /// assert_eq!(file.present_pages(), 0);
    /// ```
    pub fn reserve(&self, index: PageIndex) -> Result<(), FillError> {
        let _content = self.content.write();
        if index < self.end() {
            return self.fill(index);
        }
        if !self.is_shmem() || self.huge.is_some() || self.is_secret() {
            return Err(FillError::Unsupported);
        }
        if index.get() > MAX_BYTES / PAGE_SIZE {
            return Err(FillError::BeyondEnd);
        }
        self.fill_new(index)?;
        // Relaxed: guarded by `content`.
        self.reserved_end.fetch_max(index.get() + 1, Relaxed);
        Ok(())
    }

    /// Returns the index after the last page that may be in the cache: the end of the file, or the end of the
    /// pages that [`reserve`](Self::reserve) added. The caller holds `content` for writing.
    pub(super) fn end_of_pages(&self) -> PageIndex {
        // Relaxed: as in `reserve`.
        self.end().max(PageIndex::new(self.reserved_end.load(Relaxed)))
    }

    /// Like [`fill`](Self::fill), for a 4 KiB page of which the first `bytes` bytes belong to the file.
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
            // The part of the last page beyond the end of the file reads as zeroes.
            if bytes < PAGE_SIZE {
                zero(platform, pfn, bytes..PAGE_SIZE);
            }
            Ok(())
        })
    }

    /// Creates a page with `contents` and lets `put` publish it, unless the file already has the page. `put`
    /// runs in one read section and may lock a page table in it. A fault that finds the page waits for the
    /// lock of that table and then finds the entry.
    ///
    /// # Errors
    ///
    /// Fails like [`fill`](Self::fill). If the function fails, it has not called `put`.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading. Only shared memory is allowed, so that no other task waits for
    /// storage behind this lock.
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
            // Locked, so that the page does not move before it is mapped. No other task can find the page
            // yet.
            let identity = self.files().memory().try_lock_frame(page.pfn());
            debug_assert!(identity.is_some(), "another task holds the lock of a new page");
            if identity.is_some() {
                put(page);
            }
        })
    }

    /// Like [`fill`](Self::fill), for a page beyond the end of the file that the caller is about to make part
    /// of the file. The page starts as zeroes. The caller holds `content` for writing.
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

    /// Adds a page with `contents`, unless the cache already has the page.
    fn fill_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        // If another task has published a page first, that page is used, and `add_page` frees this one.
        self.add_page(pages_stay, index, contents, |page| {
            page.publish();
        })
    }

    /// Creates a page with `contents` and lets `put` publish it, unless the cache already has the page.
    fn add_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        // A missing word is created only after the page has its contents, so that a call that cannot get the
        // page leaves no tree nodes behind.
        let word = self.word(pages_stay, index);
        // Relaxed: the value 0 is a hint, which the compare-and-swap checks again. A lost page stays lost
        // while the lock is held.
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

    /// Fills the frame `to` with the contents that the page has in the backing store.
    pub(super) fn read(&self, lock: &impl Locked, index: PageIndex, to: Pfn) -> Result<(), FillError> {
        // Relaxed: the lock that the caller holds keeps a `LOST` word unchanged.
        if self.word(lock, index).is_some_and(|word| word.load(Relaxed) == LOST) {
            return Err(FillError::Lost);
        }
        self.pager().read_page(self.files().platform(), index, to).map_err(|_| FillError::Io)?;
        self.zero_beyond_end(index, to);
        Ok(())
    }

    /// Zeroes the bytes of the page `index` in the frame `pfn` that lie beyond the end of the file.
    pub(super) fn zero_beyond_end(&self, index: PageIndex, pfn: Pfn) {
        let end = self.size().saturating_sub(index.byte()).min(PAGE_SIZE);
        if end < PAGE_SIZE {
            zero(self.files().platform(), pfn, end..PAGE_SIZE);
        }
    }

    /// Returns a page inside the file, and brings it into the cache if necessary.
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
