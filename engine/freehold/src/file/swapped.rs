//! Pages of shared memory that are swapped out: the word of a page between the cache of its file and a slot
//! of a swap device.
//!
//! Entries of page tables never name the slot of a page of shared memory: they are removed before the page is
//! swapped out, as for any page of a file. The word of the page names the slot instead, and has the only
//! count of it.
//!
//! | word | slot (`swap/slot.rs`) | frame | references to the frame |
//! | --- | --- | --- | --- |
//! | present | none | the page | the cache of the file; each user |
//! | leaving | cached, new, and then being written | the page | the swap cache; the write; the task |
//! | swapped out | cached, being written | the page, which does not change | the swap cache; the write |
//! | swapped out | stored | none | none |
//! | swapped out | being read | undefined contents | the swap cache; the read; each waiting task |
//! | swapped out | cached, clean | the page, which does not change | the swap cache |
//! | being read, briefly | the task that returns the page has the count | the page | the swap cache; the task |
//! | present | being written, count 0 | the page | the cache of the file; the write |
//! | swapped out, of zeroes | none | none | none |
//!
//! # Out
//!
//! Reclaim removes all entries, flushes, and calls [`swap_out`](Mapping::swap_out). The call holds the
//! invalidate lock for writing, which it does not wait for.
//!
//! | step | so that |
//! | --- | --- |
//! | 1. the word becomes *leaving* | a task that needs the page waits for the lock |
//! | 2. the cache gives up its reference, if there is no other one | no lookup gets the page any more |
//! | 3. `insert`: the frame enters the swap cache | the page has a slot |
//! | 4. `mark_written` | if the page returns at once, its slot becomes free at the end of the write |
//! | 5. the word becomes *swapped out* (release) | a task that finds the entry finds the slot in use |
//! | 6. without the lock: the request goes to the device (`reclaim/swap_out.rs`) | |
//!
//! # Back
//!
//! Each path that needs a page comes to `fill_in`, with no lock held. The page first comes into the swap
//! cache, without a lock ([`Files::swap_in`]). N tasks that need the page cause one read. The page then
//! returns to its file under the invalidate lock held for reading ([`Mapping::return_page`]):
//!
//! | step | so that |
//! | --- | --- |
//! | 1. a lookup in the swap cache takes a reference to the frame | the frame keeps the contents of the page, even if the page leaves the swap cache |
//! | 2. the word becomes *being read* into the frame, by compare-and-swap | one task has the count of the slot, and others wait for this task |
//! | 3. `take` drops the count | the slot is free, or becomes free at the end of its write |
//! | 4. the frame is a page of the file again, and the word becomes *present* | |
//!
//! The lock is held from before step 1. The page therefore cannot go to a slot again before step 2, and the
//! word that step 2 finds is that of the slot that step 1 has looked up.
//!
//! No task waits for a device while it holds a lock of the file. A task that holds the content lock and finds
//! a page swapped out returns [`Stop::Absent`](super::contents::Stop), as for a page that a pager must read.
//!
//! A removal of the page releases the count of the word (`remove.rs`). A page that is swapped out counts as a
//! page of the file: it is committed memory, and a part of `present_pages`. `tests/swapped/shared.rs` and
//! `shuttle_engine/swapped_shared.rs` test this file.

use super::{
    FillError, Mapping, Word,
    cache::{
        entry::{LEAVING, SwappedOut},
        radix::Stay,
        reading::{self, End},
    },
    contents::Stop,
    swap_in::{SwapInError, SwapWindow},
};
use crate::{
    PAGE_SIZE, Pfn,
    counted::Counted,
    platform::{PageOwner, Platform},
    swap::{Lookup, SlotRun, SwapEntry, SwapId, SwapWindows},
};
use core::ops::ControlFlow;
use freehold_sync::{
    RwSemReadGuard,
    atomic::{
        AtomicU64, CHECKED,
        Ordering::{Relaxed, Release},
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// Returns true if a frame, which does not change, is full of zeroes.
pub(crate) fn is_zero<P: Platform>(platform: &P, pfn: Pfn) -> bool {
    const PART: usize = 256;
    let mut part = [0; PART];
    (0..PAGE_SIZE as usize).step_by(PART).all(|at| {
        platform.read_frame(pfn, at, &mut part);
        part.iter().fold(0, |all, byte| all | byte) == 0
    })
}

impl<P: Platform> Mapping<P> {
    /// Returns true if the pages of the file may be swapped out.
    pub(crate) fn is_swappable(&self) -> bool {
        self.is_shmem() && self.huge.is_none()
    }

    /// Returns true if a page that is not in the cache must be read: from the backing store of the file, or
    /// from a swap device. A hint.
    pub(crate) fn reads_device(&self, index: PageIndex) -> bool {
        self.has_store() || self.is_in_swap_cache(index) == Some(false)
    }

    /// Returns true if the file has contents for a page inside the file, which are in the cache or swapped
    /// out. A page of shared memory without contents reads as zeroes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::Mapping, reclaim::ReclaimRequest};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let _id = engine.swap_on(freehold_machine::MemorySwap::new(64), 0).unwrap();
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.write_at(PAGE_SIZE, b"new").unwrap();
    /// engine.reclaim(&ReclaimRequest::pages(1));
    /// let page = PageIndex::new(1);
    /// assert_eq!((file.has_page(page), file.has_data(page)), (false, true));
    /// ```
    pub fn has_data(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        let word = self.cache.get(Stay::within::<P>(&rcu), index);
        // Relaxed: a hint; no frame is accessed through the word.
        index < self.end() && word.is_some_and(|word| self.is_data(Word(word.load(Relaxed))))
    }

    /// Returns true if the word of a page stands for contents. For shared memory, a page that is moving or
    /// coming back has contents too.
    pub(super) fn is_data(&self, word: Word) -> bool {
        word.visible().is_some() || self.is_shmem() && word.has_contents()
    }

    /// Returns the number of pages of this range that are swapped out. Pages in the swap cache count.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, file::Mapping, reclaim::ReclaimRequest};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let _id = engine.swap_on(freehold_machine::MemorySwap::new(64), 0).unwrap();
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.write_at(0, b"new").unwrap();
    /// engine.reclaim(&ReclaimRequest::pages(1));
    /// assert_eq!((file.swapped_pages(PageRange::ALL), file.present_pages()), (1, 1));
    /// ```
    pub fn swapped_pages(&self, range: PageRange) -> u64 {
        let mut count = 0;
        let _: ControlFlow<()> = self.each_swapped(range, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }

    /// Calls `f` with each page of this range that is swapped out, in ascending order, until `f` breaks. A
    /// hint.
    pub(crate) fn each_swapped<B>(
        &self,
        range: PageRange,
        mut f: impl FnMut(PageIndex, SwappedOut) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        /// Number of words that are visited in one read section.
        const LOOKS: usize = if CHECKED { 2 } else { 1024 };
        let mut rest = range;
        while self.invalidate.swapped() != 0 {
            let rcu = P::rcu_read();
            let mut looks = 0;
            let stop = self.cache.each(Stay::within::<P>(&rcu), rest, |index, word| {
                if looks == LOOKS {
                    return ControlFlow::Break(Err(index));
                }
                looks += 1;
                // Relaxed: as in `has_data`.
                match Word(word.load(Relaxed)).swapped_out().map(|page| f(index, page)) {
                    Some(ControlFlow::Break(found)) => ControlFlow::Break(Ok(found)),
                    _ => ControlFlow::Continue(()),
                }
            });
            drop(rcu);
            match stop.break_value() {
                None => break,
                Some(Ok(found)) => return ControlFlow::Break(found),
                Some(Err(next)) => rest.start = next,
            }
            P::cond_resched();
        }
        ControlFlow::Continue(())
    }

    /// Returns the place of a page that is swapped out. A hint if the caller does not hold the invalidate
    /// lock.
    pub(crate) fn swapped_at(&self, index: PageIndex) -> Option<SwappedOut> {
        if self.invalidate.swapped() == 0 {
            return None;
        }
        let rcu = P::rcu_read();
        // Relaxed: as in `has_data`.
        Word(self.cache.get(Stay::within::<P>(&rcu), index)?.load(Relaxed)).swapped_out()
    }

    /// Checks that a page is not swapped out. The caller holds `content` and `invalidate` for writing.
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Absent` if the page is swapped out.
    pub(super) fn check_not_swapped(&self, index: PageIndex) -> Result<(), Stop> {
        self.swapped_at(index).map_or(Ok(()), |_| Err(Stop::Absent(index)))
    }

    /// Returns true if an access to the page needs no device: the page is in the cache or in the swap cache.
    pub(crate) fn is_in_core(&self, index: PageIndex) -> bool {
        self.has_page(index) || self.is_in_swap_cache(index) == Some(true)
    }

    /// Returns whether a page that has a slot is in the swap cache, and `None` for each other page. A hint.
    fn is_in_swap_cache(&self, index: PageIndex) -> Option<bool> {
        match self.swapped_at(index)? {
            SwappedOut::Slot(entry) => Some(self.files().swap.is_cached(entry)),
            SwappedOut::Zeroes => None,
        }
    }

    /// Swaps out a page that no entry maps. Returns `None` if the page is in use, or if `slots` has no slot.
    /// If the page gets a slot, its write has begun afterwards, and the caller sends the request. A page full
    /// of zeroes needs no slot, and its frame is free.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing, if it is free.
    pub(crate) fn swap_out(
        this: &Counted<Self>,
        index: PageIndex,
        pfn: Pfn,
        slots: &mut SlotRun<P>,
    ) -> Option<SwappedOut> {
        let (files, pages_go) = (this.files(), this.invalidate.try_write()?);
        let (frame, word) = (files.platform().frame(pfn), this.word_of(&pages_go, index, pfn)?);
        if frame.refs() != 1 {
            return None;
        }
        this.split_block(&pages_go, index, PageRange::one(index));
        // Relaxed, here and below: the words of pages in the cache change under the lock.
        let shown = word.load(Relaxed);
        word.store(shown | LEAVING, Relaxed);
        if !frame.try_leave_cache() {
            // Release pairs with the acquire of lookups, here and below.
            word.store(shown, Release);
            return None;
        }
        let page = match is_zero(files.platform(), pfn) {
            true => Some(SwappedOut::Zeroes),
            false => slots.insert(pfn).map(SwappedOut::Slot),
        };
        let Some(page) = page else {
            frame.enter_cache();
            word.store(shown, Release);
            return None;
        };
        if let SwappedOut::Slot(entry) = page {
            let begun = files.swap.mark_written(entry);
            debug_assert_eq!(begun, Some(pfn), "the page of a new slot was written");
        }
        frame.become_swapped();
        word.store(Word::swapped(page).0, Release);
        this.invalidate.swapped_out();
        if !this.list_link.is_linked() {
            files.swapped.add(this);
        }
        drop(pages_go);
        files.memory().put_frame(pfn);
        Some(page)
    }

    /// Brings a page that is swapped out closer to the cache of the file: into the swap cache, or from there
    /// into the cache. The caller looks again then.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, if a fatal signal arrives, or if the page is still swapped out and cannot
    /// be read or is lost.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, which the caller holds, and which is released before a read. No other
    /// lock.
    pub(super) fn swap_in(
        &self,
        pages_stay: RwSemReadGuard<'_, P>,
        index: PageIndex,
        page: SwappedOut,
        policy: u64,
    ) -> Result<(), FillError> {
        let SwappedOut::Slot(entry) = page else { return self.return_zeroes(&pages_stay, index, policy) };
        let (files, memory) = (self.files(), self.files().memory());
        if let Ok(found) = files.swap.lookup_locked(entry).inspect_err(|stale| memory.put_frame(*stale)) {
            match found {
                Lookup::Cached(pfn) if !files.platform().frame(pfn).has_failed() => {
                    self.return_page(&pages_stay, index, entry, pfn);
                    return Ok(());
                }
                Lookup::Cached(pfn) | Lookup::Reading(pfn) => memory.put_frame(pfn),
                Lookup::Stored(_) | Lookup::NotInUse => {}
            }
        }
        drop(pages_stay);
        let error = match files.swap_in(entry, self.swap_owner(), || Ok(self.swap_window(index))) {
            Ok(()) => return Ok(()),
            Err(SwapInError::NoMemory) => return Err(FillError::NoMemory),
            Err(SwapInError::Killed) => return Err(FillError::Killed),
            Err(SwapInError::Io) => FillError::Io,
            Err(SwapInError::Lost) => FillError::Lost,
        };
        if self.swapped_at(index) == Some(page) { Err(error) } else { Ok(()) }
    }

    /// Returns the owner of the frames into which pages of the file are read.
    fn swap_owner(&self) -> PageOwner<'static, P::Mmu> {
        PageOwner::File(self.file_id())
    }

    /// Returns the entries that are to be read ahead beside a page: those of the next pages, if the page
    /// before is in the cache, as in a sequential access.
    fn swap_window(&self, index: PageIndex) -> SwapWindow {
        let is_next = index.get().checked_sub(1).is_none_or(|before| self.has_page(PageIndex::new(before)));
        let next = index + 1;
        let pages = if is_next { SwapWindows::LARGEST - 1 } else { 0 };
        self.entries_of(PageRange::new(next, next.saturating_add(pages)))
    }

    /// Returns the entries of the first pages of a range that are swapped out, ordered by slots.
    fn entries_of(&self, pages: PageRange) -> SwapWindow {
        let mut entries = SwapWindow::new();
        let _: ControlFlow<()> = self.each_swapped(pages, |_, page| match page {
            SwappedOut::Zeroes => ControlFlow::Continue(()),
            SwappedOut::Slot(entry) => match entries.try_push(entry) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
        });
        entries.sort_unstable_by_key(|entry| entry.payload());
        entries
    }

    /// Begins reads of the pages of a range that are swapped out, and does not wait for them. The pages come
    /// into the swap cache. The first failure ends the call.
    pub(super) fn read_swapped(&self, pages: PageRange) {
        const STEP: u64 = SwapWindows::LARGEST;
        let (files, owner) = (self.files(), self.swap_owner());
        let mut at = pages.start;
        while at < pages.end && self.invalidate.swapped() != 0 {
            let part = PageRange::new(at, pages.end.min(at + STEP));
            let entries = self.entries_of(part);
            at = part.end;
            for (n, entry) in entries.iter().enumerate() {
                let Ok(pfn) = files.memory().alloc_swap(owner) else { return };
                let request = files.swap.begin_read(*entry, pfn);
                files.memory().put_frame(pfn);
                if let Some(request) = request {
                    files.read_ahead(request, *entry, owner, &entries[n + 1..]);
                    break;
                }
            }
            P::cond_resched();
        }
    }

    /// Returns a page from the swap cache to the cache of the file, unless another task does, or writes the
    /// whole page, or the memory of the frame has failed. `pfn` is the frame that a lookup of the slot has
    /// found under this lock. Takes over the caller's reference to it.
    ///
    /// # Locks
    ///
    /// The lock of the frame: a failure finds the page either in the swap cache or in the cache of the file
    /// (`rmap/failure_swapped.rs`).
    fn return_page(&self, pages_stay: &RwSemReadGuard<'_, P>, index: PageIndex, entry: SwapEntry, pfn: Pfn) {
        let (files, memory) = (self.files(), self.files().memory());
        let (page, identity) = (SwappedOut::Slot(entry), memory.lock_frame(pfn));
        let word = self
            .word(pages_stay, index)
            .filter(|word| !files.platform().frame(pfn).has_failed() && reading::claim(word, page, pfn));
        let Some(word) = word else {
            drop(identity);
            return memory.put_frame(pfn);
        };
        // This task has the word's count. The word has not changed since the lookup, so the frame has the
        // page, even if it has left the swap cache in between.
        let taken = files.swap.take(entry, pfn);
        taken.frame.into_iter().for_each(|frame| memory.put_frame(frame));
        let frame = files.platform().frame(pfn);
        frame.become_shared(self.cache_page(), index);
        frame.return_to_cache();
        let end = reading::end(word, pfn, true, false);
        drop(identity);
        self.invalidate.swapped_back(1);
        match end {
            End::Ended { wake: true } => self.turn(index).wake::<P>(),
            End::Ended { wake: false } => {}
            // A write of the whole page has replaced it.
            End::Removed => {
                frame.leave_cache();
                memory.put_frame(pfn);
            }
        }
    }

    /// Returns a page full of zeroes to the cache of the file, in a new frame.
    fn return_zeroes(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        policy: u64,
    ) -> Result<(), FillError> {
        let (memory, platform) = (self.files().memory(), self.files().platform());
        let pfn = memory.alloc_cache(self.cache_page(), index, policy)?;
        platform.zero_frame(pfn);
        platform.frame(pfn).enter_cache();
        let (old, new) = (Word::swapped(SwappedOut::Zeroes), Word::present(pfn));
        // Release pairs with the acquire of lookups.
        let is_in = |word: &AtomicU64| word.compare_exchange(old.0, new.0, Release, Relaxed).is_ok();
        if self.word(pages_stay, index).is_some_and(is_in) {
            self.invalidate.swapped_back(1);
        } else {
            platform.frame(pfn).leave_cache();
            memory.put_frame(pfn);
        }
        Ok(())
    }

    /// Ends the state of a page that was swapped out, after a task has changed the word of the page.
    pub(super) fn forget_swapped(&self, page: SwappedOut) {
        self.invalidate.swapped_back(1);
        if let SwappedOut::Slot(entry) = page {
            self.release_slot(entry);
        }
    }

    /// Drops the count that the word of a page had.
    fn release_slot(&self, entry: SwapEntry) {
        if let Some(pfn) = self.files().swap.release(entry) {
            self.files().memory().put_frame(pfn);
        }
    }

    /// Brings the pages of the file back that are on a device. Returns their number.
    pub(super) fn leave_device(&self, id: SwapId) -> Result<u64, FillError> {
        let (mut rest, mut back) = (PageRange::ALL, 0);
        let is_there = |index, page| match page {
            SwappedOut::Slot(entry) if entry.device() == id => ControlFlow::Break((index, page)),
            _ => ControlFlow::Continue(()),
        };
        while let ControlFlow::Break((index, page)) = self.each_swapped(rest, is_there) {
            rest.start = index + 1;
            match self.fill(index) {
                Ok(()) => back += 1,
                Err(error) if self.swapped_at(index) == Some(page) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(back)
    }
}
