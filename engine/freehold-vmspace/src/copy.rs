//! Copying entries from one space to another, for fork. Both spaces share the pages until one of them writes.
//!
//! An entry that allows a store to a private page loses that right on both sides, under the locks of both
//! tables. A pinned page is skipped: it stays the parent's own, and the child gets a copy after the parent's
//! flush (hazard C-57). `call/fork.rs` of `freehold` decides which VMAs are copied and makes these copies.
//! `tests/fork/` and `tests/pins/fork.rs` test fork there. `Copier::share` decides what the child gets for
//! each kind of entry and marker.

use crate::{
    AnonPage, Memory, MigrationEntry, NoMemory, PAGE_SIZE, Pfn, Rss, RssKind, SwapMark, UserRange, VirtAddr,
    VmGather, VmSpace,
    frame::{Frame, MIGRATION_RSS, ShareError},
    platform::Platform,
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, Level, MarkerKind, PmdGuard, PreallocatedTable, Pte, PteFlags, PteGuard, VaRange,
};

/// A gather for a copy. It must flush the parent's TLBs, and frees no frames.
pub type ForkGather<'v, P> = VmGather<'v, P, 1>;

/// The way in which a range is copied.
#[derive(Clone, Copy, Debug)]
pub struct Fork {
    /// True if stores make private copies of pages here.
    pub private: bool,
    /// The child's mapping also reports stores to a userfaultfd.
    pub uffd_wp: bool,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Shares the huge pages at the start of `range`. Returns the address of the first entry that is not a
    /// huge page.
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
                // Skips the span of an empty entry above the lowest level. Empty entries of small pages are
                // left to the walk over their table. That walk is faster, because a table records which of
                // its entries are filled.
                Kind::None if level > Level::Pte => match address.next_span(level) {
                    Some(next) => at = next.get(),
                    None => return Ok(range.end()),
                },
                Kind::Leaf { .. } if level == Level::Pmd => {
                    let spare = PreallocatedTable::try_new(self.platform(), child.root())?;
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

    /// Copies the entries of `range` to `child`, table by table, according to `fork`. Returns the number of
    /// pages that were skipped because they are pinned. If `fork.private` is set, entries of this space that
    /// allowed a store lose the right to write. `gather` must then flush, even if this call fails.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if a page has the maximum number of references, or a slot of a swap
    /// device the maximum number of entries. The copied entries stay, counted as resident.
    ///
    /// # Locks
    ///
    /// No other task changes entries of `range` in either space, except through the reverse map. Takes the
    /// locks of two tables at a time.
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
            memory: self.memory(),
            private,
            uffd_wp,
            lost,
            rss: Rss::default(),
            pinned: 0,
            too_many_references: false,
        };
        let copied = self.copy_tables(range, child, gather, &mut copier);
        // If the copy failed, the entries copied so far stay in the child, so their pages are counted as
        // well.
        child.count_rss(&copier.rss);
        if copier.too_many_references {
            return Err(NoMemory);
        }
        copied.map(|()| copier.pinned)
    }

    /// Copies the entries of `range` table by table. Stops if there is no memory; the entries copied so far
    /// stay.
    fn copy_tables(
        &self,
        range: UserRange,
        child: &VmSpace<P>,
        gather: &mut ForkGather<'_, P>,
        copier: &mut Copier<'_, P>,
    ) -> Result<(), NoMemory> {
        let mut at = range.start();
        loop {
            // Huge pages are shared as huge pages. A huge page that lies only partly in the range was split
            // together with its VMA.
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

/// The settings for copying the entries of one VMA, and the results so far.
struct Copier<'p, P: Platform> {
    platform: &'p P,
    /// The memory with the slots of swap entries.
    memory: &'p Memory<P>,
    /// True if stores make private copies of pages here.
    private: bool,
    /// True if the child's VMA is registered for write protection by a userfaultfd.
    uffd_wp: bool,
    /// Flags that the child's entry does not get: the child has not yet accessed the page, nor written to a
    /// shared page.
    lost: PteFlags,
    /// Resident pages that the child got.
    rss: Rss,
    /// Number of pages that the child did not get because they are pinned.
    pinned: u64,
    /// True if the child cannot get a page because the page has the maximum number of references.
    too_many_references: bool,
}

/// The child's entry for a marker, and the kind of page that the entry counts as.
type MarkerCopy<F> = (Option<Pte<F>>, Option<RssKind>);

/// The result for a huge page.
enum LeafCopy {
    /// The child shares the page.
    Shared,
    /// The page is no longer there.
    Changed,
    /// Not copied: a part of the page is pinned, so the page cannot be shared as a whole.
    Pinned,
    /// Not copied: a part of the page has the maximum number of references.
    TooManyReferences,
}

impl<P: Platform> Copier<'_, P> {
    /// Copies one table. Both tables are locked, so no task sees a shared page that one side may still write.
    /// Copies in one pass, because each entry costs an access to its frame's record.
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

    /// Copies the entry of a huge page, like [`copy_table`](Self::copy_table).
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
        debug_assert!(installed, "the child's slot for a huge page is not empty");
        LeafCopy::Shared
    }

    /// Records a page that could not be shared. An exclusive page is copied for the child later.
    #[cold]
    fn leave_out(&mut self, frame: &Frame) {
        match frame.is_exclusive() {
            true => self.pinned += 1,
            false => self.too_many_references = true,
        }
    }

    /// Returns the child's entry for the parent's entry, and counts the page for the child. Inlined once for
    /// each level, because this runs for every page.
    #[inline(always)]
    fn share(&mut self, pte: Pte<P::Format>, level: Level) -> Option<Pte<P::Format>> {
        match pte.kind(level) {
            Kind::Leaf { pfn, flags } => {
                let frames = if flags.contains(PteFlags::SPECIAL) { 0 } else { level.frames() };
                for pfn in (0..frames).map(|n| pfn.add(n)) {
                    let frame = self.platform.frame(pfn);
                    let Some(kind) = frame.share() else {
                        // Only a small page gets here: the caller has checked all frames of a huge page.
                        debug_assert_eq!(frames, 1, "a part of a huge page is pinned");
                        self.leave_out(frame);
                        return None;
                    };
                    self.rss.add(kind, 1);
                }
                Some(pte.without(self.lost))
            }
            Kind::None | Kind::Table { .. } => None,
            Kind::Marker { .. } => match Self::share_marker(self.memory, pte, level, self.uffd_wp) {
                Ok((copy, counted)) => {
                    counted.into_iter().for_each(|kind| self.rss.add(kind, 1));
                    copy
                }
                Err(()) => {
                    self.too_many_references = true;
                    None
                }
            },
        }
    }

    /// Returns the child's entry for a marker of the parent, and the kind of page that it counts as. Fails if
    /// a slot of a swap device has the maximum number of entries. Takes no `self`, so that the copy of other
    /// entries keeps its fields in registers.
    #[cold]
    #[inline(never)]
    fn share_marker(
        memory: &Memory<P>,
        pte: Pte<P::Format>,
        level: Level,
        uffd_wp: bool,
    ) -> Result<MarkerCopy<P::Format>, ()> {
        let Kind::Marker { kind, payload } = pte.kind(level) else { return Ok((None, None)) };
        Ok(match kind {
            MarkerKind::Guard | MarkerKind::Poison => (Some(pte), None),
            // The walk that ends the parent's marker reaches the child's marker later.
            MarkerKind::Migration => {
                let moving = MigrationEntry::of(payload);
                let copy = MigrationEntry { uffd_wp: moving.uffd_wp && uffd_wp, ..moving.shared() };
                (Some(copy.entry()), Some(MIGRATION_RSS))
            }
            MarkerKind::UffdWp => (uffd_wp.then_some(pte), None),
            MarkerKind::Swap => {
                let mark = SwapMark::of(payload);
                if !memory.swap_slots().duplicate(mark.slot) {
                    return Err(());
                }
                let copy = SwapMark { uffd_wp: mark.uffd_wp && uffd_wp, ..mark };
                (Some(copy.entry()), Some(RssKind::Swap))
            }
        })
    }
}

/// Returns the entry without the right to write.
fn protected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::WRITE) => pte.without(PteFlags::WRITE),
        Kind::Marker { kind: MarkerKind::Migration, payload } => MigrationEntry::of(payload).shared().entry(),
        Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Gives `child` copies of the pages in `range` that this space has pinned. After
    /// [`copy_entries`](Self::copy_entries), these are the anonymous pages that are still exclusive. No
    /// processor can store to them. `known` returns the place of the copy for an address.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
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

    /// Returns the first page in `range` that was not shared, and takes a reference to it.
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
                // The reference keeps the frame until the copy is made, even if the memory of the page fails
                // and the entry is removed with its own reference.
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

    /// Gives the child its own copy of a pinned page. The caller has a reference to the page.
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
        // The slot may be occupied: the page was shared, and then replaced in the parent, for example by a
        // breakpoint. The copy is then discarded.
        child.map_anon(table, address, copy, flags - (PteFlags::ACCESSED | PteFlags::WRITE));
        Ok(())
    }
}
