//! Checks of an address space's own invariants.
//!
//! Tests call the check after every scenario. The check only reads. The check holds the mmap lock for
//! writing, so that no call changes the space, and takes the locks of tables and of the reverse map one at a
//! time. The check repairs nothing. A new invariant of a space belongs here; invariants of a file belong in
//! [`Mapping::check`](crate::file::Mapping::check), and invariants of shared page tables belong in
//! `check_shared_tables` (`hugetlb/tables.rs`).

use crate::space::AddressSpace;
use crate::{
    PAGE_SIZE, VirtAddr,
    file::Object,
    platform::Platform,
    uprobe::state as probe_state,
    vma::{Vma, flags::VmFlags},
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange, Visitor,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::UserRange;

impl<P: Platform> AddressSpace<P> {
    /// Verifies all invariants that hold while no other call changes this space:
    ///
    /// - the invariants of the VMA tree;
    /// - every VMA in the tree is attached and has the bounds of its entry;
    /// - the counted sizes equal a recount over the VMAs, and the number of resident pages equals a recount
    ///   over the page tables;
    /// - the reverse map finds each page where it is mapped (hazards C-34, C-35);
    /// - no page with a probe maps the file's own frame;
    /// - each page of a file to which stores are possible is marked as dirty in the file.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is violated. The message names the violation.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing; under it each page table's lock, one at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlock(at, PAGE_SIZE).unwrap();
    /// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// space.check();
    /// ```
    pub fn check(&self) {
        let guard = self.write();
        guard.check();
        self.counters.check(&guard);
        let brk = self.brk.load(Relaxed);
        assert!(brk >= self.start_brk.load(Relaxed), "the break {brk:#x} lies below its start");
        assert_eq!(
            self.rss(),
            self.vm.recount(),
            "resident pages differ from the tables (left: counted, right: recounted)"
        );
        for vma in guard.vmas(UserRange::ALL) {
            self.check_reverse(vma);
        }
    }

    /// Checks that a VMA is linked in the trees to which it belongs, and checks its page table entries.
    fn check_reverse(&self, vma: &Vma<P>) {
        let at = vma.start();
        let watched = vma.flags().intersects(VmFlags::UFFD);
        assert_eq!(
            vma.uffd().is_some(),
            watched,
            "the VMA at {at:#x} has a userfaultfd without its flags, or the flags without a userfaultfd"
        );
        if let Some(tree) = vma.tree() {
            assert!(vma.anon().is_some(), "the VMA at {at:#x} has a tree and no anon_vma");
            assert!(tree.read().holds(vma), "the VMA at {at:#x} is not in its anon rmap tree");
        } else {
            assert!(!vma.anon().is_some(), "the VMA at {at:#x} has an anon_vma and no tree");
        }
        if let Some(mapping) = vma.object().listed_by() {
            assert!(mapping.mappers().holds(vma), "the VMA at {at:#x} is not in its file's i_mmap tree");
        }
        self.check_shared_tables(vma);
        self.check_entries(vma);
    }

    fn check_entries(&self, vma: &Vma<P>) {
        let mut reverse = Reverse { platform: self.platform(), vma };
        let range = vma.range().va();
        let walked = self.vm.walk(range, &mut reverse);
        assert!(walked.is_ok(), "a walk that allocates nothing ran out of memory");
    }
}

/// A page table visitor that compares the record of each frame with the place where the frame is mapped.
struct Reverse<'v, P: Platform> {
    platform: &'v P,
    vma: &'v Vma<P>,
}

impl<P: Platform> Reverse<'_, P> {
    /// Checks one entry, and the records of the frames that it maps.
    fn check(&self, address: VirtAddr, pte: Pte<P::Format>, level: Level) {
        let (marked, flags) = match pte.kind(level) {
            Kind::Leaf { flags, .. } => (flags.contains(PteFlags::UFFD_WP), flags),
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => (true, PteFlags::empty()),
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => return,
        };
        let watched = self.vma.flags().contains(VmFlags::UFFD_WP) && !flags.contains(PteFlags::WRITE);
        assert!(
            !marked || watched,
            "the page at {address:?} is marked as protected, but is writable or has no userfaultfd"
        );
        let tracked = !self.vma.flags().intersects(VmFlags::SOFTDIRTY | VmFlags::HUGETLB | VmFlags::PFNMAP);
        assert!(
            !tracked || !flags.contains(PteFlags::WRITE) || flags.contains(PteFlags::SOFT_DIRTY),
            "the page at {address:?} is writable, but a store would not make it soft-dirty"
        );
        let Kind::Leaf { pfn, .. } = pte.kind(level) else { return };
        if flags.contains(PteFlags::SPECIAL) {
            return;
        }
        let records = if self.platform.frame(pfn).hugetlb().is_some() { 1 } else { level.frames() };
        for n in 0..records {
            let (frame, at) = (self.platform.frame(pfn.add(n)), address.get() + n * PAGE_SIZE);
            let home = match (frame.is_anon(), self.vma.object()) {
                (true, _) => self.vma.tree().map(core::ptr::from_ref).map(<*const _>::addr),
                (false, Object::File(file)) => Some(file.mapping().rmap_word()),
                (false, _) => None,
            };
            assert!(
                frame.is_anon() || !probed(self.vma, at),
                "the page at {at:#x} has a probe and maps the file's own frame"
            );
            if let Object::File(file) = self.vma.object()
                && self.vma.flags().contains(VmFlags::SHARED)
                && flags.contains(PteFlags::WRITE)
            {
                assert!(
                    file.mapping().may_be_dirty(self.vma.pgoff_of(at)),
                    "the page at {at:#x} is writable and not marked as dirty in its file"
                );
            }
            let known = (home.unwrap_or_default(), self.vma.pgoff_of(at));
            assert_eq!(
                frame.rmap(),
                known,
                "the reverse map does not find the page at {at:#x} where it is mapped"
            );
        }
    }
}

/// Returns true if the page at `at` must contain breakpoints.
fn probed<P: Platform>(vma: &Vma<P>, at: u64) -> bool {
    let probes =
        vma.object().file().filter(|_| probe_state::are_put(vma.flags())).map(|file| file.mapping().probes());
    probes.is_some_and(|probes| probes.wants::<P>(vma.pgoff_of(at)))
}

impl<P: Platform> Visitor<P::Format, P> for Reverse<'_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |address, pte| {
            self.check(address, pte, Level::Pte);
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        // No VMA begins or ends inside a huge page.
        let address = range.start();
        self.check(address, leaf.pte(), leaf.level());
        ControlFlow::Continue(())
    }
}
