//! The rule by which write-back finds the dirty pages of a file, and the functions that keep it.
//!
//! Rule D1: a page is marked as dirty in the tree of the cache (`cache/marks.rs`) if an entry through which
//! stores reach the file may be writable, if the page's frame is dirty, or if the pager has permitted stores
//! (`permit.rs`). Exceptions: a write of the page
//! has just begun, so that the page is marked as being written; or the file has late stores (below).
//!
//! | page becomes dirty by | marked by |
//! | --- | --- |
//! | `write_at`, zeroed bytes, a new page with contents | [`set_dirty`](Mapping::set_dirty) |
//! | a fault that makes an entry writable (`fault/file.rs`, `fault/cow.rs`, `uffd/fill.rs`) | [`mark_dirty`](Mapping::mark_dirty), under the lock of the page table |
//! | a copy or a move of a writable entry | nothing: the page is marked already, and write-back meets the entry at one of its places |
//! | an entry that was removed or cleaned, whose dirty bit reaches the frame later; a pin; an access of another process | a late store |
//!
//! A *late store* makes a frame dirty when the page may have been written back already. It is found by code
//! that does not know the file (`memory/late_stores.rs` of `freehold-vmspace`), which counts it. If the
//! count of a file has changed, write-back examines the frames of all cached pages once, and marks the dirty
//! ones ([`mark_late_stores`](Mapping::mark_late_stores)). Late stores are rare: they need a write-back
//! between a store and the operation that finds it.
//!
//! Shared memory and secret memory are never written back and have no marks. A new way to write to a page
//! gets a row above. [`Mapping::check`] and `AddressSpace::check` verify the rule, and all tests call them.

use super::{
    Kind, Mapping,
    cache::radix::{Stay, marks::Marks},
    throttle::Throttle,
};
use crate::{Pfn, platform::Platform};
use core::ops::ControlFlow;
use freehold_sync::{
    Rank, RwSemReadGuard, SpinGuard, SpinLock,
    atomic::{
        AtomicU64, CHECKED,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
    publish::{EventCounter, PublishedNumber},
};
use freehold_vmspace::{PageIndex, PageRange};

/// Number of frames that are examined in one hold of the invalidate lock.
const LOOKS: u64 = if CHECKED { 2 } else { 1 << 13 };

/// The state of a file's write-back.
pub(crate) struct Dirty {
    /// The right to search and clear the marks, and the removals that are under way. Held briefly; no other
    /// lock is taken under it.
    marks: SpinLock<Marks>,
    /// The number of late stores at the last examination of all frames.
    late_seen: PublishedNumber,
    /// The bound on dirty pages.
    pub(super) throttle: Throttle,
    /// Number of removals of pages so far. Changed under the invalidate lock held for writing.
    pub(super) removals: AtomicU64,
    /// Number of failures so far: pages that could not be written, and dirty pages that were lost. A caller
    /// learns of a failure by comparing this number with the one that it has seen.
    failures: EventCounter,
    /// Largest value of `failures` that an open file has reported. An open file that is made later begins
    /// with this value, and so reports failures that no other open file has reported.
    seen: AtomicU64,
    /// Value of `failures` at the last report to a caller of `write_back`.
    reported: AtomicU64,
}

impl Dirty {
    /// Creates the state of a file without dirty pages, which may have `limit` dirty pages.
    pub fn new(limit: u64) -> Self {
        let [removals, seen, reported] = [(); 3].map(|()| AtomicU64::new(0));
        let (late_seen, failures) = (PublishedNumber::new(0), EventCounter::new());
        let marks = SpinLock::new(Marks::default(), Rank::Leaf);
        let throttle = Throttle::new(limit);
        Dirty { marks, throttle, late_seen, removals, failures, seen, reported }
    }

    /// Counts a page that could not be written, or a dirty page that was lost.
    pub fn failed(&self) {
        self.failures.record();
    }

    /// Returns the number of failures so far.
    pub fn failures(&self) -> u64 {
        self.failures.count()
    }

    /// Returns true if a caller of `write_back` must be told about a failure: one that happened since the
    /// number of failures was `before`, or one that no such caller has been told about.
    pub fn reports(&self, before: u64) -> bool {
        let failures = self.failures();
        self.reported.fetch_max(failures, AcqRel) < failures || failures != before
    }

    /// Returns the number of failures that an open file is not told about if it is made now.
    pub fn seen(&self) -> u64 {
        self.seen.load(Acquire)
    }

    /// Returns true if failures have happened since an open file was told last, and counts them as told.
    /// `told` is the number of that file. Of several tasks, one gets true.
    pub fn tell(&self, told: &AtomicU64) -> bool {
        let failures = self.failures();
        let news = told.fetch_max(failures, AcqRel) < failures;
        if news {
            // AcqRel: as a single word on which no other data depends, any order would do.
            self.seen.fetch_max(failures, AcqRel);
        }
        news
    }
}

impl<P: Platform> Mapping<P> {
    /// Returns true if the file's pages are marked when they become dirty, because write-back writes them.
    #[inline]
    pub(crate) fn is_written_back(&self) -> bool {
        matches!(self.kind, Kind::Cached | Kind::Direct)
    }

    /// Marks the page `index` as dirty, so that write-back visits it. The caller has made the frame dirty, or
    /// has made an entry writable and holds the lock of its table.
    #[inline]
    pub(crate) fn mark_dirty(&self, rcu: &P::RcuGuard, index: PageIndex) {
        if self.is_written_back() && self.cache.mark_dirty(Stay::within::<P>(rcu), index) {
            self.dirty.throttle.add();
        }
    }

    /// Records new contents of the page `index`, which are certainly in its frame.
    pub(in crate::file) fn set_dirty(&self, index: PageIndex, pfn: Pfn) {
        // The frame first: a write-back that clears the mark after this call finds the frame dirty.
        self.files().platform().frame(pfn).set_dirty();
        self.mark_dirty(&P::rcu_read(), index);
    }

    /// Acquires the right to search the marks.
    pub(in crate::file) fn marks(&self) -> SpinGuard<'_, Marks, P> {
        self.dirty.marks.lock()
    }

    /// Returns the number of removals of pages so far. It does not change while the caller holds
    /// `invalidate`.
    pub(in crate::file) fn removals(&self) -> u64 {
        // Relaxed: the invalidate lock orders the changes. `before_discards` needs only that the number is
        // older than its look at the list.
        self.dirty.removals.load(Relaxed)
    }

    /// Clears the dirty marks of pages that were removed. The caller holds `invalidate` for writing.
    pub(crate) fn clear_marks(&self, stay: Stay<'_>, pages: PageRange) {
        if self.is_written_back() {
            self.dirty.removals.fetch_add(1, Relaxed);
            let cleared = self.cache.clear_dirty(&mut self.marks(), stay, pages);
            self.dirty.throttle.subtract::<P>(cleared);
        }
    }

    /// Sets the number of late stores of a new file.
    pub(in crate::file) fn start_counting_late_stores(&self) {
        self.dirty.late_seen.publish(self.late_stores());
    }

    fn late_stores(&self) -> u64 {
        self.files().memory().late_stores(self.rmap_word())
    }

    /// Marks all cached pages whose frames are dirty, if the file has had late stores.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, which is released after a few thousand pages. `lock` acquires it.
    pub(in crate::file) fn mark_late_stores<'m, E>(
        &'m self,
        lock: impl Fn() -> Result<RwSemReadGuard<'m, P>, E>,
    ) -> Result<(), E> {
        let late = self.late_stores();
        // If the number is that of an earlier examination, the marks of that examination are set.
        if late == self.dirty.late_seen.get() {
            return Ok(());
        }
        let mut at = PageIndex::ZERO;
        while at < self.end() {
            let (pages_stay, mut looks) = (lock()?, 0);
            let stop = self.each_page(&pages_stay, PageRange::new(at, PageIndex::END), |index| {
                if looks == LOOKS {
                    return ControlFlow::Break(index);
                }
                looks += 1;
                if let Some(page) = self.get_after_move(&pages_stay, index)
                    && self.files().platform().frame(*page).is_dirty()
                {
                    self.mark_dirty(&P::rcu_read(), index);
                }
                ControlFlow::Continue(())
            });
            at = stop.break_value().unwrap_or(PageIndex::END);
        }
        self.dirty.late_seen.publish(late);
        Ok(())
    }

    /// Returns true if a page may be dirty or writable according to its marks; see the module.
    pub(crate) fn may_be_dirty(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        let (dirty, writing) = self.cache.marks_of(Stay::within::<P>(&rcu), index);
        dirty || writing || !self.is_written_back() || self.late_stores() != self.dirty.late_seen.get()
    }
}
