//! Looking up pages in a file's cache, and keeping the pages that were found.
//!
//! A lookup under RCU (`Mapping::find`) takes no lock and takes no reference. The caller must raise the
//! reference count of the frame, or lock the page table that it changes, and then call `Found::is_still`. A
//! page that was found and not kept in one of these ways must not be read or mapped, because its frame may
//! already hold another page. Functions that return a `CachedPage` have already taken a reference. The
//! functions that return the word of a page require the invalidate lock, as their arguments show.
//!
//! `file/mapping.rs` describes the states of a word, and `radix.rs` implements the tree of words.
//! `file/fill.rs` adds pages to the cache, and `file/remove.rs` removes them.
//!
//! Faults, remote access, userfaultfd and the functions of `file/` call these functions. `shuttle_files.rs`
//! in `lab/freehold-machine/tests` runs lookups concurrently with truncation and hole punching.

use super::{entry::Word, radix::Stay, reading};
use crate::{
    Pfn,
    error::NoMemory,
    file::{
        LOST, Mapping,
        cache::radix::Locked,
        removal::{Until, only},
    },
    platform::Platform,
};
use core::ops::{ControlFlow, Deref};
use freehold_sync::{
    Killed, RwSemReadGuard,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, SeqCst},
        fence,
    },
};
use freehold_vmspace::{Memory, PageIndex, PageRange};

/// A page that was found in a cache without a lock.
pub(crate) struct Found<'g> {
    /// The word of the page.
    word: &'g AtomicU64,
    /// The frame that the word named.
    pfn: Pfn,
    /// True if the word had the mark of readahead.
    marked: bool,
}

impl<'g> Found<'g> {
    /// Reads the word of a page. Returns `None` if the page is not visible.
    pub(super) fn at(word: &'g AtomicU64) -> Option<Self> {
        // Acquire pairs with the release that published the page: the frame's contents and record are then
        // visible.
        let seen = Word(word.load(Acquire));
        seen.visible().map(|pfn| Found { word, pfn, marked: seen.is_marked() })
    }

    /// Returns true if the page had the mark of readahead when it was found.
    pub(crate) fn is_marked(&self) -> bool {
        self.marked
    }

    /// Returns the frame that held the page when it was found.
    pub(crate) fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Reads the word again and returns true if the cache still has the page in this frame. The caller must
    /// first raise the frame's reference count, or lock the table in which it is about to map a copy of the
    /// page.
    pub(crate) fn is_still(&self) -> bool {
        // Relaxed: the reference count or the lock orders this load.
        Word(self.word.load(Relaxed)).visible() == Some(self.pfn)
    }
}

/// A page of a file, with a reference to its frame. The frame holds this page until the value is dropped,
/// even if the page leaves the cache.
pub(crate) struct CachedPage<'m, P: Platform> {
    /// The memory to which the reference is returned.
    memory: &'m Memory<P>,
    /// The frame, whose count includes this reference.
    pfn: Pfn,
    /// True if the page had the mark of readahead when it was found.
    marked: bool,
}

impl<P: Platform> CachedPage<'_, P> {
    /// Returns true if the page had the mark of readahead when it was found.
    pub(in crate::file) fn is_marked(&self) -> bool {
        self.marked
    }
}

impl<P: Platform> Deref for CachedPage<'_, P> {
    type Target = Pfn;
    fn deref(&self) -> &Pfn {
        &self.pfn
    }
}

impl<P: Platform> Drop for CachedPage<'_, P> {
    fn drop(&mut self) {
        self.memory.put_frame(self.pfn);
    }
}

impl<P: Platform> Mapping<P> {
    /// Finds a page inside the file in the cache. Takes no reference, so the frame may hold another page by
    /// the time the caller uses the frame. The caller therefore takes a reference or a lock, and then calls
    /// `is_still`.
    pub(crate) fn find<'g>(&'g self, rcu: &'g P::RcuGuard, index: PageIndex) -> Option<Found<'g>> {
        if index < self.end() { self.find_any(rcu, index) } else { None }
    }

    /// Finds a page in the cache, even beyond the end of the file.
    fn find_any<'g>(&'g self, rcu: &'g P::RcuGuard, index: PageIndex) -> Option<Found<'g>> {
        Found::at(self.cache.get(Stay::within::<P>(rcu), index)?)
    }

    /// Like [`find`](Self::find), for several pages: calls `f` with the index of each page that is in the
    /// cache.
    pub(crate) fn find_each(
        &self,
        rcu: &P::RcuGuard,
        range: PageRange,
        mut f: impl FnMut(PageIndex, Found<'_>),
    ) {
        let range = PageRange::new(range.start, range.end.min(self.end()));
        let _: ControlFlow<()> = self.cache.each(Stay::within::<P>(rcu), range, |index, word| {
            if let Some(found) = Found::at(word) {
                f(index, found);
            }
            ControlFlow::Continue(())
        });
    }

    /// Returns the old frame of a page that is moving to another frame. The caller waits for the lock of that
    /// frame. Called under the invalidate lock held for reading.
    fn moving(&self, pages_stay: &RwSemReadGuard<'_, P>, index: PageIndex) -> Option<Pfn> {
        // Relaxed: the caller uses only the lock of the frame, not its contents.
        Word(self.word(pages_stay, index)?.load(Relaxed)).hidden()
    }

    /// Returns a page inside the file, with a reference, if the page is in the cache. Waits if the page is
    /// moving.
    pub(crate) fn get_after_move(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
    ) -> Option<CachedPage<'_, P>> {
        while index < self.end() {
            if let Some(page) = self.get_any(index) {
                return Some(page);
            }
            // Relaxed: as in `moving`. The invalidate lock is held, so a hidden page is not being removed but
            // moved. After the move, the next iteration finds the page.
            let word = Word(self.word(pages_stay, index)?.load(Relaxed));
            word.held()?;
            word.hidden().into_iter().for_each(|pfn| self.files().memory().wait_out_frame(pfn));
        }
        None
    }

    /// Acquires the invalidate lock for reading, to add a page. If the page `index` is moving or being
    /// discarded, waits first until that is over. A caller that holds the content lock has called
    /// `check_discards`, so that it does not wait for a discard.
    pub(in crate::file) fn stay_to_fill(&self, index: PageIndex) -> Result<RwSemReadGuard<'_, P>, Killed> {
        loop {
            let pages_stay = self.invalidate.read_killable()?;
            if self.is_discarding(only(index)) {
                drop(pages_stay);
                self.wait_for_removals(Until::Discarded(only(index)))?;
                continue;
            }
            let Some(pfn) = self.moving(&pages_stay, index) else { return Ok(pages_stay) };
            drop(pages_stay);
            self.files().memory().wait_for_frame(pfn)?;
        }
    }

    /// Returns true if a page inside the file is currently in the cache.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.write_at(PAGE_SIZE, b"new").unwrap();
    /// assert_eq!([0, 1].map(|index| file.has_page(PageIndex::new(index))), [false, true]);
    /// ```
    pub fn has_page(&self, index: PageIndex) -> bool {
        self.find(&P::rcu_read(), index).is_some()
    }

    /// Returns the first pages of `range` that are either all in the cache or all not in the cache, and true
    /// if they are in the cache. Pages beyond the end of the file are not in the cache. Pages of shared
    /// memory that are swapped out count as pages in the cache.
    ///
    /// The function visits a bounded number of pages, so the next run may have the same state. Pages for
    /// which the cache has no tree nodes are skipped together. A caller that walks a long range passes a
    /// preemption point between the calls.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, PageRange, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, PAGE_SIZE << 40).unwrap();
    /// file.write_at(PAGE_SIZE << 30, b"new").unwrap();
    /// let (hole, is_cached) = file.page_run(PageRange::ALL);
    /// assert_eq!((hole.start.get(), hole.end.get(), is_cached), (0, 1 << 30, false));
    /// ```
    pub fn page_run(&self, range: PageRange) -> (PageRange, bool) {
        /// Maximum number of pages that are visited.
        const MOST: usize = 1024;
        let rcu = P::rcu_read();
        let inside = PageRange::new(range.start, range.end.min(self.end()));
        let (mut end, mut is_cached, mut left) = (range.start, false, MOST);
        let stop = self.cache.each(Stay::within::<P>(&rcu), inside, |index, word| {
            // Relaxed: no frame is accessed through the word.
            let is_here = self.is_data(Word(word.load(Relaxed)));
            if index == range.start {
                is_cached = is_here;
            } else if is_here != is_cached || is_cached && index != end || left == 0 {
                // Pages that were skipped before this one are not in the cache.
                end = if is_cached { end } else { index };
                return ControlFlow::Break(());
            }
            end = PageIndex::new(index.get() + 1);
            left -= 1;
            ControlFlow::Continue(())
        });
        if stop.is_continue() && !is_cached {
            end = range.end;
        }
        (PageRange::new(range.start, end), is_cached)
    }

    /// Returns true if the page `index` still lies inside the file. The caller holds the lock of a page
    /// table, and is about to add to this table an entry that maps no page of the file. If this check does
    /// not see a concurrent truncation, the truncation finds that entry.
    pub(crate) fn is_inside(&self, index: PageIndex) -> bool {
        // Pairs with the fence in `cut`: either this task sees the new size, or the truncation sees the
        // table.
        fence(SeqCst);
        index < self.end()
    }

    /// Returns a page inside the file, with a reference, if the page is in the cache. Takes no lock.
    pub(crate) fn get_page(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        if index < self.end() { self.get_any(index) } else { None }
    }

    /// Returns a page in the cache, even beyond the end of the file, with a reference. The caller holds
    /// `content` or the invalidate lock, so that no page is removed.
    pub(in crate::file) fn get_any(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        let rcu = P::rcu_read();
        let found = self.find_any(&rcu, index)?;
        if !self.files().platform().frame(found.pfn()).get_cached() {
            return None;
        }
        let page = CachedPage { memory: self.files().memory(), pfn: found.pfn(), marked: found.is_marked() };
        let is_still = found.is_still();
        // The read section ends before `page` can be dropped, because this drop may release the last
        // reference to the frame.
        drop(rcu);
        is_still.then_some(page)
    }

    /// Returns the word of a page, and allocates tree nodes if necessary.
    pub(crate) fn cache_word<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
    ) -> Result<&'m AtomicU64, NoMemory> {
        Ok(self.cache.make(lock, index)?)
    }

    /// Returns the word of a page, if the tree has nodes for it.
    pub(crate) fn word<'m>(&'m self, lock: &'m impl Locked, index: PageIndex) -> Option<&'m AtomicU64> {
        self.cache.get(Stay::locked(lock), index)
    }

    /// Returns the word of the page `index`, if the page is in the frame `pfn`. The page stays there while
    /// the caller holds `invalidate` for writing, or holds it for reading with the frame locked.
    pub(crate) fn word_of<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
        pfn: Pfn,
    ) -> Option<&'m AtomicU64> {
        // Acquire pairs with the release of the task that published the page.
        self.word(lock, index).filter(|word| Word(word.load(Acquire)).visible() == Some(pfn))
    }

    /// Calls `f` with the index of each page of `range` that is currently in the cache, in ascending order,
    /// until `f` breaks. The caller holds `invalidate`.
    pub(in crate::file) fn each_page<B>(
        &self,
        pages_stay: &impl Locked,
        range: PageRange,
        mut f: impl FnMut(PageIndex) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        // Relaxed: the indices are hints; the callers look the pages up again.
        self.cache.each(Stay::locked(pages_stay), range, |index, word| {
            match Word(word.load(Relaxed)).held() {
                Some(_) => f(index),
                None => ControlFlow::Continue(()),
            }
        })
    }

    /// Returns true if none of these pages is in the cache or lost.
    pub(in crate::file) fn is_absent(&self, stay: Stay<'_>, pages: PageRange) -> bool {
        // Relaxed: either the result is a hint, or the caller holds the lock under which words change. A lost
        // page is not absent.
        let absent = |_, word: &AtomicU64| match word.load(Relaxed) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        self.cache.each(stay, pages, absent).is_continue()
    }

    /// Returns true if the page is neither in the cache nor being read. The answer is a hint.
    pub(in crate::file) fn is_vacant(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        let word = self.cache.get(Stay::within::<P>(&rcu), index);
        // Relaxed: the word is only compared; no frame is accessed through it.
        word.is_none_or(|word| Word(word.load(Relaxed)).is_vacant())
    }

    /// Takes the mark of readahead from a page. Returns false if the page has no mark.
    pub(in crate::file) fn take_mark(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        self.cache.get(Stay::within::<P>(&rcu), index).is_some_and(reading::take_mark)
    }

    /// Returns true if the memory of a page failed, so that no task can get the page.
    pub(crate) fn is_lost(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        // Relaxed: the word is only compared; no frame is accessed through it.
        self.cache.get(Stay::within::<P>(&rcu), index).is_some_and(|word| word.load(Relaxed) == LOST)
    }
}
