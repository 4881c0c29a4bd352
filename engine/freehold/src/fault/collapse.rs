//! Small pages become a huge one: 2 MiB of anonymous memory at a time, for MADV_COLLAPSE.
//!
//! ```text
//! look     every entry is empty or maps a page that only page tables refer to; else the call says why not
//! close    nobody reads or writes through the entries any more; flushed
//! copy     into a huge page; what was empty is zeroes
//! clear    entries and their table go; flushed
//! hang     the huge page's one entry
//! ```
//!
//! Nobody comes to the range meanwhile: the mmap lock is held for writing and the VMA is locked, which keep
//! faults and looks away, and so is the tree of its anon_vma, which keeps walkers of the reverse map away.
//! A pin without a lock finds the table locked, or entries closed, or none.
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
    /// Makes one huge page of what is mapped in the 2 MiB at `first`, all of them in `vma`, which is
    /// anonymous. Nothing to do where there is one.
    ///
    /// # Errors
    ///
    /// `Invalid`: nothing is there, or something that cannot be part of a huge page; `InUse`: somebody
    /// besides page tables refers to a page; `Busy`: a page is missing that a userfaultfd's pager
    /// supplies; no memory; a fatal signal.
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
        // Before memory is taken, and again when nobody can change it any more.
        self.may_collapse(vma, table)?;
        let spare = PreallocatedTable::try_new(platform).map_err(|_| MadviseError::OutOfMemory)?;
        let new = HugePage::new(&self.vm, vma.anon_page(first)).ok_or(MadviseError::OutOfMemory)?;
        let _walkers = RmapEdit::of(vma);
        self.vm.close_small(table, |table| self.look(vma, table))?;
        self.vm.copy_small(table, &new);
        // SAFETY: the range is of a VMA that is locked for writing, under the mmap lock for writing, so that
        // nobody faults or looks there; walkers of the reverse map are kept away.
        unsafe { self.vm.clear_small(UserRange::at(first, HUGE), vma.zap()) };
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        let hung = self.vm.map_huge(above, address, new, rights, spare);
        debug_assert!(hung, "somebody put a table where nobody can come");
        Ok(())
    }

    /// Whether what the table maps can become one huge page.
    fn may_collapse(&self, vma: &Vma<P>, table: PteTable<'_, P::Format, P>) -> Result<(), MadviseError> {
        self.look(vma, &mut table.lock())
    }

    fn look(&self, vma: &Vma<P>, table: &mut SmallGuard<'_, P>) -> Result<(), MadviseError> {
        let (mut filled, mut result) = (0, Ok(()));
        let _ = table.for_each(table.span(), |_, pte| {
            filled += 1;
            result = self.look_at(pte);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result?;
        // Without an anon_vma there are zeroes alone. A table that is empty, but was not reclaimed, is no
        // obstacle.
        if !vma.anon().is_some() {
            return Err(MadviseError::Invalid);
        }
        let watched = vma.flags().contains(VmFlags::UFFD_MISSING);
        if watched && filled < FRAMES { Err(MadviseError::Busy) } else { Ok(()) }
    }

    /// Whether what an entry maps can be a part of a huge page.
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
        // A pin, a pipe, a transfer: its holder wants to see later stores, or to make some.
        if counted && frame.refs() != frame.maps() { Err(MadviseError::InUse) } else { Ok(()) }
    }
}

/// A locked table of small pages.
type SmallGuard<'a, P> = freehold_pagetable::PteGuard<'a, <P as Platform>::Format, P>;
