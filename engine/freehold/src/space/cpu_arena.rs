//! Placement for range writers on different CPUs: an *arena* for each CPU, with a *boundary* on top.
//!
//! An arena spans page tables of its own, and ends in its boundary: a reservation that stands. A leaf of the
//! tree ends with it. So every arena has a gap of its own, in which no other CPU places anything, and
//! leaves of its own. Without boundaries all arenas that hold little would share one gap, one leaf, and its
//! latch.
//!
//! A boundary takes nothing from programs: what is mapped at a place that the program names takes it out
//! first (`WriteGuard::clear_for_write`), as the exclusive writer. The next search that comes to its place
//! puts it up again, unless something lies there. So does a mapping for which there is no room otherwise
//! (`WriteGuard::remove_boundaries`).

use super::{
    AddressSpace,
    locking::WriteGuard,
    map_flags::MapFlags,
    range_writer::RangeWriter,
    tree_entry::{TreeEntry, boundary_entry},
};
use crate::{
    platform::Platform,
    space::{placement_request::PlacementRequest, state::layout::Placement},
};
use core::ops::Range;
use freehold_vmspace::UserRange;

/// Bytes of a CPU's arena. It has tables of its own below those that span as much.
const ARENA_BYTES: u64 = 1 << 36;

/// Bytes of its boundary: what a table of the second level spans, so that no table is both of the boundary's
/// and of mappings below it.
const BOUNDARY_BYTES: u64 = 1 << 30;

impl<P: Platform> AddressSpace<P> {
    /// Returns the arena of this CPU within `above`: a range writer looks for a place there first.
    #[inline]
    fn cpu_arena(&self, request: &PlacementRequest, above: &Range<u64>) -> Option<Range<u64>> {
        let anywhere = request.hint() == 0 && !request.flags().contains(MapFlags::BIT32);
        if self.placement == Placement::FirstFit || !anywhere {
            return None;
        }
        let arenas = (above.end - above.start) / ARENA_BYTES;
        // A hint: the task may go on elsewhere.
        let nth = P::with_cpu(|cpu| cpu as u64 % arenas.max(1)) + 1;
        let top = above.end - above.end % ARENA_BYTES;
        let low = top.checked_sub(nth * ARENA_BYTES).filter(|low| *low >= above.start)?;
        Some(low..low + ARENA_BYTES)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns an address in the CPU's arena, if it has one. A writer that has claimed nothing yet inserts a
    /// missing boundary; one that has claimed something places elsewhere.
    #[inline(never)]
    pub(super) fn place_in_arena(&self, request: &PlacementRequest, above: &Range<u64>) -> Option<u64> {
        let arena = self.space.cpu_arena(request, above)?;
        let find = || self.highest_placement(request.len(), request.align(), arena.clone());
        let at = find()?;
        if at + request.len() <= arena.end - BOUNDARY_BYTES {
            return Some(at);
        }
        // Room where the boundary is to be: there is none.
        match self.range_writer().is_some_and(RangeWriter::has_no_claim) {
            true if self.insert_boundary(arena.end) => find(),
            true => Some(at),
            false => None,
        }
    }

    /// Returns what [`next_occupied`](Self::next_occupied) does, passing over boundaries.
    pub(super) fn next_occupied_past_boundaries(&self, mut addr: u64) -> Option<(UserRange, u64)> {
        let rcu = P::rcu_read();
        loop {
            let found = self.right.next_of_any_writer(&rcu, addr)?;
            match self.slot(&found) {
                TreeEntry::Boundary(boundary) => addr = boundary.end(),
                _ => return Some((UserRange::new(found.start, found.end), self.guard_start(&found))),
            }
        }
    }

    /// Takes out all boundaries below `end`, so that a mapping finds the room that it finds on Linux. Returns
    /// whether there was one. Looks at one entry of the tree for each arena at most. For the exclusive
    /// writer.
    #[cold]
    pub(super) fn remove_boundaries(&self, end: u64) -> bool {
        let boundary_from =
            |addr: u64| (addr + BOUNDARY_BYTES).next_multiple_of(ARENA_BYTES) - BOUNDARY_BYTES;
        let (mut at, mut removed) = (boundary_from(0), false);
        while let Some(slot) = self.next_slot(at).filter(|_| at < end) {
            at = boundary_from(slot.range().end());
            if let TreeEntry::Boundary(boundary) = slot {
                self.replace(boundary, &[]);
                removed = true;
            }
        }
        removed
    }

    /// Puts up the boundary that ends at `end`, unless something lies there. Returns whether it is new.
    #[cold]
    fn insert_boundary(&self, end: u64) -> bool {
        let (map, boundary) = (self.claims(), UserRange::new(end - BOUNDARY_BYTES, end));
        if map.claim_hole(boundary.start(), boundary.end(), |above| self.guard_bytes(above)).is_err() {
            return false;
        }
        self.space.closings.begin_uncounted();
        map.replace(boundary.start(), boundary.end(), &[boundary_entry(boundary)]);
        map.publish(None);
        map.split_leaf_at(end);
        true
    }
}
