//! Files of huge pages, and what their VMAs have besides. The whole of it: [`hugetlb`](crate::hugetlb).

pub(crate) mod index_set;
pub(crate) mod reserves;

pub(crate) use freehold_vmspace::{HugePageSize, HugePool, NotTaken};

use super::sharing::HugetlbVma;
use crate::{
    counted::Counted,
    engine::Engine,
    error::NoMemory,
    file::Mapping,
    platform::Platform,
    vma::{flags::VmFlags, merge::Attrs},
};
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

    /// Keeps everybody else from making the page `index` of `mapping`, in units of its pages, or a private
    /// copy of it.
    pub fn fault_mutex(&self, mapping: &Mapping<P>, index: PageIndex) -> RwSemWriteGuard<'_, P> {
        self.mutexes[mutex_of(core::ptr::from_ref(mapping).addr(), index)].0.write()
    }
}

/// The one hash (hazard C-28), by Fibonacci's number.
fn mutex_of(mapping: usize, index: PageIndex) -> usize {
    let key = (mapping as u64 >> 6).wrapping_add(index.get());
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % MUTEXES
}

impl<P: Platform> Engine<P> {
    /// What a VMA of huge pages has besides. None does without: where a VMA is cut, both parts may have
    /// shared tables, which a change leaves by this.
    #[inline(always)]
    pub(crate) fn hugetlb_part(
        &self,
        attrs: &Attrs<'_, P>,
    ) -> Result<Option<Counted<HugetlbVma<P>>>, NoMemory> {
        if !attrs.flags.contains(VmFlags::HUGETLB) {
            return Ok(None);
        }
        let own = HugetlbVma::new(attrs.reserves.cloned(), self.hugetlb.stats.clone());
        Ok(Some(Counted::try_new(own)?))
    }

    /// The pool of this size.
    pub fn huge_pool(&self, size: HugePageSize) -> &HugePool<P> {
        self.memory().huge_pool(size)
    }

    /// Sets how many pages the pool of this size has, on `node` or spread over all (nr_hugepages); returns
    /// how many it has then. Fewer than asked for: no memory in one piece. Pages in use, or reserved,
    /// stay as surplus until they are not.
    ///
    /// # Locks
    ///
    /// The pool's, not held while the platform allocates or takes back.
    pub fn resize_huge_pool(&self, size: HugePageSize, huge_pages: u64, node: Option<usize>) -> u64 {
        self.memory().resize_huge_pool(size, huge_pages, node)
    }
}
