//! Reading entries: which pages are present, how they are shared, and how many there are.
//!
//! The functions read under the lock of one table at a time, or without a lock where their comments say so. A
//! result can be out of date when it is returned, unless the caller excludes changes. Nothing here changes
//! which pages are mapped. `freehold` builds smaps, pagemap and mincore on this file (`report/`), and
//! `tests/reports/` tests them there. A further report is a visitor here, whose walk may neither create
//! tables nor split leaves.

use crate::{
    Memory, PAGE_SHIFT, PAGE_SIZE, Pfn, Rss, RssKind, SwapMark, UserRange, VirtAddr, VmSpace,
    frame::MIGRATION_RSS,
    platform::{Format, Platform},
    soft_dirty::is_soft_dirty,
    swap_entry::SwapSlots,
    write_protect::is_protected,
};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange, Visitor,
};

/// The kind of a present page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Anonymous: a private copy, or memory that never belonged to a file.
    Anon,
    /// A page of a file or of shared memory.
    File,
    /// The shared page of zeroes that a read of untouched anonymous memory maps.
    Zero,
    /// A page of a mapping whose frames the engine does not own.
    Special,
}

impl PageKind {
    /// Returns the kind of the page that an entry maps. The caller has locked the table of the entry.
    pub(crate) fn of<P: Platform>(memory: &Memory<P>, pfn: Pfn, flags: PteFlags) -> Self {
        match flags.contains(PteFlags::SPECIAL) {
            true if memory.is_zero(pfn) => PageKind::Zero,
            true => PageKind::Special,
            false if memory.platform().frame(pfn).is_anon() => PageKind::Anon,
            false => PageKind::File,
        }
    }
}

/// The contents of a page's entry in the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEntry {
    /// Nothing. The page table exists.
    Empty,
    /// A present page.
    Page {
        /// The kind of the page.
        kind: PageKind,
        /// True if the page has a record and no other entry maps it.
        exclusive: bool,
    },
    /// A marker. No page is present.
    Marker(MarkerKind),
}

/// Consecutive pages with equal entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRun {
    /// The addresses of the pages.
    pub range: UserRange,
    /// The contents of the entries.
    pub entry: PageEntry,
    /// True if userfaultfd write-protects the pages.
    pub write_protected: bool,
    /// True if the entries are soft-dirty. All pages of a VMA with the flag `SOFTDIRTY` count as soft-dirty
    /// too.
    pub soft_dirty: bool,
    /// True if the entry is that of a huge page. The run may then be a part of the huge page.
    pub huge: bool,
}

/// Fractional bits of proportional sizes. Shares of pages are summed with this precision, and the sum is
/// rounded down at the end.
const FRACTION: u32 = 12;

/// Bytes of a VMA that are in memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All bytes, except those in huge pages of a pool.
    pub rss: u64,
    /// Bytes of each page divided by the number of entries that map the page.
    pub pss: u64,
    /// The dirty part of `pss`.
    pub pss_dirty: u64,
    /// The part of `pss` that is anonymous.
    pub pss_anon: u64,
    /// The part of `pss` that belongs to ordinary files.
    pub pss_file: u64,
    /// The part of `pss` that belongs to shared memory.
    pub pss_shmem: u64,
    /// Mapped more than once, not written.
    pub shared_clean: u64,
    /// Mapped more than once, written.
    pub shared_dirty: u64,
    /// Mapped once, not written.
    pub private_clean: u64,
    /// Mapped once, written.
    pub private_dirty: u64,
    /// Accessed since the accessed bits were last cleared.
    pub referenced: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// The part of `anonymous` that is in huge pages.
    pub anonymous_huge: u64,
    /// Anonymous, freed lazily (MADV_FREE), and not written since then.
    pub lazy_free: u64,
    /// Swapped out. Not part of `rss` and `pss`.
    pub swap: u64,
    /// Bytes of each swapped page divided by the number of entries that name its slot.
    pub swap_pss: u64,
    /// The proportional size, if the VMA is locked.
    pub locked: u64,
    /// Bytes in huge pages of a pool that other mappings may share. No other field counts these bytes.
    pub shared_hugetlb: u64,
    /// Bytes in huge pages of a pool that only this VMA maps.
    pub private_hugetlb: u64,
}

/// The sum of the memory in use in several ranges. It keeps the fractions of proportional sizes, so that
/// these sizes add up exactly.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageSum(Usage);

impl UsageSum {
    /// Adds pages of shared memory that are swapped out. No entry names their slots.
    pub fn add_swapped(&mut self, pages: u64) {
        self.0.swap += pages * PAGE_SIZE;
    }

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
            swap_pss: sum.swap_pss >> FRACTION,
            ..sum
        }
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Returns true if, at this moment, no entry for which `wanted` returns true maps a small page at
    /// `address`. If the result is true and such an entry was removed before the call, no processor uses its
    /// translation any more. Takes no lock, so another task may install an entry immediately afterwards.
    pub fn flush_unless(&self, address: VirtAddr, wanted: impl FnOnce(Pte<P::Format>) -> bool) -> bool {
        // If the table was reclaimed after the walk found it, the entry that is read may be any word. But no
        // page was mapped at `address` when the table was unlinked.
        let (pte, level) = self.peek(address);
        if level == Level::Pte && pte.is_leaf(level) && wanted(pte) {
            return false;
        }
        // A call that has changed the entry might still have to flush it (hazard C-4). Such a call entered
        // its gather before it released the change of the entry. So either the gather of this function finds
        // the gather of that call counted, and flushes, or the gather of that call has already flushed.
        self.table_gather().finish();
        true
    }
}

/// Reads of entries on which decisions are based.
#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Returns the entry at `address` and its level, like [`peek`](Self::peek), but reads an entry of the
    /// lowest level under its table's lock.
    pub fn read_entry(&self, address: VirtAddr) -> (Pte<P::Format>, Level) {
        loop {
            let (pte, level) = self.peek(address);
            if level > Level::Pte {
                return (pte, level);
            }
            // `None` means that the table was reclaimed after the walk: walk again.
            if let Some(table) = self.lock_pte_table(address) {
                return (table.get(address), level);
            }
        }
    }
}

// The walks here make no table and split no leaf, so they cannot run out of memory.

impl<P: Platform> VmSpace<P> {
    /// Returns the frame of the page at `address` if a page is mapped there at this moment and its frame has
    /// a record. Frames of drivers have no record.
    pub fn frame_at(&self, address: VirtAddr) -> Option<Pfn> {
        let (pte, level) = self.read_entry(address);
        match pte.kind(level) {
            Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => {
                Some(pfn.add(address.frame_in_leaf(level)))
            }
            _ => None,
        }
    }

    /// Appends the entries of `range` to `runs`, ascending. Equal consecutive entries of one table form one
    /// run. Pages without a page table are left out. Returns the address at which to continue: the end of
    /// the range, or the first page for which `runs` had no room.
    pub fn entries<const RUNS: usize>(&self, range: UserRange, runs: &mut ArrayVec<EntryRun, RUNS>) -> u64 {
        let mut scan = EntriesVisitor { memory: self.memory(), runs, next: range.end() };
        let _ = self.walk(range.va(), &mut scan);
        scan.next
    }

    /// Sets the byte of every page of `range` that is mapped, that is being moved, that was swapped out and
    /// is still in a frame, or whose memory failed.
    ///
    /// # Panics
    ///
    /// Panics if `out` has fewer bytes than `range` has pages. No byte is set then.
    pub fn mark_present(&self, range: UserRange, out: &mut [u8]) {
        assert!(range.pages().get() <= out.len() as u64, "fewer bytes than pages");
        let mut marker = PresenceVisitor { slots: self.memory().swap_slots(), start: range.start(), out };
        let _ = self.walk(range.va(), &mut marker);
    }

    /// Adds to `sum` the memory that `range` uses, by kind and by sharing. With `locked`, the proportional
    /// size also counts as locked.
    pub fn add_usage(&self, range: UserRange, locked: bool, sum: &mut UsageSum) {
        let before = sum.0.pss;
        let mut meter = UsageVisitor { vm: self, sum: &mut sum.0 };
        let _ = self.walk(range.va(), &mut meter);
        if locked {
            sum.0.locked += sum.0.pss - before;
        }
    }

    /// Counts the resident pages in the tables, one by one. The result equals [`rss`](Self::rss) while no
    /// task changes them.
    pub fn recount(&self) -> Rss {
        let mut count = RssVisitor { platform: self.platform(), rss: Rss::default() };
        let _ = self.walk(VaRange::of(0, P::Format::USER_END), &mut count);
        count.rss
    }
}

/// A visitor that records the contents of entries.
struct EntriesVisitor<'p, P: Platform, const RUNS: usize> {
    memory: &'p Memory<P>,
    runs: &'p mut ArrayVec<EntryRun, RUNS>,
    /// The address at which to continue: the end of the range, or the first page for which there was no room.
    next: u64,
}

impl<P: Platform, const RUNS: usize> EntriesVisitor<'_, P, RUNS> {
    /// Returns the contents of an entry that maps `pfn`. `maps` is the number of entries that map the page.
    fn page(&self, pfn: Pfn, flags: PteFlags, maps: impl FnOnce(Pfn) -> u32) -> PageEntry {
        let kind = PageKind::of(self.memory, pfn, flags);
        let exclusive = matches!(kind, PageKind::Anon | PageKind::File) && maps(pfn) == 1;
        PageEntry::Page { kind, exclusive }
    }

    /// Appends a run, or extends the last run if that belongs to the same table and is equal. `first` is the
    /// index of the first run of the table. Ends the walk there if there is no room.
    fn push(&mut self, first: usize, run: EntryRun) -> ControlFlow<()> {
        if let Some(last) = self.runs[first..].last_mut()
            && (EntryRun { range: run.range, ..last.clone() } == run)
            && last.range.end() == run.range.start()
        {
            last.range = last.range.with_end(run.range.end());
            return ControlFlow::Continue(());
        }
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

impl<P: Platform, const RUNS: usize> Visitor<P::Format, P> for EntriesVisitor<'_, P, RUNS> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (first, mut next) = (self.runs.len(), range.start().get());
        let empty = |start, end| EntryRun {
            range: UserRange::new(start, end),
            entry: PageEntry::Empty,
            write_protected: false,
            soft_dirty: false,
            huge: false,
        };
        table.for_each(range, |address, pte| {
            let at = address.get();
            let entry = match pte.kind(Level::Pte) {
                Kind::Leaf { pfn, flags } => {
                    self.page(pfn, flags, |pfn| self.memory.platform().frame(pfn).maps())
                }
                Kind::Marker { kind, .. } => PageEntry::Marker(kind),
                Kind::None | Kind::Table { .. } => return ControlFlow::Continue(()),
            };
            if next < at {
                self.push(first, empty(next, at))?;
            }
            next = at + PAGE_SIZE;
            let write_protected = is_protected(pte, Level::Pte);
            let soft_dirty = is_soft_dirty(pte, Level::Pte);
            let range = UserRange::page(at);
            self.push(first, EntryRun { range, entry, write_protected, soft_dirty, huge: false })
        })?;
        match range.end().get() {
            end if next < end => self.push(first, empty(next, end)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (first, range) = (self.runs.len(), UserRange::at(range.start().get(), range.len()));
        let write_protected = is_protected(leaf.pte(), leaf.level());
        let soft_dirty = is_soft_dirty(leaf.pte(), leaf.level());
        let run = |range, entry| EntryRun { range, entry, write_protected, soft_dirty, huge: true };
        let platform = self.memory.platform();
        match leaf.kind() {
            Kind::Leaf { pfn, flags } if flags.contains(PteFlags::SPECIAL) => {
                self.push(first, run(range, self.page(pfn, flags, |_| 0)))
            }
            // The pages of a pool are counted by their first frame.
            Kind::Leaf { pfn, flags } if platform.frame(pfn).hugetlb().is_some() => {
                let maps = if leaf.is_shared() { 2 } else { platform.frame(pfn).maps() };
                self.push(first, run(range, self.page(pfn, flags, |_| maps)))
            }
            Kind::Leaf { pfn, flags } => range.iter().try_for_each(|at| {
                let pfn = pfn.add(VirtAddr::new(at).frame_in_leaf(leaf.level()));
                let entry = self.page(pfn, flags, |pfn| platform.frame(pfn).maps());
                self.push(first, run(UserRange::page(at), entry))
            }),
            Kind::Marker { kind, .. } => self.push(first, run(range, PageEntry::Marker(kind))),
            Kind::None | Kind::Table { .. } => ControlFlow::Continue(()),
        }
    }
}

/// A visitor that sets the byte of every page that is mapped.
struct PresenceVisitor<'m> {
    slots: &'m dyn SwapSlots,
    start: u64,
    out: &'m mut [u8],
}

impl PresenceVisitor<'_> {
    /// Sets the bytes of these pages.
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
            // As on Linux, a page that is being moved, or whose memory failed, counts as present.
            let present = match pte.kind(Level::Pte) {
                Kind::Leaf { .. } => true,
                Kind::Marker { kind: MarkerKind::Migration | MarkerKind::Poison, .. } => true,
                Kind::Marker { kind: MarkerKind::Swap, payload } => {
                    self.slots.is_cached(SwapMark::of(payload).slot)
                }
                Kind::None | Kind::Marker { .. } | Kind::Table { .. } => false,
            };
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

/// A visitor that sums the memory in use.
struct UsageVisitor<'p, P: Platform> {
    vm: &'p VmSpace<P>,
    /// Proportional sizes with their fraction.
    sum: &'p mut Usage,
}

impl<P: Platform> UsageVisitor<'_, P> {
    /// Adds the page at `address`.
    fn add(&mut self, address: VirtAddr, pfn: Pfn, flags: PteFlags) {
        let frame = self.vm.platform().frame(pfn);
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
            // No frame has this kind.
            RssKind::Swap => {}
        }
        sum.anonymous += if frame.is_anon() { PAGE_SIZE } else { 0 };
        sum.lazy_free += if frame.is_lazily_freed() && !dirty { PAGE_SIZE } else { 0 };
        let referenced =
            flags.contains(PteFlags::ACCESSED) || self.vm.test_young(VaRange::entry(address, Level::Pte));
        sum.referenced += if referenced { PAGE_SIZE } else { 0 };
    }
}

impl<P: Platform> Visitor<P::Format, P> for UsageVisitor<'_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |address, pte| {
            match pte.kind(Level::Pte) {
                // A page without a record, such as the page of zeroes, counts as no memory.
                Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => {
                    self.add(address, pfn, flags);
                }
                Kind::Marker { kind: MarkerKind::Swap, payload } => {
                    let entries = self.vm.memory().swap_slots().entries(SwapMark::of(payload).slot);
                    self.sum.swap += PAGE_SIZE;
                    self.sum.swap_pss += (PAGE_SIZE << FRACTION) / u64::from(entries.max(1));
                }
                Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => {}
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        if let Kind::Leaf { pfn, flags } = leaf.kind()
            && !flags.contains(PteFlags::SPECIAL)
        {
            let frame = self.vm.platform().frame(pfn);
            if frame.hugetlb().is_some() {
                match leaf.is_shared() || frame.maps() > 1 {
                    true => self.sum.shared_hugetlb += range.len(),
                    false => self.sum.private_hugetlb += range.len(),
                }
                return ControlFlow::Continue(());
            }
            let first = pfn.add(range.start().frame_in_leaf(leaf.level()));
            let before = self.sum.anonymous;
            for n in 0..range.len() / PAGE_SIZE {
                let address = VirtAddr::new(range.start().get() + n * PAGE_SIZE);
                self.add(address, first.add(n), flags);
            }
            self.sum.anonymous_huge += self.sum.anonymous - before;
        }
        ControlFlow::Continue(())
    }
}

/// A visitor that counts resident pages.
struct RssVisitor<'p, P: Platform> {
    platform: &'p P,
    rss: Rss,
}

impl<P: Platform> RssVisitor<'_, P> {
    fn add(&mut self, pte: Pte<P::Format>, level: Level) {
        // The marker of a page that is being moved counts as a page. Huge pages of pools are not counted.
        if level == Level::Pte
            && let Kind::Marker { kind: MarkerKind::Migration, .. } = pte.kind(level)
        {
            self.rss.add(MIGRATION_RSS, 1);
        }
        if level == Level::Pte && SwapMark::of_entry(pte).is_some() {
            self.rss.add(RssKind::Swap, 1);
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
