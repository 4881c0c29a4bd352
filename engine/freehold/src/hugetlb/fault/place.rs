//! Where a huge page of a pool goes: its table, its entry, and the page that a private mapping takes for it.
//! For faults, and for the pager of a userfaultfd.

use crate::{
    Pfn, VirtAddr,
    counted::Counted,
    error::NoMemory,
    fault::outcome::WaitFor,
    file::{File, Mapping},
    hugetlb::{sharing::SharedTablesGuard, state::reserves::Reserves},
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Format, Kind, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags, TableError};
use freehold_sync::RwSemWriteGuard;
use freehold_vmspace::{HugePageSize, PageIndex, TakeError};

/// A place for a huge page.
pub(crate) struct HugePlace<'v, P: Platform> {
    pub vma: &'v Vma<P>,
    pub file: &'v Counted<File<P>>,
    /// Where the page starts.
    pub address: VirtAddr,
    pub size: HugePageSize,
    /// Its number in the file.
    pub index: PageIndex,
}

impl<'v, P: Platform> HugePlace<'v, P> {
    /// The place around `page`; `None`: the VMA has no huge pages.
    pub fn new(vma: &'v Vma<P>, page: u64) -> Option<Self> {
        let (file, size) = (vma.object().file()?, vma.huge_page_size()?);
        let address = VirtAddr::new(page).span_down(size.level());
        let index = file.mapping().index_of(vma.pgoff_of(address.get()));
        Some(HugePlace { vma, file, address, size, index })
    }

    pub fn level(&self) -> Level {
        self.size.level()
    }

    pub fn is_private(&self) -> bool {
        !self.vma.flags().contains(VmFlags::MAYSHARE)
    }

    pub fn mapping(&self) -> &'v Mapping<P> {
        self.file.mapping()
    }
}

/// Why there is no page of one's own.
pub(crate) enum Lacking {
    /// The pool is empty.
    Pages,
    /// It is, but a page that was reserved is on its way back.
    Yet(WaitFor),
    /// No memory for the books.
    Memory,
}

impl From<NoMemory> for Lacking {
    fn from(_: NoMemory) -> Self {
        Lacking::Memory
    }
}

/// A page of a private mapping that nobody has seen yet, taken from the pool.
pub(crate) struct OwnPage<'v> {
    pub pfn: Pfn,
    /// Whose reservation it was taken in place of.
    reservation: Option<&'v Counted<Reserves>>,
}

/// Whether [`fill_slot`] would fill it at this moment.
pub(crate) fn has_room<F: Format, M: freehold_pagetable::TableMemory>(leaf: &LeafGuard<'_, F, M>) -> bool {
    matches!(leaf.kind(), Kind::None | Kind::Marker { kind: MarkerKind::UffdWp, .. })
}

/// Fills a slot that is empty, or has the marker of a write-protected page: that one's entry is
/// write-protected, too. Whether it did.
pub(crate) fn fill_slot<F: Format, M: freehold_pagetable::TableMemory>(
    leaf: &mut LeafGuard<'_, F, M>,
    pte: Pte<F>,
) -> bool {
    match leaf.kind() {
        Kind::None => leaf.install(pte).is_ok(),
        Kind::Marker { kind: MarkerKind::UffdWp, .. } => {
            let flags = (pte.flags() - PteFlags::WRITE) | PteFlags::UFFD_WP;
            // No processor remembers a marker.
            leaf.replace(pte.with_flags(leaf.level(), flags), &mut NotCached);
            true
        }
        Kind::Leaf { .. } | Kind::Marker { .. } | Kind::Table { .. } => false,
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Keeps everybody else from making a page for this place of the file.
    pub(crate) fn fault_mutex(&self, place: &HugePlace<'_, P>) -> RwSemWriteGuard<'_, P> {
        self.engine.files().hugetlb.fault_mutex(place.mapping().key(), place.index)
    }

    /// Makes sure that there is a table for the entry.
    pub(crate) fn hugetlb_table(
        &self,
        place: &HugePlace<'_, P>,
        kept: &SharedTablesGuard<'_, P>,
    ) -> Result<(), TableError> {
        match place.size {
            HugePageSize::Mib2 => {
                self.pmd_table_to_fill(place.vma, place.file, place.address, kept).map(drop)
            }
            HugePageSize::Gib1 => self.vm.pud_table_alloc(place.address).map(drop),
        }
    }

    /// The table of the place, locked.
    pub(crate) fn lock_place(&self, place: &HugePlace<'_, P>) -> Option<LeafGuard<'_, P::Format, P>> {
        self.vm.lock_leaf(place.address, place.level())
    }

    /// A page of the pool for this place, counted as mapped once: the reserved one if there is one. The
    /// caller has the fault mutex.
    pub(crate) fn own_page<'v>(&self, place: &HugePlace<'v, P>) -> Result<OwnPage<'v>, Lacking> {
        let reserves = place.vma.hugetlb().and_then(|own| own.reserves());
        let reservation = reserves.filter(|reserves| reserves.is_reserved::<P>(place.index));
        let pfn =
            self.vm.memory().take_huge_page(place.size, reservation.is_some()).map_err(
                |error| match error {
                    TakeError::NoHugePage => Lacking::Pages,
                    TakeError::Returning(seen) => Lacking::Yet(WaitFor::HugePage(place.size, seen)),
                },
            )?;
        if let Some(reserves) = reservation
            && let Err(error) = reserves.use_up::<P>(place.index)
        {
            self.engine.huge_pool(place.size).put(self.platform(), pfn, true);
            return Err(error.into());
        }
        let frame = self.platform().frame(pfn);
        frame.init_anon(place.vma.anon_page(place.address.get()));
        frame.set_hugetlb(place.level());
        Ok(OwnPage { pfn, reservation })
    }

    /// A page that was never mapped goes back, with the reservation that it was taken in place of. The caller
    /// has the fault mutex since it took the page, and keeps the VMA's tables: so nobody else has used the
    /// reservation up, or renewed it.
    pub(crate) fn discard_own(&self, place: &HugePlace<'_, P>, own: OwnPage<'_>) {
        self.platform().frame(own.pfn).sub_map();
        if let Some(reserves) = own.reservation
            // Without memory it goes back to all.
            && reserves.renew::<P>(place.index).is_ok()
        {
            self.vm.memory().restore_reservation(own.pfn, place.size);
        }
        self.vm.memory().put_frame(own.pfn);
    }
}
