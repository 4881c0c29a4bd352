//! Copying entries from one space to another, as fork does: both then share the pages, until one writes.
//!
//! An entry that allowed a store to a private page loses that right on both sides, under both tables' locks.
//! A page that somebody has pinned is left out: it stays the parent's own, and the child gets a copy of it
//! after the parent's flush (hazard C-57).

use crate::{
    AnonPage, MigrationEntry, NoMemory, PAGE_SIZE, Pfn, Rss, UserRange, VirtAddr, VmGather, VmSpace,
    frame::{Frame, MIGRATION_RSS, ShareError},
    platform::Platform,
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, Level, MarkerKind, PmdGuard, PreallocatedTable, Pte, PteFlags, PteGuard, VaRange,
};

/// What a copy owes its parent: a flush, and no frames.
pub type ForkGather<'v, P> = VmGather<'v, P, 1>;

/// How a range is copied.
#[derive(Clone, Copy, Debug)]
pub struct Fork {
    /// Stores make private copies here.
    pub private: bool,
    /// In the child, too, a userfaultfd is to hear of stores.
    pub uffd_wp: bool,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Shares the huge pages that come first in `range`; returns where something else does.
    fn copy_huge(
        &self,
        range: UserRange,
        child: &VmSpace<P>,
        gather: &mut ForkGather<'_, P>,
        copier: &mut Copier<'_, P>,
    ) -> Result<u64, NoMemory> {
        let mut at = range.start();
        while at < range.end() {
            let address = VirtAddr::new(at);
            let (pte, level) = self.peek(address);
            match pte.kind(level) {
                // In a table of small pages the table's own record of what is filled is faster.
                Kind::None if level > Level::Pte => match address.next_span(level) {
                    Some(next) => at = next.get(),
                    None => return Ok(range.end()),
                },
                Kind::Leaf { .. } if level == Level::Pmd => {
                    let spare = PreallocatedTable::try_new(self.platform())?;
                    let target = child.pmd_table_alloc(address).map_err(|_| NoMemory)?;
                    let Some(source) = self.pmd_table(address) else { continue };
                    let (mut source, target) = source.lock_two(target);
                    let mut target = target.expect("two address spaces share no table");
                    match copier.copy_leaf(&mut source, &mut target, address, gather) {
                        LeafCopy::Shared => {
                            target.deposit(spare);
                            at += Level::Pmd.span();
                        }
                        LeafCopy::Changed => {}
                        LeafCopy::Pinned => {
                            drop((source, target));
                            self.split_leaf(address, Level::Pmd)?;
                        }
                        LeafCopy::TooManyReferences => return Err(NoMemory),
                    }
                }
                _ => return Ok(at),
            }
        }
        Ok(at)
    }

    /// Copies what is mapped in `range` to `child`, table by table, as `fork` says; returns how many pages it
    /// left out because they are pinned. Entries that allowed a store lose that right here as well, where
    /// stores make private copies: `gather` owes a flush then, also if this fails.
    ///
    /// # Errors
    ///
    /// No memory, or a page with as many references as can be counted. What was copied stays, counted as
    /// resident.
    ///
    /// # Locks
    ///
    /// Nobody else changes entries of `range` in either space but by the reverse map. Takes the locks of two
    /// tables at a time.
    pub fn copy_entries(
        &self,
        range: UserRange,
        fork: Fork,
        child: &VmSpace<P>,
        gather: &mut ForkGather<'_, P>,
    ) -> Result<u64, NoMemory> {
        let Fork { private, uffd_wp } = fork;
        let mut lost = PteFlags::WRITE | PteFlags::ACCESSED;
        lost.set(PteFlags::DIRTY, !private);
        lost.set(PteFlags::UFFD_WP, !uffd_wp);
        let mut copier = Copier {
            platform: self.platform(),
            private,
            uffd_wp,
            lost,
            rss: Rss::default(),
            pinned: 0,
            too_many_references: false,
        };
        let copied = self.copy_tables(range, child, gather, &mut copier);
        // A child that stays incomplete has these pages too.
        child.count_rss(&copier.rss);
        if copier.too_many_references {
            return Err(NoMemory);
        }
        copied.map(|()| copier.pinned)
    }

    fn copy_tables(
        &self,
        range: UserRange,
        child: &VmSpace<P>,
        gather: &mut ForkGather<'_, P>,
        copier: &mut Copier<'_, P>,
    ) -> Result<(), NoMemory> {
        let mut at = range.start();
        loop {
            // Huge pages are shared as such. What lies only partly in the range was cut with its VMA.
            at = self.copy_huge(range.rest(at), child, gather, copier)?;
            let Some((source, part)) = self.next_table(range.rest(at))? else { break };
            let address = VirtAddr::new(part.start());
            let target = child.pte_table_alloc(address).map_err(|_| NoMemory)?;
            let (mut source, target) = source.lock_two(target);
            let mut target = target.expect("two address spaces share no table");
            copier.copy_table(&mut source, &mut target, part.va(), gather);
            at = part.end();
        }
        Ok(())
    }
}

/// How the entries of one VMA are copied, and what was.
struct Copier<'p, P: Platform> {
    platform: &'p P,
    /// Stores make private copies here.
    private: bool,
    /// The child's VMA is for a userfaultfd to write-protect.
    uffd_wp: bool,
    /// What the child's entry lacks: the child has not used the page yet, nor written to a shared one.
    lost: PteFlags,
    /// Resident pages that the child now has.
    rss: Rss,
    /// Pages that the child has not got, because they are pinned.
    pinned: u64,
    /// There is a page that the child cannot have, because it has as many references as can be counted.
    too_many_references: bool,
}

/// What was done about a huge page.
enum LeafCopy {
    /// The child has it as well.
    Shared,
    /// It is there no more.
    Changed,
    /// Nothing: a part of it is pinned, so it cannot be shared as one.
    Pinned,
    /// Nothing: a part of it has as many references as can be counted.
    TooManyReferences,
}

impl<P: Platform> Copier<'_, P> {
    /// Both tables are locked: nobody sees a page shared that one side may still be allowed to write. One
    /// pass, for each entry costs a visit to its frame's record.
    fn copy_table(
        &mut self,
        source: &mut PteGuard<'_, P::Format, P>,
        target: &mut PteGuard<'_, P::Format, P>,
        range: VaRange,
        gather: &mut ForkGather<'_, P>,
    ) {
        let private = self.private;
        let kept = |_: VirtAddr, pte| if private { protected(pte, Level::Pte) } else { pte };
        source.change_each_then(range, gather, kept, |address, pte| {
            if let Some(copy) = self.share(pte, Level::Pte) {
                target.set(address, copy);
            }
        });
    }

    /// As [`copy_table`](Self::copy_table), for the entry of a huge page.
    fn copy_leaf(
        &mut self,
        source: &mut PmdGuard<'_, P::Format, P>,
        target: &mut PmdGuard<'_, P::Format, P>,
        address: VirtAddr,
        gather: &mut ForkGather<'_, P>,
    ) -> LeafCopy {
        let Kind::Leaf { pfn, flags } = source.get(address).kind(Level::Pmd) else {
            return LeafCopy::Changed;
        };
        let mut frames = (0..Level::Pmd.frames()).map(|n| self.platform.frame(pfn.add(n)));
        if !flags.contains(PteFlags::SPECIAL)
            && let Some(why) = frames.find_map(Frame::share_error)
        {
            return match why {
                ShareError::Pinned => LeafCopy::Pinned,
                ShareError::TooManyReferences => LeafCopy::TooManyReferences,
            };
        }
        source.change(address, gather, |pte| protected(pte, Level::Pmd));
        let copy = self.share(source.get(address), Level::Pmd);
        let installed = copy.is_some_and(|copy| target.install(address, copy).is_ok());
        debug_assert!(installed, "a child had something where its parent has a huge page");
        LeafCopy::Shared
    }

    /// Notes a page that could not be shared. Exclusive ones are copied for the child later.
    #[cold]
    fn leave_out(&mut self, frame: &Frame) {
        match frame.is_exclusive() {
            true => self.pinned += 1,
            false => self.too_many_references = true,
        }
    }

    /// The child's entry for what the parent has, counted. Inlined, once for each level: this runs for every
    /// page.
    #[inline]
    fn share(&mut self, pte: Pte<P::Format>, level: Level) -> Option<Pte<P::Format>> {
        match pte.kind(level) {
            Kind::Leaf { pfn, flags } => {
                let frames = if flags.contains(PteFlags::SPECIAL) { 0 } else { level.frames() };
                for pfn in (0..frames).map(|n| pfn.add(n)) {
                    let frame = self.platform.frame(pfn);
                    let Some(kind) = frame.share() else {
                        // A page of one frame: of a huge one all were asked before.
                        debug_assert_eq!(frames, 1, "a part of a huge page is pinned");
                        self.leave_out(frame);
                        return None;
                    };
                    self.rss.add(kind, 1);
                }
                Some(pte.without(self.lost))
            }
            Kind::Marker { kind: MarkerKind::Guard | MarkerKind::Poison, .. } => Some(pte),
            // The walk that ends the parent's marker comes to the child's later.
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                self.rss.add(MIGRATION_RSS, 1);
                let moving = MigrationEntry::of(payload);
                Some(MigrationEntry { uffd_wp: moving.uffd_wp && self.uffd_wp, ..moving.shared() }.entry())
            }
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => self.uffd_wp.then_some(pte),
            // Nothing swaps yet.
            Kind::Marker { kind: MarkerKind::Swap, .. } | Kind::None | Kind::Table { .. } => None,
        }
    }
}

/// The entry without the right to write.
fn protected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::WRITE) => pte.without(PteFlags::WRITE),
        Kind::Marker { kind: MarkerKind::Migration, payload } => MigrationEntry::of(payload).shared().entry(),
        Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Gives `child` copies of the pages in `range` that this space has pinned: now, among anonymous pages,
    /// those that are exclusive still. No processor can store to them. The copy of the page at an address is
    /// known as `known` says.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn copy_pinned_pages(
        &self,
        range: UserRange,
        child: &VmSpace<P>,
        known: impl Fn(u64) -> AnonPage,
    ) -> Result<(), NoMemory> {
        let mut at = range.start();
        while let Some((address, pfn, flags)) = self.next_pinned(range.rest(at))? {
            let copied = self.copy_page(child, address, (pfn, flags), known(address.get()));
            self.memory().put_frame(pfn);
            copied?;
            at = address.get() + PAGE_SIZE;
        }
        Ok(())
    }

    /// The first page in `range` that was not shared, with a reference.
    fn next_pinned(&self, range: UserRange) -> Result<Option<(VirtAddr, Pfn, PteFlags)>, NoMemory> {
        let mut at = range.start();
        while let Some((table, part)) = self.next_table(range.rest(at))? {
            let mut found = None;
            let _: ControlFlow<()> = table.lock().for_each(part.va(), |address, pte| {
                let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else {
                    return ControlFlow::Continue(());
                };
                let frame = self.platform().frame(pfn);
                if flags.contains(PteFlags::SPECIAL) || !frame.is_anon() || !frame.is_exclusive() {
                    return ControlFlow::Continue(());
                }
                // The entry goes if the memory fails.
                frame.get();
                found = Some((address, pfn, flags));
                ControlFlow::Break(())
            });
            if found.is_some() {
                return Ok(found);
            }
            at = part.end();
        }
        Ok(None)
    }

    fn copy_page(
        &self,
        child: &VmSpace<P>,
        address: VirtAddr,
        (pfn, flags): (Pfn, PteFlags),
        page: AnonPage,
    ) -> Result<(), NoMemory> {
        let table = child.pte_table_alloc(address).map_err(|_| NoMemory)?;
        let copy = child.alloc_anon(false, page)?;
        self.platform().copy_frame(copy, pfn);
        // If it is not mapped, the page was shared, and replaced in the parent since, as happens where a
        // breakpoint goes.
        child.map_anon(table, address, copy, flags - (PteFlags::ACCESSED | PteFlags::WRITE));
        Ok(())
    }
}
