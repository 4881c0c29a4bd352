//! Where mappings go that have no fixed place: the first gap that is large enough, from above or from below
//! ([`Layout`](super::Layout)).

use super::{AddressSpace, locking::WriteGuard, map_flags::MapFlags, placement_request::HUGE};
use crate::{
    PAGE_SIZE,
    error::MmapError,
    platform::Platform,
    space::{DEFAULT_MAP_WINDOW, LEGACY_BASE, placement_request::PlacementRequest, state::layout::Layout},
};
use core::ops::Range;
use freehold_vmspace::UserRange;

/// How many stacks a search for room goes around one by one, as Linux does for as long as it takes. A program
/// may have as many stacks as VMAs, and others wait for the mmap lock meanwhile.
const MAX_DETOURS: usize = 64;

/// Where MAP_32BIT places.
const LOW: Range<u64> = 1 << 30..1 << 31;

/// What MAP_ABOVE4G stays above, looking from the top.
const LOW_END: u64 = 1 << 32;

impl<P: Platform> AddressSpace<P> {
    /// The end of where a hint is followed, and of where room is looked for if it is not.
    #[inline]
    pub(super) fn window_end(request: &PlacementRequest) -> u64 {
        if request.flags().contains(MapFlags::BIT32) {
            LOW.end
        } else if request.hint() > DEFAULT_MAP_WINDOW {
            Self::TASK_SIZE
        } else {
            DEFAULT_MAP_WINDOW
        }
    }

    /// Where room is looked for from above, if at all.
    #[inline]
    pub(super) fn window_above(&self, request: &PlacementRequest) -> Option<Range<u64>> {
        if request.flags().contains(MapFlags::BIT32) || self.layout == Layout::BottomUp {
            return None;
        }
        // What is open above the default window lies on top of the base.
        let high = self.mmap_base + (Self::window_end(request) - DEFAULT_MAP_WINDOW);
        let low = if request.flags().contains(MapFlags::ABOVE_4G) { LOW_END } else { PAGE_SIZE };
        Some(low..high)
    }

    /// Where room is looked for from below, if there is none from above.
    #[cold]
    pub(super) fn window_below(&self, request: &PlacementRequest) -> Range<u64> {
        match self.layout {
            _ if request.flags().contains(MapFlags::BIT32) => LOW,
            Layout::BottomUp => self.mmap_base..Self::window_end(request),
            Layout::TopDown => LEGACY_BASE..Self::window_end(request),
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Where there is room: at the hint, or in the windows of the layout.
    #[inline(always)]
    pub(crate) fn find_placement(&self, request: &PlacementRequest) -> Result<u64, MmapError> {
        match self.find_aligned_or_any(request) {
            Some(at) => Ok(at),
            None => self.find_placement_without_boundaries(request).ok_or(MmapError::NoSpace),
        }
    }

    /// Takes out all [boundaries](super::cpu_arena), if the caller is the exclusive writer and there are any,
    /// and looks for room again.
    #[cold]
    fn find_placement_without_boundaries(&self, request: &PlacementRequest) -> Option<u64> {
        let may_be_there = self.range_writer().is_none() && self.space.closings.any();
        (may_be_there && self.remove_boundaries(AddressSpace::<P>::window_end(request)))
            .then(|| self.find_aligned_or_any(request))
            .flatten()
    }

    #[inline(always)]
    fn find_aligned_or_any(&self, request: &PlacementRequest) -> Option<u64> {
        let aligned = request.huge_offset.and_then(|offset| self.find_aligned_placement(request, offset));
        aligned.or_else(|| self.find_any_placement(request))
    }

    /// The same for room that need not agree with anything within huge pages.
    #[inline(always)]
    fn find_any_placement(&self, request: &PlacementRequest) -> Option<u64> {
        if request.hint != 0 && self.is_hint_free(request) {
            // A range writer that comes to a boundary is refused the claim.
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

    /// Room that agrees with `offset` within huge pages, or at the hint, where there is room for a huge page
    /// more than needed. Looking from the top, what agrees by itself is passed over, as on Linux.
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

    /// Returns true if nothing but boundaries lies in the hinted range, stack gaps included.
    fn is_hint_free(&self, request: &PlacementRequest) -> bool {
        let &PlacementRequest { hint, len, .. } = request;
        let end = AddressSpace::<P>::window_end(request);
        if len > end || hint > end - len || hint < self.space.engine.config().mmap_min_addr {
            return false;
        }
        self.next_occupied_past_boundaries(hint).is_none_or(|(_, kept)| hint + len <= kept)
    }

    /// A gap is looked for as if stacks kept nothing free. If the one found lies below a stack that wants
    /// some of it, the search goes on below what it wants. So a stack right above something else takes
    /// nothing from what is below that. What the alignment can cost is to be free of what the stack wants,
    /// too, as on Linux.
    #[inline(always)]
    pub(super) fn highest_placement(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let low = range.start.max(self.space.engine.config().mmap_min_addr);
        let mut high = range.end;
        // As much as the alignment can cost, as on Linux: gaps are not to be tried one by one.
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        for _ in 0..MAX_DETOURS {
            let (gap, kept) = self.highest_gap(wanted, low..high)?;
            if kept >= gap + wanted {
                return Some((gap + wanted - len) & !(align - 1));
            }
            high = kept;
        }
        // So many, and a gap that is larger than any stack can want of it will do, though a smaller one may
        // lie above it.
        let roomy = self.clear_of_stacks(wanted)?;
        let (gap, kept) = self.highest_gap(roomy, low..high)?;
        Some((kept.min(gap + roomy) - len) & !(align - 1))
    }

    /// The same from below, beyond a stack that wants some of it.
    #[inline(never)]
    fn lowest_placement(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let least = self.space.engine.config().mmap_min_addr;
        let (mut low, high) = (range.start.next_multiple_of(PAGE_SIZE).max(least), range.end);
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        let lowest = |len, low| self.lowest_gap(len, low..high);
        for _ in 0..MAX_DETOURS {
            let at = lowest(wanted, low)?.next_multiple_of(align);
            match self.next_occupied(at) {
                // What the alignment can cost is counted from the aligned address on, as on Linux.
                Some((taken, kept)) if kept < at.saturating_add(wanted) => low = taken.end(),
                _ => return Some(at),
            }
        }
        lowest(self.clear_of_stacks(wanted)?, low).map(|at| at.next_multiple_of(align))
    }

    /// How large a gap has to be that has room for `len` whatever is above it.
    fn clear_of_stacks(&self, len: u64) -> Option<u64> {
        len.checked_add(self.space.engine.config().stack_gap.checked_next_multiple_of(PAGE_SIZE)?)
    }
}
