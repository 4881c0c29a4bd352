//! PMD tables that address spaces share, and the lock of a VMA that keeps them where a fault has found them.
//!
//! Two VMAs that map the same part of a file alike, 1 GiB of it at least and at such addresses that one table
//! serves both, use one table. The first fault in such a span looks among the file's VMAs for one that has a
//! table already.
//!
//! ```text
//! share      i_mmap shared      find a table; hang it in; both from then on see each other's entries
//! unshare    i_mmap exclusive   take it out; flush all that it translates, and wait for walks without locks
//! ```
//!
//! What hangs in two places is changed for both: so a call that changes entries for one address space alone,
//! or takes one away and flushes its own processors alone, unshares first, and must then stay alone until
//! done ([`ClosedTables`]). As long as a VMA [allows sharing](HugetlbVma) others may share its tables, and
//! it theirs; but in no VMA of a file while a walk over all of them waits for one that is busy
//! ([`apart`](crate::hugetlb::state::huge_file::HugeFile)).
//!
//! | call | is alone because |
//! | --- | --- |
//! | munmap, exit | its VMA does not allow sharing any more |
//! | mprotect, DONTNEED, registration | its VMA does not allow sharing for the time ([`UnsharedTables`]) |
//! | mremap | neither of its two VMAs does, for the time |
//! | a userfaultfd that fills, protects, poisons | its VMA is registered: none that is shares a table |
//! | truncation, hole punch, migration | it holds i_mmap exclusively, VMA after VMA |
//! | a split inside a span | it holds i_mmap exclusively (hazard C-12), and no fault can be under way |
//!
//! Filling an empty slot needs none of that: the page at that offset of the file is the same for all.
//!
//! # mremap
//!
//! A move has two VMAs with the same pages of the file, and others can find both:
//!
//! | step of the move | source | target |
//! | --- | --- | --- |
//! | before | open; its tables may be shared | made, known to nobody: VMAs of huge pages do not join |
//! | closed | closed, and its tables its own: what is mapped there stays or goes, and no more comes | closed |
//! | prepared | as it was | has tables, empty, for what is mapped in the source |
//! | linked | as it was | found by faults of others, and passed over by them |
//! | moved | as it was, empty | has what the source had; what a userfaultfd has put there is for nobody else |
//! | after | open again, and unmapped next, which closes it for good | open; a fault that shares sees all that was moved |
//!
//! Were the source open while the target is prepared, a task could share a table of it, fill it and leave it,
//! and the target would have no table for that. Were the target open before all is moved, a task could
//! share its empty table and fill a slot that the move is about to fill.
//!
//! A fault of another VMA looks at `sharing_allowed` under i_mmap shared. It is cleared under i_mmap
//! exclusively before the target is linked under i_mmap exclusively, so a fault that finds the target finds
//! it closed. Faults of the two VMAs themselves wait: the source is write-locked until the call
//! ends, and so is the target from before it is found. So the hugetlb VMA locks, two of one rank, are not
//! needed.
//!
//! With [`HugetlbLock::FileLock`](crate::space::HugetlbLock::FileLock) a fault holds i_mmap shared all the
//! way instead of the VMA's lock, and a zap holds it exclusively: Linux 5.7 to 6.0.

use super::state::HugePageSize;
use crate::{
    counted::Counted,
    file::Mapping,
    hugetlb::state::vma_lock::HugetlbVma,
    platform::Platform,
    rmap::tree::{IMmap, RmapReadGuard, RmapWriteGuard},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::Level;
use freehold_sync::{
    RwSemReadGuard, RwSemWriteGuard,
    atomic::Ordering::{Relaxed, Release},
};
use freehold_vmspace::{PageRange, UserRange, VmGather, VmSpace};

/// What one shared table spans.
pub(crate) const SPAN: u64 = Level::Pmd.table_span();

/// What keeps the tables of a VMA of huge pages where they are.
pub(crate) enum SharedTablesGuard<'v, P: Platform> {
    /// They cannot be taken away.
    Own,
    /// The VMA's lock.
    #[expect(dead_code, reason = "kept for its end")]
    Vma(RwSemReadGuard<'v, P>),
    /// The file's.
    File(RmapReadGuard<'v, P, IMmap>),
}

/// Nobody shares a table with a VMA until this is dropped.
#[must_use = "others may share again when this is dropped"]
pub(crate) struct ClosedTables<P: Platform> {
    /// `None`: it is one with which nobody shares anyway.
    own: Option<Counted<HugetlbVma<P>>>,
}

impl<P: Platform> Drop for ClosedTables<P> {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // Release pairs with the acquire in `share_table`: a fault that shares sees what was done alone.
            own.sharing_allowed.store(true, Release);
        }
    }
}

/// A move of huge pages that has its tables, in two VMAs with which nobody shares a table until this is
/// dropped.
#[must_use = "others may share again when this is dropped"]
pub(crate) struct HugeMove<P: Platform> {
    pub size: HugePageSize,
    /// The source, and the target.
    pub _closed: [ClosedTables<P>; 2],
}

/// The tables of a part of a VMA are its own, and stay so until this is dropped.
#[must_use = "others may share again when this is dropped"]
pub(crate) struct UnsharedTables<'v, P: Platform> {
    /// Open again before the lock ends: dropped first.
    _closed: Option<ClosedTables<P>>,
    _lock: Option<RwSemWriteGuard<'v, P>>,
}

impl<P: Platform> Vma<P> {
    /// The size of its pages, if they are huge ones of a pool.
    pub fn huge_page_size(&self) -> Option<HugePageSize> {
        match self.flags().contains(VmFlags::HUGETLB) {
            true => self.object().file()?.mapping().huge_page_size(),
            false => None,
        }
    }

    /// Whether a table over `range`, or a part of it, may be shared. None while a userfaultfd has the VMA:
    /// its faults, and what its pager puts into entries, are this space's alone.
    pub(crate) fn shares(&self, range: UserRange) -> bool {
        let first = self.start().next_multiple_of(SPAN);
        let whole = first..self.end() - self.end() % SPAN;
        self.shares_somewhere() && whole.start.max(range.start()) < whole.end.min(range.end())
    }

    /// Whether tables of it may be shared where it spans all of one.
    fn shares_somewhere(&self) -> bool {
        self.flags() & (VmFlags::MAYSHARE | VmFlags::UFFD) == VmFlags::MAYSHARE
            && self.hugetlb().is_some()
            && self.huge_page_size() == Some(HugePageSize::Mib2)
    }

    /// Whether two VMAs may use one table, as far as what they allow goes: locked memory is always there.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.flags() - VmFlags::LOCK_MASK == other.flags() - VmFlags::LOCK_MASK
    }
}

/// Takes the tables over `range` out of `vm` that others use as well. They are gone for its processors when
/// `gather` has flushed, which has to be before `_edit` ends.
pub(crate) fn leave_tables<P: Platform, const N: usize>(
    vm: &VmSpace<P>,
    range: UserRange,
    _edit: &RmapWriteGuard<'_, P, IMmap>,
    gather: &mut VmGather<'_, P, N>,
) {
    vm.unshare_tables(range, gather);
}

/// Leaves the shared tables over `range` and flushes.
pub(crate) fn unshare<P: Platform>(vm: &VmSpace<P>, range: UserRange, edit: &RmapWriteGuard<'_, P, IMmap>) {
    let mut gather: VmGather<'_, _, 1> = vm.gather();
    leave_tables(vm, range, edit, &mut gather);
    gather.finish();
}

impl<P: Platform> Vma<P> {
    /// Makes the tables of `range`, in this VMA, the own ones of its space, `vm`, for as long as the result
    /// lives; faults of this VMA wait.
    ///
    /// # Locks
    ///
    /// The hugetlb VMA lock for writing, kept; if tables may be shared the i_mmap lock for writing, not kept.
    pub(crate) fn unshare_tables(&self, vm: &VmSpace<P>, range: UserRange) -> UnsharedTables<'_, P> {
        let lock = self.hugetlb().map(|own| own.lock.write());
        UnsharedTables { _closed: self.shares(range).then(|| self.close_tables(vm, range)), _lock: lock }
    }

    /// Lets nobody share a table with this VMA for as long as the result lives; those over `range` are the
    /// own ones of its space, `vm`, then.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing, not kept, if tables may be shared. The caller keeps faults of this VMA
    /// out, and other callers: by the hugetlb VMA lock, or by the VMA's own, for writing, or because nobody
    /// knows it yet.
    pub(crate) fn close_tables(&self, vm: &VmSpace<P>, range: UserRange) -> ClosedTables<P> {
        let own = self.hugetlb().filter(|_| self.shares_somewhere());
        if let Some((own, file)) = own.zip(self.object().file()) {
            let edit = file.mapping().edit();
            // Relaxed: readers have the lock that we hold.
            own.sharing_allowed.store(false, Relaxed);
            unshare(vm, range, &edit);
        }
        ClosedTables { own: own.cloned() }
    }
}

impl<P: Platform> Mapping<P> {
    /// Does `f` to every VMA that maps any page of `pages`, page offsets of 4 KiB, with what it maps of them,
    /// the tables of which are that VMA's own, and nobody shares meanwhile. What `f` removes is flushed
    /// when it returns.
    ///
    /// Faults take the VMA's lock before i_mmap, and this comes the other way round: so it only tries for a
    /// VMA's lock. Where it fails it lets go of i_mmap, waits for that one lock, and does this part of
    /// the file again with the lock in hand. From then on no VMA of the file shares a table until all is
    /// done: each is waited for once, however much it faults.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing, again and again; under it the lock of each VMA that leaves a table.
    pub(super) fn each_alone(&self, pages: PageRange, mut f: impl FnMut(&VmSpace<P>, &Vma<P>, UserRange)) {
        let Some(huge) = &self.huge else { return };
        let unit = huge.size.level().frames();
        let mut at = pages.start;
        let mut apart = false;
        let mut awaited: Option<Counted<HugetlbVma<P>>> = None;
        loop {
            let lock = awaited.as_ref().map(|own| own.lock.write());
            let edit = self.edit();
            let Some(first) = edit.mappers(PageRange::new(at, pages.end)).next() else {
                // Relaxed, here and below: readers have the lock that we hold.
                huge.apart.fetch_sub(u32::from(apart), Relaxed);
                return;
            };
            at = at.max(first.vma.pgoff());
            let end = edit.part_end(PageRange::new(at, pages.end), unit);
            let busy = edit.mappers(PageRange::new(at, end)).find_map(|mapper| {
                let (vm, vma, range) = (mapper.vm, mapper.vma, mapper.range);
                if vma.shares(range) && vm.has_shared_tables(range) {
                    let own = vma.hugetlb()?;
                    let held = awaited.as_ref().is_some_and(|awaited| Counted::ptr_eq(awaited, own));
                    let tried = if held { None } else { own.lock.try_write() };
                    if !held && tried.is_none() {
                        return Some(own.clone());
                    }
                    unshare(vm, range, &edit);
                }
                f(vm, vma, range);
                None
            });
            match busy {
                None => at = end,
                Some(_) if apart => {}
                Some(_) => {
                    apart = true;
                    huge.apart.fetch_add(1, Relaxed);
                }
            }
            drop(edit);
            drop(lock);
            awaited = busy;
        }
    }
}
