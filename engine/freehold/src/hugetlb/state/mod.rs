//! State of huge pages in files, VMAs and engines. [`hugetlb`](crate::hugetlb) describes the feature as a
//! whole.
//!
//! | file | state of |
//! | --- | --- |
//! | this file | an engine: the fault mutexes ([`Hugetlb`]) |
//! | `huge_file.rs` | a file |
//! | `vma_lock.rs` | a VMA |
//! | `reserves.rs`, `index_set.rs` | the owners of reservations, and the sets in which an owner records reservations |
//!
//! Files and VMAs keep this state, so this folder is a layer below files and VMAs, and must not use either.
//! The tests are `tests/hugetlb`. The operations on huge pages are in the folder above and in
//! `file/kinds/huge.rs`.

pub(crate) mod huge_file;
pub(crate) mod index_set;
pub(crate) mod reserves;
pub(crate) mod vma_lock;

pub(crate) use freehold_vmspace::{HugePageSize, TakeError};

use crate::{counted::Counted, error::NoMemory, platform::Platform};
use allocator_api2::vec::Vec;
use freehold_sync::{Rank, RwSem, RwSemWriteGuard, atomic::CHECKED, stats::LockStats};
use freehold_vmspace::PageIndex;

/// Number of fault mutexes. Small under a schedule checker, so that different pages share a mutex. Also small
/// without the feature `hugetlb`, because no fault of such a build takes a mutex.
const MUTEXES: usize = if CHECKED || !cfg!(feature = "hugetlb") { 2 } else { 256 };

/// A fault mutex, alone in its cache line. Always locked for writing.
#[repr(align(64))]
struct FaultMutex<P: Platform>(RwSem<P>);

/// State that an engine keeps for huge pages.
pub(crate) struct Hugetlb<P: Platform> {
    /// The fault mutexes. Several pages share one mutex.
    mutexes: Vec<FaultMutex<P>>,
    /// Statistics of the VMA locks, if statistics are enabled.
    pub(crate) stats: Option<Counted<LockStats<P>>>,
    /// Statistics of the fault mutexes, if statistics are enabled.
    pub(crate) fault_stats: Option<Counted<LockStats<P>>>,
}

impl<P: Platform> Hugetlb<P> {
    /// Creates the fault mutexes of an engine.
    pub fn try_new(
        stats: Option<Counted<LockStats<P>>>,
        fault_stats: Option<Counted<LockStats<P>>>,
    ) -> Result<Self, NoMemory> {
        let mutex = || match &fault_stats {
            Some(stats) => RwSem::with_stats(Rank::HugetlbFault, stats.clone()),
            None => RwSem::new(Rank::HugetlbFault),
        };
        let mut mutexes = Vec::new();
        mutexes.try_reserve_exact(MUTEXES).map_err(|_| NoMemory)?;
        mutexes.extend((0..MUTEXES).map(|_| FaultMutex(mutex())));
        Ok(Hugetlb { mutexes, stats, fault_stats })
    }

    /// Locks the fault mutex of a page, so that no other task makes the page or a private copy of it. `key`
    /// identifies the file; `index` counts in pages of the file.
    #[inline]
    pub fn fault_mutex(&self, key: usize, index: PageIndex) -> RwSemWriteGuard<'_, P> {
        self.mutexes[mutex_of(key, index)].0.write()
    }
}

/// The only hash function for fault mutexes (hazard C-28): multiplicative, by 2^64 divided by the golden
/// ratio.
fn mutex_of(mapping: usize, index: PageIndex) -> usize {
    let key = (mapping as u64 >> 6).wrapping_add(index.get());
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % MUTEXES
}
