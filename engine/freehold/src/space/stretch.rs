//! Where tasks of different CPUs map beside each other: a *stretch* for each, with a *fence* on top.
//!
//! A stretch spans page tables of its own, and ends in its fence: a reservation that stands. A leaf of the
//! tree ends with it. So every stretch has a gap of its own, in which no other CPU places anything, and
//! leaves of its own. Without fences all stretches that hold little would share one gap, one leaf, and its
//! latch.
//!
//! A fence takes nothing from programs: what is mapped at a place that the program names takes it out first
//! (`WriteGuard::clear_for_write`), as the exclusive writer. The next search that comes to its place puts it
//! up again, unless something lies there. So does a mapping for which there is no room otherwise
//! (`WriteGuard::remove_fences`).

use super::{
    AddressSpace,
    locking::WriteGuard,
    map_flags::MapFlags,
    range_writer::RangeWriter,
    tree_entry::{TreeEntry, fence_entry},
};
use crate::{
    platform::Platform,
    space::{placement_request::PlacementRequest, state::layout::Placement},
};
use core::ops::Range;
use freehold_vmspace::UserRange;

/// Bytes of a CPU's stretch. It has tables of its own below those that span as much.
const STRETCH: u64 = 1 << 36;

/// Bytes of its fence: what a table of the second level spans, so that no table is both of the fence's and of
/// mappings below it.
const FENCE: u64 = 1 << 30;

impl<P: Platform> AddressSpace<P> {
    /// Where a range writer that runs on this CPU looks for room first, of what lies within `above`.
    #[inline]
    fn own_stretch(&self, room: &PlacementRequest, above: &Range<u64>) -> Option<Range<u64>> {
        let anywhere = room.hint() == 0 && !room.flags().contains(MapFlags::BIT32);
        if self.placement == Placement::FirstFit || !anywhere {
            return None;
        }
        let stretches = (above.end - above.start) / STRETCH;
        // A hint: the task may go on elsewhere.
        let nth = P::with_cpu(|cpu| cpu as u64 % stretches.max(1)) + 1;
        let top = above.end - above.end % STRETCH;
        let low = top.checked_sub(nth * STRETCH).filter(|low| *low >= above.start)?;
        Some(low..low + STRETCH)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Room in the CPU's own stretch, where it has one. The fence is put up by a writer that has claimed
    /// nothing yet; one that has, and finds none, goes elsewhere.
    #[inline(never)]
    pub(super) fn place_in_stretch(&self, room: &PlacementRequest, above: &Range<u64>) -> Option<u64> {
        let stretch = self.space.own_stretch(room, above)?;
        let find = || self.highest_placement(room.len(), room.align(), stretch.clone());
        let at = find()?;
        if at + room.len() <= stretch.end - FENCE {
            return Some(at);
        }
        // Room where the fence is to be: there is none.
        match self.range_writer().is_some_and(RangeWriter::has_no_claim) {
            true if self.put_fence(stretch.end) => find(),
            true => Some(at),
            false => None,
        }
    }

    /// As [`next_occupied`](Self::next_occupied), of what is no fence.
    pub(super) fn next_beyond_fences(&self, mut addr: u64) -> Option<(UserRange, u64)> {
        let rcu = P::rcu_read();
        loop {
            let found = self.right.next_in_map(&rcu, addr)?;
            match self.slot(&found) {
                TreeEntry::Fence(fence) => addr = fence.end(),
                _ => return Some((UserRange::new(found.start, found.end), self.guard_start(&found))),
            }
        }
    }

    /// Takes out all fences below `end`, so that a mapping finds the room that it finds on Linux. Returns
    /// whether there was one. Looks at one entry of the tree for each stretch at most. For the exclusive
    /// writer.
    #[cold]
    pub(super) fn remove_fences(&self, end: u64) -> bool {
        let fence_from = |addr: u64| (addr + FENCE).next_multiple_of(STRETCH) - FENCE;
        let (mut at, mut removed) = (fence_from(0), false);
        while let Some(slot) = self.next_slot(at).filter(|_| at < end) {
            at = fence_from(slot.range().end());
            if let TreeEntry::Fence(fence) = slot {
                self.replace(fence, &[]);
                removed = true;
            }
        }
        removed
    }

    /// Puts up the fence that ends at `end`, unless something lies there. Returns whether it is new.
    #[cold]
    fn put_fence(&self, end: u64) -> bool {
        let (map, fence) = (self.claims(), UserRange::new(end - FENCE, end));
        if map.claim_hole(fence.start(), fence.end(), |above| self.guard_bytes(above)).is_err() {
            return false;
        }
        self.space.closings.begin_uncounted();
        map.replace(fence.start(), fence.end(), &[fence_entry(fence)]);
        map.publish(None);
        map.split_leaf_at(end);
        true
    }
}
