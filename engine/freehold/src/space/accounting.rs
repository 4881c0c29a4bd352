//! Counting of mapped pages and VMAs by the changes that add and remove them.
//!
//! Every function takes the guard of the writer. An exclusive writer changes the totals, and a range writer
//! uses its reservation and the credit of its CPU (`state/counters.rs`). These functions check no limits
//! (`limits.rs`). The functions charge no committed memory: a change charges this memory earlier, while the
//! change can still fail ([`committed`](crate::committed)).
//!
//! `AddressSpace::check`, which tests call after each scenario, compares the sizes with a recount over all
//! VMAs (`check` below). A change that forgets to count fails there.

use crate::{
    platform::Platform,
    space::{
        locking::WriteGuard,
        state::counters::{Counters, Counts, Size},
    },
    vma::flags::VmFlags,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageCount, UserRange};

impl<P: Platform> Counters<P> {
    /// Adds `more` to a size, as the exclusive writer or as a range writer.
    #[cfg_attr(feature = "inline", inline(always))]
    fn add(&self, guard: &WriteGuard<'_, P>, size: Size, more: u64) {
        match guard.limit_reservation() {
            Some(reserved) => self.add_as_range_writer(reserved, size, more),
            None => self.add_exclusive(size, more),
        }
    }

    /// Subtracts `less` from a size, as the exclusive writer or as a range writer.
    #[cfg_attr(feature = "inline", inline(always))]
    fn remove(&self, guard: &WriteGuard<'_, P>, size: Size, less: u64) {
        match guard.limit_reservation() {
            Some(_) => self.give_credit(size, less),
            None => self.remove_exclusive(size, less),
        }
    }

    /// Subtracts `less` from a size as the exclusive writer.
    #[cfg_attr(feature = "inline", inline(always))]
    fn remove_exclusive(&self, size: Size, less: u64) {
        let taken = &self.taken[size as usize];
        let rest = taken.load(Relaxed).checked_sub(less);
        taken.store(rest.expect("a size of the address space fell below zero"), Relaxed);
    }

    /// Counts newly mapped pages with these flags. The caller has charged them if they count as committed.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn count_mapped(&self, guard: &WriteGuard<'_, P>, flags: VmFlags, pages: PageCount) {
        let (kind, more) = (Size::of(flags), pages.get());
        match guard.limit_reservation() {
            Some(reserved) => self.count_mapped_as_range_writer(reserved, kind, more),
            None => {
                self.add_exclusive(Size::Total, more);
                if let Some(kind) = kind {
                    self.add_exclusive(kind, more);
                }
            }
        }
    }

    /// Counts the removal of a VMA with these flags, and of its pages. The caller releases the charge of
    /// pages that count as committed.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn count_removed(&self, guard: &WriteGuard<'_, P>, flags: VmFlags, pages: PageCount) {
        let (kind, less) = (Size::of(flags), pages.get());
        match guard.limit_reservation() {
            Some(_) => self.give_vma_credits(1, kind, less),
            None => {
                self.remove_exclusive(Size::Vmas, 1);
                self.remove_exclusive(Size::Total, less);
                if let Some(kind) = kind {
                    self.remove_exclusive(kind, less);
                }
            }
        }
    }

    /// Counts pages that a range writer has cut off a VMA with these flags.
    pub fn count_cut(&self, flags: VmFlags, pages: PageCount) {
        self.give_vma_credits(0, Size::of(flags), pages.get());
    }

    /// Counts mapped pages whose flags changed from `old` to `new`. The caller has charged pages that now
    /// count as committed. This function releases pages that no longer count.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn count_changed(&self, guard: &WriteGuard<'_, P>, old: VmFlags, new: VmFlags, pages: PageCount) {
        if old.contains(VmFlags::ACCOUNT) && !new.contains(VmFlags::ACCOUNT) {
            guard.space.engine.committed().uncharge(pages);
        }
        let (was, is) = (Size::of(old), Size::of(new));
        if was != is {
            was.into_iter().for_each(|size| self.remove(guard, size, pages.get()));
            is.into_iter().for_each(|size| self.add(guard, size, pages.get()));
        }
    }

    /// Counts a change of the number of VMAs.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn count_vmas(&self, guard: &WriteGuard<'_, P>, by: i64) {
        match by {
            0 => {}
            1.. => self.add(guard, Size::Vmas, by.unsigned_abs()),
            _ => self.remove(guard, Size::Vmas, by.unsigned_abs()),
        }
    }

    /// Counts mapped pages that were locked.
    pub fn count_locked(&self, guard: &WriteGuard<'_, P>, pages: PageCount) {
        self.add(guard, Size::Locked, pages.get());
    }

    /// Counts locked pages that were unlocked or unmapped.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn count_unlocked(&self, guard: &WriteGuard<'_, P>, pages: PageCount) {
        if pages != PageCount::ZERO {
            self.remove(guard, Size::Locked, pages.get());
        }
    }

    /// Compares the sizes with a recount.
    ///
    /// # Panics
    ///
    /// Panics if a size differs from the recount.
    pub fn check(&self, guard: &WriteGuard<'_, P>) {
        let mut recount = Counts::default();
        for vma in guard.vmas(UserRange::ALL) {
            let (flags, pages) = (vma.flags(), vma.pages().get());
            recount.map_count += 1;
            recount.total_vm += pages;
            if flags.contains(VmFlags::LOCKED) {
                recount.locked_vm += pages;
            }
            if flags.is_exec() {
                recount.exec_vm += pages;
            } else if flags.is_stack() {
                recount.stack_vm += pages;
            } else if flags.is_data() {
                recount.data_vm += pages;
            }
        }
        assert_eq!(self.counts(), recount, "sizes differ from a recount (left: counted, right: recounted)");
    }
}
