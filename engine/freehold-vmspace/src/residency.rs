//! Looking at entries: what is present, how it is shared, how much there is.

use crate::{
    Memory, PAGE_SHIFT, PAGE_SIZE, Pfn, Rss, RssKind, UserRange, VirtAddr, VmSpace,
    frame::MIGRATION_RSS,
    platform::{Format, Platform},
};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange, Visitor,
};

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
    pub range: UserRange,
    /// What they are.
    pub kind: PageKind,
    /// Mapped by one entry: a huge page, or the part of it that was asked for.
    pub huge: bool,
}

/// Fractional bits of proportional sizes: shares of pages are added up with these, and dropped in the end.
const FRACTION: u32 = 12;

/// Bytes of a VMA in memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub rss: u64,
    /// Each page divided by the number of entries that map it.
    pub pss: u64,
    /// The dirty part of `pss`.
    pub pss_dirty: u64,
    /// The part of `pss` that is anonymous.
    pub pss_anon: u64,
    /// The part of `pss` that is of ordinary files.
    pub pss_file: u64,
    /// The part of `pss` that is of shared memory.
    pub pss_shmem: u64,
    /// Mapped more than once, not written.
    pub shared_clean: u64,
    /// Mapped more than once, written.
    pub shared_dirty: u64,
    /// Mapped once, not written.
    pub private_clean: u64,
    /// Mapped once, written.
    pub private_dirty: u64,
    /// Used since that was last asked for.
    pub referenced: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Of these, in huge pages.
    pub anonymous_huge: u64,
    /// Anonymous, freed lazily (MADV_FREE), and not written since.
    pub lazy_free: u64,
    /// The proportional size, if the VMA is locked.
    pub locked: u64,
    /// Huge pages of a pool, which no other number counts, that others may map as well.
    pub shared_hugetlb: u64,
    /// Of pools, mapped here alone.
    pub private_hugetlb: u64,
}

/// The memory in use in several ranges, with the fractions of proportional sizes, so that these add up
/// exactly.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageSum(Usage);

impl UsageSum {
    /// Returns the sum in whole bytes.
    pub fn usage(&self) -> Usage {
        let sum = self.0;
        Usage {
            pss: sum.pss >> FRACTION,
            pss_dirty: sum.pss_dirty >> FRACTION,
            pss_anon: sum.pss_anon >> FRACTION,
            pss_file: sum.pss_file >> FRACTION,
            pss_shmem: sum.pss_shmem >> FRACTION,
            locked: sum.locked >> FRACTION,
            ..sum
        }
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Whether at this moment no small page is mapped at `address` whose entry is `wanted`; then no processor
    /// uses one that was there before either. Takes no lock, so one may come at the next moment.
    pub fn flush_unless(&self, address: VirtAddr, wanted: impl FnOnce(Pte<P::Format>) -> bool) -> bool {
        // Of a table that was reclaimed since it was found, the entry may be any word. But when the table was
        // unlinked, no page was mapped at `address`.
        let (pte, level) = self.peek(address);
        if level == Level::Pte && pte.is_leaf(level) && wanted(pte) {
            return false;
        }
        // A call that has changed the entry may owe its flush (hazard C-4): what it did to the entry was
        // released after it had entered, so it is seen here, or has flushed.
        self.gather::<1>().finish();
        true
    }
}

/// Entries that something is decided by.
#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Returns what is at `address`, and at which level, as [`peek`](Self::peek) does, but reads an entry of
    /// the lowest level under its table's lock.
    pub fn read_entry(&self, address: VirtAddr) -> (Pte<P::Format>, Level) {
        loop {
            let (pte, level) = self.peek(address);
            if level > Level::Pte {
                return (pte, level);
            }
            // Without a table it was reclaimed since: look again.
            if let Some(table) = self.lock_pte_table(address) {
                return (table.get(address), level);
            }
        }
    }
}

// The walks here make no table and split no leaf, so they cannot run out of memory.

impl<P: Platform> VmSpace<P> {
    /// The frame of the page at `address`, if one is mapped there at this moment, with its record: none of a
    /// driver's.
    pub fn frame_at(&self, address: VirtAddr) -> Option<Pfn> {
        let (pte, level) = self.read_entry(address);
        match pte.kind(level) {
            Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => {
                Some(pfn.add(address.frame_in_leaf(level)))
            }
            _ => None,
        }
    }

    /// Appends what is present in `range`, ascending, runs of small pages of a kind as one, within a table.
    /// Returns where to go on: after the range, or at the first page that there was no room for.
    pub fn present<const RUNS: usize>(&self, range: UserRange, runs: &mut ArrayVec<Present, RUNS>) -> u64 {
        let mut scan = PresentVisitor { memory: self.memory(), runs, next: range.end() };
        let _ = self.walk(range.va(), &mut scan);
        scan.next
    }

    /// Sets the byte of every page of `range` that is mapped, or that a marker stands for which waits for no
    /// file.
    ///
    /// # Panics
    ///
    /// If `out` has fewer bytes than `range` has pages. Nothing is set.
    pub fn mark_present(&self, range: UserRange, out: &mut [u8]) {
        assert!(range.pages().get() <= out.len() as u64, "fewer bytes than pages");
        let mut marker = PresenceVisitor { start: range.start(), out };
        let _ = self.walk(range.va(), &mut marker);
    }

    /// Adds to `sum` what of `range` is in memory, and how it is shared. With `locked`, its proportional size
    /// counts as locked, too.
    pub fn add_usage(&self, range: UserRange, locked: bool, sum: &mut UsageSum) {
        let before = sum.0.pss;
        let mut meter = UsageVisitor { platform: self.platform(), sum: &mut sum.0 };
        let _ = self.walk(range.va(), &mut meter);
        if locked {
            sum.0.locked += sum.0.pss - before;
        }
    }

    /// Resident pages as the tables say, counted one by one: [`rss`](Self::rss) is the same while nobody
    /// changes them.
    pub fn recount(&self) -> Rss {
        let mut count = RssVisitor { platform: self.platform(), rss: Rss::default() };
        let _ = self.walk(VaRange::of(0, P::Format::USER_END), &mut count);
        count.rss
    }
}

/// Notes what is present.
struct PresentVisitor<'p, P: Platform, const RUNS: usize> {
    memory: &'p Memory<P>,
    runs: &'p mut ArrayVec<Present, RUNS>,
    /// Where to go on: after the range, or at the first page that there was no room for.
    next: u64,
}

impl<P: Platform, const RUNS: usize> PresentVisitor<'_, P, RUNS> {
    fn kind(&self, pfn: Pfn, flags: PteFlags) -> PageKind {
        match flags.contains(PteFlags::SPECIAL) {
            true if self.memory.is_zero(pfn) => PageKind::Zero,
            true => PageKind::Special,
            false if self.memory.platform().frame(pfn).is_anon() => PageKind::Anon,
            false => PageKind::File,
        }
    }

    fn push(&mut self, run: Present) -> ControlFlow<()> {
        let start = run.range.start();
        match self.runs.try_push(run) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                self.next = start;
                ControlFlow::Break(())
            }
        }
    }
}

impl<P: Platform, const RUNS: usize> Visitor<P::Format, P> for PresentVisitor<'_, P, RUNS> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let first = self.runs.len();
        table.for_each(range, |address, pte| {
            let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else {
                return ControlFlow::Continue(());
            };
            let (at, kind) = (address.get(), self.kind(pfn, flags));
            match self.runs[first..].last_mut() {
                Some(run) if run.range.end() == at && run.kind == kind => {
                    run.range = run.range.with_end(at + PAGE_SIZE)
                }
                _ => return self.push(Present { range: UserRange::page(at), kind, huge: false }),
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let Kind::Leaf { pfn, flags } = leaf.kind() else {
            return ControlFlow::Continue(());
        };
        let first = pfn.add(range.start().frame_in_leaf(leaf.level()));
        let range = UserRange::at(range.start().get(), range.len());
        let kind = self.kind(first, flags);
        self.push(Present { range, kind, huge: true })
    }
}

/// Sets the byte of every page that is mapped.
struct PresenceVisitor<'m> {
    start: u64,
    out: &'m mut [u8],
}

impl PresenceVisitor<'_> {
    fn mark(&mut self, range: VaRange) {
        let first = (range.start().get() - self.start) >> PAGE_SHIFT;
        let pages = range.len() >> PAGE_SHIFT;
        self.out[first as usize..(first + pages) as usize].fill(1);
    }
}

impl<P: Platform> Visitor<P::Format, P> for PresenceVisitor<'_> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |address, pte| {
            // Of the markers these stand for a page that no file is waited for.
            let present = matches!(
                pte.kind(Level::Pte),
                Kind::Leaf { .. } | Kind::Marker { kind: MarkerKind::Migration | MarkerKind::Poison, .. }
            );
            if present {
                self.mark(VaRange::entry(address, Level::Pte));
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        if matches!(leaf.kind(), Kind::Leaf { .. }) {
            self.mark(range);
        }
        ControlFlow::Continue(())
    }
}

/// Adds up what is in memory.
struct UsageVisitor<'p, P: Platform> {
    platform: &'p P,
    /// Proportional sizes with their fraction.
    sum: &'p mut Usage,
}

impl<P: Platform> UsageVisitor<'_, P> {
    fn add(&mut self, pfn: Pfn, flags: PteFlags) {
        let frame = self.platform.frame(pfn);
        let maps = u64::from(frame.maps().max(1));
        let dirty = flags.contains(PteFlags::DIRTY) || frame.is_dirty();
        let share = (PAGE_SIZE << FRACTION) / maps;
        let sum = &mut *self.sum;
        let kind = match (maps > 1, dirty) {
            (true, false) => &mut sum.shared_clean,
            (true, true) => &mut sum.shared_dirty,
            (false, false) => &mut sum.private_clean,
            (false, true) => &mut sum.private_dirty,
        };
        *kind += PAGE_SIZE;
        sum.rss += PAGE_SIZE;
        sum.pss += share;
        sum.pss_dirty += if dirty { share } else { 0 };
        match frame.kind() {
            RssKind::Anon => sum.pss_anon += share,
            RssKind::File => sum.pss_file += share,
            RssKind::Shmem => sum.pss_shmem += share,
        }
        sum.anonymous += if frame.is_anon() { PAGE_SIZE } else { 0 };
        sum.lazy_free += if frame.is_lazily_freed() && !dirty { PAGE_SIZE } else { 0 };
        sum.referenced += if flags.contains(PteFlags::ACCESSED) { PAGE_SIZE } else { 0 };
    }
}

impl<P: Platform> Visitor<P::Format, P> for UsageVisitor<'_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |_, pte| {
            match pte.kind(Level::Pte) {
                // What has no record, like the zero page, is nobody's memory.
                Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => self.add(pfn, flags),
                Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => {}
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        if let Kind::Leaf { pfn, flags } = leaf.kind()
            && !flags.contains(PteFlags::SPECIAL)
        {
            let frame = self.platform.frame(pfn);
            if frame.hugetlb().is_some() {
                match leaf.is_shared() || frame.maps() > 1 {
                    true => self.sum.shared_hugetlb += range.len(),
                    false => self.sum.private_hugetlb += range.len(),
                }
                return ControlFlow::Continue(());
            }
            let first = range.start().frame_in_leaf(leaf.level());
            let before = self.sum.anonymous;
            (first..first + range.len() / PAGE_SIZE).for_each(|n| self.add(pfn.add(n), flags));
            self.sum.anonymous_huge += self.sum.anonymous - before;
        }
        ControlFlow::Continue(())
    }
}

/// Counts what is mapped.
struct RssVisitor<'p, P: Platform> {
    platform: &'p P,
    rss: Rss,
}

impl<P: Platform> RssVisitor<'_, P> {
    fn add(&mut self, pte: Pte<P::Format>, level: Level) {
        // A page that is just moving. Of pools, none is counted.
        if level == Level::Pte
            && let Kind::Marker { kind: MarkerKind::Migration, .. } = pte.kind(level)
        {
            self.rss.add(MIGRATION_RSS, 1);
        }
        if let Kind::Leaf { pfn, flags } = pte.kind(level)
            && !flags.contains(PteFlags::SPECIAL)
            && self.platform.frame(pfn).hugetlb().is_none()
        {
            self.rss.add(self.platform.frame(pfn).kind(), level.frames() as i64);
        }
    }
}

impl<P: Platform> Visitor<P::Format, P> for RssVisitor<'_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |_, pte| {
            self.add(pte, Level::Pte);
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        self.add(leaf.pte(), leaf.level());
        ControlFlow::Continue(())
    }
}
