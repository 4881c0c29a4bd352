//! The lock of one VMA: a count of readers, a sequence number, and the mmap lock's number to compare it with.
//!
//! # What it promises
//!
//! A reader needs no other lock, and writes one word of the VMA. A writer holds the mmap lock for writing; it locks VMA
//! by VMA and unlocks them all at once. A reader may be told that a VMA is locked when it no longer is; it is never
//! told that one is unlocked when it is not.
//!
//! VMAs are type-stable: memory that was a VMA stays one, perhaps of another address space, so a reader may come late
//! and touch the words of a VMA's next life. The lock keeps such a reader from *believing* what it finds; bounds are
//! the caller's to check, after the lock is held.
//!
//! # The count
//!
//! | value | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | detached; nobody can raise it | `attach`: 1 |
//! | 1 | attached; not locked, or write-locked (the sequence numbers tell) | a reader's raise; `detach`: 0 |
//! | 2 to 2^30 - 1 | attached with readers, or detaching; some may be in passing: they raise it, find it write-locked, and lower it | a reader |
//! | + bit 30 | somebody with the mmap lock for writing waits for the readers to leave; nobody can raise it | the waiter, at bit 30 + 1 (write) or bit 30 + 0 (detach); or, killed, at any value |
//!
//! A reader raises it only from 1 or more, and not beyond 2^30 - 1, so bit 30 and the value 0 bar readers without
//! further ado.
//!
//! # The sequence number
//!
//! | value | meaning |
//! | --- | --- |
//! | the mmap lock's number, which is odd | write-locked; after the writer's end the numbers differ: unlocked |
//! | any other | not locked |
//!
//! It is written only by who holds the mmap lock for writing, or owns the detached VMA. A new one is all ones.
//!
//! *Reader*: raise the count; then compare the numbers. *Writer*: store the number; then look at the count with an
//! exchange of 1 by 1, which is the one read-modify-write that an unread VMA costs. Both touch the count in between, so
//! one of them comes second there: a reader after the writer sees the number and gives up; a writer after the reader
//! finds the count raised and waits. Because the writer always looks, it does not matter if the number happened to be
//! equal already, be it from this write section or after 2^32 of them.
//!
//! # Who waits where
//!
//! The one possible waiter (the mmap lock is held for writing) sleeps on the count word itself, and a reader that
//! leaves wakes by the address of that word. So it makes no difference whose VMA it is by then: the count of a recycled
//! VMA is the very word on which the writer of the new space waits, and the reader needs neither the space nor a
//! reference to it (hazard C-19 cannot occur). After its decrement a reader does not read the VMA any more.
//!
//! # Who pairs with whom
//!
//! | release | acquire | so that |
//! | --- | --- | --- |
//! | `attach` stores 1 | the reader's raise | owner and bounds are those of this life or a later one |
//! | the writer's exchange, or its taking bit 30 off | the reader's raise | the reader sees the VMA's number, and the mmap lock's number of that section or later |
//! | the end of the write section | the reader's load of the mmap lock's number | who finds the numbers different sees the writer's changes |
//! | `mark` stores the VMA's number | the reader's load of it | a reader inside, for whom the next writer already waits, does not compare that writer's number with an mmap lock's number from before it |
//! | a reader's decrement | the writer's exchange and loads while it waits; `detach` | the reader's accesses end before the writer's begin |

use crate::atomic::{AtomicU32, Ordering, VMA_COUNT_LIMIT, const_unless_loom};
use crate::host::{Host, Killed};
use crate::mmap_lock::{MmapLock, MmapReadGuard, MmapWriteGuard};
use crate::rank::{self, Rank};
use core::fmt;

const DETACHED: u32 = 0;
const ATTACHED: u32 = 1;
const READER: u32 = 1;
/// Keeps readers out while somebody waits for those inside.
const DRAINING: u32 = 1 << 30;
const NEVER: u32 = u32::MAX;

/// A VMA's count of readers; see the [module](self). Starts detached.
#[repr(transparent)]
pub struct VmaCount(AtomicU32);

/// A VMA's sequence number; see the [module](self). Belongs into another cache line than the count: readers look at it
/// before they decide to write.
#[repr(transparent)]
pub struct VmaSeq(AtomicU32);

impl VmaCount {
    const_unless_loom! {
        /// The count of a detached VMA.
        pub fn new() -> Self {
            VmaCount(AtomicU32::new(DETACHED))
        }
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
        write!(f, "VmaCount({:#x})", self.0.load(Ordering::Relaxed))
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
    /// `lock` is the mmap lock of the space that the caller looks in, and `is_owner` tells, from the VMA's own fields,
    /// whether that is the VMA's space; it is asked when the VMA can no longer be recycled. The caller keeps the memory
    /// type-stable meanwhile, and afterwards checks that the VMA's bounds are what it looked for.
    ///
    /// # Errors
    /// Why not. [`ReadFail::Locked`] may be out of date; the lock is never given while the VMA is write-locked.
    #[inline]
    pub fn try_read<H: Host>(
        self,
        lock: &MmapLock<H>,
        is_owner: impl FnOnce() -> bool,
    ) -> Result<(), ReadFail> {
        // Relaxed: a hint that spares a locked VMA's count the writes; equal numbers are asked for again below.
        if self.seq.0.load(Ordering::Relaxed) == lock.seq_hint() {
            return Err(ReadFail::Locked);
        }
        self.raise()?;
        if !is_owner() {
            self.lower::<H>();
            return Err(ReadFail::Foreign);
        }
        // Acquire, both, and in this order. The VMA's number pairs with `mark`: it may be that of a section which waits
        // for us to leave, and then the mmap lock's number must not be from before that section. The mmap lock's
        // number pairs with the end of a section.
        let marked = self.seq.0.load(Ordering::Acquire);
        if marked == lock.seq() {
            self.lower::<H>();
            return Err(ReadFail::Locked);
        }
        rank::acquired::<H>(Rank::Vma);
        Ok(())
    }

    /// Locks an attached VMA for reading under the mmap lock, which no writer can prevent.
    ///
    /// # Errors
    /// [`ReadFail::TooMany`].
    #[inline]
    pub fn read_under<H: Host>(self, _: &MmapReadGuard<'_, H>) -> Result<(), ReadFail> {
        self.raise()?;
        rank::acquired::<H>(Rank::Vma);
        Ok(())
    }

    /// Ends a read lock. The VMA may be gone when this returns.
    #[inline]
    pub fn unlock_read<H: Host>(self) {
        rank::released::<H>(Rank::Vma);
        self.lower::<H>();
    }

    #[inline]
    fn raise(self) -> Result<(), ReadFail> {
        // Relaxed: the exchange decides.
        let mut count = self.count.0.load(Ordering::Relaxed);
        loop {
            if count == DETACHED {
                return Err(ReadFail::Detached);
            }
            if count >= VMA_COUNT_LIMIT {
                return Err(if count & DRAINING != 0 { ReadFail::Locked } else { ReadFail::TooMany });
            }
            // Acquire: pairs with `attach` and with the writer's last step on the count. Nothing that is read of the
            // VMA afterwards is from before that.
            match self.count.0.compare_exchange_weak(
                count,
                count + READER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => count = now,
            }
        }
    }

    #[inline]
    fn lower<H: Host>(self) {
        // Release: pairs with the acquire of who waits for the readers to leave.
        let before = self.count.0.fetch_sub(READER, Ordering::Release);
        debug_assert!(before & !DRAINING > 0, "a VMA is released more often than it was locked");
        let after = before.wrapping_sub(READER);
        if after & DRAINING != 0 && after <= DRAINING + ATTACHED {
            // By address: the word may belong to the next life by now, or to nobody.
            H::wake_one(&self.count.0);
        }
    }

    // ---- writing ----

    /// Locks the VMA for writing, until the guard is dropped or downgraded, and waits for its readers to leave. To lock
    /// a locked one again is cheap.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a VMA's read lock or a lock of an inner rank.
    #[inline]
    pub fn write<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        rank::will_wait::<H>(Rank::Vma);
        self.mark(guard);
        if self.has_readers() {
            // A wait that cannot be killed does not fail.
            let _ = self.drain(ATTACHED, |word, value| {
                H::wait(word, value);
                Ok(())
            });
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
            self.drain(ATTACHED, H::wait_killable).inspect_err(|_| {
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
            // Release: pairs with the acquire in `try_read`. Readers that come after the writer's look at the count
            // would see it anyhow; this is for those before, who may find it too. (The fence that begins the section
            // would do as well; this does not rely on it.)
            self.seq.0.store(guard.seq(), Ordering::Release);
        }
        before
    }

    /// Whether there are readers whose raise came before the VMA was marked.
    #[inline]
    fn has_readers(self) -> bool {
        // An exchange of like for like: a place in the order of all changes of the count. Release: whoever raises it
        // later sees the mark. Acquire: pairs with the decrements of the readers that have left.
        match self.count.0.compare_exchange(ATTACHED, ATTACHED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => false,
            // A detached VMA has none and gets none before `attach`.
            Err(count) => count != DETACHED,
        }
    }

    /// Keeps new readers out until `rest` is left, and lets them in again (unless nothing is left).
    #[cold]
    fn drain(self, rest: u32, wait: impl Fn(&AtomicU32, u32) -> Result<(), Killed>) -> Result<(), Killed> {
        // Release, here and below: as in `has_readers`. Acquire, here and in the load: pairs with the readers' last
        // decrement.
        let mut count = self.count.0.fetch_add(DRAINING, Ordering::AcqRel) + DRAINING;
        let result = loop {
            if count == DRAINING + rest {
                break Ok(());
            }
            if let Err(killed) = wait(&self.count.0, count) {
                break Err(killed);
            }
            count = self.count.0.load(Ordering::Acquire);
        };
        self.count.0.fetch_sub(DRAINING, Ordering::Release);
        result
    }

    // ---- the VMA's life ----

    /// Prepares the words of a VMA that the caller alone owns, new or from the slab.
    ///
    /// # Panics
    /// With debug assertions, when it is not detached.
    pub fn init_detached(self) {
        debug_assert!(self.is_detached(), "an attached VMA is taken for a new one");
        // Relaxed: nobody can lock it; `attach` releases it.
        self.seq.0.store(NEVER, Ordering::Relaxed);
    }

    /// Opens a detached, write-locked VMA to readers, who will find it locked until the write section ends.
    ///
    /// All its fields are set before; after it may be found in the tree.
    ///
    /// # Panics
    /// With debug assertions, when it is attached or not write-locked.
    #[inline]
    pub fn attach<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        debug_assert!(self.is_write_locked(guard), "a VMA is attached that is not write-locked");
        debug_assert!(self.is_detached(), "a VMA is attached twice");
        // Release: pairs with the acquire in `raise`. A plain store: nobody raises a count of 0.
        self.count.0.store(ATTACHED, Ordering::Release);
    }

    /// Bars readers for good, and waits for those in passing, who do not wait themselves. Afterwards the VMA belongs to
    /// the caller alone.
    ///
    /// # Panics
    /// With debug assertions, when it is detached or not write-locked.
    #[inline]
    pub fn detach<H: Host>(self, guard: &MmapWriteGuard<'_, H>) {
        debug_assert!(self.is_write_locked(guard), "a VMA is detached that is not write-locked");
        debug_assert!(!self.is_detached(), "a VMA is detached twice");
        // Acquire: pairs with the decrement of readers in passing; their reads end before the owner's writes begin.
        let before = self.count.0.fetch_sub(ATTACHED, Ordering::AcqRel);
        if before != ATTACHED {
            let _ = self.drain(DETACHED, |word, value| {
                H::wait(word, value);
                Ok(())
            });
        }
    }

    /// Whether the VMA is in no address space. Certain only for its owner or under the mmap lock.
    #[inline]
    pub fn is_detached(self) -> bool {
        // Relaxed: pairs with nothing.
        self.count.0.load(Ordering::Relaxed) == DETACHED
    }
}
