//! Faults on huge pages of a pool.
//!
//! ```text
//! shared, empty    maps the file's page, writable if the VMA is; if the file has no page: drops all locks,
//!                  lets the file allocate the page, and starts over
//! private, empty   maps the file's page without write permission; if the file has no page, maps a new
//!                  private page
//! private, store   grants write permission if the page is exclusive; otherwise maps a copy
//! ```
//!
//! If a userfaultfd has write-protected an absent page, the entry for this page is a marker. An entry that
//! replaces the marker is write-protected too.
//!
//! A private page is allocated and copied under the fault mutex of its offset in the file. The code of files
//! (`file/kinds/huge.rs`) takes the same mutex to allocate a shared page.
//!
//! If the pool is empty, an access fails with SIGBUS. There is one exception: the process that made a private
//! mapping has reservations for its pages, and must get a page for each store. If a fork has left the page
//! shared with a child, and the pool has no page for a copy, the child loses the page.
//!
//! `resolve` in `fault/mod.rs` calls [`hugetlb_fault`](AddressSpace::hugetlb_fault) while a lock keeps the
//! VMA unchanged. `place.rs` takes private pages from the pool, and `file/kinds/huge.rs` takes the pages of
//! files. An entry that was read without the lock of its table is a hint: it is checked again under the lock,
//! together with the size of the file. A page that was taken and not mapped must return to the pool with its
//! reservation. This file handles markers itself, because `marker_fault` in `fault/mod.rs` handles only
//! markers of small pages. `tests/hugetlb/pages_in_use.rs` tests pages that another task uses, and
//! `shuttle_engine/hugetlb.rs` tests concurrent faults.

pub(crate) mod place;

use crate::{
    Pfn, VirtAddr,
    fault::outcome::{FaultError, FaultOutcome, WaitFor},
    file::Wanted,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{
        Vma,
        flags::{
            VmFlags,
            pte_flags::{WRITTEN, vma_pte_flags, written},
        },
    },
};
use freehold_pagetable::{Access, Kind, MarkerKind, Pte, PteFlags, TableError, VaRange};
use freehold_vmspace::{MigrationEntry, PageRange, frame::NotMapped};
use place::{HugePlace, Lacking, OwnPage, fill_slot, has_room};

impl<P: Platform> AddressSpace<P> {
    /// Attempts once to resolve a fault on `page` of a VMA of huge pages; see [`resolve`](Self::resolve).
    // Kept out of line, so that faults on small pages do not pay for its stack frame.
    #[inline(never)]
    pub(crate) fn hugetlb_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let Some(place) = HugePlace::new(vma, page) else { return FaultOutcome::Retry };
        let HugePlace { address, size, index, .. } = place;
        if place.is_private()
            && let Err(step) = self.prepare_anon(vma, held)
        {
            return step.into();
        }
        let _maker = place.is_private().then(|| self.fault_mutex(&place));
        let kept = self.keep_tables(vma);
        // The table exists from here on and stays in place as long as `kept` lives.
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
            debug_assert!(false, "an entry of level {level:?} at {address:?} in a VMA of huge pages");
            return FaultOutcome::Failed(FaultError::Bus { addr: page });
        }
        if vma.flags().intersects(VmFlags::UFFD)
            && let Some(step) = self.ask_pager(vma, address.get(), access)
        {
            return step;
        }
        match found.kind(level) {
            Kind::None | Kind::Marker { kind: MarkerKind::UffdWp, .. } => {
                let wanted = Wanted { policy: vma.policy(), ..Wanted::alone(index) };
                match self.map_cached(&place, access) {
                    Some(step) => step,
                    // The fill reports that the page is lost.
                    None if place.mapping().is_lost(index) => FaultOutcome::Fill(place.file.clone(), wanted),
                    // The page left the file after `ask_pager` found it: retry, so that the pager supplies
                    // the page.
                    None if vma.flags().contains(VmFlags::UFFD_MISSING) => FaultOutcome::Retry,
                    None if place.is_private() => self.map_own(&place, access),
                    None => FaultOutcome::Fill(place.file.clone(), wanted),
                }
            }
            Kind::Leaf { flags, .. } if access.write && !flags.contains(PteFlags::WRITE) => {
                match place.is_private() {
                    true => self.write_private_huge(&place),
                    false => self.write_shared_huge(&place),
                }
            }
            Kind::Leaf { flags, .. } => self.present_fault(address, level, flags, access),
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                FaultOutcome::Wait(WaitFor::Frame(MigrationEntry::of(payload).pfn))
            }
            Kind::Marker { kind: MarkerKind::Poison, payload } => match crate::rmap::failed_frame(payload) {
                Some(pfn) if self.platform().frame(pfn).is_locked() => {
                    FaultOutcome::Wait(WaitFor::Frame(pfn))
                }
                _ => FaultOutcome::Failed(FaultError::MemoryFailed { addr: page }),
            },
            Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Failed(FaultError::Bus { addr: page }),
        }
    }

    /// Maps the file's page, if the file has it. In a private mapping the entry is read-only, and a store
    /// faults again for a copy.
    fn map_cached(&self, place: &HugePlace<'_, P>, access: Access) -> Option<FaultOutcome<P>> {
        let flags = place.vma.flags();
        let mut rights = vma_pte_flags(flags);
        if flags.contains(VmFlags::SHARED | VmFlags::WRITE) {
            // The entry is writable and dirty at once. These pages are never written back, so the first store
            // need not be detected.
            rights |= WRITTEN;
        }
        let rcu = P::rcu_read();
        let found = place.mapping().find(&rcu, place.index)?;
        let (pfn, mut leaf) = (found.pfn(), self.lock_place(place)?);
        if !has_room(&leaf) {
            // Another task has installed an entry first, which is common if many processes share the table.
            return Some(FaultOutcome::Retry);
        }
        let frame = self.platform().frame(pfn);
        // The reference and the mapping are counted before the entry is visible, because a call that removes
        // the entry drops these counts.
        let stale = match frame.try_map_cached(|| found.is_still()) {
            Ok(()) if fill_slot(&mut leaf, Pte::leaf(place.level(), pfn, rights)) => false,
            Ok(()) => {
                // The slot now holds a table.
                frame.sub_map();
                true
            }
            Err(NotMapped::TooManyReferences) => return Some(FaultOutcome::OUT_OF_MEMORY),
            Err(NotMapped::Gone) => return Some(FaultOutcome::Retry),
            Err(NotMapped::Stale) => true,
        };
        drop(leaf);
        drop(rcu);
        if stale {
            self.vm.memory().put_frame(pfn);
            return Some(FaultOutcome::Retry);
        }
        Some(if place.is_private() && access.write { FaultOutcome::Retry } else { FaultOutcome::Done })
    }

    /// Maps a new private page. The caller holds the fault mutex.
    fn map_own(&self, place: &HugePlace<'_, P>, access: Access) -> FaultOutcome<P> {
        if place.vma.hugetlb().is_some_and(|own| own.is_resv_unmapped()) {
            return FaultOutcome::Failed(FaultError::Bus { addr: place.address.get() });
        }
        let own = match self.own_page(place) {
            Ok(own) => own,
            Err(Lacking::Pages) => {
                return FaultOutcome::Failed(FaultError::Bus { addr: place.address.get() });
            }
            Err(Lacking::Yet(what)) => return FaultOutcome::Wait(what),
            Err(Lacking::Memory) => return FaultOutcome::OUT_OF_MEMORY,
        };
        self.platform().zero_frames(own.pfn, place.level().frames());
        let flags = place.vma.flags();
        let mut rights = vma_pte_flags(flags);
        if access.write || flags.contains(VmFlags::WRITE) {
            rights |= written(flags);
        }
        let installed = self.lock_place(place).is_some_and(|mut leaf| {
            place.mapping().is_inside(place.index)
                && fill_slot(&mut leaf, Pte::leaf(place.level(), own.pfn, rights))
        });
        match installed {
            true => FaultOutcome::Done,
            false => {
                self.discard_own(place, own);
                FaultOutcome::Retry
            }
        }
    }

    /// Handles a store to a page of a shared VMA that allows the store.
    fn write_shared_huge(&self, place: &HugePlace<'_, P>) -> FaultOutcome<P> {
        let Some(mut leaf) = self.lock_place(place) else { return FaultOutcome::Retry };
        match leaf.kind() {
            // The page was write-protected after `ask_pager` checked it.
            Kind::Leaf { flags, .. } if flags.contains(PteFlags::UFFD_WP) => FaultOutcome::Retry,
            Kind::Leaf { .. } => {
                leaf.grant(WRITTEN);
                FaultOutcome::Done
            }
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Retry,
        }
    }

    /// Handles a store to a private page that is mapped without write permission. The caller holds the fault
    /// mutex.
    fn write_private_huge(&self, place: &HugePlace<'_, P>) -> FaultOutcome<P> {
        let old = {
            let Some(mut leaf) = self.lock_place(place) else { return FaultOutcome::Retry };
            let Kind::Leaf { pfn, flags } = leaf.kind() else { return FaultOutcome::Retry };
            let frame = self.platform().frame(pfn);
            if flags.contains(PteFlags::WRITE) {
                return FaultOutcome::Done;
            }
            if flags.contains(PteFlags::UFFD_WP) {
                return FaultOutcome::Retry;
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
            Ok(own) => self.map_huge_copy(place, old, own),
            Err(Lacking::Memory) => FaultOutcome::OUT_OF_MEMORY,
            Err(Lacking::Yet(what)) => FaultOutcome::Wait(what),
            Err(Lacking::Pages) => self.take_from_others(place, old),
        };
        self.vm.memory().put_frame(old);
        step
    }

    /// Fills `own` with a copy of `old`, and replaces the entry of `old` with an entry of `own`. The caller
    /// has a reference to `old`.
    fn map_huge_copy(&self, place: &HugePlace<'_, P>, old: Pfn, own: OwnPage<'_>) -> FaultOutcome<P> {
        let new = own.pfn;
        self.platform().copy_frames(new, old, place.level().frames());
        let flags = place.vma.flags();
        let pte = Pte::leaf(place.level(), new, vma_pte_flags(flags) | written(flags));
        let mut gather = self.vm.exclusive_gather::<1>(VaRange::entry(place.address, place.level()));
        let Some(mut leaf) = self.lock_place(place) else {
            self.discard_own(place, own);
            return FaultOutcome::Retry;
        };
        // The caller's reference keeps the frame from being reused, so an equal frame number means the same
        // page.
        let kept_out = PteFlags::WRITE | PteFlags::UFFD_WP;
        let same =
            matches!(leaf.kind(), Kind::Leaf { pfn, flags } if pfn == old && !flags.intersects(kept_out));
        if same {
            // Once any CPU can write to the new page, no CPU may read the old page, so the entry is closed
            // and flushed first. The entry must not become empty in between, because another fault would fill
            // an empty slot.
            let closed = pte.with_flags(place.level(), (pte.flags() - PteFlags::WRITE) | PteFlags::NO_ACCESS);
            leaf.replace(closed, &mut gather);
            gather.flush();
            leaf.replace(pte, &mut gather);
            self.platform().frame(old).sub_map();
            gather.add_frame(old, place.level());
        }
        drop(leaf);
        gather.finish();
        if same {
            return FaultOutcome::Done;
        }
        self.discard_own(place, own);
        FaultOutcome::Retry
    }

    /// Handles a store to `old`, a page that this VMA shares with children of fork, while the pool has no
    /// page for a copy. If this process made the mapping, and so has reservations for its pages, the other
    /// processes lose the page. This VMA may then write to the page as soon as there are no other references
    /// (hazard C-56). The wait for these references is short: only a pin could hold a reference for long, and
    /// a page that a child maps cannot be pinned.
    ///
    /// # Locks
    ///
    /// The caller holds the fault mutex, which all faults on this page of the file take.
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
        let protected = |flags: PteFlags| flags.contains(PteFlags::UFFD_WP);
        if !matches!(leaf.kind(), Kind::Leaf { pfn, flags } if pfn == old && !protected(flags)) {
            return FaultOutcome::Retry;
        }
        // A locked frame is being moved, or its memory is failing. The loop above may then have missed
        // another space's entry, because a marker has replaced the entry. If the frame is not locked, a task
        // that locks it later finds only the entry of this space: a child cannot map the page again.
        if frame.is_locked() {
            return FaultOutcome::Wait(WaitFor::Frame(old));
        }
        if frame.maps() > 1 || frame.refs() > 2 {
            // A concurrent fork has mapped the page in another process, or a task that found the page in a
            // child is copying the page. The two expected references are those of the entry and of the
            // caller.
            P::relax();
            return FaultOutcome::Retry;
        }
        frame.set_exclusive();
        leaf.grant(written(place.vma.flags()));
        FaultOutcome::Done
    }
}
