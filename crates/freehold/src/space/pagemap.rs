//! What /proc/PID/pagemap and its PAGEMAP_SCAN say: which pages are present, and of what kind.

use super::{AddressSpace, TASK_SIZE};
use crate::{PAGE_SIZE, Pfn, VirtAddr, engine::Engine, platform::Platform};
use arrayvec::ArrayVec;
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

/// As many runs as are kept while locks are held, before `sink` sees them: 24 bytes each of a kernel's stack.
const RUNS: usize = 32;

impl<P: Platform> AddressSpace<P> {
    /// Shows `sink` what is present in `range`, ascending; runs of small pages of a kind as one, within a table. Pages of which only a
    /// part lies in the range count.
    ///
    /// # Locks
    ///
    /// For each VMA its lock, or the mmap lock, for reading, and under it each table's while it is looked at. None while `sink` runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, fault::Access, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// let mut present = 0;
    /// space.pagemap(at..at + 4 * PAGE_SIZE, |_| present += 1);
    /// assert_eq!(present, 1);
    /// ```
    pub fn pagemap(&self, range: Range<u64>, mut sink: impl FnMut(Present)) {
        let end = range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(TASK_SIZE);
        let mut at = range.start & !(PAGE_SIZE - 1);
        let mut runs = ArrayVec::new();
        while at < end {
            let next = self.with_next_vma(at, |_, part| {
                let part = part.start.max(at)..part.end.min(end);
                let mut scan = Scan { engine: &self.engine, runs: &mut runs, next: part.end };
                if part.start < part.end {
                    // The scan makes no table and splits no leaf, so it cannot run out of memory.
                    let _ = self.table.walk(self.platform(), VaRange::of(part.start, part.end), &mut scan);
                }
                scan.next.max(at)
            });
            runs.drain(..).for_each(&mut sink);
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

struct Scan<'p, P: Platform> {
    engine: &'p Engine<P>,
    runs: &'p mut ArrayVec<Present, RUNS>,
    /// Where to go on: after the range, or at the first page that there was no room for.
    next: u64,
}

impl<P: Platform> Scan<'_, P> {
    fn kind(&self, pfn: Pfn, flags: PteFlags) -> PageKind {
        match flags.contains(PteFlags::SPECIAL) {
            true if self.engine.is_zero(pfn) => PageKind::Zero,
            true => PageKind::Special,
            false if self.engine.platform().frame(pfn).is_anon() => PageKind::Anon,
            false => PageKind::File,
        }
    }

    fn push(&mut self, run: Present) -> ControlFlow<()> {
        let start = run.range.start;
        match self.runs.try_push(run) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                self.next = start;
                ControlFlow::Break(())
            }
        }
    }
}

impl<P: Platform> Visitor<P::Format, P> for Scan<'_, P> {
    const LARGE: Large = Large::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let first = self.runs.len();
        table.for_each(range, |address, pte| {
            let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else {
                return ControlFlow::Continue(());
            };
            let (at, kind) = (address.get(), self.kind(pfn, flags));
            match self.runs[first..].last_mut() {
                Some(run) if run.range.end == at && run.kind == kind => run.range.end += PAGE_SIZE,
                _ => return self.push(Present { range: at..at + PAGE_SIZE, kind, huge: false }),
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let Kind::Leaf { pfn, flags } = leaf.kind() else {
            return ControlFlow::Continue(());
        };
        let first = pfn.add(range.start().frame_in_leaf(leaf.level()));
        let range = range.start().get()..range.start().get() + range.len();
        let kind = self.kind(first, flags);
        self.push(Present { range, kind, huge: true })
    }
}
