//! One word per CPU that can record a reader of a VMA, instead of the VMA's reader count: [`ReaderSlots`].
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | 0 | free | exchange to the address of a VMA's count, by a reader of that VMA on this CPU |
//! | address of a VMA's count | the slot holds one reader of that VMA; it does not matter which reader | exchange to 0, by any reader of that VMA that leaves (on any CPU), or by the writer, which counts the reader first |
//!
//! Every change is a read-modify-write, and every access that finds a word free acquires. So the accesses of
//! earlier readers in this slot happen before everything that a task does after it finds the slot free.
//! [`vma_lock`](crate::vma_lock) describes the protocol; `vma_lock/read.rs` and `vma_lock/write.rs` are its
//! two sides. The orders of the accesses here are tested by `axioms/slots.rs`, not by loom.

use crate::atomic::{AtomicUsize, Ordering, const_unless_loom};
use crate::counted::Shared;
use crate::host::Host;
use crate::percpu::PerCpu;
use allocator_api2::alloc::AllocError;

/// The slots of all CPUs. All [mmap locks](crate::MmapLock) under which a VMA may be attached, now or after
/// its memory is recycled, share one `ReaderSlots`.
// The value has a cache line of its own: faults read the value, and the reference count before it in memory
// changes with every address space.
#[repr(align(64))]
#[derive(Debug)]
pub struct ReaderSlots<H: Host> {
    slots: PerCpu<Slot, H>,
}

/// The slot of one CPU; see the [module](self).
#[derive(Debug)]
pub(crate) struct Slot(AtomicUsize);

const FREE: usize = 0;
/// Value of the slot that represents an external rwsem. No count of a VMA has this address.
const EXTERNAL: usize = 1;

impl<H: Host> ReaderSlots<H> {
    /// Creates a free slot for each CPU.
    ///
    /// # Errors
    /// Fails with [`AllocError`] if there is no memory.
    pub fn try_new() -> Result<Self, AllocError> {
        Ok(ReaderSlots { slots: PerCpu::try_new(|_| Slot::free())? })
    }

    /// Puts a reader of `vma` into the slot of the current CPU. Returns `None` if the slot is in use.
    #[inline]
    pub(crate) fn enter(&self, vma: usize) -> Option<&Slot> {
        self.slots.with(|slot| {
            // SeqCst: the first half of a reader's entry, see `vma_lock`. Also a release, like every change
            // of a slot. Relaxed on failure: nothing was acquired.
            slot.0.compare_exchange(FREE, vma, Ordering::SeqCst, Ordering::Relaxed).is_ok().then_some(slot)
        })
    }

    /// Returns the slots that hold a reader of `vma`.
    pub(crate) fn of(&self, vma: usize) -> impl Iterator<Item = &Slot> {
        // SeqCst: the second half of a writer's entry, see `vma_lock`. Also an acquire: pairs with the
        // releases of the readers that have left.
        self.slots.iter().filter(move |slot| slot.0.load(Ordering::SeqCst) == vma)
    }
}

impl<H: Host> Shared for ReaderSlots<H> {}

impl Slot {
    const_unless_loom! {
        /// Creates a free slot.
        pub fn free() -> Self {
            Slot(AtomicUsize::new(FREE))
        }

        /// Creates a slot that represents the external rwsem of a VMA. The slot belongs to no CPU and never
        /// changes.
        pub fn external() -> Self {
            Slot(AtomicUsize::new(EXTERNAL))
        }
    }

    /// Returns true if the slot was created by [`external`](Self::external).
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        // Relaxed: the value is fixed, and no other slot ever has it.
        self.0.load(Ordering::Relaxed) == EXTERNAL
    }

    /// Removes a reader of `vma` from the slot. Returns false if the slot holds no reader of `vma`: the
    /// writer has counted the reader, or another reader of `vma` has removed it.
    #[inline]
    pub(crate) fn leave(&self, vma: usize) -> bool {
        // Release: the reader's accesses end before it leaves; pairs with the acquire of a task that finds
        // the slot free. Acquire on failure: pairs with the release of the reader that has left in place of
        // this one.
        self.0.compare_exchange(vma, FREE, Ordering::Release, Ordering::Acquire).is_ok()
    }
}
