//! Adding pages to the cache. A page is read from the pager, filled by a program, or zeroed when a file
//! grows.
//!
//! A page whose contents the engine has is added with the invalidate lock held for reading, so several tasks
//! can add pages, but no task removes pages at the same time. If two tasks add the same page, only the first
//! compare-and-swap of the word succeeds, and the page of the second task is freed.
//!
//! A page that must be read is only marked under this lock. The pager reads it with no lock held, and all
//! tasks that need the page wait for that one read (`read.rs`, `cache/reading.rs`). Every path that needs a
//! page comes through [`try_fill`](Mapping::try_fill), or through `read_ahead`, which does not wait. The
//! caller holds no lock of an address space, because the wait may be long.
//!
//! `cache/new_page.rs` describes a page that is not published yet. `remove.rs` removes pages. `kinds/huge.rs`
//! adds pages to files of huge pages, and `kinds/direct.rs` adds frames of storage.
//!
//! The page must have its contents and its record before it is published, because lookups take no lock. A new
//! way to make a page calls `add_page`, which keeps this order. A fill that fails leaves the cache unchanged
//! and leaves no tree nodes behind. `files::reads` (`engine/freehold/tests`) and `shuttle_engine/waiting.rs`
//! fill from backing stores whose reads take long, concurrently with truncation.

use crate::{
    PAGE_SIZE, Pfn,
    file::{
        CachedPage, FillError, LOST, MAX_BYTES, Mapping, NewPage, Word,
        cache::reading::State,
        contents::Stop,
        kinds::direct::Named,
        read::{Look, Start},
        readahead::{Mark, Readahead, Window},
        removal::only,
        zero,
    },
    platform::Platform,
    wait::Rounds,
};
use freehold_sync::{RwSemReadGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex, PageRange};

impl<P: Platform> Mapping<P> {
    /// Brings a page inside the file into the cache, unless the page is already there.
    ///
    /// # Errors
    ///
    /// Fails with a [`FillError`]; the cache is then unchanged. Without memory, asks the platform first
    /// ([`Platform::memory_short`]).
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably. The lock is released before the pager is called. If the
    /// page must be read, or is being read, waits killably for the end of the read. The caller holds no lock
    /// of an address space.
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
        self.retry_when_short(|| self.try_fill(index))
    }

    /// Brings a page into the cache like [`fill`](Self::fill), but fails at once if there is no memory. The
    /// caller may hold the content lock if the file is not read from a pager that waits.
    pub(crate) fn try_fill(&self, index: PageIndex) -> Result<(), FillError> {
        self.fill_by(index, 0)
    }

    /// Like [`try_fill`](Self::try_fill). A page of a pool or of shared memory comes from the nodes of this
    /// NUMA policy of a mapping.
    pub(super) fn fill_by(&self, index: PageIndex, policy: u64) -> Result<(), FillError> {
        self.fill_in(index, policy, None, &|| Window::of_pages(self.read_block(index)))
    }

    /// Like [`fill_by`](Self::fill_by). If the page must be read, starts reads of all absent pages of the
    /// window that `window` returns and that contains the page. The window is that of the open file with this
    /// state.
    pub(super) fn fill_in(
        &self,
        index: PageIndex,
        policy: u64,
        state: Option<&Readahead>,
        window: &dyn Fn() -> Window,
    ) -> Result<(), FillError> {
        let (mut rounds, mut named) = (Rounds::new(), None);
        loop {
            let pages_stay = self.stay_to_fill(index)?;
            let size = self.size();
            let end = PageIndex::new(self.pages_of(size));
            if index >= end {
                drop(pages_stay);
                if named.is_some() {
                    self.discard_beyond(index);
                }
                return Err(FillError::BeyondEnd);
            }
            if let Some(huge) = &self.huge {
                match self.fill_huge(&pages_stay, huge, index, policy) {
                    Ok(()) => return Ok(()),
                    Err(not_made) => {
                        drop(pages_stay);
                        huge.after(self.files().memory(), not_made)?;
                    }
                }
            } else if self.is_direct() {
                if self.fill_direct(&pages_stay, index, size - index.byte(), named)? {
                    return Ok(());
                }
                drop(pages_stay);
                named = Some(self.name_frame(index)?);
            } else if self.pager().reads_zeroes() && self.invalidate.swapped() == 0 {
                return self.fill_zeroes(&pages_stay, index, policy);
            } else {
                match self.look(&pages_stay, index) {
                    Look::Cached => return Ok(()),
                    Look::Lost => return Err(FillError::Lost),
                    Look::Reading => drop(pages_stay),
                    Look::Swapped(page) => self.swap_in(pages_stay, index, page, policy)?,
                    Look::Vacant if self.pager().reads_zeroes() => {
                        return self.fill_zeroes(&pages_stay, index, policy);
                    }
                    Look::Vacant => self.read_window(pages_stay, index, state, window(), end)?,
                }
                match self.wait_for_read(index)? {
                    State::Visible => return Ok(()),
                    State::Failed => {
                        self.forget_read(index);
                        return Err(FillError::Io);
                    }
                    // The page was removed. It may still lie inside the file.
                    State::Reading | State::Other => {}
                }
            }
            rounds.again::<P>()?;
        }
    }

    /// Starts reads of the absent pages of `window`, which contains the page `index`, in a file that ends
    /// before `end`. Begins with the request for the page. Only the start of this request can fail.
    fn read_window(
        &self,
        pages_stay: RwSemReadGuard<'_, P>,
        index: PageIndex,
        state: Option<&Readahead>,
        window: Window,
        end: PageIndex,
    ) -> Result<(), FillError> {
        let (pages, mut mark) = (window.pages_before(end), Mark::of(window));
        let started = self.start_read(&pages_stay, index, pages, true, &mut mark)?;
        drop(pages_stay);
        if let Start::Send(request) = started {
            let is_whole = request.pages() == pages;
            self.send_read(request);
            if state.is_some() && !is_whole && !self.is_vacant(index) {
                self.read_ahead(pages, &mut mark);
            }
        }
        state.into_iter().for_each(|state| state.correct(window, &mark));
        Ok(())
    }

    /// Starts reads of the pages of this range that lie inside the file and are not in the cache. Does not
    /// wait for the reads. The first failure ends the call: the caller only gives a hint.
    pub(super) fn read_ahead(&self, pages: PageRange, mark: &mut Mark) {
        let mut at = pages.start;
        loop {
            let Ok(pages_stay) = self.invalidate.read_killable() else { return };
            let rest = PageRange::new(at, pages.end.min(self.end()));
            if self.is_discarding(rest) {
                return;
            }
            let mut absent = rest.into_iter().filter(|page| self.look(&pages_stay, *page) == Look::Vacant);
            let Some(index) = absent.next() else { return };
            at = index + 1;
            if self.pager().reads_zeroes() {
                if self.fill_zeroes(&pages_stay, index, 0).is_err() {
                    return;
                }
                continue;
            }
            let Ok(started) =
                self.start_read(&pages_stay, index, PageRange::new(index, rest.end), false, mark)
            else {
                return;
            };
            drop(pages_stay);
            if let Start::Send(request) = started {
                at = request.pages().end;
                self.send_read(request);
                // A pager that has failed at once would fail for the next pages too.
                if self.is_vacant(index) {
                    return;
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
        self.with_content(|_| {
            self.check_discards(only(index))?;
            if index < self.end() {
                return match self.waits_for_pager() {
                    true if self.has_page(index) => Ok(()),
                    true => Err(Stop::Absent(index)),
                    false => self.fill_here(index),
                };
            }
            if !self.is_shmem() || self.huge.is_some() || self.is_secret() {
                return Err(FillError::Unsupported.into());
            }
            if index.get() > MAX_BYTES / PAGE_SIZE {
                return Err(FillError::BeyondEnd.into());
            }
            self.fill_new(index, None)?;
            // Relaxed: guarded by `content`.
            self.reserved_end.fetch_max(index.get() + 1, Relaxed);
            Ok(())
        })
    }

    /// Brings a page inside the file into the cache like [`try_fill`](Self::try_fill), in a file that is not
    /// read from a pager that waits. The caller holds `content` for writing.
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Absent` if the page is swapped out.
    pub(super) fn fill_here(&self, index: PageIndex) -> Result<(), Stop> {
        if self.huge.is_some() {
            return Ok(self.try_fill(index)?);
        }
        let pages_stay = self.stay_to_fill(index)?;
        if index >= self.end() {
            return Err(FillError::BeyondEnd.into());
        }
        match self.look(&pages_stay, index) {
            Look::Swapped(_) | Look::Reading => Err(Stop::Absent(index)),
            Look::Vacant | Look::Lost | Look::Cached => Ok(self.fill_zeroes(&pages_stay, index, 0)?),
        }
    }

    /// Returns a page inside the file like [`page`](Self::page), under the conditions of
    /// [`fill_here`](Self::fill_here).
    pub(super) fn page_here(&self, index: PageIndex) -> Result<CachedPage<'_, P>, Stop> {
        let mut rounds = Rounds::new();
        loop {
            match self.get_page(index) {
                Some(page) => return Ok(page),
                None => self.fill_here(index)?,
            }
            rounds.again::<P>()?;
        }
    }

    /// Returns the index after the last page that may be in the cache: the end of the file, or the end of the
    /// pages that [`reserve`](Self::reserve) added. The caller holds `content` for writing.
    pub(super) fn end_of_pages(&self) -> PageIndex {
        // Relaxed: as in `reserve`.
        self.end().max(PageIndex::new(self.reserved_end.load(Relaxed)))
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
        policy: u64,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        debug_assert!(self.is_shmem());
        let pages_stay = self.invalidate.read_killable()?;
        if index >= self.end() {
            return Err(FillError::BeyondEnd);
        }
        self.add_page(&pages_stay, (index, policy), contents, |page| {
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
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Unnamed` if the file is direct and `named` is not the current frame of the page.
    pub(super) fn fill_new(&self, index: PageIndex, named: Option<Named>) -> Result<(), Stop> {
        let pages_stay = self.stay_to_fill(index)?;
        if !self.is_direct() {
            return Ok(self.fill_zeroes(&pages_stay, index, 0)?);
        }
        if self.fill_direct(&pages_stay, index, 0, named)? { Ok(()) } else { Err(Stop::Unnamed(index)) }
    }

    /// Adds a page of zeroes, unless the cache already has the page.
    fn fill_zeroes(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        policy: u64,
    ) -> Result<(), FillError> {
        // If another task has published a page first, that page is used, and `add_page` frees this one.
        self.add_page(
            pages_stay,
            (index, policy),
            |platform, pfn| platform.zero_frame(pfn),
            |page| {
                page.publish();
            },
        )
    }

    /// Creates a page with `contents` and lets `put` publish it, unless the cache already has the page, or a
    /// read of it. The frame comes from the nodes of the NUMA policy of a mapping.
    fn add_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        (index, policy): (PageIndex, u64),
        contents: impl FnOnce(&P, Pfn),
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
            // The page replaces the failure of an earlier read.
            failed if Word(failed).has_failed() => {
                let _ = word.map(|word| word.compare_exchange(failed, 0, Relaxed, Relaxed));
            }
            _ => return Ok(()),
        }
        let platform = self.files().platform();
        let charge = self.charge_pages(PageCount::ONE)?;
        let pfn = self.files().memory().alloc_cache(self.cache_page(), index, policy)?;
        contents(platform, pfn);
        let word = word.map_or_else(|| self.cache_word(pages_stay, index), Ok);
        let published = word.map(|word| NewPage::put(platform, word, pfn, put));
        match published {
            Ok(true) => {
                self.invalidate.came(1);
                charge.keep();
            }
            _ => self.files().memory().put_frame(pfn),
        }
        Ok(published.map(drop)?)
    }

    /// Zeroes the bytes of the page `index` in the frame `pfn` that lie beyond the end of the file.
    pub(super) fn zero_beyond_end(&self, index: PageIndex, pfn: Pfn) {
        let end = self.size().saturating_sub(index.byte()).min(PAGE_SIZE);
        if end < PAGE_SIZE {
            zero(self.files().platform(), pfn, end..PAGE_SIZE);
        }
    }

    /// Returns a page inside the file, and brings it into the cache if necessary. Fails at once if there is
    /// no memory.
    pub(crate) fn page(&self, index: PageIndex) -> Result<CachedPage<'_, P>, FillError> {
        let mut rounds = Rounds::new();
        loop {
            match self.get_page(index) {
                Some(page) => return Ok(page),
                None => self.try_fill(index)?,
            }
            rounds.again::<P>()?;
        }
    }
}
