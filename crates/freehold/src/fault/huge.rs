//! Huge pages of anonymous memory: 2 MiB behind one entry of the table above.
//!
//! ```text
//! nothing       read  -> the huge page of zeroes          write -> a huge page
//! zeroes        write -> a huge page in their place, after a flush
//! a huge page   write without the right: all frames ours -> the right; else split, and the small page is copied
//! ```
//!
//! Only where the VMA asks for it ([`HugePages`](crate::engine::HugePages)), spans all of the 2 MiB, and no table hangs
//! there. Without memory in one piece small pages do.
//!
//! Each of its 512 frames has a record of its own, counted as a small page's is: so a huge page is split by replacing one
//! entry by 512, whoever shares it, and nothing else changes. Counting costs less than zeroing by far. With each huge page
//! comes a table, kept with the table above for the split, which therefore cannot fail.

use super::{Access, FaultOutcome, Held, WRITTEN, vma_pte_flags, written};
use crate::{
    Pfn, VirtAddr,
    engine::{Engine, HugePages},
    platform::Platform,
    space::{AddressSpace, RssKind},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, PmdTable, Pte, PteFlags, SpareTable, TableError};

/// Bytes of a huge page.
pub(crate) const HUGE: u64 = Level::Pmd.span();
/// Frames of one.
pub(super) const FRAMES: u64 = Level::Pmd.frames();

impl<P: Platform> AddressSpace<P> {
    /// A fault where no table hangs yet: fills the whole 2 MiB if it may. `None`: small pages do.
    #[inline(never)]
    pub(super) fn huge_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: Held<'_, '_, P>,
    ) -> Option<FaultOutcome<P>> {
        if !self.wants_huge(vma, page) {
            return None;
        }
        let first = page & !(HUGE - 1);
        let address = VirtAddr::new(first);
        let table = match self.vm.pmd_table_alloc(address) {
            Ok(table) => table,
            Err(TableError::OutOfTables) => return Some(FaultOutcome::OUT_OF_MEMORY),
            Err(TableError::Huge(_) | TableError::Marker(_)) => return None,
        };
        if !table.peek(address).is_none() {
            return None;
        }
        // For zeroes, too: the first write is to find an anon_vma.
        if let Err(step) = self.prepare_anon(vma, held) {
            return Some(step);
        }
        let rights = vma_pte_flags(vma.flags());
        let spare = SpareTable::try_new(self.platform()).ok()?;
        if !access.write {
            let zeroes = self.vm.memory().huge_zero()?;
            let zeroes = Pte::leaf(Level::Pmd, zeroes, rights | PteFlags::SPECIAL);
            let mut guard = table.lock();
            // If something is there by now, the access will show what.
            if guard.install(address, zeroes).is_ok() {
                guard.deposit(spare);
            }
            return Some(FaultOutcome::Done);
        }
        let new = HugePage::new(&self.engine, vma, address.get())?;
        let leaf = Pte::leaf(Level::Pmd, new.first, rights | written(vma.flags()));
        let mut guard = table.lock();
        if guard.install(address, leaf).is_ok() {
            guard.deposit(spare);
            drop(guard);
            new.mapped();
            self.vm.count_page(RssKind::Anon, FRAMES as i64);
        }
        Some(FaultOutcome::Done)
    }

    /// Whether a fault at `page` may fill all of 2 MiB, if no table hangs there.
    pub(super) fn wants_huge(&self, vma: &Vma<P>, page: u64) -> bool {
        let (first, flags) = (page & !(HUGE - 1), vma.flags());
        let fits = first >= vma.start() && page < vma.end() && vma.end() - first >= HUGE;
        fits && vma.is_anonymous()
            && !flags.intersects(VmFlags::NOHUGEPAGE | VmFlags::UFFD)
            && match self.engine.huge_pages() {
                HugePages::Never => false,
                HugePages::Madvise => flags.contains(VmFlags::HUGEPAGE),
                HugePages::Always => true,
            }
            && !self.disables_thp(vma)
    }

    /// Whether huge pages, or [blocks](super::block), may come anywhere in `vma`.
    pub(crate) fn may_hold_huge(&self, vma: &Vma<P>) -> bool {
        // If one fits anywhere, then at the end.
        let huge = vma.end().checked_sub(HUGE).is_some_and(|page| self.wants_huge(vma, page));
        huge || self.may_hold_block(vma)
    }

    /// A fault at an entry that stands for 2 MiB.
    #[inline(never)]
    pub(super) fn huge_entry_fault(&self, vma: &Vma<P>, page: u64, access: Access) -> FaultOutcome<P> {
        let address = VirtAddr::new(page & !(HUGE - 1));
        let Some(table) = self.vm.pmd_table(address) else { return FaultOutcome::Retry };
        let mut guard = table.lock();
        let (pfn, flags) = match guard.get(address).kind(Level::Pmd) {
            Kind::Leaf { pfn, flags } => (pfn, flags),
            Kind::None | Kind::Table { .. } | Kind::Marker { .. } => return FaultOutcome::Retry,
        };
        // Somebody else was faster, or a TLB remembered less.
        if !access.write || flags.contains(PteFlags::WRITE) {
            return FaultOutcome::Done;
        }
        let writable = vma.flags().contains(VmFlags::WRITE);
        if writable && flags.contains(PteFlags::SPECIAL) {
            drop(guard);
            if let Some(step) = self.replace_zeroes(vma, table, address) {
                return step;
            }
        } else if writable && (0..FRAMES).all(|n| self.is_ours(pfn.add(n))) {
            (0..FRAMES).for_each(|n| self.platform().frame(pfn.add(n)).set_exclusive());
            guard.grant(address, WRITTEN);
            return FaultOutcome::Done;
        } else {
            drop(guard);
        }
        match table.split(address) {
            Ok(_) => FaultOutcome::Retry,
            Err(_) => FaultOutcome::OUT_OF_MEMORY,
        }
    }

    /// Whether a store may go straight to a frame that an entry of ours maps, under that entry's table's lock.
    fn is_ours(&self, pfn: Pfn) -> bool {
        let frame = self.platform().frame(pfn);
        frame.is_anon() && (frame.is_exclusive() || frame.refs() == 1)
    }

    /// Puts a huge page in place of the huge page of zeroes. `None`: there is none to be had.
    fn replace_zeroes(
        &self,
        vma: &Vma<P>,
        table: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
    ) -> Option<FaultOutcome<P>> {
        let new = HugePage::new(&self.engine, vma, address.get())?;
        let flags = vma_pte_flags(vma.flags()) | WRITTEN;
        // As in copying a small page: nobody reads the zeroes any more when the first can write.
        let mut gather = self.vm.exclusive_gather::<1>();
        let mut guard = table.lock();
        let zeroes = match guard.get(address).kind(Level::Pmd) {
            Kind::Leaf { flags, .. } => flags.contains(PteFlags::SPECIAL),
            Kind::None | Kind::Table { .. } | Kind::Marker { .. } => false,
        };
        if zeroes {
            // The entry must not be seen empty without the lock: a table could be put there.
            let closed = Pte::leaf(Level::Pmd, new.first, (flags - PteFlags::WRITE) | PteFlags::NO_ACCESS);
            guard.replace(address, closed, &mut gather);
            gather.flush();
            guard.change(address, &mut gather, |pte| pte.with_flags(Level::Pmd, flags));
            self.vm.count_page(RssKind::Anon, FRAMES as i64);
        }
        drop(guard);
        gather.finish();
        if !zeroes {
            return Some(FaultOutcome::Retry);
        }
        new.mapped();
        Some(FaultOutcome::Done)
    }
}

/// A huge page that is not mapped yet; it goes back if it never is.
pub(super) struct HugePage<'e, P: Platform> {
    engine: &'e Engine<P>,
    first: Pfn,
}

impl<'e, P: Platform> HugePage<'e, P> {
    /// One of zeroes, its frames counted as mapped once. `None`: no memory, or not in one piece.
    pub(super) fn new(engine: &'e Engine<P>, vma: &Vma<P>, address: u64) -> Option<Self> {
        let (home, index) = (vma.anon_root(), vma.pgoff_of(address));
        let first = engine.platform().alloc_huge()?;
        for n in 0..FRAMES {
            engine.platform().frame(first.add(n)).init_anon(home, index + n);
            engine.platform().zero_frame(first.add(n));
        }
        Some(HugePage { engine, first })
    }

    /// The first of its frames.
    pub(super) fn first(&self) -> Pfn {
        self.first
    }

    /// It is mapped.
    pub(super) fn mapped(self) {
        core::mem::forget(self);
    }
}

impl<P: Platform> Drop for HugePage<'_, P> {
    fn drop(&mut self) {
        for frame in (0..FRAMES).map(|n| self.first.add(n)) {
            self.engine.platform().frame(frame).sub_map();
            let last = self.engine.platform().frame(frame).put();
            debug_assert!(last, "nobody else has seen the frames");
            self.engine.memory().free_frame(frame);
        }
    }
}
