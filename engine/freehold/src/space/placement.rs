//! Placement of mappings without a fixed address: the first gap that is large enough, from above or from
//! below ([`Layout`]).
//!
//! mmap, mremap and special mappings (`call/`) describe what they need in a `PlacementRequest` and call
//! `find_placement`. The search only reads the tree and reserves nothing. The exclusive writer can use the
//! result at once. A range writer must claim the place, and searches again if another task was faster
//! (`claim.rs`). For range writers the search begins in an arena of their CPU (`cpu_arena.rs`).
//!
//! `highest_gap` and `next_occupied` (`locking.rs`) also return the lowest address that the next entry above
//! keeps free: the start of the stack's gap if the entry is a stack, and the start of the entry otherwise.
//! This file names that address `kept`. A flag of mmap that restricts the addresses belongs in `window_end`,
//! `window_above` and `window_below`.
//!
//! For the exclusive writer the result must be Linux's, including the gaps below stacks (hazard C-67) and the
//! bytes that alignment costs. The tests `mmap::layouts`, `mmap::places` and `mmap::five_levels`
//! (`engine/freehold/tests`) compare the results with Linux's addresses. The search must also be bounded,
//! because tasks wait for the mmap lock: `every_call::hostile::gap_search_skips_a_bounded_number_of_stacks`.

use super::{AddressSpace, locking::WriteGuard, map_flags::MapFlags, placement_request::HUGE};
use crate::{
    PAGE_SIZE,
    error::MmapError,
    platform::Platform,
    space::{placement_request::PlacementRequest, state::layout::Layout},
};
use core::ops::Range;
use freehold_vmspace::UserRange;

/// Maximum number of stack gaps that a search skips one by one. Linux has no such bound. A program may have
/// as many stacks as VMAs, and other tasks wait for the mmap lock during the search.
const MAX_DETOURS: usize = 64;

/// The addresses that MAP_32BIT allows: the second GiB.
const LOW: Range<u64> = 1 << 30..1 << 31;

/// The lowest address of a top-down search with MAP_ABOVE4G.
const LOW_END: u64 = 1 << 32;

impl<P: Platform> AddressSpace<P> {
    /// Returns the end of the addresses in which the request may be placed, at its hint or elsewhere.
    #[inline]
    pub(super) fn window_end(request: &PlacementRequest) -> u64 {
        if request.flags().contains(MapFlags::BIT32) {
            LOW.end
        } else if request.hint() > Self::MAP_WINDOW_END {
            Self::TASK_SIZE
        } else {
            Self::MAP_WINDOW_END
        }
    }

    /// Returns the range of the top-down search, or `None` if there is none.
    #[inline]
    pub(super) fn window_above(&self, request: &PlacementRequest) -> Option<Range<u64>> {
        if request.flags().contains(MapFlags::BIT32) || self.layout == Layout::BottomUp {
            return None;
        }
        // If the request may use addresses above the default window, the range grows by the size of the
        // addresses above that window.
        let high = self.mmap_base + (Self::window_end(request) - Self::MAP_WINDOW_END);
        let low = if request.flags().contains(MapFlags::ABOVE_4G) { LOW_END } else { PAGE_SIZE };
        Some(low..high)
    }

    /// Returns the range of the bottom-up search, which is used if the top-down search finds no place.
    #[cold]
    pub(super) fn window_below(&self, request: &PlacementRequest) -> Range<u64> {
        match self.layout {
            _ if request.flags().contains(MapFlags::BIT32) => LOW,
            Layout::BottomUp => self.mmap_base..Self::window_end(request),
            Layout::TopDown => Self::LEGACY_BASE..Self::window_end(request),
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns a free place: at the hint, or in the windows of the layout.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn find_placement(&self, request: &PlacementRequest) -> Result<u64, MmapError> {
        match self.find_aligned_or_any(request) {
            Some(at) => Ok(at),
            None => self.find_placement_without_boundaries(request).ok_or(MmapError::NoSpace),
        }
    }

    /// Removes all [boundaries](super::cpu_arena) and searches again. Returns `None` if there are no
    /// boundaries, or the caller is a range writer.
    #[cold]
    fn find_placement_without_boundaries(&self, request: &PlacementRequest) -> Option<u64> {
        let may_be_there = self.range_writer().is_none() && self.space.closings.any();
        (may_be_there && self.remove_boundaries(AddressSpace::<P>::window_end(request)))
            .then(|| self.find_aligned_or_any(request))
            .flatten()
    }

    /// Returns a free place with the offset within huge pages that the request prefers, or else any free
    /// place.
    #[cfg_attr(feature = "inline", inline(always))]
    fn find_aligned_or_any(&self, request: &PlacementRequest) -> Option<u64> {
        let aligned = request.huge_offset.and_then(|offset| self.find_aligned_placement(request, offset));
        aligned.or_else(|| self.find_any_placement(request))
    }

    /// Returns a free place, without regard to the offset within huge pages.
    #[cfg_attr(feature = "inline", inline(always))]
    fn find_any_placement(&self, request: &PlacementRequest) -> Option<u64> {
        if request.hint != 0 && self.is_hint_free(request) {
            // The exclusive writer removes boundaries from the place. For a range writer this call does
            // nothing, and its claim fails if there is a boundary.
            self.clear_for_write(UserRange::at(request.hint, request.len));
            return Some(request.hint);
        }
        let above = self.space.window_above(request);
        if self.range_writer().is_some()
            && let Some(at) = above.as_ref().and_then(|above| self.place_in_arena(request, above))
        {
            return Some(at);
        }
        let highest = above.and_then(|above| self.highest_placement(request.len, request.align, above));
        let below = || self.lowest_placement(request.len, request.align, self.space.window_below(request));
        highest.or_else(below)
    }

    /// Returns a free place whose offset within a huge page is `offset`, or the hint. Searches for a place
    /// that is one huge page longer than requested, so that the address can be moved up. If a top-down search
    /// finds a place that already has the right offset, the address is moved up by a whole huge page, as on
    /// Linux.
    #[inline(never)]
    fn find_aligned_placement(&self, request: &PlacementRequest, offset: u64) -> Option<u64> {
        let at = self.find_any_placement(&PlacementRequest { len: request.len + HUGE, ..*request })?;
        if at == request.hint {
            return Some(at);
        }
        Some(match offset.wrapping_sub(at) & (HUGE - 1) {
            0 if self.space.layout == Layout::TopDown => at + HUGE,
            less => at + less,
        })
    }

    /// Returns true if the request may be placed at its hint: the range is allowed, contains nothing
    /// except boundaries, and does not overlap a stack's gap.
    fn is_hint_free(&self, request: &PlacementRequest) -> bool {
        self.allows_hint(request)
            && self
                .next_occupied_past_boundaries(request.hint)
                .is_none_or(|(_, kept)| request.hint + request.len <= kept)
    }

    /// Returns true if the request has a hint and may be placed there if the range is free.
    #[inline]
    pub(crate) fn allows_hint(&self, request: &PlacementRequest) -> bool {
        let &PlacementRequest { hint, len, .. } = request;
        if hint == 0 {
            return false;
        }
        let end = AddressSpace::<P>::window_end(request);
        len <= end && hint <= end - len && hint >= self.space.engine.config().mmap_min_addr
    }

    /// Returns the highest free place in `range` that respects the gaps of stacks.
    ///
    /// The search first ignores the gaps of stacks. If the place that it finds overlaps the gap of the stack
    /// above the place, the search continues below the stack's gap. If another mapping lies directly below a
    /// stack, the gap of the stack therefore keeps no address below that mapping free. The bytes added for
    /// alignment must also be outside the stack's gap, as on Linux.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn highest_placement(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let low = range.start.max(self.space.engine.config().mmap_min_addr);
        let mut high = range.end;
        // The length includes the bytes that alignment can cost, as on Linux, so that the search need not try
        // gaps one by one.
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        for _ in 0..MAX_DETOURS {
            let (gap, kept) = self.highest_gap(wanted, low..high)?;
            if kept >= gap + wanted {
                return Some((gap + wanted - len) & !(align - 1));
            }
            high = kept;
        }
        // Searches for a gap that also has room for the largest stack gap. Such a gap suffices for every kind
        // of VMA above it. The search may miss a smaller suitable gap at a higher address.
        let roomy = self.clear_of_stacks(wanted)?;
        let (gap, kept) = self.highest_gap(roomy, low..high)?;
        Some((kept.min(gap + roomy) - len) & !(align - 1))
    }

    /// Returns the lowest free place in `range` that respects the gaps of stacks. If a stack keeps a part of
    /// a place free, the search continues above that stack.
    #[inline(never)]
    fn lowest_placement(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let least = self.space.engine.config().mmap_min_addr;
        let (mut low, high) = (range.start.next_multiple_of(PAGE_SIZE).max(least), range.end);
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        let lowest = |len, low| self.lowest_gap(len, low..high);
        for _ in 0..MAX_DETOURS {
            let at = lowest(wanted, low)?.next_multiple_of(align);
            match self.next_occupied(at) {
                // As on Linux, the room for alignment is required again above the aligned address, although
                // no further alignment is needed.
                Some((taken, kept)) if kept < at.saturating_add(wanted) => low = taken.end(),
                _ => return Some(at),
            }
        }
        lowest(self.clear_of_stacks(wanted)?, low).map(|at| at.next_multiple_of(align))
    }

    /// Returns the length of a gap that has room for `len` bytes and for the largest gap of a stack above
    /// them.
    fn clear_of_stacks(&self, len: u64) -> Option<u64> {
        len.checked_add(self.space.engine.config().stack_gap.checked_next_multiple_of(PAGE_SIZE)?)
    }
}
