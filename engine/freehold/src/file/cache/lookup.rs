//! Looking for pages in a file's cache, and keeping what was found.

use super::{entry::Word, radix::Stay};
use crate::{
    Pfn,
    error::NoMemory,
    file::{LOST, Mapping, cache::radix::Locked},
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

/// A page that was found in a cache, without a lock.
pub(crate) struct Found<'g> {
    word: &'g AtomicU64,
    pfn: Pfn,
}

impl<'g> Found<'g> {
    /// What the word of a page says at this moment.
    pub(super) fn at(word: &'g AtomicU64) -> Option<Self> {
        // Acquire pairs with the release that published it: the frame's contents and record are seen.
        let pfn = Word(word.load(Acquire)).visible()?;
        Some(Found { word, pfn })
    }

    /// The frame: this page's, until it is taken away.
    pub(crate) fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// The second look: the cache has the page still. For a task that has raised the count of the frame's
    /// references since the first one, or has locked the table that is to map something in its stead.
    pub(crate) fn is_still(&self) -> bool {
        // Relaxed: ordered by the count, or by the lock.
        Word(self.word.load(Relaxed)).visible() == Some(self.pfn)
    }
}

/// A page of a file with a reference: its frame stays this page's frame, in or out of the cache.
pub(crate) struct CachedPage<'m, P: Platform> {
    memory: &'m Memory<P>,
    pfn: Pfn,
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
    /// A page inside the file, if it is in the cache: where it was found, and the frame, which may be another
    /// page's at the next moment.
    pub(crate) fn find<'g>(&'g self, rcu: &'g P::RcuGuard, index: PageIndex) -> Option<Found<'g>> {
        if index < self.end() { self.find_any(rcu, index) } else { None }
    }

    fn find_any<'g>(&'g self, rcu: &'g P::RcuGuard, index: PageIndex) -> Option<Found<'g>> {
        Found::at(self.cache.get(Stay::within::<P>(rcu), index)?)
    }

    /// As [`find`](Self::find) for several pages: calls `f` with the index of each that is there.
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

    /// The frame that a page is moving out of, under the invalidate lock held for reading: its lock is to be
    /// waited for.
    fn moving(&self, pages_stay: &RwSemReadGuard<'_, P>, index: PageIndex) -> Option<Pfn> {
        // Relaxed: nothing is read there but the lock.
        Word(self.word(pages_stay, index)?.load(Relaxed)).hidden()
    }

    /// A page inside the file that is in the cache, with a reference: of one that is moving the move is
    /// waited for.
    pub(crate) fn get_after_move(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
    ) -> Option<CachedPage<'_, P>> {
        while index < self.end() {
            if let Some(page) = self.get_any(index) {
                return Some(page);
            }
            // Relaxed: as in `moving`. In no other way does a page leave the cache under the lock; one that
            // has moved since the first look is found by the next.
            let word = Word(self.word(pages_stay, index)?.load(Relaxed));
            word.held()?;
            word.hidden().into_iter().for_each(|pfn| self.files().memory().wait_out_frame(pfn));
        }
        None
    }

    /// Keeps pages in the file while one comes; of the page `index`, which may be there, the move was waited
    /// for, if it was moving.
    pub(in crate::file) fn stay_to_fill(&self, index: PageIndex) -> Result<RwSemReadGuard<'_, P>, Killed> {
        loop {
            let pages_stay = self.invalidate.read_killable()?;
            let Some(pfn) = self.moving(&pages_stay, index) else { return Ok(pages_stay) };
            drop(pages_stay);
            self.files().memory().wait_for_frame(pfn)?;
        }
    }

    /// Whether a page inside the file is in the cache at this moment.
    pub fn has_page(&self, index: PageIndex) -> bool {
        self.find(&P::rcu_read(), index).is_some()
    }

    /// Whether the file still goes as far as the page `index`, for a task that is about to map something else
    /// there, under the lock of the table: a truncation that is not seen here finds the entry.
    pub(crate) fn is_inside(&self, index: PageIndex) -> bool {
        // Pairs with the one in `cut`: either the size is seen here, or the table there.
        fence(SeqCst);
        index < self.end()
    }

    /// A page inside the file, if it is in the cache, with a reference. Takes no lock.
    pub(crate) fn get_page(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        if index < self.end() { self.get_any(index) } else { None }
    }

    /// A page in the cache, inside the file or not, with a reference. The caller holds `content`, or the
    /// invalidate lock, so nothing is cut off.
    pub(in crate::file) fn get_any(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        let rcu = P::rcu_read();
        let found = self.find_any(&rcu, index)?;
        if !self.files().platform().frame(found.pfn()).get_cached() {
            return None;
        }
        let page = CachedPage { memory: self.files().memory(), pfn: found.pfn() };
        let is_still = found.is_still();
        // Before the reference may be given back, which may be the last.
        drop(rcu);
        is_still.then_some(page)
    }

    /// The word of a page, made if need be.
    pub(crate) fn cache_word<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
    ) -> Result<&'m AtomicU64, NoMemory> {
        Ok(self.cache.make(lock, index)?)
    }

    /// The word of a page that is, or was, in the cache.
    pub(crate) fn word<'m>(&'m self, lock: &'m impl Locked, index: PageIndex) -> Option<&'m AtomicU64> {
        self.cache.get(Stay::locked(lock), index)
    }

    /// The word of the page `index` if that is in this frame, as it stays under `invalidate` held for
    /// writing; or held for reading, with the frame locked.
    pub(crate) fn word_of<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
        pfn: Pfn,
    ) -> Option<&'m AtomicU64> {
        // Acquire pairs with the release of the task that put it there.
        self.word(lock, index).filter(|word| Word(word.load(Acquire)).visible() == Some(pfn))
    }

    /// Indices of the pages of `range` that are in the cache at this moment, ascending, until `f` breaks.
    /// Under `invalidate`.
    pub(in crate::file) fn each_page<B>(
        &self,
        pages_stay: &impl Locked,
        range: PageRange,
        mut f: impl FnMut(PageIndex) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        // Relaxed: hints, to be looked up again.
        self.cache.each(Stay::locked(pages_stay), range, |index, word| {
            match Word(word.load(Relaxed)).held() {
                Some(_) => f(index),
                None => ControlFlow::Continue(()),
            }
        })
    }

    /// Whether nothing is, or was, in the cache of these pages.
    pub(in crate::file) fn is_absent(&self, stay: Stay<'_>, pages: PageRange) -> bool {
        // Relaxed: a hint, or words change under the lock. One that is lost is there, too.
        let absent = |_, word: &AtomicU64| match word.load(Relaxed) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        self.cache.each(stay, pages, absent).is_continue()
    }

    /// Whether the memory of a page failed, so that nobody gets it.
    pub(crate) fn is_lost(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        // Relaxed: nothing is followed that the word names.
        self.cache.get(Stay::within::<P>(&rcu), index).is_some_and(|word| word.load(Relaxed) == LOST)
    }
}
