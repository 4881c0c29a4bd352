//! The pages that fork does not share, since somebody has pinned them: copies for the child.

use super::{AddressSpace, RssKind};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::NoMemory,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use core::ops::{ControlFlow, Range};
use freehold_pagetable::{Kind, Level, Pte, PteFlags, VaRange};

impl<P: Platform> AddressSpace<P> {
    /// Gives `child` copies of the pages of its VMA that this space has pinned: now, among the pages that have an anon_vma, those that
    /// are exclusive still. No processor can store to them.
    pub(super) fn copy_kept(&self, vma: &Vma<P>, child: &AddressSpace<P>) -> Result<(), NoMemory> {
        let mut at = vma.start();
        // Huge pages of pools were copied with their entries.
        if !vma.anon().is_some() || vma.flags().contains(VmFlags::HUGETLB) {
            return Ok(());
        }
        while let Some((address, pfn, flags)) = self.next_kept(at..vma.end())? {
            let copied = self.copy_page(vma, child, address, (pfn, flags));
            self.engine.put_frame(pfn);
            copied?;
            at = address.get() + PAGE_SIZE;
        }
        Ok(())
    }

    /// The first page in `range` that was not shared, with a reference.
    fn next_kept(&self, range: Range<u64>) -> Result<Option<(VirtAddr, Pfn, PteFlags)>, NoMemory> {
        let mut at = range.start;
        while let Some((table, part)) = self.next_table(at..range.end)? {
            let mut found = None;
            let _: ControlFlow<()> =
                table.lock().for_each(VaRange::of(part.start, part.end), |address, pte| {
                    let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else {
                        return ControlFlow::Continue(());
                    };
                    let frame = self.platform().frame(pfn);
                    if flags.contains(PteFlags::SPECIAL) || !frame.is_anon() || !frame.is_exclusive() {
                        return ControlFlow::Continue(());
                    }
                    // The entry goes if the memory fails.
                    frame.get();
                    found = Some((address, pfn, flags));
                    ControlFlow::Break(())
                });
            if found.is_some() {
                return Ok(found);
            }
            at = part.end;
        }
        Ok(None)
    }

    fn copy_page(
        &self,
        vma: &Vma<P>,
        child: &AddressSpace<P>,
        address: VirtAddr,
        (pfn, flags): (Pfn, PteFlags),
    ) -> Result<(), NoMemory> {
        let table = child.table.pte_table_alloc(child.platform(), address).map_err(|_| NoMemory)?;
        let copy = self.engine.alloc_anon(false, vma, address.get())?;
        self.platform().copy_frame(copy, pfn);
        let entry = Pte::page(copy, flags - (PteFlags::ACCESSED | PteFlags::WRITE));
        let installed = table.lock().install(address, entry);
        match installed {
            Ok(()) => child.counters.count_page(RssKind::Anon, 1),
            // The page was shared, and replaced in the parent since, as who takes a breakpoint away does.
            Err(_) => self.engine.discard_anon(copy),
        }
        Ok(())
    }
}
