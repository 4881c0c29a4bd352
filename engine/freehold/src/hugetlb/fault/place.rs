//! The place of a huge page of a pool in a VMA ([`HugePlace`]): its table, its entry, and the page that a
//! private mapping allocates for it. Faults (`mod.rs`) and the pager of a userfaultfd (`uffd/fill_huge.rs`)
//! use `HugePlace`.
//!
//! A page that was taken but not mapped must be discarded before the fault mutex is released. Until the
//! release, no other task uses or renews the page's reservation. The caller keeps the VMA unchanged and its
//! tables in place, as [`hugetlb`](crate::hugetlb) describes; the functions here take only the locks that
//! they return.
//!
//! Mutations `uffd-pool-marker` and `uffd-pool-reservation` in `xtask/mutants` name the tests of the marker
//! and of the reservation.

use crate::{
    Pfn, VirtAddr,
    counted::Counted,
    error::NoMemory,
    fault::outcome::WaitFor,
    file::{File, Mapping},
    hugetlb::{sharing::SharedTablesGuard, state::reserves::Reserves},
    platform::{NodeChoice, PageOwner, Platform},
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Format, Kind, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags, TableError};
use freehold_sync::RwSemWriteGuard;
use freehold_vmspace::{HugePageSize, PageIndex, TakeError};

/// A place for a huge page in a VMA.
pub(crate) struct HugePlace<'v, P: Platform> {
    /// The VMA that contains the place.
    pub vma: &'v Vma<P>,
    /// The file that the VMA maps.
    pub file: &'v Counted<File<P>>,
    /// Address of the page's first byte.
    pub address: VirtAddr,
    /// Size of the page.
    pub size: HugePageSize,
    /// Index of the page in the file, in huge pages.
    pub index: PageIndex,
}

impl<'v, P: Platform> HugePlace<'v, P> {
    /// Returns the place that contains `page`. Returns `None` if the VMA has no huge pages.
    pub fn new(vma: &'v Vma<P>, page: u64) -> Option<Self> {
        let (file, size) = (vma.object().file()?, vma.huge_page_size()?);
        let address = VirtAddr::new(page).span_down(size.level());
        let index = file.mapping().index_of(vma.pgoff_of(address.get()));
        Some(HugePlace { vma, file, address, size, index })
    }

    /// Returns the level of the page table entry.
    pub fn level(&self) -> Level {
        self.size.level()
    }

    /// Returns true if stores through the VMA do not reach the file.
    pub fn is_private(&self) -> bool {
        !self.vma.flags().contains(VmFlags::MAYSHARE)
    }

    /// Returns the file's pages.
    pub fn mapping(&self) -> &'v Mapping<P> {
        self.file.mapping()
    }
}

/// Reasons for the lack of a private page.
pub(crate) enum Lacking {
    /// The pool is empty.
    Pages,
    /// The pool is empty, but a reserved page is returning to it.
    Yet(WaitFor),
    /// There is no memory to record the use of a reservation.
    Memory,
}

impl From<NoMemory> for Lacking {
    fn from(_: NoMemory) -> Self {
        Lacking::Memory
    }
}

/// A page taken from the pool for a private mapping. No other task can find the page yet.
pub(crate) struct OwnPage<'v> {
    /// First frame of the page.
    pub pfn: Pfn,
    /// The reservations of the VMA, if the page used one of them.
    reservation: Option<&'v Counted<Reserves>>,
}

/// Returns true if [`fill_slot`] would currently fill the slot.
pub(crate) fn has_room<F: Format, M: freehold_pagetable::TableMemory>(leaf: &LeafGuard<'_, F, M>) -> bool {
    matches!(leaf.kind(), Kind::None | Kind::Marker { kind: MarkerKind::UffdWp, .. })
}

/// Fills a slot that is empty or holds the marker of a write-protected page. In the second case the new entry
/// is write-protected too. Returns true if the slot was filled.
pub(crate) fn fill_slot<F: Format, M: freehold_pagetable::TableMemory>(
    leaf: &mut LeafGuard<'_, F, M>,
    pte: Pte<F>,
) -> bool {
    match leaf.kind() {
        Kind::None => leaf.install(pte).is_ok(),
        Kind::Marker { kind: MarkerKind::UffdWp, .. } => {
            let flags = (pte.flags() - PteFlags::WRITE) | PteFlags::UFFD_WP;
            // CPUs do not cache markers.
            leaf.replace(pte.with_flags(leaf.level(), flags), &mut NotCached);
            true
        }
        Kind::Leaf { .. } | Kind::Marker { .. } | Kind::Table { .. } => false,
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Locks the fault mutex of this place, so that no other task makes a page for the place.
    pub(crate) fn fault_mutex(&self, place: &HugePlace<'_, P>) -> RwSemWriteGuard<'_, P> {
        self.engine.files().hugetlb.fault_mutex(place.mapping().key(), place.index)
    }

    /// Makes sure that the table for the entry exists.
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

    /// Locks the table of the place.
    pub(crate) fn lock_place(&self, place: &HugePlace<'_, P>) -> Option<LeafGuard<'_, P::Format, P>> {
        self.vm.lock_leaf(place.address, place.level())
    }

    /// Takes a page from the pool for this place and counts it as mapped once. Uses the place's reservation
    /// if there is one. The caller holds the fault mutex.
    pub(crate) fn own_page<'v>(&self, place: &HugePlace<'v, P>) -> Result<OwnPage<'v>, Lacking> {
        let reserves = place.vma.hugetlb().and_then(|own| own.reserves());
        let reservation = reserves.filter(|reserves| reserves.is_reserved::<P>(place.index));
        let owner = PageOwner::Space(self.vm.mmu());
        let nodes = NodeChoice::of_policy(self.platform(), place.vma.policy(), place.index.get());
        let taken = self.vm.memory().take_huge_page(place.size, reservation.is_some(), owner, nodes);
        let pfn = taken.map_err(|error| match error {
            TakeError::NoHugePage => Lacking::Pages,
            TakeError::Refused => NoMemory.into(),
            TakeError::Returning(seen) => Lacking::Yet(WaitFor::HugePage(place.size, seen)),
        })?;
        if let Some(reserves) = reservation
            && let Err(error) = reserves.use_up::<P>(place.index)
        {
            self.vm.memory().return_huge_page(place.size, pfn, true);
            return Err(error.into());
        }
        let frame = self.platform().frame(pfn);
        frame.init_anon(place.vma.anon_page(place.address.get()));
        frame.set_hugetlb(place.level());
        Ok(OwnPage { pfn, reservation })
    }

    /// Frees a page that was never mapped, and restores the reservation that the page used. The caller has
    /// held the fault mutex since it took the page, and keeps the VMA's tables in place. No other task has
    /// therefore used or renewed the reservation.
    pub(crate) fn discard_own(&self, place: &HugePlace<'_, P>, own: OwnPage<'_>) {
        self.platform().frame(own.pfn).sub_map();
        if let Some(reserves) = own.reservation
            // Without memory for the record, the page returns to the pool unreserved.
            && reserves.renew::<P>(place.index).is_ok()
        {
            self.vm.memory().restore_reservation(own.pfn, place.size);
        }
        self.vm.memory().put_frame(own.pfn);
    }
}
