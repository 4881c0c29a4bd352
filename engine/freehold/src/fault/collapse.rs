//! Collapsing small pages into a huge page: 2 MiB of anonymous memory at a time, for MADV_COLLAPSE.
//! `call/madvise/collapse.rs` checks the VMA and takes the mmap lock.
//!
//! ```text
//! check    every entry is empty or maps a page to which only page tables refer; otherwise the call fails
//! close    the entries permit no access any more, and are flushed
//! copy     the pages into a huge page; empty entries become zeroes
//! clear    the entries and their table, and flush
//! install  the single entry of the huge page
//! ```
//!
//! No other task changes the range during these steps. The mmap lock is held for writing and the VMA is
//! locked, which excludes faults and lookups. The tree of the VMA's anon_vma is locked, which excludes walks
//! of the reverse map. A pin that takes no lock finds a locked table, closed entries, or no entries.
//!
//! `look_at` decides for each entry. A page with a reference besides those of page tables must not be
//! collapsed, because the holder of that reference would keep the old page. A missing page that a
//! userfaultfd's pager supplies must not be filled with zeroes. `tests/huge/collapse.rs` tests both rules,
//! and `rmap_walks_during_collapse_lose_no_page` in `shuttle_engine/collapse.rs` fails if walks are not
//! excluded.
#![expect(unsafe_code, reason = "unlinks page tables")]

use super::{
    huge::{FRAMES, HUGE},
    vma_pte_flags, written,
};
use crate::{
    VirtAddr,
    error::MadviseError,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::{AddressSpace, locking::WriteGuard},
    vma::{Vma, flags::VmFlags},
};
use core::ops::ControlFlow;
use freehold_pagetable::{Kind, Level, PreallocatedTable, Pte, PteFlags, PteTable};
use freehold_vmspace::{HugePage, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Collapses the pages mapped in the 2 MiB at `first` into one huge page. The whole range lies in `vma`,
    /// which is anonymous. Does nothing if a huge page is mapped there already.
    ///
    /// # Errors
    ///
    /// Fails with `Invalid` if nothing is mapped or an entry cannot be part of a huge page. Fails with
    /// `InUse` if a page has references besides those of page tables. Fails with `Busy` if a page is missing
    /// and only a userfaultfd's pager may supply it. Also fails if there is no memory, or if a fatal signal
    /// arrives.
    pub(crate) fn collapse(
        &self,
        guard: &WriteGuard<'_, P>,
        vma: &Vma<P>,
        first: u64,
    ) -> Result<(), MadviseError> {
        let (address, platform) = (VirtAddr::new(first), self.platform());
        let above = self.vm.pmd_table(address).ok_or(MadviseError::Invalid)?;
        let Kind::Table { .. } = above.peek(address).kind(Level::Pmd) else {
            return if above.peek(address).is_leaf(Level::Pmd) { Ok(()) } else { Err(MadviseError::Invalid) };
        };
        let _lock = guard.lock_vma_killable(vma)?;
        let table = self.vm.pte_table(address).ok_or(MadviseError::Invalid)?;
        // The pages are checked before memory is allocated, and again when no other task can change the
        // table.
        self.may_collapse(vma, table)?;
        let spare =
            PreallocatedTable::try_new(platform, self.vm.root()).map_err(|_| MadviseError::OutOfMemory)?;
        let new = HugePage::new(&self.vm, vma.anon_page(first)).ok_or(MadviseError::OutOfMemory)?;
        let _walkers = RmapEdit::of(vma);
        self.vm.close_small(table, |table| self.look(vma, table))?;
        self.vm.copy_small(table, &new);
        // SAFETY: the range lies in a VMA that is locked for writing, under the mmap lock held for writing,
        // so no fault and no lookup can reach the table. `_walkers` excludes walks of the reverse map.
        let mut gather = unsafe { self.vm.clear_small(UserRange::at(first, HUGE), vma.zap()) };
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        gather.finish();
        let hung = self.vm.map_huge(above, address, new, rights, spare);
        debug_assert!(hung, "another task installed a table in a locked range");
        Ok(())
    }

    /// Checks that the pages that the table maps can become one huge page.
    fn may_collapse(&self, vma: &Vma<P>, table: PteTable<'_, P::Format, P>) -> Result<(), MadviseError> {
        self.look(vma, &mut table.lock())
    }

    /// Checks all entries of a locked table.
    fn look(&self, vma: &Vma<P>, table: &mut SmallGuard<'_, P>) -> Result<(), MadviseError> {
        let (mut filled, mut result) = (0, Ok(()));
        let _ = table.for_each(table.span(), |_, pte| {
            filled += 1;
            result = self.look_at(pte);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result?;
        // Without an anon_vma the table maps only zero pages. An empty table that was not reclaimed does not
        // prevent the collapse.
        if !vma.anon().is_some() {
            return Err(MadviseError::Invalid);
        }
        let watched = vma.flags().contains(VmFlags::UFFD_MISSING);
        if watched && filled < FRAMES { Err(MadviseError::Busy) } else { Ok(()) }
    }

    /// Checks that the page that an entry maps can be a part of a huge page.
    fn look_at(&self, pte: Pte<P::Format>) -> Result<(), MadviseError> {
        let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else { return Err(MadviseError::Invalid) };
        if flags.contains(PteFlags::UFFD_WP) {
            return Err(MadviseError::Invalid);
        }
        let frame = self.platform().frame(pfn);
        let counted = !flags.contains(PteFlags::SPECIAL);
        if counted && !frame.is_anon() {
            return Err(MadviseError::Invalid);
        }
        // The holder of another reference (a pin, a pipe, a transfer) would keep the old page. The holder
        // would miss later stores, and the holder's own stores would be lost.
        if counted && frame.refs() != frame.maps() { Err(MadviseError::InUse) } else { Ok(()) }
    }
}

/// The guard of a locked table of small pages.
type SmallGuard<'a, P> = freehold_pagetable::PteGuard<'a, <P as Platform>::Format, P>;
