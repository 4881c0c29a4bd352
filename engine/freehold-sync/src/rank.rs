//! The order of the locks, and the checker that holds everyone to it.
//!
//! A task may *wait* for a lock only if every lock it holds comes earlier in [`Rank`]. Trying needs no order,
//! since a task that does not wait cannot close a circle of waiters. A lock that was got by trying counts as
//! held from then on. So a task with a VMA read lock may try the mmap lock but not wait for it, and one that
//! may not be blocked anyway (a VMA read lock under the mmap lock held for reading) is not checked either. A
//! lock for which tasks sleep is not released under a spin lock, since its next holder may have to be woken.
//! [`released_quietly`] is for a holder that wakes it later.
//!
//! The checker works with debug assertions only; without them its calls are empty. The record of what a task
//! holds is the host's ([`Host::lock_context`]).

use crate::host::Host;
use core::cell::Cell;

/// Every lock's place in the order, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Rank {
    /// A file's size and content, held around truncation.
    IRwsem,
    /// The mmap lock of an address space.
    Mmap,
    /// The mmap lock of the child in fork, which nobody else can reach yet.
    MmapNested,
    /// A VMA's lock.
    Vma,
    /// A userfaultfd's lock between its calls and changes of the mapping.
    UffdMap,
    /// Insertion into a page cache against truncation.
    Invalidate,
    /// The making of a huge page.
    HugetlbFault,
    /// The tables of a VMA of huge pages, against their being taken away.
    HugetlbVma,
    /// A folio's identity.
    Folio,
    /// That of the frame a page moves into, which nobody else has found yet.
    FolioNested,
    /// The regions of address spaces without an MMU, and how many use each.
    NoMmuRegions,
    /// The tree of VMAs that map a file.
    IMmap,
    /// The trees of VMAs that may map anonymous pages.
    AnonVma,
    /// A latch of the map of VMAs, of a leaf or of its structure.
    VmaMap,
    /// A page table whose entries point to tables or are huge leaves.
    PageTableUpper,
    /// A page table of the lowest level.
    PageTable,
    /// The second of two page tables; taken in the order of addresses.
    PageTableNested,
    /// A page cache's index.
    FileIndex,
    /// Free frames.
    Frames,
    /// A slab's shared part.
    Slab,
    /// A lock under which no other is taken.
    Leaf,
}

impl Rank {
    /// Whether locks of this rank are spin locks, under which nobody sleeps, wakes anybody or uses the heap.
    pub const fn spins(self) -> bool {
        self as u8 >= Rank::VmaMap as u8
    }

    const COUNT: usize = Rank::Leaf as usize + 1;

    const ALL: [Rank; Rank::COUNT] = [
        Rank::IRwsem,
        Rank::Mmap,
        Rank::MmapNested,
        Rank::Vma,
        Rank::UffdMap,
        Rank::Invalidate,
        Rank::HugetlbFault,
        Rank::HugetlbVma,
        Rank::Folio,
        Rank::FolioNested,
        Rank::NoMmuRegions,
        Rank::IMmap,
        Rank::AnonVma,
        Rank::VmaMap,
        Rank::PageTableUpper,
        Rank::PageTable,
        Rank::PageTableNested,
        Rank::FileIndex,
        Rank::Frames,
        Rank::Slab,
        Rank::Leaf,
    ];
}

/// The rank that a guard holds; nothing where ranks are not checked, for guards are passed on.
#[derive(Clone, Copy)]
pub(crate) struct HeldRank {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl HeldRank {
    #[inline]
    pub fn new(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        return HeldRank { rank };
        #[cfg(not(debug_assertions))]
        {
            let _ = rank;
            HeldRank {}
        }
    }

    /// As [`released`].
    #[inline]
    pub fn released<H: Host>(self) {
        #[cfg(debug_assertions)]
        released::<H>(self.rank);
    }
}

/// What one task holds. Read and written by that task alone.
#[derive(Debug)]
pub struct LockContext {
    /// How many locks of each rank.
    held: [Cell<u16>; Rank::COUNT],
}

impl LockContext {
    /// Nothing held.
    pub const fn new() -> Self {
        LockContext { held: [const { Cell::new(0) }; Rank::COUNT] }
    }

    /// The innermost rank held.
    pub fn innermost(&self) -> Option<Rank> {
        Rank::ALL.into_iter().rev().find(|rank| self.held(*rank) > 0)
    }

    /// How many locks of `rank` are held.
    pub fn held(&self, rank: Rank) -> u16 {
        self.held[rank as usize].get()
    }

    fn check(&self, rank: Rank) {
        if let Some(innermost) = self.innermost() {
            assert!(innermost < rank, "lock order: waiting for {rank:?} while holding {innermost:?}");
        }
    }

    fn note_acquired(&self, rank: Rank) {
        let held = &self.held[rank as usize];
        held.set(held.get() + 1);
    }

    /// Releasing a lock for which tasks sleep may have to wake one: that is not allowed under a spin lock.
    fn check_release(&self, rank: Rank) {
        let spin = self.innermost().filter(|innermost| innermost.spins() && !rank.spins());
        if let Some(spin) = spin {
            panic!("{rank:?} is released, which may wake somebody, under a spin lock: {spin:?}");
        }
    }

    fn note_released(&self, rank: Rank) {
        let held = &self.held[rank as usize];
        let Some(left) = held.get().checked_sub(1) else {
            panic!("{rank:?} is released by a task that does not hold it");
        };
        held.set(left);
    }
}

impl Default for LockContext {
    fn default() -> Self {
        Self::new()
    }
}

/// The task is about to wait for a lock of `rank`.
///
/// # Panics
/// With debug assertions, when it holds one of the same rank or an inner one.
#[inline]
pub fn will_wait<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.check(rank));
    }
}

/// The task now holds a lock of `rank`.
#[inline]
pub fn acquired<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.note_acquired(rank));
    }
}

/// The task is about to release a lock of `rank`.
///
/// # Panics
/// With debug assertions, when it holds none, or tasks sleep for locks of this rank and a spin lock is held.
#[inline]
pub fn released<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| {
            context.note_released(rank);
            context.check_release(rank);
        });
    }
}

/// As [`released`], by a holder that wakes nobody before it has released its spin locks.
///
/// # Panics
/// With debug assertions, when it holds none.
#[inline]
pub fn released_quietly<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.note_released(rank));
    }
}
