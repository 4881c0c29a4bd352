//! Tables of 2 MiB entries that several spaces use, for files of a pool of huge pages. The module `share` of
//! `freehold-pagetable` explains the count of the spaces, the locks and the flush.
//!
//! The functions of this file apply the operations of that module to all tables over a range.
//! `hugetlb/sharing.rs` of `freehold` decides when tables are shared, and which calls must unshare them
//! first. `tests/hugetlb/shared.rs` of `freehold` tests this.

use crate::{UserRange, VirtAddr, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::{Level, VaRange};

/// Span of one shared table.
const SPAN: u64 = Level::Pmd.table_span();

/// Returns the start of every table span that overlaps `range`.
fn spans(range: UserRange) -> impl Iterator<Item = VirtAddr> {
    (range.start() - range.start() % SPAN..range.end()).step_by(SPAN as usize).map(VirtAddr::new)
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Unlinks the tables over `range` that other spaces also use, and flushes. The change covers the whole
    /// spans of these tables, which may be larger than `range`. See
    /// [`PageTable::unshare`](freehold_pagetable::PageTable::unshare).
    pub fn unshare_tables(&self, range: UserRange) {
        let whole = VaRange::of(range.start() - range.start() % SPAN, range.end().next_multiple_of(SPAN));
        let mut gather: VmGather<'_, P, 1> = self.gather(whole);
        spans(range).for_each(|at| {
            self.unshare(at, &mut gather);
        });
        gather.finish();
    }

    /// Returns true if another space also uses a table over `range`. The result stays valid while no task
    /// shares or unshares a table.
    pub fn has_shared_tables(&self, range: UserRange) -> bool {
        spans(range).any(|at| self.pmd_table(at).is_some_and(|table| table.is_shared()))
    }
}
