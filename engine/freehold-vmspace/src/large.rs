//! Entries above the lowest level that each map one page with one record: huge pages of pools.
//!
//! These operations do for huge pages of pools what `copy.rs`, `move_entries.rs` and `write_protect.rs` do
//! for small pages. The record of a page's first frame counts for the whole page. The caller keeps the tables
//! linked and unshared (`hugetlb/` of `freehold`); this file takes only locks of tables. `tests/hugetlb/` of
//! `freehold` tests these operations. A change of a rule for small pages, for example for a kind of marker,
//! also needs a change here.

use crate::{
    AnonPage, Fork, ForkGather, HugePageSize, MigrationEntry, NoMemory, Pfn, UserRange, VirtAddr, VmSpace,
    frame::ShareError,
    is_wp_marker,
    platform::{NodeChoice, PageOwner, Platform},
    write_protect::{is_protected, protected, unprotected},
};
use freehold_pagetable::{Kind, LeafGuard, Level, MarkerKind, Pte, PteFlags};

/// Returns the addresses of the entries of `level` in `range`.
fn pages(range: UserRange, level: Level) -> impl Iterator<Item = VirtAddr> {
    range.addresses().step_by(level.span() as usize).map(VirtAddr::new)
}

/// The way in which huge pages are copied to a child.
#[derive(Clone, Copy, Debug)]
pub struct LargeFork {
    /// The level of their entries.
    pub level: Level,
    /// The settings that also apply to small pages.
    pub fork: Fork,
    /// The rights of the entry for the copy of a pinned page.
    pub rights: PteFlags,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Returns the entry for a huge page, if it is not empty.
    fn large_entry(&self, address: VirtAddr, level: Level) -> Option<Pte<P::Format>> {
        let (pte, found) = self.peek(address);
        (found == level && !pte.is_none()).then_some(pte)
    }

    /// Ensures that a table with entries of `level` exists for `address`.
    pub(crate) fn large_table(&self, address: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let made = match level {
            Level::Pud => self.pud_table_alloc(address).map(drop),
            _ => self.pmd_table_alloc(address).map(drop),
        };
        made.map_err(|_| NoMemory)
    }

    /// Allocates the tables in which [`move_large`](Self::move_large) will put the entries of `from`.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; some tables may have been allocated.
    pub fn prepare_large(&self, level: Level, from: UserRange, to: u64) -> Result<(), NoMemory> {
        pages(from, level).filter(|address| self.large_entry(*address, level).is_some()).try_for_each(
            |address| self.large_table(VirtAddr::new(to + (address.get() - from.start())), level),
        )
    }

    /// Moves the entries of `from` to the same offsets in the range that starts at `to`. The caller excludes
    /// faults and walkers of the reverse map from both ranges until `gather` has flushed.
    pub fn move_large(&self, level: Level, from: UserRange, to: u64, gather: &mut ForkGather<'_, P>) {
        for address in pages(from, level) {
            if self.large_entry(address, level).is_some() {
                self.move_one(address, VirtAddr::new(to + (address.get() - from.start())), level, gather);
            }
        }
    }

    /// Moves one entry. The tables of both places exist; their locks are taken one after the other.
    fn move_one(&self, address: VirtAddr, to: VirtAddr, level: Level, gather: &mut ForkGather<'_, P>) {
        let taken = self.lock_leaf(address, level).map(|mut leaf| leaf.take(gather));
        let target = self.lock_leaf(to, level);
        if let Some((pte, mut target)) = taken.zip(target) {
            let installed = target.install(pte);
            assert!(installed.is_ok(), "the target of a move is not empty");
        }
    }

    /// Write-protects the pages of `range`, so that the next store to each page faults. With `mark`, also
    /// protects the pages that are not present. When this returns, no processor stores to the pages.
    ///
    /// The caller keeps the tables linked; they belong to this space only.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a table. The pages before the failure are protected.
    pub fn write_protect_large(&self, level: Level, range: UserRange, mark: bool) -> Result<(), NoMemory> {
        let mut gather: ForkGather<'_, P> = self.gather(range.va());
        let done = pages(range, level).try_for_each(|address| {
            if mark {
                self.large_table(address, level)?;
            }
            if let Some(mut leaf) = self.lock_leaf(address, level) {
                debug_assert!(!leaf.is_shared(), "protecting an entry of a shared table at {address:?}");
                match leaf.pte().is_none() {
                    true if mark => _ = leaf.install(Pte::marker(MarkerKind::UffdWp, 0)),
                    true => {}
                    false => _ = leaf.change(&mut gather, |pte| protected(pte, level)),
                }
            }
            Ok(())
        });
        // Also flushes entries that other tasks have removed and not flushed yet.
        gather.finish();
        done
    }

    /// Ends the write protection of the pages of `range`, like [`write_unprotect`](Self::write_unprotect).
    pub fn write_unprotect_large(&self, level: Level, range: UserRange) {
        for address in pages(range, level).filter(|address| self.large_entry(*address, level).is_some()) {
            self.write_unprotect_leaf(address, level);
        }
    }

    /// Copies the entries of `range` to the same addresses of `child`. If stores make private copies, copies
    /// every entry, and both spaces must copy a page before they write to it. If stores do not make private
    /// copies, copies only write-protected entries. `known` returns the place of the copy of a pinned page.
    ///
    /// The caller excludes faults, and no other task knows the child.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the child's tables, or in the same cases as
    /// [`copy_pinned`](Self::copy_pinned). The entries copied before the failure stay in the child.
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
            let copy = self.child_entry(address, how, child, &known, gather)?;
            let Some(copy) = copy else { continue };
            // A walk of the reverse map reaches this entry after the parent's entry. The walk therefore
            // applies a change of the parent's entry here as well.
            if let Some(mut leaf) = child.lock_leaf(address, level) {
                let installed = leaf.install(copy);
                assert!(installed.is_ok(), "the child's slot for a huge page is not empty");
            }
        }
        Ok(())
    }

    /// Returns the child's entry for the entry at `address`.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`copy_pinned`](Self::copy_pinned), and if the page has too many
    /// references.
    fn child_entry(
        &self,
        address: VirtAddr,
        LargeFork { level, fork, rights }: LargeFork,
        child: &VmSpace<P>,
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
                let copy = self.copy_pinned(child, known(address.get()), rights | marked, pfn, level);
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

    /// Restores the rights that an entry lost while its page was copied, if the entry still maps the page.
    fn restore_rights(&self, address: VirtAddr, pfn: Pfn, level: Level, rights: PteFlags) {
        let leaf = self.lock_leaf(address, level);
        if let Some(mut leaf) = leaf.filter(|leaf| leaf.pte().is_leaf(level) && leaf.pte().pfn() == pfn) {
            leaf.grant(rights);
        }
    }

    /// Returns the entry of `child` for a copy of a pinned page, which the parent keeps. The copy shows the
    /// page at one moment: no processor of the parent can store to the page during the copy, and no task can
    /// fault here.
    ///
    /// # Errors
    ///
    /// Fails if the pool has no page that is not reserved, or if the charge is refused.
    fn copy_pinned(
        &self,
        child: &VmSpace<P>,
        page: AnonPage,
        rights: PteFlags,
        pfn: Pfn,
        level: Level,
    ) -> Result<Pte<P::Format>, NoMemory> {
        let owner = PageOwner::Space(child.mmu());
        let nodes = NodeChoice::of(self.platform(), page, level);
        let new = self.memory().take_huge_page(HugePageSize::of_level(level), false, owner, nodes);
        let new = new.map_err(|_| NoMemory)?;
        let frame = self.platform().frame(new);
        frame.init_anon(page);
        frame.set_hugetlb(level);
        self.platform().copy_frames(new, pfn, level.frames());
        Ok(Pte::leaf(level, new, rights))
    }

    /// Returns the child's entry for the parent's entry, and counts the page for the child. The parent's
    /// entry loses the right to write.
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
                debug_assert!(shared.is_some(), "a huge page was pinned after the check");
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
