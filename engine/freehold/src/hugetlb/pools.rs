//! Operations of an engine on its pools of huge pages, and the creation of the additional state of a VMA of
//! huge pages.
//!
//! The pools themselves are in `freehold-vmspace` (`freehold-vmspace/src/memory/pool.rs`); an engine has one
//! for each page size. `space/change/split_merge.rs` calls `hugetlb_part` for each VMA that it allocates.
//! Every VMA of huge pages must get this state: `split_between_two_shared_tables_survives_failures` in
//! `tests/hugetlb/oom.rs` fails otherwise. `tests/hugetlb/pools.rs` tests the sizes of pools.

use super::{HugePageSize, HugePool, state::vma_lock::HugetlbVma};
use crate::{
    counted::Counted,
    engine::Engine,
    error::NoMemory,
    platform::{PageOwner, Platform},
    shortage::ShortageRounds,
    vma::{flags::VmFlags, merge::Attrs},
};

impl<P: Platform> Engine<P> {
    /// Creates the additional state of a VMA of huge pages. Every such VMA needs this state: after a split,
    /// both parts may have shared tables, and changes use the state to unshare them.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn hugetlb_part(
        &self,
        attrs: &Attrs<'_, P>,
    ) -> Result<Option<Counted<HugetlbVma<P>>>, NoMemory> {
        if !attrs.flags.contains(VmFlags::HUGETLB) {
            return Ok(None);
        }
        let own = HugetlbVma::new(attrs.reserves.cloned(), self.files().hugetlb.stats.clone());
        Ok(Some(Counted::try_new(own)?))
    }

    /// Returns the pool of this page size.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, hugetlb::HugePageSize, space::*};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// engine.resize_huge_pool(HugePageSize::Mib2, 3, None);
    /// let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::HUGETLB;
    /// space.mmap(0, 4 << 20, Prot::WRITE, flags, None, 0).unwrap();
    /// let counts = engine.huge_pool(HugePageSize::Mib2).counts(None);
    /// assert_eq!((counts.total, counts.free, counts.reserved), (3, 3, 2));
    /// ```
    pub fn huge_pool(&self, size: HugePageSize) -> &HugePool<P> {
        self.memory().huge_pool(size)
    }

    /// Sets the number of pages in the pool of this size, on `node` or spread over all nodes (nr_hugepages).
    /// Returns the new number, which is smaller than requested if there is no contiguous memory. Without
    /// memory, first asks the platform ([`Platform::memory_short`]), which should end no program for a block
    /// of this size. Pages that are in use or reserved remain as surplus pages until they are free.
    ///
    /// # Locks
    ///
    /// The pool's lock, which is not held while the platform allocates or frees memory. The caller holds no
    /// lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, hugetlb::HugePageSize};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 2, None), 2);
    /// assert!(engine.resize_huge_pool(HugePageSize::Mib2, 100, None) < 100, "16 MiB of memory");
    /// ```
    #[cfg(feature = "hugetlb")]
    pub fn resize_huge_pool(&self, size: HugePageSize, huge_pages: u64, node: Option<usize>) -> u64 {
        let order = size.level().frames().trailing_zeros();
        let (mut rounds, mut before) = (ShortageRounds::of_order(order), 0);
        loop {
            let now = self.memory().resize_huge_pool(size, huge_pages, node);
            if now > before {
                rounds.progressed();
            }
            let asks = now < huge_pages && node.is_none_or(|node| node < self.platform().nodes());
            let trim = || self.trim_own();
            if !asks || rounds.ask_unkillable(self.platform(), PageOwner::Caller, trim).is_err() {
                return now;
            }
            before = now;
        }
    }
}
