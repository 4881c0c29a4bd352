//! Tables of 2 MiB entries that several spaces use.

use crate::{UserRange, VirtAddr, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::Level;

/// What one shared table spans.
const SPAN: u64 = Level::Pmd.table_span();

/// The spans that `range` has a part of.
fn spans(range: UserRange) -> impl Iterator<Item = VirtAddr> {
    (range.start() - range.start() % SPAN..range.end()).step_by(SPAN as usize).map(VirtAddr::new)
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Takes the tables over `range` out that others use as well; see
    /// [`PageTable::unshare`](freehold_pagetable::PageTable::unshare).
    pub fn unshare_tables<const N: usize>(&self, range: UserRange, gather: &mut VmGather<'_, P, N>) {
        spans(range).for_each(|at| {
            self.unshare(at, gather);
        });
    }

    /// Whether a table over `range` is used by others as well. It stays as it is while nobody shares or
    /// unshares.
    pub fn has_shared_tables(&self, range: UserRange) -> bool {
        spans(range).any(|at| self.pmd_table(at).is_some_and(|table| table.is_shared()))
    }
}
