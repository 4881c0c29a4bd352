//! The address space's own oracle.

use super::{AddressSpace, Rss, RssKind};
use crate::platform::Platform;
use core::ops::ControlFlow;
use freehold_pagetable::{Kind, Large, LargeGuard, Level, Pte, PteFlags, PteGuard, VaRange, Visitor};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// Verifies everything that can be verified while nothing else happens in this space: the tree's own rules, that every
    /// VMA in it is attached and lies where the tree says, that the sizes equal a recount of the VMAs, and the resident
    /// pages a recount of the page tables.
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
        let mut count = Count { platform: self.platform(), rss: Rss::default() };
        let walked = self.table.walk(self.platform(), VaRange::of(0, super::TASK_SIZE), &mut count);
        assert!(walked.is_ok(), "a walk that makes nothing ran out of memory");
        assert_eq!(
            self.rss(),
            count.rss,
            "resident pages differ from the tables (left: counted, right: recounted)"
        );
    }
}

/// Counts what is mapped.
struct Count<'p, P: Platform> {
    platform: &'p P,
    rss: Rss,
}

impl<P: Platform> Count<'_, P> {
    fn add(&mut self, pte: Pte<P::Format>, level: Level) {
        if let Kind::Leaf { pfn, flags } = pte.kind(level)
            && !flags.contains(PteFlags::SPECIAL)
        {
            self.rss.add(RssKind::of(self.platform.frame(pfn)), level.frames() as i64);
        }
    }
}

impl<P: Platform> Visitor<P::Format, P> for Count<'_, P> {
    const LARGE: Large = Large::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |_, pte| {
            self.add(pte, Level::Pte);
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LargeGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        self.add(leaf.pte(), leaf.level());
        ControlFlow::Continue(())
    }
}
