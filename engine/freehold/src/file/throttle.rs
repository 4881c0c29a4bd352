//! The bound on the dirty pages of a file, which delays the tasks that make pages dirty.
//!
//! If programs change pages faster than the storage takes them, memory fills with pages that cannot be
//! dropped. A file with [`Config::dirty_limit`](crate::engine::Config::dirty_limit) pages that are dirty or
//! being written is *full*. A task that wants to change a clean page of a full file writes some pages back
//! itself, and then waits until the file has *room*: a quarter of the limit. Without the difference between
//! full and room, each write of a page that ends would let one page become dirty, and requests to write would
//! have one page each. Readers never wait, and neither do changes of pages that are dirty already.
//!
//! | event | count |
//! | --- | --- |
//! | a page gets the dirty mark (`cache/marks.rs`) | + 1 |
//! | a write of a page begins: the page loses the dirty mark | unchanged, because it is being written |
//! | the write ends | - 1 |
//! | a removal clears the dirty marks of pages | - the number of marks |
//! | an announced removal ends, so that writes may begin (`removal.rs`) | unchanged, but sleepers are woken |
//!
//! A page that is dirty again while it is being written counts twice. The check and the mark are separate
//! steps, so each task can exceed the limit by one page. The count is kept only if there is a limit.
//!
//! | access | pairs with | so that |
//! | --- | --- | --- |
//! | sleeper: counts itself, fence, examines the count of pages | end of a write: subtracts a page, fence, examines the number of sleepers | the task does not sleep, or is woken |
//! | sleeper: loads `ended` (acquire) before it tries to begin writes and examines the count | waker: increments `ended` (release), then wakes | a wake between the two is not lost |
//!
//! `permit.rs` calls [`throttle`](Mapping::throttle) before it asks the pager, with no lock held.
//! `tests/files/throttle.rs` tests the bound, `throttle_loom_tests.rs` the sleepers, and the mutations
//! `throttle-*` (`xtask/mutants`) remove the parts.

use super::{FillError, Mapping};
use crate::{platform::Platform, wait::Rounds};
use freehold_sync::{
    Host, Killed,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
    rank,
};
use freehold_vmspace::PageRange;

/// The number of dirty pages of a file, and its limit.
pub(super) struct Throttle {
    /// The limit; `u64::MAX` if there is none. Never changes.
    limit: u64,
    /// The number of pages that are dirty or being written. Zero without a limit.
    pages: AtomicU64,
    /// Number of tasks that wait for the end of a write.
    sleepers: AtomicU32,
    /// Changes when a write ends while tasks wait. They sleep on it.
    ended: AtomicU32,
}

impl Throttle {
    /// Creates the count for a file without dirty pages. A limit of 0 counts as 1.
    pub fn new(limit: u64) -> Self {
        let [sleepers, ended] = [(); 2].map(|()| AtomicU32::new(0));
        Throttle { limit: limit.max(1), pages: AtomicU64::new(0), sleepers, ended }
    }

    /// Returns true if the dirty pages have reached the limit.
    #[inline]
    pub fn is_full(&self) -> bool {
        // Relaxed: a hint. `wait` examines the count again, with a fence.
        self.limit != u64::MAX && self.pages.load(Relaxed) >= self.limit
    }

    /// Returns true if a task that found the file full may go on.
    #[inline]
    fn has_room(&self) -> bool {
        // Relaxed: as in `is_full`.
        self.pages.load(Relaxed) <= self.limit - self.batch()
    }

    /// Returns the number of pages that a task makes dirty, or writes back, between two looks at the count.
    pub fn batch(&self) -> u64 {
        self.limit.div_ceil(4)
    }

    /// Counts a page that became dirty.
    #[inline]
    pub fn add(&self) {
        if self.limit != u64::MAX {
            self.pages.fetch_add(1, Relaxed);
        }
    }

    /// Subtracts pages that are neither dirty nor being written any more, and wakes the tasks that wait.
    pub fn subtract<H: Host>(&self, pages: u64) {
        if self.limit == u64::MAX || pages == 0 {
            return;
        }
        self.pages.fetch_sub(pages, Relaxed);
        // Pairs with the fence in `wait`; see the module.
        fence(SeqCst);
        if self.sleepers.load(Relaxed) != 0 {
            // Release pairs with the acquire in `wait`.
            self.ended.fetch_add(1, Release);
            H::wake_all(&self.ended);
        }
    }

    /// Wakes the tasks that wait, because writes that a removal has held back may begin.
    pub fn end_hold<H: Host>(&self) {
        if self.limit != u64::MAX {
            // Release: as in `subtract`. The number changes also without a sleeper: a task that is about to
            // sleep has found no write that may begin.
            self.ended.fetch_add(1, Release);
            // Pairs with the fence in `wait`.
            fence(SeqCst);
            if self.sleepers.load(Relaxed) != 0 {
                H::wake_all(&self.ended);
            }
        }
    }

    /// Returns the value that [`wait`](Self::wait) needs. The caller then looks for a reason not to wait.
    fn seen(&self) -> u32 {
        // Acquire pairs with the release in `subtract` and `end_hold`.
        self.ended.load(Acquire)
    }

    /// Sleeps until a write ends or a removal that holds writes back, unless the file has room. Returns at
    /// once if `ended` is not `seen` any more.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    fn wait<H: Host>(&self, seen: u32) -> Result<(), Killed> {
        self.sleepers.fetch_add(1, Relaxed);
        // Pairs with the fences in `subtract` and `end_hold`; see the module.
        fence(SeqCst);
        let waited = if !self.has_room() { H::wait_killable(&self.ended, seen) } else { Ok(()) };
        self.sleepers.fetch_sub(1, Relaxed);
        waited
    }
}

impl<P: Platform> Mapping<P> {
    /// Waits until a full file has room, and writes dirty pages back for this purpose.
    ///
    /// # Errors
    ///
    /// Fails with `Killed`.
    ///
    /// # Locks
    ///
    /// The locks of [`write_back`](Self::write_back). The caller holds no lock.
    pub(super) fn throttle(&self) -> Result<(), FillError> {
        if !self.dirty.throttle.is_full() {
            return Ok(());
        }
        let mut rounds = Rounds::new();
        while !self.dirty.throttle.has_room() {
            rank::holds_none::<P>();
            let seen = self.dirty.throttle.seen();
            // If all pages are being written already, the end of any write makes room. If a removal holds
            // writes back, its end does.
            if self.start_some_writes(PageRange::ALL, self.dirty.throttle.batch())? == 0 {
                self.dirty.throttle.wait::<P>(seen)?;
            }
            rounds.again::<P>()?;
        }
        Ok(())
    }
}

#[cfg(all(test, loom))]
#[path = "throttle_loom_tests.rs"]
mod loom_tests;
