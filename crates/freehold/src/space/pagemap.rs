//! What /proc/PID/pagemap and its PAGEMAP_SCAN say: which pages are present, and of what kind.

use super::{AddressSpace, TASK_SIZE};
use crate::{PAGE_SIZE, Pfn, VirtAddr, engine::Engine, platform::Platform};
use core::ops::{ControlFlow, Range};
use freehold_pagetable::{Kind, Large, LeafGuard, Level, PteFlags, PteGuard, VaRange, Visitor};

/// What kind of page is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Anonymous: a private copy, or memory that was never of a file.
    Anon,
    /// Of a file or of shared memory.
    File,
    /// The common page of zeroes that a read of untouched anonymous memory finds.
    Zero,
    /// Of a mapping whose frames the engine does not own.
    Special,
}

/// Pages that are present, one after the other, of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Their addresses.
    pub range: Range<u64>,
    /// What they are.
    pub kind: PageKind,
    /// Mapped by one entry: a huge page, or the part of it that was asked for.
    pub huge: bool,
}

impl<P: Platform> AddressSpace<P> {
    /// Shows `sink` what is present in `range`, ascending; runs of small pages of a kind as one, within a table. Pages of which only a
    /// part lies in the range count.
    ///
    /// # Locks
    ///
    /// For each VMA its lock, or the mmap lock, for reading, and under it each table's while it is looked at and `sink`
    /// runs: `sink` must not call the address space, sleep, wake anybody or use the heap.
    pub fn pagemap(&self, range: Range<u64>, mut sink: impl FnMut(Present)) {
        let end = range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(TASK_SIZE);
        let mut at = range.start & !(PAGE_SIZE - 1);
        while at < end {
            let next = self.with_next_vma(at, |_, part| {
                let part = part.start.max(at)..part.end.min(end);
                if part.start < part.end {
                    let mut scan = Scan { engine: &self.engine, sink: &mut sink };
                    // The scan makes no table and splits no leaf, so it cannot run out of memory.
                    let _ = self.table.walk(self.platform(), VaRange::of(part.start, part.end), &mut scan);
                }
                part.end.max(at)
            });
            match next {
                Some(next) if next > at => at = next,
                _ => return,
            }
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The frame of the page at `addr`, if one is mapped there at this moment: what /proc/PID/pagemap calls its PFN. The next
    /// moment it may be another; [`Engine::migrate`] and its kin find that out.
    ///
    /// # Locks
    ///
    /// The VMA's lock, or the mmap lock, for reading.
    pub fn frame_at(&self, addr: u64) -> Option<Pfn> {
        let mut found = None;
        self.with_next_vma(addr, |_, part| {
            if part.contains(&addr) {
                let address = VirtAddr::new(addr & !(PAGE_SIZE - 1));
                let (pte, level) = self.table.peek(self.platform(), address);
                if let Kind::Leaf { pfn, flags } = pte.kind(level)
                    && !flags.contains(PteFlags::SPECIAL)
                {
                    found = Some(pfn.add(address.frame_in_leaf(level)));
                }
            }
            part.end
        });
        found
    }
}

struct Scan<'p, P: Platform, S> {
    engine: &'p Engine<P>,
    sink: S,
}

impl<P: Platform, S> Scan<'_, P, S> {
    fn kind(&self, pfn: Pfn, flags: PteFlags) -> PageKind {
        match flags.contains(PteFlags::SPECIAL) {
            true if self.engine.is_zero(pfn) => PageKind::Zero,
            true => PageKind::Special,
            false if self.engine.platform().frame(pfn).is_anon() => PageKind::Anon,
            false => PageKind::File,
        }
    }
}

impl<P: Platform, S: FnMut(Present)> Visitor<P::Format, P> for Scan<'_, P, S> {
    const LARGE: Large = Large::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let mut run: Option<Present> = None;
        let walked = table.for_each(range, |address, pte| {
            if let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) {
                let (at, kind) = (address.get(), self.kind(pfn, flags));
                match &mut run {
                    Some(run) if run.range.end == at && run.kind == kind => run.range.end += PAGE_SIZE,
                    _ => {
                        let next = Present { range: at..at + PAGE_SIZE, kind, huge: false };
                        run.replace(next).into_iter().for_each(&mut self.sink);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        run.into_iter().for_each(&mut self.sink);
        walked
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        if let Kind::Leaf { pfn, flags } = leaf.kind() {
            let first = pfn.add(range.start().frame_in_leaf(leaf.level()));
            let range = range.start().get()..range.start().get() + range.len();
            let kind = self.kind(first, flags);
            (self.sink)(Present { range, kind, huge: true });
        }
        ControlFlow::Continue(())
    }
}
