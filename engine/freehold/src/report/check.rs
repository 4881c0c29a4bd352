//! The address space's own oracle.

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
    /// Verifies everything that can be verified while nothing else happens in this space: the tree's own
    /// rules, that every VMA in it is attached and lies where the tree says, that the sizes equal a
    /// recount of the VMAs, and the resident pages a recount of the page tables; that each page is found
    /// by the reverse map where it is mapped (hazards C-34, C-35); and that none is the file's own where
    /// a probe wants a copy.
    ///
    /// # Panics
    ///
    /// When something is wrong; the message says what.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing; each table's lock in turn.
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

    fn check_reverse(&self, vma: &Vma<P>) {
        let at = vma.start();
        let watched = vma.flags().intersects(VmFlags::UFFD);
        assert_eq!(
            vma.uffd().is_some(),
            watched,
            "the VMA at {at:#x} has a userfaultfd without its flags, or these alone"
        );
        if let Some(tree) = vma.tree() {
            assert!(vma.anon().is_some(), "the VMA at {at:#x} has a tree and no anon_vma");
            assert!(tree.read().holds(vma), "the VMA at {at:#x} is not linked with its pages");
        } else {
            assert!(!vma.anon().is_some(), "the VMA at {at:#x} has an anon_vma and no tree");
        }
        if let Some(mapping) = vma.object().listed_by() {
            assert!(mapping.mappers().holds(vma), "the VMA at {at:#x} is not linked with its file");
        }
        self.check_shared_tables(vma);
        self.check_entries(vma);
    }

    fn check_entries(&self, vma: &Vma<P>) {
        let mut reverse = Reverse { platform: self.platform(), vma };
        let range = vma.range().va();
        let walked = self.vm.walk(range, &mut reverse);
        assert!(walked.is_ok(), "a walk that makes nothing ran out of memory");
    }
}

/// Compares what frames say of themselves with where they are mapped.
struct Reverse<'v, P: Platform> {
    platform: &'v P,
    vma: &'v Vma<P>,
}

impl<P: Platform> Reverse<'_, P> {
    fn check(&self, address: VirtAddr, pte: Pte<P::Format>, level: Level) {
        let (marked, flags) = match pte.kind(level) {
            Kind::Leaf { flags, .. } => (flags.contains(PteFlags::UFFD_WP), flags),
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => (true, PteFlags::empty()),
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => return,
        };
        let watched = self.vma.flags().contains(VmFlags::UFFD_WP) && !flags.contains(PteFlags::WRITE);
        assert!(!marked || watched, "the page at {address:?} is write-protected for nobody, or not at all");
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
                "the page at {at:#x} has a probe and shows the file"
            );
            let known = (home.unwrap_or_default(), self.vma.pgoff_of(at));
            assert_eq!(frame.rmap(), known, "the page at {at:#x} is not found where it is mapped");
        }
    }
}

/// Whether a page is to show breakpoints.
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
