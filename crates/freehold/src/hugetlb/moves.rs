//! Moving huge pages to other addresses (mremap), and into a child (fork).

use super::{HugePageSize, tables::SPAN};
use crate::{
    Pfn, VirtAddr,
    error::NoMemory,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::AddressSpace,
    vma::{Vma, rights::vma_pte_flags},
};
use core::ops::Range;
use freehold_pagetable::{Kind, LeafGuard, Level, MarkerKind, Pte, PteFlags};
use freehold_vmspace::Moving;
use freehold_vmspace::{VmGather, frame::Unshared};

/// A gather that no frame goes through.
type Still<'g, P> = VmGather<'g, P, 1>;

/// Addresses of pages of `size` in `range`.
fn pages(range: Range<u64>, size: HugePageSize) -> impl Iterator<Item = VirtAddr> {
    range.step_by(size.bytes() as usize).map(VirtAddr::new)
}

impl<P: Platform> AddressSpace<P> {
    /// The entry for a huge page, if it is not empty.
    fn huge_entry(&self, address: VirtAddr, level: Level) -> Option<Pte<P::Format>> {
        let (pte, found) = self.vm.peek(address);
        (found == level && !pte.is_none()).then_some(pte)
    }

    /// Makes sure that there is a table of entries of `level` for `address`.
    fn huge_table(&self, address: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let made = match level {
            Level::Pud => self.vm.pud_table_alloc(address).map(drop),
            _ => self.vm.pmd_table_alloc(address).map(drop),
        };
        made.map_err(|_| NoMemory)
    }

    /// Makes the tables into which [`move_huge_pages`](Self::move_huge_pages) will put what is mapped in `from`.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    pub(crate) fn prepare_huge_pages(
        &self,
        size: HugePageSize,
        from: Range<u64>,
        to: u64,
    ) -> Result<(), NoMemory> {
        let level = size.level();
        pages(from.clone(), size)
            .filter(|address| self.huge_entry(*address, level).is_some())
            .try_for_each(|address| self.huge_table(VirtAddr::new(to + (address.get() - from.start)), level))
    }

    /// Moves the entries of `from`, in `source`, to the same places of the range that starts at `to`. What is mapped in tables of
    /// others is left to them; faults will find it again. The target has reserved from now on what the source was.
    ///
    /// Walkers of the reverse map are kept out, a thing of one table at a time, so that none can miss an entry at both places.
    /// The caller has both VMAs locked for writing.
    pub(crate) fn move_huge_pages(
        &self,
        source: &Vma<P>,
        size: HugePageSize,
        from: Range<u64>,
        to: u64,
        gather: &mut Still<'_, P>,
    ) {
        let _alone = self.alone(source, &from);
        let mut at = from.start;
        while at < from.end {
            let end = from.end.min(at - at % SPAN + SPAN);
            let excluded = RmapEdit::of(source);
            for address in pages(at..end, size) {
                if self.huge_entry(address, size.level()).is_some() {
                    self.move_huge_page(
                        address,
                        VirtAddr::new(to + (address.get() - from.start)),
                        size.level(),
                        gather,
                    );
                }
            }
            // Before anybody finds the pages at their new place, to take them away there.
            gather.flush();
            drop(excluded);
            at = end;
        }
        if let Some(own) = source.hugetlb() {
            own.transfer_reservation();
        }
    }

    fn move_huge_page(&self, address: VirtAddr, to: VirtAddr, level: Level, gather: &mut Still<'_, P>) {
        let taken = self.vm.lock_leaf(address, level).map(|mut leaf| leaf.take(gather));
        let target = self.vm.lock_leaf(to, level);
        if let Some((pte, mut target)) = taken.zip(target) {
            let installed = target.install(pte);
            assert!(installed.is_ok(), "something was mapped where nothing can be");
        }
    }

    /// Copies what is mapped in `vma`, a private one, to `child`, at the same addresses: both may write a page only after copying it.
    ///
    /// The caller has the VMA locked for writing, and nobody knows the child's.
    ///
    /// # Errors
    ///
    /// No memory for the child's tables; some entries were copied.
    pub(crate) fn copy_huge_pages(
        &self,
        vma: &Vma<P>,
        size: HugePageSize,
        child: &AddressSpace<P>,
        gather: &mut Still<'_, P>,
    ) -> Result<(), NoMemory> {
        let level = size.level();
        for address in pages(vma.range(), size).filter(|address| self.huge_entry(*address, level).is_some()) {
            child.huge_table(address, level)?;
            let copy = self.child_entry(vma, address, level, gather)?;
            let Some(copy) = copy else { continue };
            // A walk from the page comes here after the parent's entry: what it does to that is then known here.
            if let Some(mut leaf) = child.vm.lock_leaf(address, level) {
                let installed = leaf.install(copy);
                assert!(installed.is_ok(), "a child had something where its parent has a huge page");
            }
        }
        Ok(())
    }

    /// What a child gets for the entry at `address`.
    ///
    /// # Errors
    ///
    /// As [`copy_pinned`](Self::copy_pinned).
    fn child_entry(
        &self,
        vma: &Vma<P>,
        address: VirtAddr,
        level: Level,
        gather: &mut Still<'_, P>,
    ) -> Result<Option<Pte<P::Format>>, NoMemory> {
        let Some(mut leaf) = self.vm.lock_leaf(address, level) else { return Ok(None) };
        match leaf.kind() {
            Kind::Leaf { pfn, .. } if self.platform().frame(pfn).unshared() == Some(Unshared::Crowded) => {
                Err(NoMemory)
            }
            Kind::Leaf { pfn, flags } if self.platform().frame(pfn).must_copy_on_fork() => {
                leaf.change(gather, |pte| pte.with_flags(level, pte.flags() - PteFlags::WRITE));
                gather.flush();
                drop(leaf);
                let copy = self.copy_pinned(vma, address, pfn, level);
                self.restore_rights(address, pfn, level, flags & PteFlags::WRITE);
                copy.map(Some)
            }
            _ => Ok(self.share_huge_page(&mut leaf, gather)),
        }
    }

    /// Gives an entry back what it lost while its page was copied, if it is still there.
    fn restore_rights(&self, address: VirtAddr, pfn: Pfn, level: Level, rights: PteFlags) {
        let leaf = self.vm.lock_leaf(address, level);
        if let Some(mut leaf) = leaf.filter(|leaf| leaf.pte().is_leaf(level) && leaf.pte().pfn() == pfn) {
            leaf.grant(rights);
        }
    }

    /// A child's entry for a copy of a page that its parent keeps, since somebody has pinned it. The copy is of one moment: no
    /// processor of the parent can store to the page meanwhile, nor fault here.
    ///
    /// # Errors
    ///
    /// No page in the pool that is not reserved to somebody.
    fn copy_pinned(
        &self,
        vma: &Vma<P>,
        address: VirtAddr,
        pfn: Pfn,
        level: Level,
    ) -> Result<Pte<P::Format>, NoMemory> {
        let new = self.engine.memory().take_huge_page(HugePageSize::of_level(level), false);
        let new = new.map_err(|_| NoMemory)?;
        let frame = self.platform().frame(new);
        frame.init_anon(vma.anon_root(), vma.pgoff_of(address.get()));
        frame.set_hugetlb(level);
        self.platform().copy_frames(new, pfn, level.frames());
        Ok(Pte::leaf(level, new, vma_pte_flags(vma.flags()) - PteFlags::ACCESSED))
    }

    /// The child's entry for what the parent has, counted; the parent's loses the right to write.
    fn share_huge_page(
        &self,
        leaf: &mut LeafGuard<'_, P::Format, P>,
        gather: &mut Still<'_, P>,
    ) -> Option<Pte<P::Format>> {
        let level = leaf.level();
        match leaf.kind() {
            Kind::Leaf { pfn, flags } => {
                if flags.contains(PteFlags::WRITE) {
                    leaf.change(gather, |pte| pte.with_flags(level, pte.flags() - PteFlags::WRITE));
                }
                let shared = self.platform().frame(pfn).share();
                debug_assert!(shared.is_some(), "a huge page is pinned that was not a moment ago");
                Some(
                    leaf.pte().with_flags(level, leaf.pte().flags() - (PteFlags::WRITE | PteFlags::ACCESSED)),
                )
            }
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                let shared = Moving::of(payload).shared().entry();
                leaf.change(gather, |_| shared);
                Some(shared)
            }
            Kind::Marker { kind: MarkerKind::Poison, .. } => Some(leaf.pte()),
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => None,
        }
    }
}
