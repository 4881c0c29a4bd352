//! What the writer of a VMA does, and the beginning and the end of the VMA's life.

use super::{ATTACHED, BESIDE, DETACHED, DRAINING, NEVER, PER_CPU, READER, VmaLock};
use crate::atomic::{AtomicU32, Ordering, between_crosswise};
use crate::host::{Host, Killed};
use crate::mmap_lock::MmapWriteGuard;
use crate::rank::{self, Rank};
use crate::rwsem::raw::Wait;

impl VmaLock<'_> {
    /// Locks the VMA for writing, until the guard is dropped or downgraded, and waits for its readers to
    /// leave. To lock a locked one again is cheap.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a VMA's read lock or a lock of an inner rank.
    #[inline]
    pub fn write<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        rank::will_wait::<H>(Rank::Vma);
        self.mark(guard);
        if let Some(count) = self.readers() {
            // A wait that cannot be killed does not fail.
            let _ = self.drain(guard, count, ATTACHED, wait_for_certain::<H>);
        }
    }

    /// As [`write`](Self::write), unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`]: the VMA is as it was before the call.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_killable<H: Host>(self, guard: &MmapWriteGuard<'_, H>) -> Result<(), Killed> {
        rank::will_wait::<H>(Rank::Vma);
        let before = self.mark(guard);
        if let Some(count) = self.readers() {
            self.drain(guard, count, ATTACHED, H::wait_killable).inspect_err(|_| {
                // Release: as in `mark`.
                self.seq.0.store(before, Ordering::Release);
            })?;
        }
        Ok(())
    }

    /// Whether the holder of the guard has locked this VMA for writing.
    #[inline]
    pub fn is_write_locked<H: Host>(self, guard: &MmapWriteGuard<'_, H>) -> bool {
        // Relaxed: written under the guard's lock.
        self.seq.0.load(Ordering::Relaxed) == guard.seq()
    }

    /// Makes the VMA's number that of the write section; returns what it was.
    #[inline]
    fn mark<H: Host>(self, guard: &MmapWriteGuard<'_, H>) -> u32 {
        // Relaxed: written under the guard's lock.
        let before = self.seq.0.load(Ordering::Relaxed);
        if before != guard.seq() {
            // Release: pairs with the acquire in `try_read`. Readers that come after the writer's look at the
            // count would see it anyhow; this is for those before, which may find it too. (The fence that
            // begins the section would do as well; this does not rely on it.)
            self.seq.0.store(guard.seq(), Ordering::Release);
        }
        before
    }

    /// The count, if there may be readers that came before the VMA was marked.
    #[inline]
    fn readers(self) -> Option<u32> {
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
        guard: &MmapWriteGuard<'_, H>,
        count: u32,
        rest: u32,
        wait: Wait,
    ) -> Result<(), Killed> {
        if count & BESIDE != 0 {
            return self.drain_beside::<H>(rest, wait);
        }
        // Release, here and below: as in `readers`. Acquire, here and in the load: pairs with the
        // readers' last decrement. SeqCst: the first half of the way in, see the module.
        let before = self.count.word.fetch_add(DRAINING, Ordering::SeqCst);
        if before & PER_CPU != 0 {
            self.collect(guard);
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
    fn collect<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        // Relaxed: an estimate.
        self.count.contention.store(0, Ordering::Relaxed);
        // Release, here and below: as in `readers`, for the first reader that sees this value.
        self.count.word.fetch_sub(PER_CPU, Ordering::Release);
        between_crosswise();
        for slot in guard.lock().slots().into_iter().flat_map(|slots| slots.of(self.name())) {
            // Counted before it is taken out: at no time is it neither. Relaxed, both: what it did is
            // acquired when it has left, from the slot or from the count.
            self.count.word.fetch_add(READER, Ordering::Relaxed);
            if !slot.leave(self.name()) {
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
        // Relaxed, both: nobody can lock it; `attach` releases it.
        self.seq.0.store(NEVER, Ordering::Relaxed);
        self.count.contention.store(0, Ordering::Relaxed);
    }

    /// Opens a detached, write-locked VMA to readers. They find it locked until the write section ends.
    ///
    /// All its fields are set before; after it may be found in the tree.
    ///
    /// # Panics
    /// With debug assertions, when it is attached or not write-locked.
    #[inline]
    pub fn attach<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        debug_assert!(self.is_write_locked(guard), "a VMA is attached that is not write-locked");
        debug_assert!(self.is_detached(), "a VMA is attached twice");
        let beside = if guard.lock().uses_rwsems() { BESIDE } else { 0 };
        // Release: pairs with the acquire in `raise`. A plain store: nobody raises a count of 0.
        self.count.word.store(ATTACHED | beside, Ordering::Release);
    }

    /// Bars readers for good, and waits for readers in passing, which do not wait themselves. Afterwards the
    /// VMA belongs to the caller alone.
    ///
    /// # Panics
    /// With debug assertions, when it is detached or not write-locked.
    #[inline]
    pub fn detach<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        debug_assert!(self.is_write_locked(guard), "a VMA is detached that is not write-locked");
        debug_assert!(!self.is_detached(), "a VMA is detached twice");
        // Acquire: pairs with the decrement of readers in passing; their reads end before the owner's writes
        // begin. Release: as in `readers`.
        let unread =
            self.count.word.compare_exchange(ATTACHED, DETACHED, Ordering::AcqRel, Ordering::Relaxed);
        if let Err(count) = unread {
            let _ = self.drain(guard, count, DETACHED, wait_for_certain::<H>);
        }
    }

    /// Lets readers stand in slots from now on, as if they had contended often, if the VMA is attached and
    /// nobody waits for its readers.
    ///
    /// Only tests know before the readers do.
    pub fn make_per_cpu(self) {
        let per_cpu = |word| (ATTACHED..BESIDE).contains(&word).then_some(word | PER_CPU);
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

fn wait_for_certain<H: Host>(word: &AtomicU32, value: u32) -> Result<(), Killed> {
    H::wait(word, value);
    Ok(())
}
