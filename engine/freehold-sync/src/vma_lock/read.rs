//! Read locking of a VMA.
//!
//! A reader enters through the count of the VMA or through the slot of its CPU. It then checks that the VMA
//! belongs to its address space and is not write-locked, and leaves if a check fails. `write.rs` has the
//! other side, and `by_guard.rs` has the functions that callers use. The [module head](super) gives the
//! reasons for each step. A reader must not access the VMA after the step by which it leaves, because the VMA
//! may already be freed.

use super::{
    ATTACHED, DETACHED, DRAINING, EXTERNAL, PER_CPU, READER, ReadFail, ReaderPlace, VmaLock, VmaLocking,
    is_odd,
};
use crate::atomic::{CHECKED, Ordering, VMA_COUNT_LIMIT, store_buffering_fence};
use crate::host::Host;
use crate::rank::{self, Rank};

impl VmaLock<'_> {
    /// Implements [`try_read`](Self::try_read) with the locking design of the address space.
    #[inline(always)]
    pub(super) fn try_read_with<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
        is_owner: impl FnOnce() -> bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        // Avoids writes to the count of a locked VMA. An even number is checked again below.
        if self.is_locked() {
            return Err(ReadFail::Locked);
        }
        let place = self.enter(locking)?;
        if !is_owner() {
            self.leave::<H>(place);
            return Err(ReadFail::Foreign);
        }
        self.leave_if_locked::<H>(place).inspect(|_| rank::acquired::<H>(Rank::Vma))
    }

    /// Like [`try_read`](Self::try_read), for an object that has one owner and no rank of its own.
    #[inline]
    pub(crate) fn enter_unranked<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        if self.is_locked() {
            return Err(ReadFail::Locked);
        }
        let place = self.enter(locking)?;
        self.leave_if_locked::<H>(place)
    }

    /// Leaves again if the VMA is write-locked.
    #[inline]
    fn leave_if_locked<'l, H: Host>(self, place: ReaderPlace<'l>) -> Result<ReaderPlace<'l>, ReadFail> {
        // Acquire: pairs with the release in `unlock_write`.
        if is_odd(self.seq.0.load(Ordering::Acquire)) {
            self.leave::<H>(place);
            return Err(ReadFail::Locked);
        }
        Ok(place)
    }

    /// Returns true if the VMA is write-locked. The result is a hint unless the caller keeps other tasks from
    /// locking it.
    #[inline]
    pub(crate) fn is_locked(self) -> bool {
        // Relaxed: a hint, or ordered by the lock that keeps other tasks from locking the VMA.
        is_odd(self.seq.0.load(Ordering::Relaxed))
    }

    /// Locks an attached VMA for reading. The caller ensures that no writer can lock the VMA during the call.
    #[inline]
    pub(super) fn read_with<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        let place = self.enter(locking)?;
        rank::acquired::<H>(Rank::Vma);
        Ok(place)
    }

    /// Ends a read lock, on any CPU. The VMA may already be freed when this returns.
    #[inline]
    pub fn unlock_read<H: Host>(self, place: ReaderPlace<'_>) {
        rank::released::<H>(Rank::Vma);
        self.leave::<H>(place);
    }

    /// Becomes a reader, perhaps a transient one.
    #[inline]
    fn enter<'l, H: Host>(self, locking: &'l VmaLocking<H>) -> Result<ReaderPlace<'l>, ReadFail> {
        // Relaxed: the exchange below orders the accesses.
        let word = self.count.word.load(Ordering::Relaxed);
        let plain = (ATTACHED..VMA_COUNT_LIMIT).contains(&word);
        if !plain {
            return self.enter_slow(locking, word, false);
        }
        match self.raise(word, word + READER) {
            Ok(()) => Ok(ReaderPlace(None)),
            Err(now) => self.enter_slow(locking, now, true),
        }
    }

    /// Like [`enter`](Self::enter), for a VMA whose count is `word`. `contended` is true if an exchange has
    /// just failed.
    #[inline(never)]
    fn enter_slow<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
        word: u32,
        contended: bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        if word & EXTERNAL != 0 {
            return self.enter_external(locking);
        }
        if word & (PER_CPU | DRAINING) != PER_CPU {
            return self.enter_by_count(locking, word, contended);
        }
        match self.enter_slot(locking) {
            Some(place) => Ok(place),
            // Relaxed: as in `enter`.
            None => self.enter_by_count(locking, self.count.word.load(Ordering::Relaxed), contended),
        }
    }

    /// Like [`enter`](Self::enter), after contention with another reader, or if the slot is not usable.
    #[cold]
    fn enter_by_count<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
        mut word: u32,
        mut contended: bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        loop {
            let per_cpu = if contended && self.is_contended(locking) { PER_CPU } else { 0 };
            if word == DETACHED {
                return Err(ReadFail::Detached);
            }
            if word & EXTERNAL != 0 {
                return self.enter_external(locking);
            }
            if word & DRAINING != 0 {
                return Err(ReadFail::Locked);
            }
            if word & !PER_CPU >= VMA_COUNT_LIMIT {
                return Err(ReadFail::TooMany);
            }
            // If the count has changed, retries with the value that the exchange found, because this CPU has
            // the cache line now.
            match self.raise(word, (word | per_cpu) + READER) {
                Ok(()) => return Ok(ReaderPlace(None)),
                Err(now) => word = now,
            }
            contended = true;
        }
    }

    /// Becomes a reader in the slot of this CPU. Fails if the slot is in use or the VMA is not per-CPU any
    /// more.
    #[inline]
    fn enter_slot<'l, H: Host>(self, locking: &'l VmaLocking<H>) -> Option<ReaderPlace<'l>> {
        let place = ReaderPlace(Some(locking.slots_to_enter()?.enter(self.slot_word())?));
        store_buffering_fence();
        // SeqCst: the second half of the reader's entry. Also an acquire, as in `raise`.
        if self.count.word.load(Ordering::SeqCst) & (PER_CPU | DRAINING) == PER_CPU {
            return Some(place);
        }
        self.leave::<H>(place);
        None
    }

    /// Counts a contention. Returns true if readers have contended often enough to make the VMA per-CPU.
    fn is_contended<H: Host>(self, locking: &VmaLocking<H>) -> bool {
        if locking.slots_to_enter().is_none() {
            return false;
        }
        let enough = if CHECKED { 1 } else { H::cpus() as u32 / 8 };
        // Relaxed: an estimate.
        let contention = self.count.contention.load(Ordering::Relaxed).saturating_add(1);
        self.count.contention.store(contention, Ordering::Relaxed);
        contention >= enough
    }

    /// Replaces the count `from` by `to`, which has one more reader. Returns the current count on failure.
    #[inline]
    fn raise(self, from: u32, to: u32) -> Result<(), u32> {
        // Acquire: pairs with `attach` and with the writer's last change of the count. Everything that the
        // reader reads of the VMA afterwards is at least as recent as that change.
        self.count.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).map(drop)
    }

    /// Ends a read lock: removes the reader from the slot or the count where it was counted.
    #[inline(always)]
    pub(crate) fn leave<H: Host>(self, place: ReaderPlace<'_>) {
        if let ReaderPlace(Some(slot)) = place {
            if slot.is_external() {
                return self.leave_external::<H>();
            }
            if slot.leave(self.slot_word()) {
                return;
            }
        }
        // The first exchange assumes that there is no other reader. If the exchange fails, it has loaded the
        // cache line and the current value in one step. A load before the exchange would transfer the line
        // twice.
        if let Err(now) = self.lower(ATTACHED + READER) {
            self.leave_by_count::<H>(now);
        }
    }

    /// Like [`leave`](Self::leave), through the count, whose value is `word`.
    #[inline(never)]
    fn leave_by_count<H: Host>(self, mut word: u32) {
        loop {
            debug_assert!(
                word & !(DRAINING | PER_CPU) > 0,
                "a VMA is released more often than it was locked"
            );
            if word & DRAINING != 0 {
                return self.leave_and_wake::<H>();
            }
            match self.lower(word) {
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Removes a reader from the count, if the count is `from`. Otherwise returns the current count.
    #[inline]
    fn lower(self, from: u32) -> Result<(), u32> {
        // Release: pairs with the acquire of the writer that waits for the readers to leave. Relaxed on
        // failure: nothing was done.
        let (done, not) = (Ordering::Release, Ordering::Relaxed);
        self.count.word.compare_exchange(from, from - READER, done, not).map(drop)
    }

    /// Like [`leave`](Self::leave), through the count, while a writer waits for the readers.
    #[cold]
    fn leave_and_wake<H: Host>(self) {
        // The read section keeps the VMA's memory until the wake-up is over. The life of the VMA may end
        // before that wake-up.
        let _memory_stays = H::rcu_read();
        // Release: as in `lower`.
        let before = self.count.word.fetch_sub(READER, Ordering::Release);
        if before - READER == DRAINING + ATTACHED {
            // Wakes by address only: the word may already belong to the next life, or to no VMA.
            H::wake_one(&self.count.word);
        }
    }

    /// Returns the word that a slot holds for a reader of this VMA.
    #[inline]
    pub(super) fn slot_word(self) -> usize {
        core::ptr::from_ref(self.count).addr()
    }
}
