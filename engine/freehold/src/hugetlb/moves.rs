//! Moving huge pages to other addresses (mremap), and copying them into a child (fork).
//!
//! `call/mremap/pages.rs` calls [`prepare_huge_pages`](AddressSpace::prepare_huge_pages) before its first
//! change, and [`move_huge_pages`](AddressSpace::move_huge_pages) after that change. `call/fork.rs` calls
//! [`copy_huge_pages`](AddressSpace::copy_huge_pages). The head of `sharing.rs` lists the tasks that can run
//! concurrently with a move, and the locks that exclude these tasks.
//!
//! Before the target's tables are allocated, both VMAs of a move must be closed, so that their tables cannot
//! be shared. Otherwise another task can add entries for which the target has no table, or fill an entry that
//! the move is about to fill: `mremap_concurrent_with_a_short_share` and
//! `tables_of_a_move_target_are_not_shared_early` in `shuttle_engine/hugetlb.rs` then fail.

use super::HugePageSize;
use super::sharing::{HugeMove, SPAN};
use crate::{
    error::NoMemory,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::AddressSpace,
    vma::{Vma, flags::pte_flags::vma_pte_flags},
};
use freehold_pagetable::PteFlags;
use freehold_vmspace::{Fork, LargeFork, UserRange, VmGather};

/// A gather that frees no frames.
type Still<'g, P> = VmGather<'g, P, 1>;

impl<P: Platform> AddressSpace<P> {
    /// Allocates the tables into which [`move_huge_pages`](Self::move_huge_pages) will put the entries of
    /// `from`, a range of the VMA `source`. `landing` is the target's VMA.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing, twice, if tables may be shared. The caller has write-locked the source.
    /// No other task can find the target.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; some tables may then exist.
    pub(crate) fn prepare_huge_pages(
        &self,
        size: HugePageSize,
        source: &Vma<P>,
        landing: &Vma<P>,
        from: UserRange,
        to: UserRange,
    ) -> Result<HugeMove<P>, NoMemory> {
        // The VMAs are closed first, because no entry may be added to the source once the target's tables are
        // prepared.
        let closed = [source.close_tables(&self.vm, from), landing.close_tables(&self.vm, to)];
        self.vm.prepare_large(size.level(), from, to.start())?;
        Ok(HugeMove { size, _closed: closed })
    }

    /// Moves the entries of `from`, a range of the VMA `source`, to the same offsets in the range that starts
    /// at `to`. Entries of tables that were shared do not move: they stay in these tables, and faults at the
    /// target find the pages of the file again. The target takes over the source's reservations.
    ///
    /// Excludes walks of the reverse map while the entries of one table move, so that no walk misses an entry
    /// at both places. The caller has write-locked both VMAs.
    pub(crate) fn move_huge_pages(
        &self,
        HugeMove { size, _closed }: HugeMove<P>,
        source: &Vma<P>,
        from: UserRange,
        to: u64,
        gather: &mut Still<'_, P>,
    ) {
        let mut at = from.start();
        while at < from.end() {
            let end = from.end().min(at - at % SPAN + SPAN);
            let excluded = RmapEdit::of(source);
            self.vm.move_large(size.level(), UserRange::new(at, end), to + (at - from.start()), gather);
            // The old translations are flushed before another task can find the pages at the new place and
            // unmap them there.
            gather.flush();
            drop(excluded);
            at = end;
        }
        if let Some(own) = source.hugetlb() {
            own.transfer_reservation();
        }
    }

    /// Copies entries of `vma` to `child`, at the same addresses. If the VMA is private, copies all entries;
    /// afterwards both spaces copy a page before they write to it. If the VMA is shared, copies only the
    /// entries that a userfaultfd has write-protected, because the userfaultfd must be notified of stores in
    /// the child, too. Faults of the child map the other pages.
    ///
    /// The caller has write-locked the VMA. No other task can find the child's VMA.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the child's tables, or if the pool has no unreserved page for a copy
    /// of a pinned page. Some entries may then have been copied.
    pub(crate) fn copy_huge_pages(
        &self,
        vma: &Vma<P>,
        size: HugePageSize,
        fork: Fork,
        child: &AddressSpace<P>,
        gather: &mut Still<'_, P>,
    ) -> Result<(), NoMemory> {
        let known = |page| vma.anon_page(page);
        let rights = vma_pte_flags(vma.flags()) - PteFlags::ACCESSED;
        let how = LargeFork { level: size.level(), fork, rights };
        self.vm.copy_large(how, vma.range(), &child.vm, known, gather)
    }
}
