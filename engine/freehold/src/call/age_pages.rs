//! Aging by walks of page tables: [`AddressSpace::age_pages`].
//!
//! A test of one page by the reverse map costs a lookup of its home and of its page table. A walk of the page
//! tables of a space finds all pages that were accessed since the walk before, in the order of the entries
//! (Linux: the multi-generational LRU). Only spaces that ran since then can have such pages. The embedder
//! therefore notes at a context switch that a space runs, in a word of the space, which is written once
//! between two walks.
//!
//! The walk waits for no lock, and holds one for a part of a space at a time. It keeps no killed process: the
//! embedder's reference to the space, which delays the end of the space, lasts for one call, whose work is
//! bounded. `tests/reclaim/walks.rs` has the tests.

use crate::{
    PAGE_SIZE,
    file::HasFiles,
    platform::Platform,
    reclaim::{Age, PageKind},
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    vma::flags::VmFlags,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{RssKind, UserRange};

/// The result of a walk of a part of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgedPages {
    /// The address at which the next call continues. `None` at the end of the space.
    pub next: Option<u64>,
    /// Number of pages that were accessed since the last walk.
    pub accessed: u64,
}

impl<P: Platform> AddressSpace<P> {
    /// Notes that a thread of this space runs, so that the next walk visits the space. An embedder whose
    /// policy [walks](crate::reclaim::Policy::walks) calls this function at each context switch to another
    /// space. Usually only reads a word of the space.
    ///
    /// # Examples
    ///
    /// See [`age_pages`](Self::age_pages).
    #[inline]
    pub fn note_ran(&self) {
        // Relaxed: a hint. An access that a walk misses is found by the next walk, or by the test of the
        // page.
        if !self.ran.load(Relaxed) {
            self.ran.store(true, Relaxed);
        }
    }

    /// Gives the pages that were accessed since the last walk a younger age, and clears their accessed bits.
    /// Visits addresses from `from` on, and at most `pages` pages. Does nothing if the space did not
    /// [run](Self::note_ran) since the last walk began at 0, or if the policy does not
    /// [walk](crate::reclaim::Policy::walks). Pages of locked memory and of pools stay as they are; each of
    /// their VMAs counts as a page.
    ///
    /// For a task of the embedder that runs before memory is short, and calls the function for each space. It
    /// should drop its reference to a space between two calls, so that the space can end.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, and the lock of one page table at a time. The call never waits for the mmap
    /// lock: if a task holds it for writing, the walk of this space ends. The caller holds no lock of the
    /// engine.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, engine::{Config, Engine}, fault::Access, space::*};
    /// # use freehold::{call::AgedPages, reclaim::ReclaimPolicy};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// let engine = Engine::new(machine, Config::new().reclaim(ReclaimPolicy::Generations)).unwrap();
    /// let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.note_ran();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert_eq!(space.age_pages(0, u64::MAX), AgedPages { next: None, accessed: 1 });
    /// assert_eq!(space.age_pages(0, u64::MAX).accessed, 0, "the space did not run");
    /// ```
    pub fn age_pages(&self, from: u64, pages: u64) -> AgedPages {
        let mut aged = AgedPages { next: None, accessed: 0 };
        let policy = self.engine.files().reclaim.policy();
        if !policy.walks() || from == 0 && !self.ran.swap(false, Relaxed) {
            return aged;
        }
        let age = |kind: RssKind, age: u8| policy.walked(PageKind::of(kind), Age::of(age)).byte();
        let (mut at, mut left) = (from, pages);
        while left > 0 {
            let Some(guard) = self.try_read() else { return aged };
            let Some((vma, part)) = guard.next_part(at) else { return aged };
            if vma.flags().intersects(VmFlags::LOCKED | VmFlags::HUGETLB) {
                // Counts as a page, so that many such VMAs end the call too.
                left -= 1;
                at = part.end();
            } else {
                let end = part.start().saturating_add(left.saturating_mul(PAGE_SIZE)).min(part.end());
                let part = UserRange::new(part.start(), end);
                aged.accessed += self.vm.age_young(part, age);
                left -= part.pages().get();
                at = end;
            }
            drop(guard);
            P::cond_resched();
        }
        aged.next = Some(at);
        aged
    }
}
