//! What the writer of a VMA does, and the beginning and the end of the VMA's life.

use super::{ATTACHED, DETACHED, DRAINING, EXTERNAL, PER_CPU, READER, VmaLock, VmaLocking};
use crate::atomic::{AtomicU32, Ordering, store_buffering_fence};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use crate::rwsem::raw::Wait;

impl VmaLock<'_> {
    /// Implements [`write`](Self::write) for a space of this design. The caller has the right to lock the
    /// VMA, here and in the other functions without a guard.
    #[inline]
    pub(crate) fn write_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        rank::will_wait::<H>(Rank::Vma);
        // A wait that cannot be killed does not fail.
        self.write_by(locking, wait_unkillable::<H>).unwrap_or(true)
    }

    /// Implements [`write_killable`](Self::write_killable) for a space of this design.
    #[inline]
    pub(crate) fn write_killable_with<H: Host>(self, locking: &VmaLocking<H>) -> Result<bool, Killed> {
        rank::will_wait::<H>(Rank::Vma);
        self.write_by(locking, H::wait_killable)
    }

    /// As [`write`](Self::write), if there are no readers. Returns whether it is locked.
    pub(crate) fn try_write_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        self.write_by(locking, |_, _| Err(Killed)).is_ok()
    }

    #[inline]
    fn write_by<H: Host>(self, locking: &VmaLocking<H>, wait: Wait) -> Result<bool, Killed> {
        if self.is_locked() {
            return Ok(false);
        }
        self.increment_seq();
        if let Some(count) = self.count_with_readers() {
            // What it was locked for has not begun: readers that still find it locked are out of date.
            self.drain(locking, count, ATTACHED, wait).inspect_err(|_| self.increment_seq())?;
        }
        Ok(true)
    }

    /// Ends a write lock. The caller has locked it, and still has the right to change it.
    ///
    /// # Panics
    /// With debug assertions, when it is not write-locked.
    #[inline]
    pub fn unlock_write(self) {
        debug_assert!(self.is_locked(), "a VMA is unlocked that is not locked");
        self.increment_seq();
    }

    /// The number's next value.
    #[inline]
    fn increment_seq(self) {
        // Relaxed: written by those alone who may change the VMA.
        let before = self.seq.0.load(Ordering::Relaxed);
        // Release: pairs with the acquire in `try_read`, when it becomes even. When it becomes odd, readers
        // that come after the writer's look at the count see it by that.
        self.seq.0.store(before.wrapping_add(1), Ordering::Release);
    }

    /// The count, if there may be readers that came before the VMA was marked.
    #[inline]
    fn count_with_readers(self) -> Option<u32> {
        // An exchange of like for like: a place in the order of all changes of the count. Release: a reader
        // that raises it later sees the mark. Acquire: pairs with the decrements of the readers that have
        // left.
        match self.count.word.compare_exchange(ATTACHED, ATTACHED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => None,
            // A detached VMA has none and gets none before `attach`.
            Err(count) => (count != DETACHED).then_some(count),
        }
    }

    /// Keeps new readers out until the others have left, then makes the count `rest` and lets readers in
    /// again, or, if the wait is given up, whatever is left. `count`: as it was found.
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
        // readers' last decrement. SeqCst: the first half of the way in, see the module.
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

    /// Counts the readers that stand in slots, from which new ones are barred.
    fn collect_from_slots<H: Host>(self, locking: &VmaLocking<H>) {
        // Relaxed: an estimate.
        self.count.contention.store(0, Ordering::Relaxed);
        // Release, here and below: as in `count_with_readers`, for the first reader that sees this value.
        self.count.word.fetch_sub(PER_CPU, Ordering::Release);
        store_buffering_fence();
        for slot in locking.slots().into_iter().flat_map(|slots| slots.of(self.slot_word())) {
            // Counted before it is taken out: at no time is it neither. Relaxed, both: what it did is
            // acquired when it has left, from the slot or from the count.
            self.count.word.fetch_add(READER, Ordering::Relaxed);
            if !slot.leave(self.slot_word()) {
                // It has left by itself. Nobody need be woken: the waiter is this task.
                self.count.word.fetch_sub(READER, Ordering::Relaxed);
            }
        }
    }

    // ---- the VMA's life ----

    /// Prepares the words of a VMA that the caller alone owns, new or from the slab.
    ///
    /// # Panics
    /// With debug assertions, when it is not detached.
    pub fn init_detached(self) {
        debug_assert!(self.is_detached(), "an attached VMA is taken for a new one");
        // Relaxed: nobody can lock it; `attach` releases it.
        self.count.contention.store(0, Ordering::Relaxed);
    }

    /// Implements [`attach`](Self::attach) for a space of this design.
    #[inline]
    pub(super) fn attach_with<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        debug_assert!(self.is_detached(), "a VMA is attached twice");
        let unlocked = !self.is_locked();
        if unlocked {
            // There are no readers: a late one that sees it attached sees this.
            self.increment_seq();
        }
        let external = if locking.uses_rwsems() { EXTERNAL } else { 0 };
        // Release: pairs with the acquire in `raise`. A plain store: nobody raises a count of 0.
        self.count.word.store(ATTACHED | external, Ordering::Release);
        unlocked
    }

    /// Implements [`detach`](Self::detach) for a space of this design.
    #[inline]
    pub(super) fn detach_with<H: Host>(self, locking: &VmaLocking<H>) {
        debug_assert!(self.is_locked(), "a VMA is detached that is not write-locked");
        debug_assert!(!self.is_detached(), "a VMA is detached twice");
        // Acquire: pairs with the decrement of readers in passing; their reads end before the owner's writes
        // begin. Release: as in `count_with_readers`.
        let unread =
            self.count.word.compare_exchange(ATTACHED, DETACHED, Ordering::AcqRel, Ordering::Relaxed);
        if let Err(count) = unread {
            let _ = self.drain(locking, count, DETACHED, wait_unkillable::<H>);
        }
        self.increment_seq();
    }

    /// Lets readers stand in slots from now on, as if they had contended often, if the VMA is attached and
    /// nobody waits for its readers.
    ///
    /// Only tests know before the readers do.
    pub fn make_per_cpu(self) {
        let per_cpu = |word| (ATTACHED..EXTERNAL).contains(&word).then_some(word | PER_CPU);
        // Relaxed: orders nothing, as when a reader does it.
        let _ = self.count.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, per_cpu);
    }

    /// Whether the VMA is in no address space. Certain only for its owner or under the mmap lock.
    #[inline]
    pub fn is_detached(self) -> bool {
        // Relaxed: pairs with nothing.
        self.count.word.load(Ordering::Relaxed) == DETACHED
    }
}

fn wait_unkillable<H: Host>(word: &AtomicU32, value: u32) -> Result<(), Killed> {
    H::wait(word, value);
    Ok(())
}
