//! Write locking of a VMA, and the beginning and the end of its life.
//!
//! A writer marks the VMA by an odd sequence number, keeps new readers out, and sleeps until the readers
//! inside have left. The caller has the right to change the VMA, so two writers never meet here. `read.rs`
//! has the other side, and `by_guard.rs` has the functions that callers use. `tests/loom_vma/` tests both
//! sides together.

use super::{ATTACHED, DETACHED, DRAINING, EXTERNAL, PER_CPU, READER, VmaLock, VmaLocking};
use crate::atomic::{AtomicU32, Ordering, store_buffering_fence};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use crate::rwsem::raw::Wait;

impl VmaLock<'_> {
    /// Implements [`write`](Self::write) with the locking design of the address space. The caller has the
    /// right to lock the VMA, here and in the other functions that take no guard.
    #[inline]
    pub(crate) fn write_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        if !self.is_locked() {
            rank::will_wait::<H>(Rank::Vma);
        }
        // An unkillable wait does not fail.
        self.write_by(locking, wait_unkillable::<H>).unwrap_or(true)
    }

    /// Implements [`write_killable`](Self::write_killable) with the locking design of the address space.
    #[inline]
    pub(crate) fn write_killable_with<H: Host>(self, locking: &VmaLocking<H>) -> Result<bool, Killed> {
        rank::will_wait::<H>(Rank::Vma);
        self.write_by(locking, H::wait_killable)
    }

    /// Locks the VMA for writing like [`write`](Self::write), if it has no readers. Returns true on success.
    pub(crate) fn try_write_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        self.write_by(locking, |_, _| Err(Killed)).is_ok()
    }

    /// Implements [`try_write_unread`](Self::try_write_unread). The caller has the right to lock the VMA.
    #[inline]
    pub(super) fn try_mark_unread(self) -> bool {
        debug_assert!(!self.is_locked(), "a VMA of a change without a claim is write-locked");
        self.increment_seq();
        let unread = self.count_with_readers().is_none();
        if !unread {
            // The VMA is unlocked again. A reader may still see the odd number, and then fails as if the VMA
            // were locked.
            self.increment_seq();
        }
        unread
    }

    /// Marks the VMA and waits with `wait` for its readers. Returns false if the VMA was write-locked
    /// already, in the same section.
    #[inline]
    fn write_by<H: Host>(self, locking: &VmaLocking<H>, wait: Wait) -> Result<bool, Killed> {
        if self.is_locked() {
            return Ok(false);
        }
        self.increment_seq();
        if let Some(count) = self.count_with_readers() {
            // If the wait fails, no change was made, and the VMA is unlocked again. A reader may still see
            // the odd number, and then fails as if the VMA were locked.
            self.drain(locking, count, ATTACHED, wait).inspect_err(|_| self.increment_seq())?;
        }
        Ok(true)
    }

    /// Ends a write lock. The caller has locked the VMA, and still has the right to change it.
    ///
    /// # Panics
    /// With debug assertions, panics if the VMA is not write-locked.
    #[inline]
    pub fn unlock_write(self) {
        debug_assert!(self.is_locked(), "a VMA that is not write-locked is unlocked");
        self.increment_seq();
    }

    /// Increments the sequence number.
    #[inline]
    fn increment_seq(self) {
        // Relaxed: only a task that may change the VMA writes the number.
        let before = self.seq.0.load(Ordering::Relaxed);
        // Release: when the number becomes even, pairs with the acquire in `try_read`. When it becomes odd,
        // the count passes the number on: a reader whose change of the count follows the writer's change sees
        // the odd number.
        self.seq.0.store(before.wrapping_add(1), Ordering::Release);
    }

    /// Returns the count if readers may have entered before the VMA was marked.
    #[inline]
    fn count_with_readers(self) -> Option<u32> {
        // The exchange does not change the value of the count, but every change of the count by a reader is
        // either before or after the exchange. Release: a reader that raises the count after the exchange
        // sees the mark. Acquire: pairs with the decrements of the readers that have left.
        match self.count.word.compare_exchange(ATTACHED, ATTACHED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => None,
            // A detached VMA has no readers, and gets none before `attach`.
            Err(count) => (count != DETACHED).then_some(count),
        }
    }

    /// Keeps new readers out until the readers inside have left. Then sets the count to `rest` and lets
    /// readers in again. If the wait fails, the remaining readers stay in the count. `count` is the value
    /// that the caller has found.
    #[cold]
    fn drain<H: Host>(
        self,
        locking: &VmaLocking<H>,
        count: u32,
        rest: u32,
        wait: Wait,
    ) -> Result<(), Killed> {
        if count & EXTERNAL != 0 {
            return self.drain_external::<H>(rest, wait);
        }
        // Release, here and below: as in `count_with_readers`. Acquire, here and in the load: pairs with the
        // readers' last decrement. SeqCst: the first half of the writer's entry; see the module head.
        let before = self.count.word.fetch_add(DRAINING, Ordering::SeqCst);
        if before & PER_CPU != 0 {
            self.collect_from_slots(locking);
        }
        let result = loop {
            let count = self.count.word.load(Ordering::Acquire);
            if count == DRAINING + ATTACHED {
                break Ok(());
            }
            if let Err(killed) = wait(&self.count.word, count) {
                break Err(killed);
            }
        };
        let more = if result.is_ok() { ATTACHED - rest } else { 0 };
        self.count.word.fetch_sub(DRAINING + more, Ordering::Release);
        result
    }

    /// Moves the readers in slots to the count. New readers are already kept out of the slots.
    fn collect_from_slots<H: Host>(self, locking: &VmaLocking<H>) {
        // Relaxed: an estimate.
        self.count.contention.store(0, Ordering::Relaxed);
        // Release, here and below: as in `count_with_readers`, for the first reader that sees this value.
        self.count.word.fetch_sub(PER_CPU, Ordering::Release);
        store_buffering_fence();
        for slot in locking.slots().into_iter().flat_map(|slots| slots.of(self.slot_word())) {
            // The reader is counted before it is removed from the slot, so at any time the count or the slot
            // shows the reader. Relaxed, both: the writer acquires the reader's accesses from the slot or the
            // count after the reader has left.
            self.count.word.fetch_add(READER, Ordering::Relaxed);
            if !slot.leave(self.slot_word()) {
                // The reader has left by itself. No wake-up is needed: this task is the waiter.
                self.count.word.fetch_sub(READER, Ordering::Relaxed);
            }
        }
    }

    // ---- the life of a VMA ----

    /// Initializes the words of a detached VMA that the caller owns, new or from the slab.
    ///
    /// # Panics
    /// With debug assertions, panics if the VMA is not detached.
    pub fn init_detached(self) {
        debug_assert!(self.is_detached(), "the words of an attached VMA are initialized");
        // Relaxed: no task can lock the VMA, and `attach` releases the store.
        self.count.contention.store(0, Ordering::Relaxed);
    }

    /// Implements [`attach`](Self::attach) with the locking design of the address space.
    #[inline]
    pub(super) fn attach_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        debug_assert!(self.is_detached(), "a VMA is attached twice");
        let unlocked = !self.is_locked();
        if unlocked {
            // There are no readers. A late reader that sees the VMA attached also sees this number.
            self.increment_seq();
        }
        let external = if locking.uses_rwsems() { EXTERNAL } else { 0 };
        // Release: pairs with the acquire in `raise`. A plain store, because no task raises a count of 0.
        self.count.word.store(ATTACHED | external, Ordering::Release);
        unlocked
    }

    /// Implements [`detach`](Self::detach) with the locking design of the address space.
    #[inline]
    pub(super) fn detach_with<H: Host>(self, locking: &VmaLocking<H>) {
        debug_assert!(self.is_locked(), "a VMA is detached without a write lock");
        debug_assert!(!self.is_detached(), "a VMA is detached twice");
        // Acquire: pairs with the decrements of transient readers, whose reads end before the owner's writes
        // begin. Release: as in `count_with_readers`.
        let unread =
            self.count.word.compare_exchange(ATTACHED, DETACHED, Ordering::AcqRel, Ordering::Relaxed);
        if let Err(count) = unread {
            let _ = self.drain(locking, count, DETACHED, wait_unkillable::<H>);
        }
        self.increment_seq();
    }

    /// Makes the VMA per-CPU at once, as if its readers had often contended. Does nothing if the VMA is
    /// detached or has an external rwsem, or if a writer waits for its readers.
    ///
    /// For tests only. Outside of tests, a VMA becomes per-CPU when readers contend.
    pub fn make_per_cpu(self) {
        let per_cpu = |word| (ATTACHED..EXTERNAL).contains(&word).then_some(word | PER_CPU);
        // Relaxed: orders nothing, as when a reader makes the VMA per-CPU.
        let _ = self.count.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, per_cpu);
    }

    /// Returns true if the VMA is in no address space. The result is certain only for the VMA's owner or
    /// under the mmap lock.
    #[inline]
    pub fn is_detached(self) -> bool {
        // Relaxed: orders nothing.
        self.count.word.load(Ordering::Relaxed) == DETACHED
    }
}

/// A wait that ignores signals and does not fail.
fn wait_unkillable<H: Host>(word: &AtomicU32, value: u32) -> Result<(), Killed> {
    H::wait(word, value);
    Ok(())
}
