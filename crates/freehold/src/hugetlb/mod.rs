//! Huge pages that programs ask for by name (hugetlb): 2 MiB or 1 GiB behind one entry, from pools that are set aside, with
//! reservations, so that who was given a mapping is given its pages.
//!
//! Reading order: this file, `pool.rs` (pages and reservations of pages), `reserves.rs` (whose reservations they are), `file.rs` (files of
//! huge pages), `tables.rs` (tables that address spaces share, and the lock of each VMA that this calls for), `zap.rs`; then
//! `fault/hugetlb.rs`. Everything else is done by the code for all pages: a VMA of huge pages is one of a
//! file, with the flag `HUGETLB`; the page's one counted record is that of its first frame.
//!
//! # Who waits for whom
//!
//! | lock | held by | against |
//! | --- | --- | --- |
//! | content, exclusive | mmap that reserves a file's pages, until the mapping stands; fallocate | another size of the file, and other reservations, while a call can still fail |
//! | invalidate, shared | who brings a page into a file | truncation, hole punch, migration |
//! | fault mutex, hashed by file and page offset | who makes a page, or a private copy | a second one who would take a page in vain, and perhaps the last |
//! | hugetlb VMA lock, shared | a fault, from before it looks for a table until it is done; who reads entries | whoever takes a shared table away from this VMA |
//! | hugetlb VMA lock, exclusive | DONTNEED, mprotect, mremap; truncation and migration, of each VMA whose table they take away | faults of this VMA |
//! | i_mmap, shared | a fault that looks for a table to share, until it hangs | unsharing: a table that was found stays with whom it was found |
//! | i_mmap, exclusive | whoever unshares, until the flush | who shares; who would see itself alone too early |
//!
//! In this order, all but the first between the VMA's own lock and the tables' locks; the first comes before the mmap lock. A file's page is made with no lock of an address space held:
//! the fault lets go of all it has, brings the page in, and starts over. Pages are found and mapped within one RCU guard, as
//! those of every file (see [`object`](crate::object)), so neither truncation nor migration needs a fault's mutex.

mod allocate;
pub(crate) mod file;
mod index_set;
mod moves;
pub(crate) mod reserves;
pub(crate) mod tables;
pub(crate) mod zap;

pub(crate) use freehold_vmspace::NotTaken;
pub use freehold_vmspace::{HugePageSize, HugePool, HugePoolCounts, NoHugePages};

use crate::{
    counted::Counted,
    engine::Engine,
    error::NoMemory,
    object::Mapping,
    platform::Platform,
    vma::{flags::VmFlags, merge::Attrs},
};
use allocator_api2::vec::Vec;
use freehold_sync::{Rank, RwSem, RwSemWriteGuard, atomic::CHECKED, stats::LockStats};
use tables::HugetlbVma;

/// Fault mutexes. Few under a checker of schedules, so that different pages meet.
const MUTEXES: usize = if CHECKED { 2 } else { 256 };

/// One in a cache line.
#[repr(align(64))]
struct FaultMutex<P: Platform>(RwSem<P>);

/// What an engine keeps for huge pages.
pub(crate) struct Hugetlb<P: Platform> {
    mutexes: Vec<FaultMutex<P>>,
    /// Statistics of the VMA locks, if locks keep any.
    pub(crate) stats: Option<Counted<LockStats<P>>>,
}

impl<P: Platform> Hugetlb<P> {
    pub fn try_new(stats: Option<Counted<LockStats<P>>>) -> Result<Self, NoMemory> {
        let mut mutexes = Vec::new();
        mutexes.try_reserve_exact(MUTEXES).map_err(|_| NoMemory)?;
        mutexes.extend((0..MUTEXES).map(|_| FaultMutex(RwSem::new(Rank::HugetlbFault))));
        Ok(Hugetlb { mutexes, stats })
    }

    /// Keeps everybody else from making the page `index` of `mapping`, in units of its pages, or a private copy of it.
    pub fn fault_mutex(&self, mapping: &Mapping<P>, index: u64) -> RwSemWriteGuard<'_, P> {
        self.mutexes[mutex_of(core::ptr::from_ref(mapping).addr(), index)].0.write()
    }
}

/// The one hash (hazard C-28), by Fibonacci's number.
fn mutex_of(mapping: usize, index: u64) -> usize {
    let key = (mapping as u64 >> 6).wrapping_add(index);
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % MUTEXES
}

impl<P: Platform> Engine<P> {
    /// What a VMA of huge pages has besides. One that is shared does without, where there is no memory for it: it shares no
    /// tables then.
    pub(crate) fn hugetlb_part(
        &self,
        attrs: &Attrs<'_, P>,
    ) -> Result<Option<Counted<HugetlbVma<P>>>, NoMemory> {
        if !attrs.flags.contains(VmFlags::HUGETLB) {
            return Ok(None);
        }
        match Counted::try_new(HugetlbVma::new(attrs.reserves.cloned(), self.hugetlb.stats.clone())) {
            Ok(own) => Ok(Some(own)),
            Err(_) if attrs.flags.contains(VmFlags::MAYSHARE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The pool of this size.
    pub fn huge_pool(&self, size: HugePageSize) -> &HugePool<P> {
        self.memory().huge_pool(size)
    }

    /// Sets how many pages the pool of this size has, on `node` or spread over all (nr_hugepages); returns how many it has then.
    /// Fewer than asked for: no memory in one piece. Pages in use, or reserved, stay as surplus until they are not.
    ///
    /// # Locks
    ///
    /// The pool's, not held while the platform allocates or takes back.
    pub fn resize_huge_pool(&self, size: HugePageSize, pages: u64, node: Option<usize>) -> u64 {
        self.memory().resize_huge_pool(size, pages, node)
    }
}
