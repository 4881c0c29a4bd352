//! PMD tables that address spaces share, and the lock that keeps them in place for a fault.
//!
//! Two VMAs share one table if they map the same part of a file with the same flags. The part must contain
//! the whole range of a table, 1 GiB ([`SPAN`]), and must begin at a multiple of 1 GiB in both VMAs. The
//! first fault in such a range searches the file's VMAs for a VMA that already has a table.
//!
//! ```text
//! share      i_mmap shared      find a table and link it; from then on both VMAs see each other's entries
//! unshare    i_mmap exclusive   unlink the table; flush all its translations; wait for walks without locks
//! ```
//!
//! A shared table belongs to several address spaces, so a change of an entry of the table affects all these
//! address spaces. A call must therefore unshare a table first if it changes entries for its own address
//! space only. A call must also unshare a table first if the call removes an entry and flushes only the CPUs
//! of its own address space. The table must then stay unshared until the call ends.
//!
//! A VMA is *open* while its count `closers` ([`HugetlbVma`]) is 0: it may share tables with other open VMAs.
//! Otherwise the VMA is *closed* ([`ClosedTables`]). A walk over all VMAs of a file
//! ([`each_alone`](Mapping::each_alone)) sometimes waits for the lock of one VMA. From this wait until the
//! end of the walk, no VMA of the file, not even an open VMA, starts to share a table (`apart` in
//! `state/huge_file.rs`).
//!
//! | call | its tables stay unshared because |
//! | --- | --- |
//! | munmap, exit | the VMA is closed permanently |
//! | mprotect, DONTNEED, registration with a userfaultfd | the VMA is closed during the call ([`UnsharedTables`]) |
//! | mremap | both VMAs are closed during the call |
//! | a userfaultfd that fills, protects, poisons | the VMA is registered, and registered VMAs share no tables |
//! | truncation, hole punch, migration | the call holds i_mmap exclusively, VMA by VMA |
//! | a split inside the range of one table | the call holds i_mmap exclusively (hazard C-12), and no fault can run in the VMA |
//!
//! A task may fill an empty entry of a shared table without unsharing the table, because the page at that
//! offset of the file is the same for all VMAs.
//!
//! # mremap
//!
//! A move involves two VMAs that map the same pages of the file, the source and the target. Other tasks can
//! find both VMAs through the file:
//!
//! | step of the move | source | target |
//! | --- | --- | --- |
//! | before | open: its tables may be shared | created, and not visible to other tasks, because VMAs of huge pages do not merge |
//! | closed | closed, with unshared tables: entries may be removed but not added | closed |
//! | prepared | unchanged | has empty tables for the entries of the source |
//! | linked | unchanged | found and skipped by faults of other VMAs |
//! | moved | empty | has the entries of the source; entries made by a userfaultfd are visible only here |
//! | after | open for a short time, until the removal of the source closes it permanently | open: a fault that shares a table sees all moved entries |
//!
//! Suppose that the source were open while the target is prepared. A task could then share a table with the
//! source, fill the table and unshare it. The target would have no table for the new entries. Suppose that
//! the target were open before the move is complete. A task could then share the target's empty table, and
//! fill an entry that the move is about to fill.
//!
//! A fault of another VMA reads `closers` under i_mmap shared. A move closes the target under i_mmap
//! exclusive before the target is linked under i_mmap exclusive. A fault that finds the target therefore
//! finds it closed. Faults of the two VMAs themselves wait: the source is write-locked until the call ends,
//! and the target is write-locked before other tasks can find it. The move therefore does not need the two
//! hugetlb VMA locks, which have the same rank.
//!
//! [`HugetlbLock::FileLock`](crate::space::HugetlbLock::FileLock) selects the locks of Linux 5.7 to 6.0. A
//! fault then holds i_mmap shared until its end instead of the hugetlb VMA lock, and a zap holds i_mmap
//! exclusively.
//!
//! # Neighbours
//!
//! `tables.rs` shares tables in faults, `zap.rs`, `unmap_file.rs` and `moves.rs` use the functions of this
//! file. `mod.rs` has the order of the locks. `tests/hugetlb/shared.rs` and `shuttle_engine/hugetlb.rs` test
//! sharing, and `check_shared_tables` in `tables.rs` checks the rules of sharing in every test that calls
//! `check`.

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
use freehold_sync::{RwSemReadGuard, RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageRange, UserRange, VmSpace};

/// Bytes that one shared table spans.
pub(crate) const SPAN: u64 = Level::Pmd.table_span();

/// A lock that keeps the tables of a VMA of huge pages in place.
pub(crate) enum SharedTablesGuard<'v, P: Platform> {
    /// No lock: the tables cannot be unshared.
    Own,
    /// The hugetlb VMA lock.
    #[expect(dead_code, reason = "held until dropped")]
    Vma(RwSemReadGuard<'v, P>),
    /// The file's i_mmap lock.
    File(RmapReadGuard<'v, P, IMmap>),
}

/// Prevents sharing of tables with a VMA until dropped.
#[must_use = "sharing is allowed again when this is dropped"]
pub(crate) struct ClosedTables<P: Platform> {
    /// State of the VMA. `None` if the VMA never shares tables.
    own: Option<Counted<HugetlbVma<P>>>,
}

impl<P: Platform> Drop for ClosedTables<P> {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // A fault that shares a table sees all changes made while the VMA was closed.
            own.closers.end();
        }
    }
}

/// A move of huge pages whose tables are prepared. The tables of the two VMAs cannot be shared until this is
/// dropped.
#[must_use = "sharing is allowed again when this is dropped"]
pub(crate) struct HugeMove<P: Platform> {
    /// Size of the pages to be moved.
    pub size: HugePageSize,
    /// Closed tables of the source and of the target.
    pub _closed: [ClosedTables<P>; 2],
}

/// Keeps the tables of a part of a VMA unshared until dropped.
#[must_use = "sharing is allowed again when this is dropped"]
pub(crate) struct UnsharedTables<'v, P: Platform> {
    /// The first field, so that sharing is allowed again before the lock is released.
    _closed: Option<ClosedTables<P>>,
    /// The hugetlb VMA lock, which keeps faults of this VMA out.
    _lock: Option<RwSemWriteGuard<'v, P>>,
}

impl<P: Platform> Vma<P> {
    /// Returns the size of the VMA's pages, if they are huge pages of a pool.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, hugetlb::HugePageSize, space::*};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// # engine.resize_huge_pool(HugePageSize::Mib2, 1, None);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let huge = space.mmap(0, 2 << 20, rw, private | MapFlags::HUGETLB, None, 0).unwrap();
    /// assert_eq!(space.find_vma(huge).unwrap().huge_page_size(), Some(HugePageSize::Mib2));
    /// assert_eq!(space.find_vma(at).unwrap().huge_page_size(), None);
    /// ```
    pub fn huge_page_size(&self) -> Option<HugePageSize> {
        match self.flags().contains(VmFlags::HUGETLB) {
            true => self.object().file()?.mapping().huge_page_size(),
            false => None,
        }
    }

    /// Returns true if a table over `range`, or over a part of it, may be shared. A VMA that is registered
    /// with a userfaultfd shares none, because its faults and the entries that its pager makes belong to this
    /// space only.
    pub(crate) fn shares(&self, range: UserRange) -> bool {
        let first = self.start().next_multiple_of(SPAN);
        let whole = first..self.end() - self.end() % SPAN;
        self.shares_somewhere() && whole.start.max(range.start()) < whole.end.min(range.end())
    }

    /// Returns true if the VMA may share every table whose whole span it covers.
    fn shares_somewhere(&self) -> bool {
        self.flags() & (VmFlags::MAYSHARE | VmFlags::UFFD) == VmFlags::MAYSHARE
            && self.hugetlb().is_some()
            && self.huge_page_size() == Some(HugePageSize::Mib2)
    }

    /// Returns true if the permissions of two VMAs allow them to use one table. The lock flags may differ,
    /// because huge pages of a pool are always resident.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.flags() - VmFlags::LOCK_MASK == other.flags() - VmFlags::LOCK_MASK
    }
}

/// Unlinks from `vm` the tables over `range` that other spaces also use, and flushes, before the caller drops
/// `_edit`.
pub(crate) fn unshare<P: Platform>(vm: &VmSpace<P>, range: UserRange, _edit: &RmapWriteGuard<'_, P, IMmap>) {
    vm.unshare_tables(range);
}

impl<P: Platform> Vma<P> {
    /// Unshares the tables over `range` in this VMA of the space `vm`, for as long as the result lives.
    /// Faults of this VMA wait during that time.
    ///
    /// # Locks
    ///
    /// The hugetlb VMA lock for writing, which the result keeps. If tables may be shared, also the i_mmap
    /// lock for writing, which is released before this function returns.
    pub(crate) fn unshare_tables(&self, vm: &VmSpace<P>, range: UserRange) -> UnsharedTables<'_, P> {
        let lock = self.hugetlb().map(|own| own.lock.write());
        UnsharedTables { _closed: self.shares(range).then(|| self.close_tables(vm, range)), _lock: lock }
    }

    /// Prevents sharing of tables with this VMA of the space `vm` for as long as the result lives. Unshares
    /// the tables over `range`.
    ///
    /// # Locks
    ///
    /// If tables may be shared, the i_mmap lock for writing, which is released before this function returns.
    /// The caller excludes faults of this VMA and concurrent callers. The caller holds the hugetlb VMA lock
    /// or the VMA's own lock for writing, or no other task can find the VMA.
    pub(crate) fn close_tables(&self, vm: &VmSpace<P>, range: UserRange) -> ClosedTables<P> {
        let own = self.hugetlb().filter(|_| self.shares_somewhere());
        if let Some((own, file)) = own.zip(self.object().file()) {
            let edit = file.mapping().edit();
            // Readers hold the i_mmap lock for reading, and this task holds it for writing.
            own.closers.begin();
            unshare(vm, range, &edit);
        }
        ClosedTables { own: own.cloned() }
    }
}

impl<P: Platform> Mapping<P> {
    /// Calls `f` for every VMA that maps one of `pages`, which count in units of 4 KiB. `f` gets the address
    /// space, the VMA, and the addresses at which the VMA maps these pages. The tables of this range are
    /// unshared, and stay unshared during the call. `f` must flush every entry that it removes before it
    /// returns.
    ///
    /// A fault takes the VMA's lock before i_mmap, and this function takes them in the opposite order. This
    /// function therefore takes a VMA's lock only if the lock is free. If the lock is held, the function
    /// releases i_mmap, waits for this VMA lock, and then processes this part of the file again. From then on
    /// no VMA of the file starts to share a table until the function ends. The function therefore waits at
    /// most once for each VMA.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing, once per part of the file. Under the i_mmap lock, the lock of each VMA
    /// whose tables are unshared.
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
                // Relaxed, here and below: readers hold the i_mmap lock for reading, and this task holds it
                // for writing.
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
