//! Placement for range writers on different CPUs: an *arena* for each CPU, with a *boundary* at its upper
//! end.
//!
//! An arena has its own page tables, and ends in a boundary: a permanent reservation in the tree. A leaf of
//! the tree ends at the boundary. Every arena therefore has its own gap, in which no other CPU places
//! mappings, and its own leaves. Without boundaries all arenas with few mappings would share one gap, one
//! leaf and its latch.
//!
//! Programs can use the addresses of a boundary. A mapping at a fixed address removes the boundary first, as
//! the exclusive writer (`WriteGuard::clear_for_write`). If there is no other room for a mapping, all
//! boundaries are removed (`WriteGuard::remove_boundaries`). The next search that reaches the place of a
//! missing boundary inserts it again. If something is mapped there, the CPU tries again only after
//! [`REFUSED_PAUSE`] placements.
//!
//! `placement.rs` calls this file for range writers. The tests `cpu_arena` (`engine/freehold/tests`) fail if
//! a boundary takes addresses from a program, and
//! `changes::range_writers_in_empty_arenas_share_almost_no_cache_line` (`sim_engine`) fails if range writers
//! in different arenas write the same cache lines.

use super::{
    AddressSpace,
    locking::WriteGuard,
    map_flags::MapFlags,
    range_writer::RangeWriter,
    tree_entry::{TreeEntry, boundary_entry},
};
use crate::{
    features::RangeWriters,
    platform::Platform,
    space::{placement_request::PlacementRequest, state::layout::Placement},
};
use core::ops::Range;
use freehold_vmspace::UserRange;

/// Bytes of a CPU's arena. An arena shares no page table with another arena, except tables whose span is
/// larger than an arena.
const ARENA_BYTES: u64 = 1 << 36;

/// Minimum number of arenas. A smaller address space, for example of 39 bits, has none, because one arena
/// would be a large part of it.
const MIN_ARENAS: u64 = 8;

/// Bytes of a boundary: the range of one page table of the second level. No table of that level or below is
/// used by both the boundary and the mappings below it.
const BOUNDARY_BYTES: u64 = 1 << 30;

/// Number of placements on a CPU between two attempts to insert the boundary of its arena, if a program uses
/// the addresses of the boundary. A refused attempt takes a latch and makes a placement a quarter slower.
const REFUSED_PAUSE: u64 = 64;

impl<P: Platform> AddressSpace<P> {
    /// Returns the arena of this CPU within `above`. A range writer searches there first.
    #[inline]
    fn cpu_arena(&self, request: &PlacementRequest, above: &Range<u64>) -> Option<Range<u64>> {
        let anywhere = request.hint() == 0 && !request.flags().contains(MapFlags::BIT32);
        if self.placement == Placement::FirstFit || !anywhere {
            return None;
        }
        let arenas = (above.end - above.start) / ARENA_BYTES;
        if arenas < MIN_ARENAS {
            return None;
        }
        // The CPU is a hint: the task may migrate to another CPU.
        let nth = P::with_cpu(|cpu| cpu as u64 % arenas) + 1;
        let top = above.end - above.end % ARENA_BYTES;
        let low = top.checked_sub(nth * ARENA_BYTES).filter(|low| *low >= above.start)?;
        Some(low..low + ARENA_BYTES)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns a free address in the CPU's arena, if there is one. If the boundary is missing, a range writer
    /// without claims inserts it. Any other writer then gets `None`, and places the mapping outside the
    /// arena.
    #[inline(never)]
    pub(super) fn place_in_arena(&self, request: &PlacementRequest, above: &Range<u64>) -> Option<u64> {
        let arena = self.space.cpu_arena(request, above)?;
        let find = || self.highest_placement(request.len(), request.align(), arena.clone());
        let at = find()?;
        if at + request.len() <= arena.end - BOUNDARY_BYTES {
            return Some(at);
        }
        // The place that was found overlaps the addresses of the boundary, so the boundary is missing.
        match self.range_writer().is_some_and(RangeWriter::has_no_claim) {
            true if self.space.counters.tries_boundary() && self.insert_boundary(arena.end) => find(),
            true => Some(at),
            false => None,
        }
    }

    /// Returns the result of [`next_occupied`](Self::next_occupied), but skips boundaries.
    pub(super) fn next_occupied_past_boundaries(&self, mut addr: u64) -> Option<(UserRange, u64)> {
        loop {
            let (range, kept) = self.right.with_next_of_any_writer(addr, |found| {
                let found = found?;
                let is_boundary = matches!(self.slot(&found), TreeEntry::Boundary(_));
                let kept = (!is_boundary).then(|| self.guard_start(&found));
                Some((UserRange::new(found.start, found.end), kept))
            })?;
            match kept {
                Some(kept) => return Some((range, kept)),
                None => addr = range.end(),
            }
        }
    }

    /// Removes all boundaries below `end`, so that a mapping finds the same room as on Linux. Returns true if
    /// there was a boundary. Reads at most one entry of the tree per arena. Requires the exclusive writer.
    #[cold]
    pub(super) fn remove_boundaries(&self, end: u64) -> bool {
        if RangeWriters::get().is_none() {
            return false;
        }
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

    /// Inserts the boundary that ends at `end`, unless something is mapped there. Returns true if it was
    /// inserted.
    #[cold]
    fn insert_boundary(&self, end: u64) -> bool {
        let (map, boundary) = (self.claims(), UserRange::new(end - BOUNDARY_BYTES, end));
        if map.claim_hole(boundary.start(), boundary.end(), |above| self.guard_bytes(above)).is_err() {
            self.space.counters.pause_boundary(REFUSED_PAUSE);
            return false;
        }
        self.space.closings.begin_uncounted();
        map.replace(boundary.start(), boundary.end(), &[boundary_entry(boundary)]);
        map.publish(None);
        map.split_leaf_at(end);
        true
    }
}
