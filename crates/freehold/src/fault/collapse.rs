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
//! Nobody comes to the range meanwhile: the mmap lock is held for writing and the VMA is locked, which keep faults and looks away,
//! and so is the tree of its anon_vma, which keeps walkers of the reverse map away. Whoever pins pages without a lock finds
//! the table locked, or entries closed, or none.
#![expect(unsafe_code, reason = "unlinks page tables")]

use super::{
    huge::{FRAMES, HUGE, HugePage},
    vma_pte_flags, written,
};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::MadviseError,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::{AddressSpace, RssKind, locking::WriteGuard},
    vma::{Vma, flags::VmFlags},
};
use arrayvec::ArrayVec;
use core::ops::{ControlFlow, Range};
use freehold_pagetable::{Kind, Level, PmdTable, Pte, PteFlags, PteTable, SpareTable, VaRange};

/// Pages whose frames are looked up under one hold of the table's lock.
const BATCH: u64 = 64;

impl<P: Platform> AddressSpace<P> {
    /// Makes one huge page of what is mapped in the 2 MiB at `first`, all of them in `vma`, which is anonymous. Nothing to do where
    /// there is one.
    ///
    /// # Errors
    ///
    /// `Invalid`: nothing is there, or something that cannot be part of a huge page; `InUse`: somebody besides page tables refers to a
    /// page; `Busy`: a page is missing that a userfaultfd's pager supplies; no memory; a fatal signal.
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
        let spare = SpareTable::try_new(platform).map_err(|_| MadviseError::OutOfMemory)?;
        let new = HugePage::new(&self.engine, vma, first).ok_or(MadviseError::OutOfMemory)?;
        let _walkers = RmapEdit::of(vma);
        self.close(vma, table)?;
        self.copy_small(table, &new);
        self.clear_small(vma, first..first + HUGE);
        self.hang(vma, above, address, new, spare);
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
        // Without an anon_vma there are zeroes alone.
        if filled == 0 || !vma.anon().is_some() {
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
        // A pin, a pipe, a transfer: whoever has it wants to see later stores, or to make some.
        if counted && frame.refs() != frame.maps() { Err(MadviseError::InUse) } else { Ok(()) }
    }

    /// Nobody reads or writes through the entries from now on.
    fn close(&self, vma: &Vma<P>, table: PteTable<'_, P::Format, P>) -> Result<(), MadviseError> {
        let mut gather = self.vm.exclusive_gather::<1>();
        let mut table = table.lock();
        self.look(vma, &mut table)?;
        table.change_each(table.span(), &mut gather, |_, pte| {
            let flags = pte.flags();
            pte.with_flags(Level::Pte, (flags - PteFlags::WRITE) | PteFlags::NO_ACCESS)
        });
        gather.flush();
        drop(table);
        gather.finish();
        Ok(())
    }

    /// Copies pages behind closed entries, a part of the table at a time, without its lock. Frames of zeroes stay: the huge page is
    /// made of zeroes.
    fn copy_small(&self, table: PteTable<'_, P::Format, P>, new: &HugePage<'_, P>) {
        let span = table.span();
        for start in (span.start().get()..span.end().get()).step_by((BATCH * PAGE_SIZE) as usize) {
            let mut pages = ArrayVec::<(Pfn, Pfn), { BATCH as usize }>::new();
            let _ = table.lock().for_each(VaRange::of(start, start + BATCH * PAGE_SIZE), |address, pte| {
                if let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte)
                    && !flags.contains(PteFlags::SPECIAL)
                {
                    pages.push((new.first().add(address.index(Level::Pte) as u64), pfn));
                }
                ControlFlow::<()>::Continue(())
            });
            pages.iter().for_each(|&(to, from)| self.platform().copy_frame(to, from));
        }
    }

    /// Takes the small pages and their table away.
    fn clear_small(&self, vma: &Vma<P>, range: Range<u64>) {
        let mut gather = self.vm.exclusive_gather();
        let span = VaRange::of(range.start, range.end);
        self.vm.zap(range, vma.zap(), &mut gather);
        // SAFETY: the range was zapped just now; it is of a VMA that is locked for writing, under the mmap lock for writing, so that
        // nobody faults or looks there; walkers of the reverse map are kept away. `gather` frees to this space's platform.
        unsafe { self.vm.unlink_tables(span, span, &mut gather) };
        gather.finish();
    }

    fn hang(
        &self,
        vma: &Vma<P>,
        above: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
        new: HugePage<'_, P>,
        spare: SpareTable<'_, P>,
    ) {
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        let leaf = Pte::leaf(Level::Pmd, new.first(), rights);
        let mut above = above.lock();
        let hung = above.install(address, leaf);
        debug_assert!(hung.is_ok(), "somebody put a table where nobody can come");
        above.deposit(spare);
        drop(above);
        new.mapped();
        self.vm.count_page(RssKind::Anon, FRAMES as i64);
    }
}

/// A locked table of small pages.
type SmallGuard<'a, P> = freehold_pagetable::PteGuard<'a, <P as Platform>::Format, P>;
