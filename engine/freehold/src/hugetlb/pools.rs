//! Pools of huge pages, as an engine has them.

use super::{HugePageSize, HugePool, state::vma_lock::HugetlbVma};
use crate::{
    counted::Counted,
    engine::Engine,
    error::NoMemory,
    platform::Platform,
    vma::{flags::VmFlags, merge::Attrs},
};

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
        let own = HugetlbVma::new(attrs.reserves.cloned(), self.files().hugetlb.stats.clone());
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
