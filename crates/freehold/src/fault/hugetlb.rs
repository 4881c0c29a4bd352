//! Faults on huge pages of a pool.
//!
//! ```text
//! shared, nothing   the file's page: mapped, with the right to write if the VMA has it. Not there: every lock is let go of, the file
//!                   brings it in, and the fault starts over
//! private, nothing  the file's page, without the right to write; else, or for a store, a page of one's own
//! private, a store  the page is ours alone: the right to write. Else a copy
//! ```
//!
//! A private page is made, and copied, under the fault mutex of its place in the file; a shared one, too, but
//! by the file.
//!
//! Where the pool is empty, an access is a bus error. But who made a private mapping has reservations for its
//! pages: if another process has one in common with it since a fork, and there is none left for a copy, it is
//! the other that loses the page.

use super::{Access, Await, FaultError, FaultOutcome, WRITTEN, vma_pte_flags, written};
use crate::{
    Pfn, VirtAddr,
    error::NoMemory,
    object::{File, Mapping, Wanted},
    platform::Platform,
    records::hugetlb::tables::SharedTablesGuard,
    space::AddressSpace,
    space::held::Held,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, LeafGuard, Level, MarkerKind, Pte, PteFlags, TableError};
use freehold_vmspace::{HugePageSize, Moving, NotTaken, PageIndex, PageRange};

/// What a fault is about.
struct HugePlace<'v, P: Platform> {
    vma: &'v Vma<P>,
    file: &'v File<P>,
    /// Where the page starts.
    address: VirtAddr,
    size: HugePageSize,
    /// Its number in the file.
    index: PageIndex,
}

impl<P: Platform> HugePlace<'_, P> {
    fn level(&self) -> Level {
        self.size.level()
    }

    fn is_private(&self) -> bool {
        !self.vma.flags().contains(VmFlags::MAYSHARE)
    }

    fn mapping(&self) -> &Mapping<P> {
        self.file.mapping()
    }
}

/// Why there is no page of one's own.
enum Lacking {
    /// The pool is empty.
    Pages,
    /// It is, but a page that was reserved is on its way back.
    Yet(Await),
    /// No memory for the books.
    Memory,
}

impl From<NoMemory> for Lacking {
    fn from(_: NoMemory) -> Self {
        Lacking::Memory
    }
}

impl<P: Platform> AddressSpace<P> {
    /// One attempt at a fault on `page` of a VMA of huge pages; as [`resolve`](Self::resolve).
    // Out of the way of faults on small pages.
    #[inline(never)]
    pub(super) fn hugetlb_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: Held<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let (Some(counted), Some(size)) = (vma.object().file(), vma.huge_page_size()) else {
            return FaultOutcome::Retry;
        };
        let address = VirtAddr::new(page).span_down(size.level());
        let index = counted.mapping().index_of(vma.pgoff_of(address.get()));
        let place = HugePlace { vma, file: counted, address, size, index };
        if place.is_private()
            && let Err(step) = self.prepare_anon(vma, held)
        {
            return step.into();
        }
        let _maker = place.is_private().then(|| self.engine.hugetlb.fault_mutex(place.mapping(), index));
        let kept = self.keep_tables(vma);
        // The table is there from here on, and stays as long as `kept`.
        if let Err(error) = self.hugetlb_table(&place, &kept) {
            return match error {
                TableError::OutOfTables => FaultOutcome::OUT_OF_MEMORY,
                TableError::Huge(_) | TableError::Marker(_) => {
                    FaultOutcome::Failed(FaultError::Bus { addr: page })
                }
            };
        }
        if index >= place.mapping().end() {
            return FaultOutcome::Failed(FaultError::Bus { addr: page });
        }
        let (found, level) = self.vm.peek(address);
        if level != size.level() {
            debug_assert!(false, "something of level {level:?} at {address:?}, in a VMA of huge pages");
            return FaultOutcome::Failed(FaultError::Bus { addr: page });
        }
        match found.kind(level) {
            Kind::None => match self.map_cached(&place, access) {
                Some(step) => step,
                None if place.is_private() => self.map_own(&place, access),
                None => FaultOutcome::Fill(counted.clone(), Wanted::alone(index)),
            },
            Kind::Leaf { flags, .. } if access.write && !flags.contains(PteFlags::WRITE) => {
                match place.is_private() {
                    true => self.write_private_huge(&place),
                    false => self.write_shared_huge(&place),
                }
            }
            Kind::Leaf { .. } => FaultOutcome::Done,
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                FaultOutcome::Wait(Await::Frame(Moving::of(payload).pfn))
            }
            Kind::Marker { kind: MarkerKind::Poison, payload } => match crate::rmap::failed_frame(payload) {
                Some(pfn) if self.platform().frame(pfn).is_locked() => FaultOutcome::Wait(Await::Frame(pfn)),
                _ => FaultOutcome::Failed(FaultError::MemoryFailed { addr: page }),
            },
            Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Failed(FaultError::Bus { addr: page }),
        }
    }

    /// Makes sure that there is a table for the entry.
    fn hugetlb_table(
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
    fn lock_place(&self, place: &HugePlace<'_, P>) -> Option<LeafGuard<'_, P::Format, P>> {
        self.vm.lock_leaf(place.address, place.level())
    }

    /// Maps the file's page, if it has it and that is what is wanted.
    fn map_cached(&self, place: &HugePlace<'_, P>, access: Access) -> Option<FaultOutcome<P>> {
        if place.is_private() && access.write {
            return None;
        }
        let flags = place.vma.flags();
        let mut rights = vma_pte_flags(flags);
        if flags.contains(VmFlags::SHARED | VmFlags::WRITE) {
            // At once: nothing is ever written back, so nobody has to hear of the first store.
            rights |= WRITTEN;
        }
        // Found and mapped within one guard: who cuts the page off meets the entry.
        let rcu = P::rcu_read();
        let pfn = place.mapping().lookup(&rcu, place.index)?;
        let mut leaf = self.lock_place(place)?;
        let frame = self.platform().frame(pfn);
        // Before the entry is seen: whoever takes it away takes these.
        if !frame.try_map() {
            return Some(FaultOutcome::OUT_OF_MEMORY);
        }
        if leaf.install(Pte::leaf(place.level(), pfn, rights)).is_err() {
            // Somebody else was faster.
            frame.sub_map();
            drop(leaf);
            self.vm.memory().put_frame(pfn);
            return Some(FaultOutcome::Retry);
        }
        Some(FaultOutcome::Done)
    }

    /// Maps a fresh private page. The caller has the fault mutex.
    fn map_own(&self, place: &HugePlace<'_, P>, access: Access) -> FaultOutcome<P> {
        if place.vma.hugetlb().is_some_and(|own| own.is_resv_unmapped()) {
            return FaultOutcome::Failed(FaultError::Bus { addr: place.address.get() });
        }
        let new = match self.own_page(place) {
            Ok(new) => new,
            Err(Lacking::Pages) => {
                return FaultOutcome::Failed(FaultError::Bus { addr: place.address.get() });
            }
            Err(Lacking::Yet(what)) => return FaultOutcome::Wait(what),
            Err(Lacking::Memory) => return FaultOutcome::OUT_OF_MEMORY,
        };
        self.platform().zero_frames(new, place.level().frames());
        let flags = place.vma.flags();
        let mut rights = vma_pte_flags(flags);
        if access.write || flags.contains(VmFlags::WRITE) {
            rights |= written(flags);
        }
        // Within one guard, like the page of a file: a truncation that has published its size waits for it,
        // and then looks here.
        let rcu = P::rcu_read();
        let inside = place.index < place.mapping().end();
        let installed = inside
            && self
                .lock_place(place)
                .is_some_and(|mut leaf| leaf.install(Pte::leaf(place.level(), new, rights)).is_ok());
        drop(rcu);
        match installed {
            true => FaultOutcome::Done,
            false => {
                self.discard_own(new);
                FaultOutcome::Retry
            }
        }
    }

    /// A page of the pool for this place, counted as mapped once: the reserved one if there is one. The
    /// caller has the fault mutex.
    fn own_page(&self, place: &HugePlace<'_, P>) -> Result<Pfn, Lacking> {
        let reserves = place.vma.hugetlb().and_then(|own| own.reserves());
        let reservation = reserves.filter(|reserves| reserves.is_reserved::<P>(place.index));
        let new =
            self.vm.memory().take_huge_page(place.size, reservation.is_some()).map_err(
                |error| match error {
                    NotTaken::None => Lacking::Pages,
                    NotTaken::Returning(seen) => Lacking::Yet(Await::HugePage(place.size, seen)),
                },
            )?;
        if let Some(reserves) = reservation
            && let Err(error) = reserves.use_up::<P>(place.index)
        {
            self.engine.huge_pool(place.size).give(self.platform(), new, true);
            return Err(error.into());
        }
        let frame = self.platform().frame(new);
        frame.init_anon(place.vma.anon_page(place.address.get()));
        frame.set_hugetlb(place.level());
        Ok(new)
    }

    /// A page that was never mapped goes back.
    fn discard_own(&self, new: Pfn) {
        self.platform().frame(new).sub_map();
        self.vm.memory().put_frame(new);
    }

    /// A store to a page that the VMA allows all who share it to write.
    fn write_shared_huge(&self, place: &HugePlace<'_, P>) -> FaultOutcome<P> {
        let Some(mut leaf) = self.lock_place(place) else { return FaultOutcome::Retry };
        match leaf.kind() {
            Kind::Leaf { .. } => {
                leaf.grant(WRITTEN);
                FaultOutcome::Done
            }
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Retry,
        }
    }

    /// A store to a page that is mapped without the right to write. The caller has the fault mutex.
    fn write_private_huge(&self, place: &HugePlace<'_, P>) -> FaultOutcome<P> {
        let old = {
            let Some(mut leaf) = self.lock_place(place) else { return FaultOutcome::Retry };
            let Kind::Leaf { pfn, flags } = leaf.kind() else { return FaultOutcome::Retry };
            let frame = self.platform().frame(pfn);
            if flags.contains(PteFlags::WRITE) {
                return FaultOutcome::Done;
            }
            if frame.is_anon() && (frame.is_exclusive() || frame.refs() == 1) {
                frame.set_exclusive();
                leaf.grant(written(place.vma.flags()));
                return FaultOutcome::Done;
            }
            frame.get();
            pfn
        };
        let step = match self.own_page(place) {
            Ok(new) => self.map_huge_copy(place, old, new),
            Err(Lacking::Memory) => FaultOutcome::OUT_OF_MEMORY,
            Err(Lacking::Yet(what)) => FaultOutcome::Wait(what),
            Err(Lacking::Pages) => self.take_from_others(place, old),
        };
        self.vm.memory().put_frame(old);
        step
    }

    /// Puts an entry of `new`, filled from `old`, which the caller keeps, in place of that of `old`.
    fn map_huge_copy(&self, place: &HugePlace<'_, P>, old: Pfn, new: Pfn) -> FaultOutcome<P> {
        self.platform().copy_frames(new, old, place.level().frames());
        let flags = place.vma.flags();
        let pte = Pte::leaf(place.level(), new, vma_pte_flags(flags) | written(flags));
        let mut gather = self.vm.exclusive_gather::<1>();
        let Some(mut leaf) = self.lock_place(place) else {
            self.discard_own(new);
            return FaultOutcome::Retry;
        };
        // The reference keeps the frame from becoming another page: the same number is the same page.
        let same = matches!(leaf.kind(), Kind::Leaf { pfn, flags } if pfn == old && !flags.contains(PteFlags::WRITE));
        if same {
            // Nobody reads the old page any more when the first can write. The slot must not be seen empty:
            // it would be filled.
            let closed = pte.with_flags(place.level(), (pte.flags() - PteFlags::WRITE) | PteFlags::NO_ACCESS);
            leaf.replace(closed, &mut gather);
            gather.flush();
            leaf.replace(pte, &mut gather);
            self.platform().frame(old).sub_map();
            gather.frame(old, place.level());
        }
        drop(leaf);
        gather.finish();
        if same {
            return FaultOutcome::Done;
        }
        self.discard_own(new);
        FaultOutcome::Retry
    }

    /// The pool has no page for a copy of `old`, which this VMA has in common with children of fork. Who made
    /// the mapping was reservations for its pages: then the others lose theirs, and this VMA may write to
    /// the page, as soon as nobody looks at it any more (hazard C-56). Nobody does for long: what can be
    /// held is a pin, and a page that a child has too has none.
    ///
    /// # Locks
    ///
    /// The caller has the fault mutex, which all who fault on this page of the file take.
    fn take_from_others(&self, place: &HugePlace<'_, P>, old: Pfn) -> FaultOutcome<P> {
        let owner = place.vma.hugetlb().is_some_and(|own| own.reserves().is_some());
        if !owner || !self.platform().frame(old).is_anon() {
            return FaultOutcome::Failed(FaultError::Bus { addr: place.address.get() });
        }
        let first = place.vma.pgoff_of(place.address.get());
        let lookups = place.mapping().mappers();
        for other in lookups.mappers(PageRange::one(first)) {
            let is_own = other.vma.hugetlb().is_some_and(|own| own.reserves().is_some());
            if is_own || other.vma.flags().contains(VmFlags::MAYSHARE) {
                continue;
            }
            if other.vm.take_entry(VirtAddr::new(other.range.start()), place.level(), old, Pte::NONE)
                && let Some(own) = other.vma.hugetlb()
            {
                own.set_resv_unmapped();
            }
        }
        drop(lookups);
        let Some(mut leaf) = self.lock_place(place) else { return FaultOutcome::Retry };
        let frame = self.platform().frame(old);
        if !matches!(leaf.kind(), Kind::Leaf { pfn, .. } if pfn == old) {
            return FaultOutcome::Retry;
        }
        // While it is being moved, or its memory is failing, a marker may stand for another's entry. Who
        // locks it from now on finds no other entry but ours: children cannot get it again.
        if frame.is_locked() {
            return FaultOutcome::Wait(Await::Frame(old));
        }
        if frame.maps() > 1 || frame.refs() > 2 {
            // A fork was under way and has given it to somebody else meanwhile; or a reader, who had found it
            // in a child, is copying from it. The entry's reference and the caller's are those
            // that count.
            P::relax();
            return FaultOutcome::Retry;
        }
        frame.set_exclusive();
        leaf.grant(written(place.vma.flags()));
        FaultOutcome::Done
    }
}
