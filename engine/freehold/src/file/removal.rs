//! Removals of pages that are under way: truncations and holes.
//!
//! A removal changes the cache under the content and invalidate locks (`change/truncate.rs`). It holds no
//! lock before this step, while it waits for writes of its pages, and after this step, while the pager
//! discards them. Instead, the file lists the pages ([`Removals`]):
//!
//! | state | pages | begins | ends | meanwhile |
//! | --- | --- | --- | --- | --- |
//! | *announced* | all pages of which the removal changes a byte | when the removal finds a page that is being written, under the invalidate lock (W); after a question to the pager, before the mark that permits the store | when the removal has changed the cache; before it waits for anything except writes; when it fails | no write of the pages begins |
//! | *discarding* | the whole pages that the removal takes out of the cache | before the change of the cache, under the content and invalidate locks (W) | when `Pager::discard` has returned | no page enters the cache |
//!
//! The first state bounds the removal: a task that changes the pages and writes them back again and again
//! cannot overtake it, because the removal waits only for writes that began before the announcement. An
//! announced removal waits for nothing else, so the end of its wait depends only on the pager's writes. The
//! announcement also keeps the permission of a page whose bytes the removal zeroes (`permit.rs`): the
//! permission would end with a write. A write-back of the pages waits until the removal is not announced any
//! more, and then writes the pages that are still in the cache.
//!
//! The second state orders the pager's work: a page that was removed and is part of the file again is read,
//! changed and written after its discard. A task that needs such a page waits. Other pages of the file, and
//! other removals, proceed. Shared memory that reads as zeroes, and pools, need no order and skip this state.
//!
//! | access | pairs with | so that |
//! | --- | --- | --- |
//! | `announce`, under the lock of the marks | `begin_writes`, under the same lock | no write begins after the announcement |
//! | `discards` becomes 1, under the invalidate lock (W) | the load of `discards` under the same lock (R) | no page enters the cache after the change |
//! | the end of a discard: `discards` becomes 0 (release) | the load of `discards` (acquire) | what the pager did is visible to a task that reads the page |
//! | sleeper: loads the counter, then sets `waited` under the lock of the marks | the end of a state: clears `waited` under the lock, then increments the counter | the task does not sleep, or is woken |
//!
//! The list has two places for each state, so that no removal needs memory. Without a place, a removal is
//! not announced, and may be overtaken; before the second state, it waits for a place. A new operation that
//! adds a page to the cache calls `stay_to_fill`, or [`is_discarding`](Mapping::is_discarding) under the
//! invalidate lock. `files::removals` (`engine/freehold/tests`) and `removals` (`shuttle_engine`) test this
//! file. The mutations that begin with `removal-` (`xtask/mutants`) remove its parts.

use super::{Mapping, cache::reading::Turn, contents::Stop};
use crate::{platform::Platform, wait::Rounds};
use arrayvec::ArrayVec;
use freehold_sync::{Killed, RwSemWriteGuard, rank};
use freehold_vmspace::{PageIndex, PageRange};

/// Number of places for removals in each of the two states. Each place is 16 bytes of every file.
const PLACES: usize = 2;

/// The removals of a file that are under way. Guarded by the lock of the marks.
#[derive(Default)]
pub(in crate::file) struct Removals {
    /// Pages of which no write begins. The ranges may overlap.
    announced: ArrayVec<PageRange, PLACES>,
    /// Pages that the pager is about to discard. The ranges may overlap.
    discarding: ArrayVec<PageRange, PLACES>,
    /// True if a task may sleep until a state ends.
    waited: bool,
}

/// A condition on the removals of a file, for which a task waits.
#[derive(Clone, Copy)]
pub(in crate::file) enum Until {
    /// None of these pages belongs to an announced removal.
    NotAnnounced(PageRange),
    /// None of these pages is being discarded.
    Discarded(PageRange),
    /// There is a place for another discard.
    Place,
}

impl Removals {
    /// Returns the pages of the leaf that begins at `base`, as bits, of which no write may begin.
    pub fn held_back(&self, base: u64) -> u64 {
        let bit = |index: u64| index.saturating_sub(base).min(u64::from(u64::BITS));
        let below = |bits: u64| if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        self.announced
            .iter()
            .fold(0, |held, pages| held | below(bit(pages.end.get())) & !below(bit(pages.start.get())))
    }

    /// Returns true if the condition holds.
    fn is(&self, until: Until) -> bool {
        match until {
            Until::NotAnnounced(pages) => !self.announced.iter().any(|other| overlap(*other, pages)),
            Until::Discarded(pages) => !self.discarding.iter().any(|other| overlap(*other, pages)),
            Until::Place => !self.discarding.is_full(),
        }
    }
}

/// Returns the range of one page. Empty for an index that no page can have.
pub(in crate::file) fn only(index: PageIndex) -> PageRange {
    PageRange::new(index, index.saturating_add(1))
}

/// Returns true if the two ranges have a page in common.
fn overlap(a: PageRange, b: PageRange) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// Removes one range that equals `pages` from a list. Equal ranges are interchangeable.
fn take(list: &mut ArrayVec<PageRange, PLACES>, pages: PageRange) {
    let at = list.iter().position(|other| *other == pages);
    debug_assert!(at.is_some(), "a removal is not listed");
    at.map(|at| list.swap_remove(at));
}

/// A removal that is under way, as seen by the task that makes it. Its drop withdraws the announcement.
pub(in crate::file) struct Removal<'m, P: Platform> {
    mapping: &'m Mapping<P>,
    /// The pages of which the removal changes a byte. Empty if the operation is no removal.
    pages: PageRange,
    /// True if the pages are listed as announced.
    announced: bool,
}

impl<'m, P: Platform> Removal<'m, P> {
    /// Creates the state of an operation on a file that has removed nothing yet.
    pub fn new(mapping: &'m Mapping<P>) -> Self {
        Removal { mapping, pages: PageRange::new(PageIndex::ZERO, PageIndex::ZERO), announced: false }
    }

    /// Sets the pages of which the operation changes a byte. They are the same in each attempt.
    pub fn set_pages(&mut self, pages: PageRange) {
        debug_assert!(!self.announced || self.pages == pages, "the pages of a removal have changed");
        self.pages = pages;
    }

    /// Announces the removal, if the file has a place for it. No write of the pages begins any more.
    pub fn announce(&mut self) {
        if !self.announced && !self.pages.is_empty() {
            self.announced = self.mapping.marks().removals.announced.try_push(self.pages).is_ok();
        }
    }

    /// Withdraws the announcement. Wakes the tasks that wait to write the pages.
    pub fn withdraw(&mut self) {
        if core::mem::take(&mut self.announced) {
            self.mapping.end_state(|removals| take(&mut removals.announced, self.pages));
            self.mapping.dirty.throttle.end_hold::<P>();
        }
    }
}

impl<P: Platform> Drop for Removal<'_, P> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Pages that leave the cache, and that the pager has to discard then. Until the drop of this value, none of
/// the pages enters the cache.
#[must_use = "the pager is told about the pages by `send`"]
pub(in crate::file) struct Discard<'m, P: Platform> {
    mapping: &'m Mapping<P>,
    pages: PageRange,
    /// True if the pages are listed.
    listed: bool,
}

impl<P: Platform> Discard<'_, P> {
    /// Makes the pager discard the pages. The caller holds no lock, because the pager may take long.
    pub fn send(self) {
        if !self.pages.is_empty() {
            rank::holds_none::<P>();
            self.mapping.pager().discard(self.pages);
        }
    }
}

impl<P: Platform> Drop for Discard<'_, P> {
    fn drop(&mut self) {
        if self.listed {
            self.mapping.end_state(|removals| take(&mut removals.discarding, self.pages));
        }
    }
}

impl<P: Platform> Mapping<P> {
    /// Returns true if a page must not enter the cache before the pager has discarded it: the pager stores
    /// pages, or reads them.
    pub(crate) fn orders_discards(&self) -> bool {
        self.huge.is_none() && (self.is_written_back() || !self.pager().reads_zeroes())
    }

    /// Begins to discard pages that the caller is about to remove. No page of the range enters the cache
    /// until the returned value is dropped. The caller holds `content` and `invalidate` for writing.
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Removals` if there is no place in the list.
    pub(in crate::file) fn begin_discard(
        &self,
        _: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
    ) -> Result<Discard<'_, P>, Stop> {
        let listed = self.orders_discards() && !pages.is_empty();
        if listed {
            let mut marks = self.marks();
            marks.removals.discarding.try_push(pages).map_err(|_| Stop::Removals(Until::Place))?;
            self.invalidate.discards_begin();
        }
        Ok(Discard { mapping: self, pages, listed })
    }

    /// Returns true if a page of the range is being discarded, and therefore must not enter the cache. The
    /// caller holds the invalidate lock, or the content lock for writing; otherwise the result is a hint.
    #[inline]
    pub(in crate::file) fn is_discarding(&self, pages: PageRange) -> bool {
        self.invalidate.has_discards() && !self.marks().removals.is(Until::Discarded(pages))
    }

    /// Checks that the pages are not being discarded, before the caller adds one of them to the cache. The
    /// caller holds `content` for writing, so no discard begins.
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Removals` if one of the pages is being discarded.
    pub(in crate::file) fn check_discards(&self, pages: PageRange) -> Result<(), Stop> {
        if self.is_discarding(pages) { Err(Stop::Removals(Until::Discarded(pages))) } else { Ok(()) }
    }

    /// Returns the first pages of the range, up to a page that is being discarded, and the number of removals
    /// so far. A removal of one of the pages that begins later changes the number.
    pub(in crate::file) fn before_discards(&self, pages: PageRange) -> (PageRange, u64) {
        let marks = self.marks();
        let others = marks.removals.discarding.iter().filter(|other| overlap(**other, pages));
        let end = others.fold(pages.end, |end, other| end.min(other.start.max(pages.start)));
        (PageRange::new(pages.start, end), self.removals())
    }

    /// Ends a state of a removal, and wakes the tasks that wait for it.
    fn end_state(&self, end: impl FnOnce(&mut Removals)) {
        let mut marks = self.marks();
        let before = marks.removals.discarding.len();
        end(&mut marks.removals);
        if marks.removals.discarding.len() < before {
            self.invalidate.discards_end();
        }
        let waited = core::mem::take(&mut marks.removals.waited);
        drop(marks);
        if waited {
            self.removal_turn().wake::<P>();
        }
    }

    /// Waits until the condition holds.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    pub(in crate::file) fn wait_for_removals(&self, until: Until) -> Result<(), Killed> {
        rank::holds_none::<P>();
        self.removal_turn().wait_while::<P>(|| {
            let mut marks = self.marks();
            let waits = !marks.removals.is(until);
            marks.removals.waited |= waits;
            waits
        })
    }

    /// Returns the counter that tasks sleep on until a state of a removal ends.
    fn removal_turn(&self) -> Turn<'_> {
        self.files().reads.of(self.key(), PageIndex::END.get())
    }
}

impl<P: Platform> Mapping<P> {
    /// Acquires the invalidate lock for writing, to add pages, when none of them is being discarded.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub(in crate::file) fn write_to_fill(&self, pages: PageRange) -> Result<RwSemWriteGuard<'_, P>, Killed> {
        let mut rounds = Rounds::new();
        loop {
            let lock = self.invalidate.write_killable()?;
            if !self.is_discarding(pages) {
                return Ok(lock);
            }
            drop(lock);
            self.wait_for_removals(Until::Discarded(pages))?;
            rounds.again::<P>()?;
        }
    }
}
