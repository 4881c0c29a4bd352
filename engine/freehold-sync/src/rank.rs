//! The lock order, and the checker that enforces it.
//!
//! A task may *wait* for a lock only if every lock that it holds precedes that lock in [`Rank`]. A try needs
//! no order, because a task that does not wait cannot be part of a cycle of waiters. A lock acquired by a try
//! counts as held from then on. So a task that holds a VMA's read lock may try the mmap lock, but not wait
//! for it. The checker also allows an acquisition that cannot block: a VMA's read lock taken under the mmap
//! lock held for reading.
//!
//! A sleeping lock must not be released under a spin lock, because the release may have to wake the next
//! holder. [`released_quietly`] is for a holder that wakes the next holder later.
//!
//! The checker works with debug assertions only; without them its calls are empty. The host keeps the record
//! of the locks that a task holds ([`Host::lock_context`]).
//!
//! A new rank goes to its place in [`Rank`], in the list of all ranks, and in part 1 of
//! `docs/guide/locking.md`, which `xtask/tests/tidy.rs` compares with the enum. `tests/ranks.rs` tests the
//! checker.

use crate::host::Host;
use core::cell::Cell;

/// Position of every lock in the lock order, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Rank {
    /// Content lock of a file: its size and content, held during truncation.
    IRwsem,
    /// Mmap lock of an address space.
    Mmap,
    /// Mmap lock of the child in fork. No other task can reach the child yet.
    MmapNested,
    /// Lock of a VMA.
    Vma,
    /// Orders the calls of a userfaultfd and changes of the mapping. No lock has this rank today.
    UffdMap,
    /// Invalidate lock of a file: orders insertion into the page cache and truncation.
    Invalidate,
    /// Fault mutex of a hugetlb file, held while a fault creates a huge page.
    HugetlbFault,
    /// Hugetlb VMA lock: keeps the page tables of a hugetlb VMA from being removed.
    HugetlbVma,
    /// Lock of a frame (folio lock).
    Folio,
    /// Lock of the frame that a page moves into. No other task has found that frame yet.
    FolioNested,
    /// Lock of the regions of address spaces without an MMU, and of the number of users of each region.
    NoMmuRegions,
    /// Rmap lock of a file: the tree of VMAs that map the file.
    IMmap,
    /// Rmap lock of anonymous memory: the trees of VMAs that may map anonymous pages.
    AnonVma,
    /// Latch of a leaf of the VMA tree, or the tree's structure lock.
    VmaMap,
    /// Lock of a page table whose entries point to tables or are huge leaves.
    PageTableUpper,
    /// Lock of a page table of the lowest level.
    PageTable,
    /// Lock of the second of two page tables, which are locked in the order of their addresses.
    PageTableNested,
    /// Lock of the set of reserved offsets of a hugetlb file.
    FileIndex,
    /// Lock of the free frames.
    Frames,
    /// Lock of the shared part of a slab.
    Slab,
    /// A lock under which no other lock is taken.
    Leaf,
}

impl Rank {
    /// Returns true if locks of this rank are spin locks. Under a spin lock a task neither sleeps, nor wakes
    /// a task, nor uses the heap.
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

/// The rank that a guard holds. Empty in builds that do not check ranks, to keep guards small.
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

    /// Calls [`released`] for this rank.
    #[inline]
    pub fn released<H: Host>(self) {
        #[cfg(debug_assertions)]
        released::<H>(self.rank);
    }
}

/// The locks that one task holds. Only that task reads and writes the record.
#[derive(Debug)]
pub struct LockContext {
    /// Number of locks held, for each rank.
    held: [Cell<u16>; Rank::COUNT],
}

impl LockContext {
    /// Creates a record of a task that holds no locks.
    pub const fn new() -> Self {
        LockContext { held: [const { Cell::new(0) }; Rank::COUNT] }
    }

    /// Returns the innermost rank that is held.
    pub fn innermost(&self) -> Option<Rank> {
        Rank::ALL.into_iter().rev().find(|rank| self.held(*rank) > 0)
    }

    /// Returns the number of held locks of `rank`.
    pub fn held(&self, rank: Rank) -> u16 {
        self.held[rank as usize].get()
    }

    /// Panics if the task holds a lock of this rank or of an inner one.
    fn check(&self, rank: Rank) {
        if let Some(innermost) = self.innermost() {
            assert!(innermost < rank, "lock order: waiting for {rank:?} while holding {innermost:?}");
        }
    }

    /// Counts one more lock of this rank.
    fn note_acquired(&self, rank: Rank) {
        let held = &self.held[rank as usize];
        held.set(held.get() + 1);
    }

    /// Checks that no spin lock is held if the released lock is a sleeping lock, whose release may wake a
    /// task.
    fn check_release(&self, rank: Rank) {
        let spin = self.innermost().filter(|innermost| innermost.spins() && !rank.spins());
        if let Some(spin) = spin {
            panic!("{rank:?} is released under a spin lock, {spin:?}, but its release may wake a task");
        }
    }

    /// Counts one lock less. Panics if there is none.
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

/// Checks that the task may wait for a lock of `rank`. Called before the wait.
///
/// # Panics
/// With debug assertions, panics if the task holds a lock of the same rank or of an inner one.
#[inline]
pub fn will_wait<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.check(rank));
    }
}

/// Checks that the task holds no lock, and is therefore no writer of an address space either.
///
/// # Panics
/// With debug assertions, panics if the task holds a lock of any rank.
#[inline]
pub fn holds_none<H: Host>() {
    if cfg!(debug_assertions) {
        H::lock_context(|context| {
            let held = context.innermost();
            assert!(held.is_none(), "a task that must hold no lock holds {held:?}");
        });
    }
}

/// Records that the task holds a lock of `rank` from now on.
#[inline]
pub fn acquired<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.note_acquired(rank));
    }
}

/// Records that the task is about to release a lock of `rank`.
///
/// # Panics
/// With debug assertions, panics if the task holds no lock of `rank`. Also panics if `rank` is that of a
/// sleeping lock and the task still holds a spin lock.
#[inline]
pub fn released<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| {
            context.note_released(rank);
            context.check_release(rank);
        });
    }
}

/// Like [`released`], for a holder that wakes no task before it has released its spin locks.
///
/// # Panics
/// With debug assertions, panics if the task holds no lock of `rank`.
#[inline]
pub fn released_quietly<H: Host>(rank: Rank) {
    if cfg!(debug_assertions) {
        H::lock_context(|context| context.note_released(rank));
    }
}
