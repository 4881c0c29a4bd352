//! What files of huge pages, VMAs of them, and engines keep. The whole of it: [`hugetlb`](crate::hugetlb).

pub(crate) mod huge_file;
pub(crate) mod index_set;
pub(crate) mod reserves;
pub(crate) mod vma_lock;

pub(crate) use freehold_vmspace::{HugePageSize, TakeError};

use crate::{counted::Counted, error::NoMemory, platform::Platform};
use allocator_api2::vec::Vec;
use freehold_sync::{Rank, RwSem, RwSemWriteGuard, atomic::CHECKED, stats::LockStats};
use freehold_vmspace::PageIndex;

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
    /// The same of the fault mutexes.
    pub(crate) fault_stats: Option<Counted<LockStats<P>>>,
}

impl<P: Platform> Hugetlb<P> {
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

    /// Keeps everybody else from making the page `index` of the file with this key, in units of its pages, or
    /// a private copy of it.
    #[inline]
    pub fn fault_mutex(&self, key: usize, index: PageIndex) -> RwSemWriteGuard<'_, P> {
        self.mutexes[mutex_of(key, index)].0.write()
    }
}

/// The one hash (hazard C-28), by Fibonacci's number.
fn mutex_of(mapping: usize, index: PageIndex) -> usize {
    let key = (mapping as u64 >> 6).wrapping_add(index.get());
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % MUTEXES
}
