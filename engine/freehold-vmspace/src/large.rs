//! Entries above the lowest level of which each is one page, with one record: huge pages of pools.

use crate::{
    AnonPage, Fork, ForkGather, HugePageSize, MigrationEntry, NoMemory, Pfn, UserRange, VirtAddr, VmSpace,
    frame::ShareError,
    is_wp_marker,
    platform::Platform,
    write_protect::{is_protected, protected, unprotected},
};
use freehold_pagetable::{Kind, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags};

/// Addresses of entries of `level` in `range`.
fn pages(range: UserRange, level: Level) -> impl Iterator<Item = VirtAddr> {
    range.addresses().step_by(level.span() as usize).map(VirtAddr::new)
}

/// How huge pages are copied to a child.
#[derive(Clone, Copy, Debug)]
pub struct LargeFork {
    /// That of their entries.
    pub level: Level,
    /// As for small pages.
    pub fork: Fork,
    /// What the entry of a copy of a page that is pinned allows.
    pub rights: PteFlags,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// The entry for a huge page, if it is not empty.
    fn large_entry(&self, address: VirtAddr, level: Level) -> Option<Pte<P::Format>> {
        let (pte, found) = self.peek(address);
        (found == level && !pte.is_none()).then_some(pte)
    }

    /// Makes sure that there is a table of entries of `level` for `address`.
    fn large_table(&self, address: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let made = match level {
            Level::Pud => self.pud_table_alloc(address).map(drop),
            _ => self.pmd_table_alloc(address).map(drop),
        };
        made.map_err(|_| NoMemory)
    }

    /// Makes the tables into which [`move_large`](Self::move_large) will put what is mapped in `from`.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    pub fn prepare_large(&self, level: Level, from: UserRange, to: u64) -> Result<(), NoMemory> {
        pages(from, level).filter(|address| self.large_entry(*address, level).is_some()).try_for_each(
            |address| self.large_table(VirtAddr::new(to + (address.get() - from.start())), level),
        )
    }

    /// Moves the entries of `from` to the same places of the range that starts at `to`. The caller keeps
    /// faults, and walkers of the reverse map, out of both until `gather` has flushed.
    pub fn move_large(&self, level: Level, from: UserRange, to: u64, gather: &mut ForkGather<'_, P>) {
        for address in pages(from, level) {
            if self.large_entry(address, level).is_some() {
                self.move_one(address, VirtAddr::new(to + (address.get() - from.start())), level, gather);
            }
        }
    }

    fn move_one(&self, address: VirtAddr, to: VirtAddr, level: Level, gather: &mut ForkGather<'_, P>) {
        let taken = self.lock_leaf(address, level).map(|mut leaf| leaf.take(gather));
        let target = self.lock_leaf(to, level);
        if let Some((pte, mut target)) = taken.zip(target) {
            let installed = target.install(pte);
            assert!(installed.is_ok(), "something was mapped where nothing can be");
        }
    }

    /// Write-protects the pages of `range`, so that the next store to each faults; with `mark` also those
    /// that are not there. When this returns nobody stores.
    ///
    /// The caller keeps the tables, which are this space's own.
    ///
    /// # Errors
    ///
    /// No memory for a table; what lies before is protected.
    pub fn write_protect_large(&self, level: Level, range: UserRange, mark: bool) -> Result<(), NoMemory> {
        let mut gather: ForkGather<'_, P> = self.gather();
        let done = pages(range, level).try_for_each(|address| {
            if mark {
                self.large_table(address, level)?;
            }
            if let Some(mut leaf) = self.lock_leaf(address, level) {
                debug_assert!(!leaf.is_shared(), "an entry of others is being protected at {address:?}");
                match leaf.pte().is_none() {
                    true if mark => _ = leaf.install(Pte::marker(MarkerKind::UffdWp, 0)),
                    true => {}
                    false => _ = leaf.change(&mut gather, |pte| protected(pte, level)),
                }
            }
            Ok(())
        });
        // Also what others have taken away, and not flushed.
        gather.finish();
        done
    }

    /// The pages of `range` are write-protected no more; as
    /// [`write_unprotect`](Self::write_unprotect).
    pub fn write_unprotect_large(&self, level: Level, range: UserRange) {
        for address in pages(range, level).filter(|address| self.large_entry(*address, level).is_some()) {
            let Some(mut leaf) = self.lock_leaf(address, level) else { continue };
            // No TLB holds a marker, nor more rights than an entry that has none to write.
            match is_wp_marker(leaf.pte()) {
                true => _ = leaf.replace(Pte::NONE, &mut NotCached),
                false => _ = leaf.change(&mut NotCached, |pte| unprotected(pte, level)),
            }
        }
    }

    /// Copies what is mapped in `range` to `child`, at the same addresses: where stores make private copies,
    /// everything, and both may write a page only after copying it; else what is write-protected. The copy of
    /// a page that is pinned is known as `known` says.
    ///
    /// The caller keeps faults out, and nobody knows the child.
    ///
    /// # Errors
    ///
    /// No memory for the child's tables, or as [`copy_pinned`](Self::copy_pinned); some entries were copied.
    pub fn copy_large(
        &self,
        how: LargeFork,
        range: UserRange,
        child: &VmSpace<P>,
        known: impl Fn(u64) -> AnonPage,
        gather: &mut ForkGather<'_, P>,
    ) -> Result<(), NoMemory> {
        let level = how.level;
        for address in pages(range, level).filter(|address| self.large_entry(*address, level).is_some()) {
            child.large_table(address, level)?;
            let copy = self.child_entry(address, how, &known, gather)?;
            let Some(copy) = copy else { continue };
            // A walk from the page comes here after the parent's entry: what it does to that is then known
            // here.
            if let Some(mut leaf) = child.lock_leaf(address, level) {
                let installed = leaf.install(copy);
                assert!(installed.is_ok(), "a child had something where its parent has a huge page");
            }
        }
        Ok(())
    }

    /// What a child gets for the entry at `address`.
    ///
    /// # Errors
    ///
    /// As [`copy_pinned`](Self::copy_pinned).
    fn child_entry(
        &self,
        address: VirtAddr,
        LargeFork { level, fork, rights }: LargeFork,
        known: impl Fn(u64) -> AnonPage,
        gather: &mut ForkGather<'_, P>,
    ) -> Result<Option<Pte<P::Format>>, NoMemory> {
        let Some(mut leaf) = self.lock_leaf(address, level) else { return Ok(None) };
        if !fork.private && !is_protected(leaf.pte(), level) {
            return Ok(None);
        }
        match leaf.kind() {
            Kind::Leaf { pfn, .. }
                if self.platform().frame(pfn).share_error() == Some(ShareError::TooManyReferences) =>
            {
                Err(NoMemory)
            }
            Kind::Leaf { pfn, flags } if self.platform().frame(pfn).must_copy_on_fork() => {
                leaf.change(gather, |pte| pte.with_flags(level, pte.flags() - PteFlags::WRITE));
                gather.flush();
                drop(leaf);
                let marked = if fork.uffd_wp { flags & PteFlags::UFFD_WP } else { PteFlags::empty() };
                let copy = self.copy_pinned(known(address.get()), rights | marked, pfn, level);
                self.restore_rights(address, pfn, level, flags & PteFlags::WRITE);
                copy.map(Some)
            }
            _ => {
                let copy = self.share_large(&mut leaf, gather);
                let copy = copy.filter(|pte| fork.uffd_wp || !is_wp_marker(*pte));
                Ok(if fork.uffd_wp { copy } else { copy.map(|pte| unprotected(pte, level)) })
            }
        }
    }

    /// Gives an entry back what it lost while its page was copied, if it is still there.
    fn restore_rights(&self, address: VirtAddr, pfn: Pfn, level: Level, rights: PteFlags) {
        let leaf = self.lock_leaf(address, level);
        if let Some(mut leaf) = leaf.filter(|leaf| leaf.pte().is_leaf(level) && leaf.pte().pfn() == pfn) {
            leaf.grant(rights);
        }
    }

    /// A child's entry for a copy of a page that its parent keeps, since somebody has pinned it. The copy is
    /// of one moment: no processor of the parent can store to the page meanwhile, nor fault here.
    ///
    /// # Errors
    ///
    /// No page in the pool that is not reserved to somebody.
    fn copy_pinned(
        &self,
        page: AnonPage,
        rights: PteFlags,
        pfn: Pfn,
        level: Level,
    ) -> Result<Pte<P::Format>, NoMemory> {
        let new = self.memory().take_huge_page(HugePageSize::of_level(level), false);
        let new = new.map_err(|_| NoMemory)?;
        let frame = self.platform().frame(new);
        frame.init_anon(page);
        frame.set_hugetlb(level);
        self.platform().copy_frames(new, pfn, level.frames());
        Ok(Pte::leaf(level, new, rights))
    }

    /// The child's entry for what the parent has, counted; the parent's loses the right to write.
    fn share_large(
        &self,
        leaf: &mut LeafGuard<'_, P::Format, P>,
        gather: &mut ForkGather<'_, P>,
    ) -> Option<Pte<P::Format>> {
        let level = leaf.level();
        match leaf.kind() {
            Kind::Leaf { pfn, flags } => {
                if flags.contains(PteFlags::WRITE) {
                    leaf.change(gather, |pte| pte.with_flags(level, pte.flags() - PteFlags::WRITE));
                }
                let shared = self.platform().frame(pfn).share();
                debug_assert!(shared.is_some(), "a huge page is pinned that was not a moment ago");
                Some(
                    leaf.pte().with_flags(level, leaf.pte().flags() - (PteFlags::WRITE | PteFlags::ACCESSED)),
                )
            }
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                let shared = MigrationEntry::of(payload).shared().entry();
                leaf.change(gather, |_| shared);
                Some(shared)
            }
            Kind::Marker { kind: MarkerKind::Poison | MarkerKind::UffdWp, .. } => Some(leaf.pte()),
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => None,
        }
    }
}
