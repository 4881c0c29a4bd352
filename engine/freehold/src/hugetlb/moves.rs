//! Moving huge pages to other addresses (mremap), and into a child (fork). Which tasks can meet a move, and
//! what keeps them out: `hugetlb/sharing.rs`.

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

/// A gather that no frame goes through.
type Still<'g, P> = VmGather<'g, P, 1>;

impl<P: Platform> AddressSpace<P> {
    /// Makes the tables into which [`move_huge_pages`](Self::move_huge_pages) will put what is mapped in
    /// `from`, in `source`; `landing` is the target's VMA.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing, twice, if tables may be shared. The caller has the source locked for
    /// writing, and nobody knows the target.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    pub(crate) fn prepare_huge_pages(
        &self,
        size: HugePageSize,
        source: &Vma<P>,
        landing: &Vma<P>,
        from: UserRange,
        to: UserRange,
    ) -> Result<HugeMove<P>, NoMemory> {
        // First: nothing more may come into the source once the target's tables are made.
        let closed = [source.close_tables(&self.vm, from), landing.close_tables(&self.vm, to)];
        self.vm.prepare_large(size.level(), from, to.start())?;
        Ok(HugeMove { size, _closed: closed })
    }

    /// Moves the entries of `from`, in `source`, to the same places of the range that starts at `to`. What
    /// was mapped in tables of others was left to them; faults will find it again. The target has reserved
    /// from now on what the source was.
    ///
    /// Walkers of the reverse map are kept out, a thing of one table at a time, so that none can miss an
    /// entry at both places. The caller has both VMAs locked for writing.
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
            // Before anybody finds the pages at their new place, to take them away there.
            gather.flush();
            drop(excluded);
            at = end;
        }
        if let Some(own) = source.hugetlb() {
            own.transfer_reservation();
        }
    }

    /// Copies what is mapped in `vma` to `child`, at the same addresses: of a private one everything, and
    /// both may write a page only after copying it; of a shared one what is write-protected by a userfaultfd,
    /// which is to hear of stores in the child, too. The rest the child's faults find.
    ///
    /// The caller has the VMA locked for writing, and nobody knows the child's.
    ///
    /// # Errors
    ///
    /// No memory for the child's tables, or no page in the pool, that is not reserved to somebody, for a copy
    /// of one that is pinned; some entries were copied.
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
