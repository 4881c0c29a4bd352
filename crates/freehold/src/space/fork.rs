//! fork: a copy of an address space, whose private pages both sides share until one writes.
//!
//! ```text
//! parent  mmap lock for writing, and each VMA's write lock before it is looked at (hazard C-21)
//! child   built in private: nobody but the reverse maps of files can find it
//! ```
//!
//! For each VMA, in order: its record in the child; its place in the file's interval tree, right behind the parent's; its
//! entries. An entry that allowed a store loses that right on both sides, under both tables' locks; the parent's
//! processors may still store through what their TLBs remember, but only until the flush, and the flush comes before any
//! of the parent's locks is let go. What faults would bring back by themselves is not copied: pages of files, and the
//! zero page, in VMAs that never had an anonymous page.
//!
//! A page that somebody has pinned stays the parent's own, and the child gets a copy: hazard C-57. It is made after that flush, with
//! the parent's VMAs still locked, so that no processor stores to the page meanwhile, and the child's memory is that of one moment.
//!
//! A failure leaves a child that is complete as far as it goes: it is dropped like any other address space, and the
//! parent's pages are its own again as soon as the references are gone (hazard C-64).

use super::{
    AddressSpace, Rss, SpaceConfig,
    locking::{WriteGuard, entry},
    zap::SpaceTlb,
};
use crate::{
    VirtAddr,
    counted::Counted,
    error::{ForkError, NoMemory},
    fault::huge::HUGE,
    frame::{Frame, Unshared},
    platform::Platform,
    rmap::{MOVING, Moving, edit::RmapEdit},
    rounds::Rounds,
    uffd::{Context, event::Notices},
    vma::{AnonVma, Vma, flags::VmFlags, merge::Attrs, owned::OwnedVma},
};
use core::ops::Range;
use freehold_pagetable::{
    Gather, Kind, Level, MarkerKind, PmdGuard, Pte, PteFlags, PteGuard, SpareTable, VaRange,
};
use freehold_sync::atomic::Ordering::Relaxed;

type ForkGather<'g, 's, P> = Gather<'g, SpaceTlb<'s, P>, 1>;

impl<P: Platform> AddressSpace<P> {
    /// Makes a copy of this address space: what a forked child starts with. What is written on one side afterwards is not
    /// seen on the other, except in shared mappings.
    ///
    /// Absent in the child: VMAs with `DONTCOPY`, the contents of those with `WIPEONFORK`, locks of memory (those of mlockall
    /// for the future as well), userfaultfds that do not want to hear of forks.
    ///
    /// # Errors
    ///
    /// See [`ForkError`]; there is no child, and nothing else has changed.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably, and the write lock of each VMA, likewise; inside it the child's; the i_mmap lock
    /// of each file. Then, where a userfaultfd wants to hear of it, waits until it has.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, access::AccessMode, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"parent", AccessMode::Plain).unwrap();
    /// let child = space.fork().unwrap();
    /// child.write_memory(at, b"child!", AccessMode::Plain).unwrap();
    /// let mut found = [0; 6];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"parent");
    /// ```
    pub fn fork(&self) -> Result<Counted<Self>, ForkError> {
        let child = self.new_child()?;
        let mut notices = Notices::new();
        let guard = self.write_killable()?;
        let copied = guard.copy_into(&child, &mut notices);
        // A child that is not wanted is dropped without the parent's lock; so are contexts of its own.
        drop(guard);
        copied?;
        notices.send();
        Ok(child)
    }

    /// An empty address space with the same settings.
    fn new_child(&self) -> Result<Counted<Self>, NoMemory> {
        let config = SpaceConfig {
            mmap_base: self.mmap_base,
            brk: self.start_brk.load(Relaxed),
            data: self.data.clone(),
            limits: self.limits.get(),
            mdwe: self.mdwe().inherited(),
            thp_disable: self.thp_disable(),
            memory_merge: self.memory_merge(),
            locking: self.locking,
            lock_stats: self.mmap_lock.stats().is_some() && self.engine.lock_stats.is_none(),
        };
        AddressSpace::make(&self.engine, &config)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Copies everything into `child`, which is empty.
    fn copy_into(&self, child: &Counted<AddressSpace<P>>, notices: &mut Notices<P>) -> Result<(), ForkError> {
        let copy = child.write_nested();
        child.start_brk.store(self.space.start_brk.load(Relaxed), Relaxed);
        child.brk.store(self.space.brk.load(Relaxed), Relaxed);
        child.put_arguments(self.space.arguments());
        child.pkeys.inherit(&copy, self);
        let tlb = SpaceTlb { space: self.space };
        let mut gather = Gather::new(&tlb, &self.space.gathers);
        let (mut kept, mut rounds) = (0, Rounds::new());
        let copied = self.vmas(0..u64::MAX).try_for_each(|vma| {
            rounds.again::<P>()?;
            self.lock_vma_killable(vma)?;
            if vma.flags().contains(VmFlags::DONTCOPY) {
                return Ok(());
            }
            let uffd = notices.note_fork(vma, child)?;
            self.copy_vma(vma, uffd.as_ref(), &copy, &mut gather).map(|pages| kept += pages)
        });
        // Whether or not it went well: entries have lost rights.
        gather.finish();
        copied?;
        match kept {
            0 => Ok(()),
            _ => Ok(copy.vmas(0..u64::MAX).try_for_each(|vma| self.space.copy_kept(vma, child))?),
        }
    }

    /// Returns how many pages the child has not got yet, since they are pinned.
    fn copy_vma(
        &self,
        vma: &Vma<P>,
        uffd: Option<&Counted<Context<P>>>,
        copy: &WriteGuard<'_, P>,
        gather: &mut ForkGather<'_, '_, P>,
    ) -> Result<u64, ForkError> {
        let flags = vma.flags();
        if flags.contains(VmFlags::ACCOUNT) && vma.pages() > self.space.engine.config().commit_pages {
            return Err(ForkError::Limit);
        }
        let wiped = flags.contains(VmFlags::WIPEONFORK);
        let anon = match vma.anon().is_some() && !wiped {
            true => AnonVma { id: self.space.engine.new_anon().forked(), tree: vma.tree() },
            false => AnonVma::NONE,
        };
        let lost = if uffd.is_some() { VmFlags::LOCK_MASK } else { VmFlags::LOCK_MASK | VmFlags::UFFD };
        let attrs = Attrs { flags: flags - lost, anon, uffd, reserves: None, ..vma.attrs() };
        copy.reserve(1)?;
        let child = copy.alloc(vma.range(), &attrs)?;
        copy.insert_copy(vma, child);
        if let Some(size) = vma.huge_page_size() {
            // Those of shared mappings the child's faults find.
            let copied = !vma.flags().contains(VmFlags::MAYSHARE);
            if copied {
                self.space.copy_huge_pages(vma, size, copy.space, gather)?;
            }
            return Ok(0);
        }
        match !wiped && has_entries_to_copy(vma, attrs.flags) {
            true => self.space.copy_entries(vma, attrs.flags, copy.space, gather).map_err(ForkError::from),
            false => Ok(0),
        }
    }

    /// Stores the child's VMA. It is complete when the file's walkers can find it (hazard C-18).
    fn insert_copy(&self, parent: &Vma<P>, child: OwnedVma<'_, P>) {
        let child = child.into_ref();
        self.attach(child);
        self.replace(child.range(), &[entry(child)]);
        self.space.counters.count_vmas(self, 1);
        self.space.counters.account(self, child.flags(), child.pages() as i64);
        RmapEdit::of(child).insert_after(parent, child);
    }
}

/// Whether a VMA has entries that faults of the child, whose VMA has these flags, could not make as well.
fn has_entries_to_copy<P: Platform>(vma: &Vma<P>, child: VmFlags) -> bool {
    let kept = VmFlags::MAYBE_GUARD | VmFlags::PFNMAP | VmFlags::MIXEDMAP | VmFlags::UFFD_WP;
    vma.anon().is_some() || child.intersects(kept)
}

impl<P: Platform> AddressSpace<P> {
    /// Shares the huge pages that come first in `range`; returns where something else does.
    fn copy_huge(
        &self,
        range: Range<u64>,
        child: &AddressSpace<P>,
        gather: &mut ForkGather<'_, '_, P>,
        copier: &mut Copier<'_, P>,
    ) -> Result<u64, NoMemory> {
        let mut at = range.start;
        while at < range.end {
            let address = VirtAddr::new(at);
            let (pte, level) = self.table.peek(self.platform(), address);
            match pte.kind(level) {
                // In a table of small pages the table's own record of what is filled is faster.
                Kind::None if level > Level::Pte => match address.next_span(level) {
                    Some(next) => at = next.get(),
                    None => return Ok(range.end),
                },
                Kind::Leaf { .. } if level == Level::Pmd => {
                    let spare = SpareTable::try_new(self.platform()).map_err(|_| NoMemory)?;
                    let target =
                        child.table.pmd_table_alloc(child.platform(), address).map_err(|_| NoMemory)?;
                    let Some(source) = self.table.pmd_table(self.platform(), address) else { continue };
                    let (mut source, target) = source.lock_two(target);
                    let mut target = target.expect("two address spaces share no table");
                    match copier.copy_leaf(&mut source, &mut target, address, gather) {
                        Leaf::Shared => {
                            target.deposit(spare);
                            at += HUGE;
                        }
                        Leaf::Gone => {}
                        Leaf::Kept => {
                            drop((source, target));
                            self.split_leaf(address, Level::Pmd)?;
                        }
                        Leaf::Crowded => return Err(NoMemory),
                    }
                }
                _ => return Ok(at),
            }
        }
        Ok(at)
    }

    /// Copies what is mapped in `vma` to `child`, whose VMA has these flags, table by table; returns how many pages it left out
    /// because they are pinned.
    fn copy_entries(
        &self,
        vma: &Vma<P>,
        flags: VmFlags,
        child: &AddressSpace<P>,
        gather: &mut ForkGather<'_, '_, P>,
    ) -> Result<u64, NoMemory> {
        let (private, uffd_wp) = (vma.flags().is_cow(), flags.contains(VmFlags::UFFD_WP));
        let mut lost = PteFlags::WRITE | PteFlags::ACCESSED;
        lost.set(PteFlags::DIRTY, !private);
        lost.set(PteFlags::UFFD_WP, !uffd_wp);
        let mut copier = Copier {
            platform: self.platform(),
            private,
            uffd_wp,
            lost,
            rss: Rss::default(),
            kept: 0,
            crowded: false,
        };
        let copied = self.copy_tables(vma.range(), child, gather, &mut copier);
        // A child that stays incomplete has these pages too.
        child.counters.count_rss(&copier.rss);
        if copier.crowded {
            return Err(NoMemory);
        }
        copied.map(|()| copier.kept)
    }

    fn copy_tables(
        &self,
        range: Range<u64>,
        child: &AddressSpace<P>,
        gather: &mut ForkGather<'_, '_, P>,
        copier: &mut Copier<'_, P>,
    ) -> Result<(), NoMemory> {
        let mut at = range.start;
        loop {
            // Huge pages are shared as such. What lies only partly in the range was cut with its VMA.
            at = self.copy_huge(at..range.end, child, gather, copier)?;
            let Some((source, part)) = self.next_table(at..range.end)? else { break };
            let address = VirtAddr::new(part.start);
            let target = child.table.pte_table_alloc(child.platform(), address).map_err(|_| NoMemory)?;
            let (mut source, target) = source.lock_two(target);
            let mut target = target.expect("two address spaces share no table");
            copier.copy_table(&mut source, &mut target, VaRange::of(part.start, part.end), gather);
            at = part.end;
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
    kept: u64,
    /// There is a page that the child cannot have, because it has as many references as can be counted.
    crowded: bool,
}

/// What was done about a huge page.
enum Leaf {
    /// The child has it as well.
    Shared,
    /// It is there no more.
    Gone,
    /// Nothing: a part of it is pinned, so it cannot be shared as one.
    Kept,
    /// Nothing: a part of it has as many references as can be counted.
    Crowded,
}

impl<P: Platform> Copier<'_, P> {
    /// Both tables are locked: nobody sees a page shared that one side may still be allowed to write. One pass, for each entry costs
    /// a visit to its frame's record.
    fn copy_table(
        &mut self,
        source: &mut PteGuard<'_, P::Format, P>,
        target: &mut PteGuard<'_, P::Format, P>,
        range: VaRange,
        gather: &mut ForkGather<'_, '_, P>,
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
        gather: &mut ForkGather<'_, '_, P>,
    ) -> Leaf {
        let Kind::Leaf { pfn, flags } = source.get(address).kind(Level::Pmd) else { return Leaf::Gone };
        let mut frames = (0..Level::Pmd.frames()).map(|n| self.platform.frame(pfn.add(n)));
        if !flags.contains(PteFlags::SPECIAL)
            && let Some(why) = frames.find_map(Frame::unshared)
        {
            return match why {
                Unshared::Kept => Leaf::Kept,
                Unshared::Crowded => Leaf::Crowded,
            };
        }
        source.change(address, gather, |pte| protected(pte, Level::Pmd));
        let copy = self.share(source.get(address), Level::Pmd);
        let installed = copy.is_some_and(|copy| target.install(address, copy).is_ok());
        debug_assert!(installed, "a child had something where its parent has a huge page");
        Leaf::Shared
    }

    /// Notes a page that could not be shared. Exclusive ones are copied for the child later.
    #[cold]
    fn leave_out(&mut self, frame: &Frame) {
        match frame.is_exclusive() {
            true => self.kept += 1,
            false => self.crowded = true,
        }
    }

    /// The child's entry for what the parent has, counted. Inlined, once for each level: this runs for every page.
    #[inline(always)]
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
                self.rss.add(MOVING, 1);
                let moving = Moving::of(payload);
                Some(Moving { uffd_wp: moving.uffd_wp && self.uffd_wp, ..moving.shared() }.entry())
            }
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => self.uffd_wp.then_some(pte),
            // Nothing swaps yet.
            Kind::Marker { kind: MarkerKind::Swap, .. } | Kind::None | Kind::Table { .. } => None,
        }
    }
}

/// The entry without the right to write.
fn protected<F: freehold_pagetable::Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::WRITE) => pte.without(PteFlags::WRITE),
        Kind::Marker { kind: MarkerKind::Migration, payload } => Moving::of(payload).shared().entry(),
        Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}
