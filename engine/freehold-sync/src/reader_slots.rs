//! A word per CPU in which a reader of a VMA may stand instead of being counted: [`ReaderSlots`].
//!
//! | word | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | free | exchange to a VMA, by a reader of it on this CPU |
//! | address of a VMA's count | one reader of that VMA, no matter which | exchange to 0, by any reader of it that leaves (on any CPU), or by its writer, which counts the reader first |
//!
//! Every change is a read-modify-write, and an access that finds a word free acquires. So what earlier
//! readers in this slot did happens before what follows in a task that finds them gone. The protocol is
//! [`vma_lock`](crate::vma_lock)'s.

use crate::atomic::{AtomicUsize, Ordering, const_unless_loom};
use crate::counted::Shared;
use crate::host::Host;
use crate::percpu::PerCpu;
use allocator_api2::alloc::AllocError;

/// Where readers of VMAs stand, CPU by CPU. One for all [mmap locks](crate::MmapLock) under which a VMA may
/// live, in this life and in later ones.
// On a line of its own: faults read it, and the count of references before it changes with every space.
#[repr(align(64))]
#[derive(Debug)]
pub struct ReaderSlots<H: Host> {
    slots: PerCpu<Slot, H>,
}

/// One CPU's word; see the [module](self).
#[derive(Debug)]
pub(crate) struct Slot(AtomicUsize);

const FREE: usize = 0;
/// No address of a VMA's count.
const EXTERNAL: usize = 1;

impl<H: Host> ReaderSlots<H> {
    /// A free slot for each CPU.
    ///
    /// # Errors
    /// No memory.
    pub fn try_new() -> Result<Self, AllocError> {
        Ok(ReaderSlots { slots: PerCpu::try_new(|_| Slot::free())? })
    }

    /// Puts a reader of `vma` into the slot of the CPU it runs on. None: somebody is there.
    #[inline]
    pub(crate) fn enter(&self, vma: usize) -> Option<&Slot> {
        self.slots.with(|slot| {
            // SeqCst: the first half of a reader's way in, see `vma_lock`; and a release, like every change.
            // Relaxed on failure: nothing was got.
            slot.0.compare_exchange(FREE, vma, Ordering::SeqCst, Ordering::Relaxed).is_ok().then_some(slot)
        })
    }

    /// The slots in which a reader of `vma` stands.
    pub(crate) fn of(&self, vma: usize) -> impl Iterator<Item = &Slot> {
        // SeqCst: the second half of a writer's way in; and an acquire, for the readers that have left.
        self.slots.iter().filter(move |slot| slot.0.load(Ordering::SeqCst) == vma)
    }
}

impl<H: Host> Shared for ReaderSlots<H> {}

impl Slot {
    const_unless_loom! {
        /// Nobody stands here.
        pub fn free() -> Self {
            Slot(AtomicUsize::new(FREE))
        }

        /// No CPU's: it stands for the external rwsem of a VMA, and keeps its value.
        pub fn external() -> Self {
            Slot(AtomicUsize::new(EXTERNAL))
        }
    }

    /// Whether it is the one made so.
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        // Relaxed: fixed, and no other slot ever has this value.
        self.0.load(Ordering::Relaxed) == EXTERNAL
    }

    /// Takes a reader of `vma` out. False: none stands here, because it was counted or has left.
    #[inline]
    pub(crate) fn leave(&self, vma: usize) -> bool {
        // Release: a reader's accesses end before it leaves. Acquire on failure: so do those of a reader that
        // has left in its name.
        self.0.compare_exchange(vma, FREE, Ordering::Release, Ordering::Acquire).is_ok()
    }
}
