//! The lock of one VMA: a count of readers, and a sequence number that is odd while the VMA is write-locked.
//!
//! `read.rs` and `write.rs` have the two sides of the protocol. `by_guard.rs` has the functions that callers
//! use; a guard proves the right of the caller, except in `try_read`, which needs no lock. `locking.rs` has
//! the designs, and `external_rwsem.rs` implements one of them. A change on one side must fit the other side
//! and the tables below. `tests/loom_vma/` tests both sides in all schedules, and `src/axioms/slots.rs` tests
//! the slots.
//!
//! # Guarantees
//!
//! - A reader needs no other lock, and writes one word: of the VMA, or of its CPU.
//! - A writer has the right to change the VMA: it holds the mmap lock for writing, or has claimed the VMA as
//!   a range writer. It locks each VMA separately, and unlocks each before it releases that right.
//! - A reader may see an unlocked VMA as locked (a stale number), but never a locked VMA as unlocked.
//! - A reader may be late. VMAs are type-stable within an RCU read section: memory that was a VMA when the
//!   reader found it remains a VMA until the section ends, although the VMA may then belong to another
//!   address space. A *life* of a VMA is the time between the allocation of its memory from the slab and the
//!   return of the memory to the slab. The lock keeps a late reader from using the data of a later life. The
//!   caller checks the bounds of the VMA after it has the lock.
//!
//! # Mechanism
//!
//! **Reader**: raise the count; check that the owner is this address space; read the number. If the number is
//! odd, the VMA is write-locked: lower the count, and fail. Such a reader is *transient*.
//!
//! **Writer**: make the number odd (*mark* the VMA); exchange the count from 1 to 1, which is the only
//! read-modify-write that a VMA without readers costs. If there are readers, set bit 30, which keeps new
//! readers out, and sleep until the count shows that they have left. To unlock, make the number even with a
//! store.
//!
//! The writer changes the count after it has marked the VMA, and a reader changes the count before it reads
//! the number. One of the two sides is second in the order of these changes. A reader that is second sees the
//! odd number and fails. A writer that is second finds the count raised, or per-CPU, and waits.
//!
//! **Waiting**: only one task can wait, because no other task may change the VMA. That task sleeps on the
//! count word, and a reader that leaves wakes the task by the address of the word. So a wake-up is correct
//! even if the VMA has been recycled: the count of the recycled VMA is the same word on which the writer of
//! the new address space waits. The reader needs neither the address space nor a reference to it (hazard C-19
//! cannot occur). After its decrement a reader does not read the VMA any more. By then the writer may already
//! be awake, have ended the VMA, and have freed its memory. So, before the decrement, the reader opens an RCU
//! read section, which keeps the word valid until the reader has woken the task by the address. If no writer
//! waits, a reader wakes no task and needs no section.
//!
//! **Per-CPU readers**: readers of one VMA on many CPUs would transfer the cache line of its count twice for
//! each reader. So a VMA on which readers often contend becomes per-CPU: each CPU has one slot
//! ([`ReaderSlots`](crate::ReaderSlots)), which can then record one reader of the VMA in place of the count
//! (distributed reader indicators with revocation, as in BRAVO: Dice and Kogan, 2019). The readers of a VMA
//! are those in the count and those in slots. Readers are interchangeable: a reader that leaves removes *a*
//! reader of the VMA from the slot that it entered, or, if that slot holds no reader of the VMA, from the
//! count.
//!
//! **External rwsem**, if the mmap lock selects it: see `external_rwsem`. Everything else is unchanged.
//!
//! # The count
//!
//! | value | meaning | transition |
//! | --- | --- | --- |
//! | 0 | detached; no task can raise the count | `attach`: 1 |
//! | 1 | attached; write-locked if the sequence number is odd | a reader raises it; `detach`: 0 |
//! | 1 + bit 29, *external* | attached; the external rwsem counts the readers | `detach`: 0, by the holder of that rwsem |
//! | 2 to 2^29 - 1 | attached with readers; some may be transient: they raise the count, find the VMA write-locked, and lower the count | a reader raises or lowers it |
//! | 1 or more, as above, + bit 31, *per-CPU* | as above, and readers may also be in slots | the writer that waits for readers clears bit 31 |
//! | + bit 30, *draining* | the writer waits for the readers to leave; no task can raise the count | by the waiter: when only bit 30 and 1 are left, the count becomes 1, or 0 in `detach`. A killed waiter clears bit 30 at any value |
//!
//! A reader raises the count only from 1 or more, and not beyond 2^28 - 1. So bits 29 and 30 and the value 0
//! keep readers out.
//!
//! # The slots
//!
//! *Reader*: it enters the slot of its CPU, if the slot is free, and then reads the count again. If the count
//! is still per-CPU and not draining, the reader is inside, as if it had raised the count, and continues by
//! reading the number. Otherwise it leaves the slot and enters through the count.
//!
//! *Writer*: its exchange from 1 to 1 fails because of bit 31. It sets bit 30, clears bit 31, and then looks
//! through the slots. For each slot that holds a reader of the VMA, it raises the count and then empties the
//! slot. If the reader has left the slot first, the writer lowers the count again. Now all readers are in the
//! count, and the writer waits as described above. If the VMA is not per-CPU, the writer looks at no slot.
//!
//! Each side writes its word and then reads the word of the other side, in the total order of `SeqCst`. All
//! four accesses must be `SeqCst`. (loom does not implement that order, so the unit tests with `axioms` run
//! the shipped code.) A reader that finds the VMA per-CPU and not draining precedes the writer's bit 30. So
//! the writer finds the reader in its slot, or finds that the reader has left. A reader leaves the slot as it
//! leaves the count: with one decrement or exchange, without reading the VMA afterwards. When a late reader
//! enters a slot, the VMA may already have another life; the reader is then transient. The slots belong to
//! the engine, because the memory of a VMA can belong to any address space of the engine.
//!
//! *When a VMA becomes per-CPU*: a reader's exchange that fails because the count has changed is
//! *contention*, and costs about one transfer of a cache line. A look through the slots costs one transfer
//! for each slot that was recently in use. For each other slot, the look costs the read of a line, an eighth
//! of a transfer. So the VMA becomes per-CPU when the number of contentions since it was last per-CPU reaches
//! an eighth of the number of slots. The cost to writers is therefore proportional to the cost that readers
//! had before. A VMA that is often written and has few readers rarely becomes per-CPU. A single thread never
//! contends.
//!
//! # The sequence number
//!
//! | value | meaning | transition |
//! | --- | --- | --- |
//! | even | not write-locked | +1: `write`, which then waits for the readers |
//! | odd | write-locked, or about to be | +1: `unlock_write`; the end of `detach`; a killed `write_killable` |
//!
//! Only the task that may change the VMA, or the owner of a detached VMA, writes the number, so plain stores
//! suffice. The number continues from life to life. It may wrap, because only the writer itself distinguishes
//! one odd number from another.
//!
//! # Pairing of accesses
//!
//! | release | acquire | meaning |
//! | --- | --- | --- |
//! | `attach` stores 1 | the reader's raise, or its second look from a slot | owner and bounds are those of this life or a later one |
//! | the writer's exchange, or its clearing of bit 30 | the reader's raise, or its second look from a slot | the reader sees the odd number, or a later one |
//! | `unlock_write` stores the number | the reader's load of the number | a reader that finds the number even sees the writer's changes |
//! | a reader's decrement | the writer's exchange and its loads while it waits; `detach` | the reader's accesses end before the writer's begin |
//! | a reader empties its slot | the writer's look at the slot; or the failed attempt of another reader to empty the slot (that reader then lowers the count for both) | the reader's accesses end before the writer's begin |
//!
//! All changes of the count are read-modify-writes, except the store in `attach` and the store of 0 with the
//! external rwsem held. All changes of a slot are read-modify-writes. So an access that sees a later value
//! has acquired the earlier releases too.

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
/// Keeps readers out while a writer waits for the readers inside.
const DRAINING: u32 = 1 << 30;
/// Readers may be in slots.
const PER_CPU: u32 = 1 << 31;

/// The count of readers of a VMA; see the [module](self). Detached at first.
pub struct VmaCount {
    word: AtomicU32,
    /// Number of contentions since the VMA was last per-CPU. Readers write it without read-modify-writes, so
    /// an increment may be lost. Writers reset it.
    contention: AtomicU32,
    /// The external rwsem of the VMA, if one was created in this or an earlier life.
    external: ExternalRwSem,
}

/// The place where a reader of a VMA is counted. A reader passes this value to
/// [`unlock_read`](VmaLock::unlock_read).
#[derive(Clone, Copy, Debug)]
#[must_use = "the reader must unlock the VMA"]
pub struct ReaderPlace<'l>(
    /// The slot that the reader entered, or [the slot](Slot::external) that represents the external rwsem of
    /// the VMA. `None` if the reader is in the count. The value is one word, because every fault passes it
    /// on.
    Option<&'l Slot>,
);

/// The sequence number of a VMA; see the [module](self). The number belongs in another cache line than the
/// count, because readers read the number before they decide whether to write the count.
#[repr(transparent)]
pub struct VmaSeq(AtomicU32);

#[cfg(test)]
impl ReaderPlace<'_> {
    /// Returns true if the reader is in a slot.
    pub(crate) fn in_slot(&self) -> bool {
        self.0.is_some_and(|slot| !slot.is_external())
    }
}

impl VmaCount {
    const_unless_loom! {
        /// Creates the count of a detached VMA.
        pub fn new() -> Self {
            Self::at(DETACHED)
        }

        /// Creates the count of an object that is never detached.
        pub(crate) fn attached() -> Self {
            Self::at(ATTACHED)
        }

        fn at(word: u32) -> Self {
            VmaCount { word: AtomicU32::new(word), contention: AtomicU32::new(0), external: ExternalRwSem::none() }
        }
    }

    /// Creates the external rwsem of the VMA, unless an earlier life has created it. Must be called before
    /// the VMA is attached under an mmap lock with [external rwsems](crate::FaultLock::VmaRwsem). The VMA is
    /// detached and the caller owns it.
    ///
    /// # Errors
    /// Fails with [`AllocError`] if there is no memory.
    pub fn make_external_rwsem<H: Host>(&self) -> Result<(), AllocError> {
        self.external.make::<H>()
    }
}

impl VmaSeq {
    const_unless_loom! {
        /// Creates the sequence number of a VMA that was never locked.
        pub fn new() -> Self {
            VmaSeq(AtomicU32::new(0))
        }

        /// Creates the sequence number of an object that is write-locked.
        pub(crate) fn locked() -> Self {
            VmaSeq(AtomicU32::new(1))
        }

        /// Creates a sequence number that starts at `seq`, for tests of wrapping. An odd `seq` is rounded
        /// down.
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
        // Relaxed: orders nothing.
        write!(f, "VmaCount({:#x})", self.word.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for VmaSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: orders nothing.
        write!(f, "VmaSeq({:#x})", self.0.load(Ordering::Relaxed))
    }
}

crate::error_enum! {
    /// Reasons why a VMA was not locked for reading.
    #[non_exhaustive]
    pub enum ReadFail {
        /// The VMA is not in an address space any more.
        ///
        /// The caller looks up the VMA in the tree again.
        Detached,
        /// The VMA is locked for writing, or was a moment ago.
        ///
        /// The caller takes the mmap lock.
        Locked,
        /// The VMA belongs to another address space now.
        ///
        /// The caller takes the mmap lock.
        Foreign,
        /// The VMA has the maximum number of readers.
        TooMany,
    }
}

/// Returns true if a VMA with this number is write-locked.
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
