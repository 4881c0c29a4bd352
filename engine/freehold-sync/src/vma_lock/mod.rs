//! The lock of one VMA: a count of readers, and a sequence number that is odd while it is locked for writing.
//!
//! # What it promises
//!
//! - A reader needs no other lock, and writes one word: of the VMA, or of its CPU.
//! - A writer has the right to change the VMA: it holds the mmap lock for writing. It locks VMA by VMA, and
//!   unlocks each by itself, before it lets go of the mmap lock.
//! - A reader may be told that a VMA is locked when it is not any more (a stale number). It is never told
//!   that one is unlocked when it is not.
//! - A reader may come late. VMAs are type-stable within a read section (RCU): memory that was a VMA when it
//!   was found stays one until the section ends, perhaps of another address space. The lock keeps a late
//!   reader from *believing* what it finds in a VMA's next life. Bounds are the caller's to check, after the
//!   lock is held.
//!
//! # How
//!
//! **Reader**: raise the count; ask whether the owner is this space; look at the number. If it is odd the VMA
//! is write-locked: lower the count, and give up.
//!
//! **Writer**: make the number odd (*mark*); exchange the count 1 by 1, which is the one read-modify-write
//! that an unread VMA costs. If there are readers, set bit 30, which keeps new ones out, and sleep until the
//! count says that they have gone. To unlock, make the number even: a store.
//!
//! Both touch the count between their two looks, so one of them comes second there: a reader after the writer
//! sees the number and gives up; a writer after the reader finds the count raised, or per-CPU, and waits.
//!
//! **Waiting**: the one possible waiter (nobody else may change the VMA) sleeps on the count word itself,
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
//! **An external rwsem**, where the mmap lock says so: see `external_rwsem`. Nothing else changes.
//!
//! # The count
//!
//! | value | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | detached; nobody can raise it | `attach`: 1 |
//! | 1 | attached; not locked, or write-locked (the sequence number tells) | a reader's raise; `detach`: 0 |
//! | 1 + bit 29, *external* | attached; whether there are readers, the external rwsem knows | `detach`: 0, by the holder of that lock |
//! | 2 to 2^29 - 1 | attached with readers; some may be in passing: they raise it, find it write-locked, and lower it | a reader |
//! | one of the last two + bit 31, *per-CPU* | the same, and there may be readers that are not counted here but stand in slots | the writer that waits for readers |
//! | + bit 30, *draining* | the writer waits for the readers to leave; nobody can raise it | the waiter, at bit 30 + 1, to 1 or (detach) 0; or, killed, at any value |
//!
//! A reader raises it only from 1 or more, and not beyond 2^28 - 1, so bits 29 and 30 and the value 0 bar
//! readers.
//!
//! # The slots
//!
//! *Reader*: steps into its CPU's slot, if that is free; then looks at the count again. If that is still
//! per-CPU and not draining, it is in as if it had raised the count: looks at the number and so on.
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
//! | value | meaning | leaves it by |
//! | --- | --- | --- |
//! | even | not write-locked | +1: `write`, which then waits for the readers |
//! | odd | write-locked, or about to be | +1: `unlock_write`; the end of `detach`; a killed `write_killable` |
//!
//! The task that may change the VMA writes it, or the owner of the detached VMA, so by plain stores. It goes
//! on from life to life and wraps: nobody but the writer itself tells one odd number from another.
//!
//! # Which access pairs with which
//!
//! | release | acquire | so that |
//! | --- | --- | --- |
//! | `attach` stores 1 | the reader's raise, or second look from a slot | owner and bounds are those of this life or a later one |
//! | the writer's exchange, or its taking bit 30 off | the same | the reader sees the odd number, or a later one |
//! | `unlock_write` stores the number | the reader's load of it | a reader that finds it even sees the writer's changes |
//! | a reader's decrement | the writer's exchange and loads while it waits; `detach` | the reader's accesses end before the writer's begin |
//! | a reader's emptying a slot | the writer's look at the slot; or another reader's failure to empty it, which lowers the count for both | the same |
//!
//! All changes of the count but the store in `attach`, and that of 0 with the external rwsem held, are
//! read-modify-writes, and so are all changes of a
//! slot: an access that sees a later value has acquired the earlier releases too.

mod by_guard;
mod external_rwsem;
mod locking;
mod read;
mod write;

use crate::atomic::{AtomicU32, Ordering, const_unless_loom};
use crate::host::Host;
use crate::reader_slots::Slot;
use allocator_api2::alloc::AllocError;
use core::fmt;
use external_rwsem::ExternalRwSem;
pub(crate) use locking::VmaLocking;

pub use locking::FaultLock;

const DETACHED: u32 = 0;
const ATTACHED: u32 = 1;
const READER: u32 = 1;
/// Readers take the external rwsem of the VMA.
const EXTERNAL: u32 = 1 << 29;
/// Keeps readers out while somebody waits for those inside.
const DRAINING: u32 = 1 << 30;
/// There may be readers in the slots.
const PER_CPU: u32 = 1 << 31;

/// A VMA's count of readers; see the [module](self). Starts detached.
pub struct VmaCount {
    word: AtomicU32,
    /// Readers that contended since the VMA was last per-CPU. Written by those, at the cost of a lost one
    /// now and then, and by writers.
    contention: AtomicU32,
    /// The external rwsem of the VMA, if a life of it has wanted one.
    external: ExternalRwSem,
}

/// Where a reader of a VMA is counted: to be given back when it leaves.
#[derive(Clone, Copy, Debug)]
#[must_use = "whoever locks a VMA has to unlock it"]
pub struct ReaderPlace<'l>(
    /// The slot that it came by, or [the one that stands](Slot::external) for the external rwsem of the VMA;
    /// none: the count. One word, because it is passed on with every fault.
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
        self.0.is_some_and(|slot| !slot.is_external())
    }
}

impl VmaCount {
    const_unless_loom! {
        /// The count of a detached VMA.
        pub fn new() -> Self {
            Self::at(DETACHED)
        }

        /// The count of what is never detached.
        pub(crate) fn attached() -> Self {
            Self::at(ATTACHED)
        }

        fn at(word: u32) -> Self {
            VmaCount { word: AtomicU32::new(word), contention: AtomicU32::new(0), external: ExternalRwSem::none() }
        }
    }

    /// Makes the external rwsem of the VMA, for a life under an mmap lock [that wants
    /// one](crate::FaultLock::VmaRwsem), unless a former life has left one. The VMA is detached and the
    /// caller's.
    ///
    /// # Errors
    /// No memory.
    pub fn make_external_rwsem<H: Host>(&self) -> Result<(), AllocError> {
        self.external.make::<H>()
    }
}

impl VmaSeq {
    const_unless_loom! {
        /// The number of a VMA that was never locked.
        pub fn new() -> Self {
            VmaSeq(AtomicU32::new(0))
        }

        /// The number of what is locked.
        pub(crate) fn locked() -> Self {
            VmaSeq(AtomicU32::new(1))
        }

        /// One that was locked often, for tests of what happens when it wraps. An odd `seq` is rounded down.
        pub fn with_seq(seq: u32) -> Self {
            VmaSeq(AtomicU32::new(seq & !1))
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

crate::error_enum! {
    /// Why a VMA was not locked for reading.
    #[non_exhaustive]
    pub enum ReadFail {
        /// The VMA is in no address space any more.
        ///
        /// The caller walks the tree again.
        Detached,
        /// The VMA is locked for writing, or was a moment ago.
        ///
        /// The caller takes the mmap lock.
        Locked,
        /// The VMA belongs to another address space by now.
        ///
        /// The caller takes the mmap lock.
        Foreign,
        /// The VMA has as many readers as can be counted.
        TooMany,
    }
}

/// Whether a VMA with this number is write-locked.
fn is_odd(seq: u32) -> bool {
    !seq.is_multiple_of(2)
}

/// The lock of a VMA, made of the VMA's two words.
#[derive(Clone, Copy, Debug)]
pub struct VmaLock<'a> {
    /// The count of readers.
    pub count: &'a VmaCount,
    /// The sequence number.
    pub seq: &'a VmaSeq,
}
