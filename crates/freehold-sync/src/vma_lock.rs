//! The lock of one VMA: a count of readers, a sequence number, and the mmap lock's number to compare it with.
//!
//! # What it promises
//!
//! - A reader needs no other lock, and writes one word: of the VMA, or of its CPU.
//! - A writer holds the mmap lock for writing. It locks VMA by VMA, and unlocks them all at once.
//! - A reader may be told that a VMA is locked when it no longer is (a stale number, or a wrap after 2^32
//!   write sections). It is never told that one is unlocked when it is not.
//! - A reader may come late. VMAs are type-stable within a read section (RCU): memory that was a VMA when it
//!   was found stays one until the section ends, perhaps of another address space. The lock keeps a late
//!   reader from *believing* what it finds in a VMA's next life. Bounds are the caller's to check, after the
//!   lock is held.
//!
//! # How
//!
//! **Reader**: raise the count; ask whether the owner is this space; compare the VMA's number with the mmap
//! lock's. If they are equal the VMA is write-locked: lower the count, and give up.
//!
//! **Writer**: store the mmap lock's number in the VMA (*mark*); exchange the count 1 by 1, which is the one
//! read-modify-write that an unread VMA costs. If there are readers, set bit 30, which keeps new ones out,
//! and sleep until the count says that they have gone. The mmap lock's next number unlocks every VMA.
//!
//! Both touch the count between their two looks, so one of them comes second there: a reader after the writer
//! sees the number and gives up; a writer after the reader finds the count raised, or per-CPU, and waits.
//! Because the writer always looks, it does not matter if the number happened to be equal already, be it from
//! this write section or after 2^32 of them.
//!
//! **Waiting**: the one possible waiter (the mmap lock is held for writing) sleeps on the count word itself,
//! and a reader that leaves wakes by the address of that word. So it makes no difference whose VMA it is by
//! then: the count of a recycled VMA is the very word on which the writer of the new space waits, and the
//! reader needs neither the space nor a reference to it (hazard C-19 cannot occur). After its decrement a
//! reader does not read the VMA any more. A read section (RCU) that began before the decrement keeps the word
//! a word until the reader has woken by its address: the writer may be awake already, have ended the VMA, and
//! have given its memory away. A reader that nobody waits for wakes nobody, and needs no section.
//!
//! **Per-CPU readers**: readers of one VMA on many CPUs would pass the line of its count around, twice for
//! each of them. So where they contend often the VMA goes per-CPU: each CPU has a word
//! ([`ReaderSlots`](crate::ReaderSlots)) in which a reader of some VMA may stand instead of being counted
//! (distributed reader indicators with a way back, as in BRAVO: Dice and Kogan, 2019). The readers of a VMA
//! are those counted and those standing. Which of them is which does not matter: a leaving reader takes *a*
//! reader out of the slot that it came by, or, if none of its VMA stands there any more, out of the count.
//!
//! **A lock beside** (Linux 6.4 to 6.14, to be compared with): where the mmap lock says so
//! ([`MmapLock::with_rwsems`]), readers are not counted in the VMA. Each VMA has a reader/writer lock in an
//! object of its own, made before it is first attached, which stays with the VMA's memory from life to life. A
//! reader takes that lock if it is free, then looks whether the VMA is attached; the rest is the same. The
//! writer marks the VMA, takes the lock and lets it go. A reader that came before the writer is waited for;
//! one that comes after finds the mark. Detaching, the writer stores 0 with the lock held: so a reader that
//! has the lock and finds the VMA attached has it in this life until it lets go. Letting go happens in a read
//! section (RCU), because the lock's memory goes with the VMA's.
//!
//! # The count
//!
//! | value | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | detached; nobody can raise it | `attach`: 1 |
//! | 1 | attached; not locked, or write-locked (the sequence numbers tell) | a reader's raise; `detach`: 0 |
//! | 1 + bit 29, *beside* | attached; whether there are readers, the lock beside it knows | `detach`: 0, by the holder of that lock |
//! | 2 to 2^29 - 1 | attached with readers; some may be in passing: they raise it, find it write-locked, and lower it | a reader |
//! | one of the last two + bit 31, *per-CPU* | the same, and there may be readers that are not counted here but stand in slots | the writer that waits for readers |
//! | + bit 30, *draining* | somebody with the mmap lock for writing waits for the readers to leave; nobody can raise it | the waiter, at bit 30 + 1, to 1 or (detach) 0; or, killed, at any value |
//!
//! A reader raises it only from 1 or more, and not beyond 2^28 - 1, so bits 29 and 30 and the value 0 bar readers.
//!
//! # The slots
//!
//! *Reader*: steps into its CPU's slot, if that is free; then looks at the count again. If that is still
//! per-CPU and not draining, it is in as if it had raised the count: compares the numbers and so on.
//! Otherwise it leaves, and comes by the count. *Writer*: its exchange of 1 by 1 fails because of bit 31; it
//! adds bit 30, takes bit 31 off, and then looks through the slots. For each in which the VMA stands it
//! raises the count, then empties the slot, or lowers the count again if the reader was faster to leave. Now
//! all readers are counted, and it waits as it always does. If the VMA is not per-CPU it looks at no slot.
//!
//! Each side writes its word and then looks at the other's, in the total order of `SeqCst` (each of the four
//! accesses has to be; loom does not know that order, so the unit tests of `axioms` run them as they ship): a
//! reader that finds the VMA per-CPU and not draining comes before the writer's bit 30, so the writer finds
//! it in its slot, or finds it gone. A reader leaves the VMA as it leaves the count: without looking at it
//! any more, other than by that one decrement. A late one may stand in its slot with a VMA of another life,
//! to which it is a reader in passing. The slots belong to the engine, because a VMA may have a life in each
//! of its address spaces.
//!
//! *When it goes per-CPU*: an exchange of a reader that fails because the count has changed is *contention*,
//! and costs about one transfer of a line. To look through the slots costs a transfer for each that a reader
//! was in lately, and the reading of a line for the others, an eighth of that. So the VMA goes per-CPU after
//! an eighth as many contentions as there are slots, counted since it was last per-CPU: what writers pay is
//! in proportion to what readers paid before, and a VMA that is written often beside few readers stays as it
//! is. One thread alone never contends.
//!
//! # The sequence number
//!
//! | value | meaning |
//! | --- | --- |
//! | the mmap lock's number, which is odd | write-locked; after the writer's end the numbers differ: unlocked |
//! | any other | not locked |
//!
//! Only holders of the mmap lock for writing write it, or owners of the detached VMA. A new one is all ones.
//!
//! # Which access pairs with which
//!
//! | release | acquire | so that |
//! | --- | --- | --- |
//! | `attach` stores 1 | the reader's raise, or second look from a slot | owner and bounds are those of this life or a later one |
//! | the writer's exchange, or its taking bit 30 off | the same | the reader sees the VMA's number, and the mmap lock's number of that section or later |
//! | the end of the write section | the reader's load of the mmap lock's number | a reader that finds the numbers different sees the writer's changes |
//! | `mark` stores the VMA's number | the reader's load of it | a reader inside, for which the next writer already waits, does not compare that writer's number with an mmap lock's number from before it |
//! | a reader's decrement | the writer's exchange and loads while it waits; `detach` | the reader's accesses end before the writer's begin |
//! | a reader's emptying a slot | the writer's look at the slot; or another reader's failure to empty it, which lowers the count for both | the same |
//!
//! All changes of the count but the store in `attach` are read-modify-writes, and so are all changes of a
//! slot: an access that sees a later value has acquired the earlier releases too.

use crate::atomic::{AtomicU32, CHECKED, Ordering, VMA_COUNT_LIMIT, between_crosswise, const_unless_loom};
use crate::beside::Beside;
use crate::host::{Host, Killed};
use crate::mmap_lock::{MmapLock, MmapReadGuard, MmapWriteGuard};
use crate::rank::{self, Rank};
use crate::reader_slots::Slot;
use crate::rwsem::raw::{RawRwSem, Wait};
use allocator_api2::alloc::AllocError;
use core::fmt;

const DETACHED: u32 = 0;
const ATTACHED: u32 = 1;
const READER: u32 = 1;
/// Readers take the lock beside the VMA.
const BESIDE: u32 = 1 << 29;
/// Keeps readers out while somebody waits for those inside.
const DRAINING: u32 = 1 << 30;
/// There may be readers in the slots.
const PER_CPU: u32 = 1 << 31;
const NEVER: u32 = u32::MAX;

/// A VMA's count of readers; see the [module](self). Starts detached.
pub struct VmaCount {
    word: AtomicU32,
    /// Readers that contended since the VMA was last per-CPU. Written by those, at the cost of a lost one
    /// now and then, and by writers.
    contention: AtomicU32,
    /// The lock beside the VMA, if a life of it has wanted one.
    beside: Beside,
}

/// Where a reader of a VMA is counted: to be given back when it leaves.
#[derive(Clone, Copy, Debug)]
#[must_use = "whoever locks a VMA has to unlock it"]
pub struct ReaderPlace<'l>(
    /// The slot that it came by; none: the count.
    Option<&'l Slot>,
);

/// A VMA's sequence number; see the [module](self). Belongs into another cache line than the count: readers
/// look at it before they decide to write.
#[repr(transparent)]
pub struct VmaSeq(AtomicU32);

#[cfg(test)]
impl ReaderPlace<'_> {
    /// Whether the reader stands in a slot.
    pub(crate) fn in_slot(&self) -> bool {
        self.0.is_some()
    }
}

impl VmaCount {
    const_unless_loom! {
        /// The count of a detached VMA.
        pub fn new() -> Self {
            VmaCount {
                word: AtomicU32::new(DETACHED),
                contention: AtomicU32::new(0),
                beside: Beside::none(),
            }
        }
    }

    /// Makes the lock beside the VMA, for a life under an mmap lock [that wants one](MmapLock::with_rwsems),
    /// unless a former life has left one. The VMA is detached and the caller's.
    ///
    /// # Errors
    /// No memory.
    pub fn make_beside<H: Host>(&self) -> Result<(), AllocError> {
        self.beside.make::<H>()
    }
}

impl VmaSeq {
    const_unless_loom! {
        /// The number of a VMA that was never locked.
        pub fn new() -> Self {
            VmaSeq(AtomicU32::new(NEVER))
        }
    }
}

impl Default for VmaCount {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for VmaSeq {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for VmaCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: pairs with nothing.
        write!(f, "VmaCount({:#x})", self.word.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for VmaSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: pairs with nothing.
        write!(f, "VmaSeq({:#x})", self.0.load(Ordering::Relaxed))
    }
}

/// Why a VMA was not locked for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFail {
    /// It is in no address space: walk the tree again.
    Detached,
    /// It is write-locked, or was a moment ago: take the mmap lock.
    Locked,
    /// It belongs to another owner by now: take the mmap lock.
    Foreign,
    /// It has as many readers as can be counted.
    TooMany,
}

impl fmt::Display for ReadFail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadFail::Detached => "the VMA is detached",
            ReadFail::Locked => "the VMA is locked for writing",
            ReadFail::Foreign => "the VMA belongs to another address space",
            ReadFail::TooMany => "the VMA has too many readers",
        })
    }
}

impl core::error::Error for ReadFail {}

/// The lock of a VMA, made of the VMA's two words.
#[derive(Clone, Copy, Debug)]
pub struct VmaLock<'a> {
    /// The count of readers.
    pub count: &'a VmaCount,
    /// The sequence number.
    pub seq: &'a VmaSeq,
}

impl VmaLock<'_> {
    // ---- reading ----

    /// Locks the VMA for reading, without any other lock and without waiting.
    ///
    /// `lock` is the mmap lock of the space that the caller looks in, and `is_owner` tells, from the VMA's
    /// own fields, whether that is the VMA's space; it is asked when the VMA can no longer be recycled.
    /// The caller keeps the memory type-stable meanwhile, and afterwards checks that the VMA's bounds are
    /// what it looked for.
    ///
    /// # Errors
    /// Why not. [`ReadFail::Locked`] may be out of date; the lock is never given of a write-locked VMA.
    #[inline]
    pub fn try_read<'l, H: Host>(
        self,
        lock: &'l MmapLock<H>,
        is_owner: impl FnOnce() -> bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        // Relaxed: a hint that spares a locked VMA's count the writes; equal numbers are asked for again
        // below.
        if self.seq.0.load(Ordering::Relaxed) == lock.seq_hint() {
            return Err(ReadFail::Locked);
        }
        let place = self.enter(lock)?;
        if !is_owner() {
            self.leave::<H>(place);
            return Err(ReadFail::Foreign);
        }
        // Acquire, both, and in this order. The VMA's number pairs with `mark`: it may be that of a section
        // which waits for us to leave, and then the mmap lock's number must not be from before that
        // section. The mmap lock's number pairs with the end of a section.
        let marked = self.seq.0.load(Ordering::Acquire);
        if marked == lock.seq() {
            self.leave::<H>(place);
            return Err(ReadFail::Locked);
        }
        rank::acquired::<H>(Rank::Vma);
        Ok(place)
    }

    /// Locks an attached VMA for reading under the mmap lock, which no writer can prevent.
    ///
    /// # Errors
    /// [`ReadFail::TooMany`].
    #[inline]
    pub fn read_under<'l, H: Host>(self, guard: &MmapReadGuard<'l, H>) -> Result<ReaderPlace<'l>, ReadFail> {
        let place = self.enter(guard.lock())?;
        rank::acquired::<H>(Rank::Vma);
        Ok(place)
    }

    /// Ends a read lock, on whatever CPU. The VMA may be gone when this returns.
    #[inline]
    pub fn unlock_read<H: Host>(self, place: ReaderPlace<'_>) {
        rank::released::<H>(Rank::Vma);
        self.leave::<H>(place);
    }

    /// Becomes a reader, perhaps in passing.
    #[inline(always)]
    fn enter<'l, H: Host>(self, lock: &'l MmapLock<H>) -> Result<ReaderPlace<'l>, ReadFail> {
        // Relaxed: the exchange decides.
        let word = self.count.word.load(Ordering::Relaxed);
        let plain = (ATTACHED..VMA_COUNT_LIMIT).contains(&word);
        if plain && self.raise(word, word + READER) {
            return Ok(ReaderPlace(None));
        }
        self.enter_otherwise(lock, word, plain)
    }

    /// As [`enter`](Self::enter), of a VMA that is not `plain`, or whose count was no longer `word`.
    #[inline(never)]
    fn enter_otherwise<'l, H: Host>(
        self,
        lock: &'l MmapLock<H>,
        word: u32,
        plain: bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        if word & BESIDE != 0 {
            return self.enter_beside::<H>();
        }
        if word & (PER_CPU | DRAINING) == PER_CPU
            && let Some(place) = self.enter_slot(lock)
        {
            return Ok(place);
        }
        self.enter_by_count(lock, plain)
    }

    /// As [`enter`](Self::enter), when that has contended with another reader, or something is in its way.
    #[cold]
    fn enter_by_count<'l, H: Host>(
        self,
        lock: &'l MmapLock<H>,
        mut contended: bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        loop {
            let per_cpu = if contended && self.is_contended(lock) { PER_CPU } else { 0 };
            // Relaxed: as in `enter`.
            let word = self.count.word.load(Ordering::Relaxed);
            if word == DETACHED {
                return Err(ReadFail::Detached);
            }
            if word & BESIDE != 0 {
                return self.enter_beside::<H>();
            }
            if word & DRAINING != 0 {
                return Err(ReadFail::Locked);
            }
            if word & !PER_CPU >= VMA_COUNT_LIMIT {
                return Err(ReadFail::TooMany);
            }
            if self.raise(word, (word | per_cpu) + READER) {
                return Ok(ReaderPlace(None));
            }
            contended = true;
        }
    }

    /// Becomes a reader by the lock beside the VMA, which was attached with one a moment ago.
    fn enter_beside<'l, H: Host>(self) -> Result<ReaderPlace<'l>, ReadFail> {
        let beside = self.count.beside.get::<H>().ok_or(ReadFail::Detached)?;
        if !beside.try_read() {
            return Err(ReadFail::Locked);
        }
        // Acquire: pairs with `attach`, as in `raise`. The lock keeps it attached from here on.
        if self.count.word.load(Ordering::Acquire) == ATTACHED | BESIDE {
            return Ok(ReaderPlace(None));
        }
        leave_beside(beside);
        Err(ReadFail::Detached)
    }

    /// Becomes a reader in this CPU's slot, unless that is taken or the VMA is not per-CPU any more.
    #[inline]
    fn enter_slot<'l, H: Host>(self, lock: &'l MmapLock<H>) -> Option<ReaderPlace<'l>> {
        let place = ReaderPlace(Some(lock.slots()?.enter(self.name())?));
        between_crosswise();
        // SeqCst: the second half of the way in. An acquire, too, as in `raise`.
        if self.count.word.load(Ordering::SeqCst) & (PER_CPU | DRAINING) == PER_CPU {
            return Some(place);
        }
        self.leave::<H>(place);
        None
    }

    /// Notes that readers contended, and tells whether they have done so often enough to go per-CPU.
    fn is_contended<H: Host>(self, lock: &MmapLock<H>) -> bool {
        let enough = if CHECKED { 1 } else { H::cpus() as u32 / 8 };
        // Relaxed: an estimate.
        let contention = self.count.contention.load(Ordering::Relaxed).saturating_add(1);
        self.count.contention.store(contention, Ordering::Relaxed);
        contention >= enough && lock.slots().is_some()
    }

    #[inline]
    fn raise(self, from: u32, to: u32) -> bool {
        // Acquire: pairs with `attach` and with the writer's last step on the count. Nothing that is read of
        // the VMA afterwards is from before that.
        self.count.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn leave<H: Host>(self, place: ReaderPlace<'_>) {
        if let ReaderPlace(Some(slot)) = place
            && slot.leave(self.name())
        {
            return;
        }
        // Relaxed: the exchange decides.
        let mut word = self.count.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(
                word & !(DRAINING | PER_CPU) > 0,
                "a VMA is released more often than it was locked"
            );
            if word & (DRAINING | BESIDE) != 0 {
                return self.leave_otherwise::<H>(word);
            }
            // Release: pairs with the acquire of the writer that waits for the readers to leave. Relaxed:
            // nothing was done.
            let left =
                self.count.word.compare_exchange(word, word - READER, Ordering::Release, Ordering::Relaxed);
            match left {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// As [`leave`](Self::leave), by the lock beside the VMA, or by the count while a writer waits for the
    /// readers.
    #[cold]
    fn leave_otherwise<H: Host>(self, word: u32) {
        if word & BESIDE != 0
            && let Some(beside) = self.count.beside.get::<H>()
        {
            return leave_beside(beside);
        }
        // The VMA's memory stays until the wake-up is over, though the VMA may not.
        let _memory_stays = H::rcu_read();
        // Release: as in `leave`.
        let before = self.count.word.fetch_sub(READER, Ordering::Release);
        if before - READER == DRAINING + ATTACHED {
            // By address: the word may belong to the next life by now, or to nobody.
            H::wake_one(&self.count.word);
        }
    }

    /// What stands in a slot for a reader of this VMA.
    #[inline]
    fn name(self) -> usize {
        core::ptr::from_ref(self.count).addr()
    }

    // ---- writing ----

    /// Locks the VMA for writing, until the guard is dropped or downgraded, and waits for its readers to
    /// leave. To lock a locked one again is cheap.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a VMA's read lock or a lock of an inner rank.
    #[inline]
    pub fn write<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        rank::will_wait::<H>(Rank::Vma);
        self.mark(guard);
        if self.has_readers() {
            // A wait that cannot be killed does not fail.
            let _ = self.drain(guard, ATTACHED, wait_for_certain::<H>);
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
        if self.has_readers() {
            self.drain(guard, ATTACHED, H::wait_killable).inspect_err(|_| {
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

    /// Whether there may be readers that came before the VMA was marked.
    #[inline]
    fn has_readers(self) -> bool {
        // An exchange of like for like: a place in the order of all changes of the count. Release: a reader
        // that raises it later sees the mark. Acquire: pairs with the decrements of the readers that have
        // left.
        match self.count.word.compare_exchange(ATTACHED, ATTACHED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => false,
            // A detached VMA has none and gets none before `attach`.
            Err(count) => count != DETACHED,
        }
    }

    /// Keeps new readers out until the others have left, then makes the count `rest` and lets readers in
    /// again, or, if the wait is given up, whatever is left.
    #[cold]
    fn drain<H: Host>(
        self,
        guard: &MmapWriteGuard<'_, H>,
        rest: u32,
        wait: Wait,
    ) -> Result<(), Killed> {
        // Relaxed: changes with the mmap lock held.
        if self.count.word.load(Ordering::Relaxed) & BESIDE != 0 {
            return self.drain_beside::<H>(rest, wait);
        }
        // Release, here and below: as in `has_readers`. Acquire, here and in the load: pairs with the
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

    /// As [`drain`](Self::drain), by the lock beside the VMA.
    fn drain_beside<H: Host>(self, rest: u32, wait: Wait) -> Result<(), Killed> {
        let Some(beside) = self.count.beside.get::<H>() else { return Ok(()) };
        beside.write_by(wait)?;
        if rest == DETACHED {
            // Relaxed: a reader that gets the lock after this sees it.
            self.count.word.store(DETACHED, Ordering::Relaxed);
        }
        beside.unlock_write();
        Ok(())
    }

    /// Counts the readers that stand in slots, from which new ones are barred.
    fn collect<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        // Relaxed: an estimate.
        self.count.contention.store(0, Ordering::Relaxed);
        // Release, here and below: as in `has_readers`, for the first reader that sees this value.
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
        // begin. Release: as in `has_readers`.
        let unread =
            self.count.word.compare_exchange(ATTACHED, DETACHED, Ordering::AcqRel, Ordering::Relaxed);
        if unread.is_err() {
            let _ = self.drain(guard, DETACHED, wait_for_certain::<H>);
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

/// Lets the lock beside a VMA go, which a reader has.
fn leave_beside<H: Host>(beside: &RawRwSem<H>) {
    // The lock's memory stays until the next writer is woken, though the VMA may not.
    let _memory_stays = H::rcu_read();
    beside.unlock_read();
}

fn wait_for_certain<H: Host>(word: &AtomicU32, value: u32) -> Result<(), Killed> {
    H::wait(word, value);
    Ok(())
}
