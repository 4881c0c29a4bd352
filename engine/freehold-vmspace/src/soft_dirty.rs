//! Clearing soft-dirty bits, for writes of 4 to /proc/PID/clear_refs.
//!
//! An entry that lacks `PteFlags::SOFT_DIRTY` also lacks the right to write, unless the whole VMA counts as
//! soft-dirty. So the next store faults, and the fault sets the bit together with the right to write. Code
//! that grants this right without a fault, such as `protect.rs`, checks the bit.
//!
//! `report/clear_refs.rs` of `freehold` calls this file under the write lock of each VMA.
//! `tests/reports/soft_dirty.rs` of `freehold` tests it.

use crate::{MigrationEntry, SwapMark, UserRange, VmGather, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Clears the soft-dirty bit and the right to write of every entry of `range`. When this returns, a store
    /// through a cleared entry faults on every processor.
    ///
    /// Pinned anonymous pages keep both, because devices store to them without a fault. On Linux, they also
    /// stay soft-dirty.
    pub fn clear_soft_dirty(&self, range: UserRange) {
        let mut gather: VmGather<'_, P, 1> = self.gather(range.va());
        let walked = self.walk(range.va(), &mut Clearing { platform: self.platform(), gather: &mut gather });
        debug_assert!(walked.is_ok(), "clearing bits in place ran out of memory");
        // Also flushes entries that other tasks have changed but not flushed yet, because no processor may
        // store through an old translation after this function has returned.
        gather.finish();
    }
}

/// Returns the entry without the soft-dirty bit and without the right to write.
fn cleared<P: Platform>(platform: &P, pte: Pte<P::Format>, level: Level) -> Pte<P::Format> {
    match pte.kind(level) {
        Kind::Leaf { pfn, flags } => {
            let counted = if flags.contains(PteFlags::SPECIAL) { 0 } else { level.frames() };
            match (0..counted).any(|n| platform.frame(pfn.add(n)).must_copy_on_fork()) {
                true => pte,
                false => pte.without(PteFlags::WRITE | PteFlags::SOFT_DIRTY),
            }
        }
        Kind::Marker { kind: MarkerKind::Migration, payload } => {
            MigrationEntry { write: false, soft_dirty: false, ..MigrationEntry::of(payload) }.entry()
        }
        Kind::Marker { kind: MarkerKind::Swap, payload } => {
            SwapMark { soft_dirty: false, ..SwapMark::of(payload) }.entry()
        }
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => pte,
    }
}

/// Returns true if the entry has the soft-dirty bit, also if its page is being moved.
pub(crate) fn is_soft_dirty<F: Format>(pte: Pte<F>, level: Level) -> bool {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => flags.contains(PteFlags::SOFT_DIRTY),
        Kind::Marker { kind: MarkerKind::Migration, payload } => MigrationEntry::of(payload).soft_dirty,
        Kind::Marker { kind: MarkerKind::Swap, payload } => SwapMark::of(payload).soft_dirty,
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => false,
    }
}

/// A visitor that clears the bits.
struct Clearing<'p, 'g, P: Platform> {
    platform: &'p P,
    gather: &'p mut VmGather<'g, P, 1>,
}

impl<P: Platform> Visitor<P::Format, P> for Clearing<'_, '_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let platform = self.platform;
        table.change_each(range, self.gather, |_, pte| cleared(platform, pte, Level::Pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        let (platform, level) = (self.platform, leaf.level());
        leaf.change(self.gather, |pte| cleared(platform, pte, level));
        ControlFlow::Continue(())
    }
}
