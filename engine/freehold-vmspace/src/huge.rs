//! Huge pages of anonymous memory. One entry maps 2 MiB, and a table is deposited for the split of the entry
//! (`table.rs` of `freehold-pagetable` defines deposited tables). Faults and MADV_COLLAPSE call this module
//! to map huge pages.
//!
//! A huge page is mapped, and the huge page of zeroes is replaced, under the lock of the table of 2 MiB
//! entries. The entry and its deposited table are stored in one hold of the lock, so that a later split, for
//! example in a zap, cannot run out of memory. Every small frame of a huge page has a record of its own, so a
//! split changes entries but no record. `collapse.rs` makes huge pages of small pages. `large.rs` has the
//! huge pages of pools, which never split. `tests/huge/` of `freehold` tests all this.

use crate::{
    AnonPage, Memory, Pfn, RssKind, VirtAddr, VmSpace,
    platform::{FramePurpose, FrameRequest, NodeChoice, PageOwner, Platform},
};
use freehold_pagetable::{Kind, Level, PmdTable, PreallocatedTable, Pte, PteFlags, VaRange};

/// Number of frames of a huge page.
const FRAMES: u64 = Level::Pmd.frames();

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Maps `new` at `address` and deposits `spare` for the split. Returns false if the slot is not empty.
    pub fn map_huge(
        &self,
        table: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
        new: HugePage<'_, P>,
        rights: PteFlags,
        spare: PreallocatedTable<'_, P>,
    ) -> bool {
        let mut guard = table.lock();
        let leaf = Pte::leaf(Level::Pmd, new.first, rights);
        let installed = guard.install_large(address, leaf, &mut self.table_gather());
        if installed {
            guard.deposit(spare);
            drop(guard);
            new.mapped();
            self.count_page(RssKind::Anon, FRAMES as i64);
        }
        installed
    }

    /// Maps the huge page of zeroes at `address` if the slot is empty. Returns `None` if there is no memory
    /// for that page.
    pub fn map_huge_zero(
        &self,
        table: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
        rights: PteFlags,
        spare: PreallocatedTable<'_, P>,
    ) -> Option<()> {
        let zeroes = Pte::leaf(Level::Pmd, self.memory().huge_zero()?, rights | PteFlags::SPECIAL);
        let mut guard = table.lock();
        // If the slot is no longer empty, the retried access handles that case.
        if guard.install_large(address, zeroes, &mut self.table_gather()) {
            guard.deposit(spare);
        }
        Some(())
    }

    /// Replaces the huge page of zeroes at `address` by `new`. Returns false if that page is no longer there.
    pub fn replace_huge_zero(
        &self,
        table: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
        new: HugePage<'_, P>,
        rights: PteFlags,
    ) -> bool {
        // As with the copy of a small page: once one processor can write, no processor reads the zeroes any
        // more.
        let mut gather = self.exclusive_gather::<1>(VaRange::entry(address, Level::Pmd));
        let mut guard = table.lock();
        let zeroes = match guard.get(address).kind(Level::Pmd) {
            Kind::Leaf { flags, .. } => flags.contains(PteFlags::SPECIAL),
            Kind::None | Kind::Table { .. } | Kind::Marker { .. } => false,
        };
        if zeroes {
            // Tasks without the lock must not see the entry empty, because they could link a table there.
            let closed = Pte::leaf(Level::Pmd, new.first, (rights - PteFlags::WRITE) | PteFlags::NO_ACCESS);
            guard.replace(address, closed, &mut gather);
            gather.flush();
            guard.change(address, &mut gather, |pte| pte.with_flags(Level::Pmd, rights));
            self.count_page(RssKind::Anon, FRAMES as i64);
        }
        drop(guard);
        gather.finish();
        if zeroes {
            new.mapped();
        }
        zeroes
    }
}

/// A huge page of anonymous memory that is not mapped yet. Dropping it frees the frames.
#[doc(hidden)]
pub struct HugePage<'e, P: Platform> {
    memory: &'e Memory<P>,
    first: Pfn,
}

impl<'e, P: Platform> HugePage<'e, P> {
    /// Allocates a huge page of zeroes for `vm`. Its frames count as mapped once; their places are `page` and
    /// the following places. Returns `None` if there is no memory, or no contiguous memory.
    pub fn new(vm: &'e VmSpace<P>, page: AnonPage) -> Option<Self> {
        let memory = vm.memory();
        let request = FrameRequest::blocks(FramePurpose::Anonymous, Level::Pmd);
        let nodes = NodeChoice::of(memory.platform(), page, Level::Pmd);
        let first = memory.alloc_block(request.of(PageOwner::Space(vm.mmu())).on(nodes))?;
        if !memory.platform().charge(PageOwner::Space(vm.mmu()), first, FRAMES) {
            (0..FRAMES).for_each(|n| memory.free_frame(first.add(n)));
            return None;
        }
        for n in 0..FRAMES {
            memory.platform().frame(first.add(n)).init_anon(page.plus(n));
            memory.platform().zero_frame(first.add(n));
        }
        Some(HugePage { memory, first })
    }

    /// Returns the first frame of the huge page.
    pub fn first(&self) -> Pfn {
        self.first
    }

    /// Records that the page is mapped, so that its frames are not freed.
    pub fn mapped(self) {
        core::mem::forget(self);
    }
}

impl<P: Platform> Drop for HugePage<'_, P> {
    fn drop(&mut self) {
        for frame in (0..FRAMES).map(|n| self.first.add(n)) {
            self.memory.platform().frame(frame).sub_map();
            let last = self.memory.platform().frame(frame).put();
            debug_assert!(last, "no other task has seen the frames");
            self.memory.free_charged(frame);
        }
    }
}
