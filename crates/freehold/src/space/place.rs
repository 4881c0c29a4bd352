//! Where mappings go that have no fixed place: the first gap that is large enough, from above or from below
//! ([`Layout`](super::Layout)).

use super::{
    AddressSpace,
    layout::{Layout, Window},
    locking::WriteGuard,
    map_flags::MapFlags,
    mmap::Request,
};
use crate::{PAGE_SIZE, error::MmapError, platform::Platform};
use core::ops::Range;
use freehold_range::Direction;
use freehold_vmspace::PageIndex;

/// What a 2 MiB page table entry spans: large anonymous mappings are aligned to it.
const HUGE: u64 = 2 << 20;

/// How many stacks a search for room goes around one by one, as Linux does for as long as it takes. A program
/// may have as many stacks as VMAs, and others wait for the mmap lock meanwhile.
const DETOURS: usize = 64;

/// Room that is looked for.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Where the caller would have it, in whole pages; zero anywhere.
    pub(super) hint: u64,
    /// Whole pages.
    pub(super) len: u64,
    /// What the address is a multiple of, unless it is the hint.
    pub(super) align: u64,
    /// Of these, those that say where to look.
    pub(super) flags: MapFlags,
}

impl Room {
    /// Pages, at the hint or anywhere.
    pub(super) fn pages(hint: u64, len: u64) -> Self {
        Room { hint, len, align: PAGE_SIZE, flags: MapFlags::empty() }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Where the mapping goes.
    pub(super) fn place(&self, request: &Request<P>) -> Result<u64, MmapError> {
        let &Request { addr, len, unit, flags, .. } = request;
        if len > AddressSpace::<P>::TASK_SIZE {
            return Err(MmapError::NoSpace);
        }
        if flags.contains(MapFlags::FIXED) {
            if unit > PAGE_SIZE && !addr.is_multiple_of(unit) {
                return Err(MmapError::Invalid);
            }
            if addr > AddressSpace::<P>::TASK_SIZE - len {
                return Err(MmapError::NoSpace);
            }
            if !addr.is_multiple_of(request.unit) {
                return Err(MmapError::Invalid);
            }
            return if self.space.may_map_at(addr) { Ok(addr) } else { Err(MmapError::NotPermitted) };
        }
        let room = Room { hint: addr, len, align: unit, flags };
        if unit > PAGE_SIZE {
            self.find_room(&room)
        } else if request.object.aligns(request.is_shared()) {
            self.place_file(&room, request.pgoff)
        } else {
            self.place_memory(&room, request.is_private())
        }
    }

    /// Where a file goes of which `room` maps what begins at page `pgoff`, if huge pages can map it: address
    /// and offset agree within those, as long as there is a whole one and room for another. Room for that
    /// is asked for at the hint, too, as Linux does.
    pub(super) fn place_file(&self, room: &Room, pgoff: PageIndex) -> Result<u64, MmapError> {
        let offset = pgoff.byte();
        let first = offset.checked_next_multiple_of(HUGE);
        let whole = first.is_some_and(|first| offset.saturating_add(room.len) >= first.saturating_add(HUGE));
        match whole {
            true => self.place_like(room, offset).or_else(|_| self.find_room(room)),
            false => self.find_room(room),
        }
    }

    /// Where memory goes. Large private anonymous memory (`private`) without a hint goes where huge pages may
    /// start.
    pub(super) fn place_memory(&self, room: &Room, private: bool) -> Result<u64, MmapError> {
        match private && room.hint == 0 && room.len.is_multiple_of(HUGE) {
            true => self.place_like(room, 0).or_else(|_| self.find_room(room)),
            false => self.find_room(room),
        }
    }

    /// A place that agrees with `offset` within huge pages, or that of the hint, where there is room for a
    /// huge page more than needed. Looking from the top, one that agrees by itself is passed over, as on
    /// Linux.
    fn place_like(&self, room: &Room, offset: u64) -> Result<u64, MmapError> {
        let at = self.find_room(&Room { len: room.len + HUGE, ..*room })?;
        if at == room.hint {
            return Ok(at);
        }
        Ok(match offset.wrapping_sub(at) & (HUGE - 1) {
            0 if self.space.layout == Layout::TopDown => at + HUGE,
            less => at + less,
        })
    }

    /// Where there is room: at the hint, or in the windows of the layout.
    pub(super) fn find_room(&self, room: &Room) -> Result<u64, MmapError> {
        if room.hint != 0 && self.hint_is_free(room) {
            return Ok(room.hint);
        }
        let gap = |window: &Window| self.gap_in(window, room.len, room.align);
        let (first, second) = self.space.windows(room);
        gap(&first).or_else(|| gap(second.as_ref()?)).ok_or(MmapError::NoSpace)
    }

    /// Whether nothing, stack gaps included, lies in the hinted range.
    fn hint_is_free(&self, room: &Room) -> bool {
        let &Room { hint, len, .. } = room;
        let end = AddressSpace::<P>::window_end(room);
        if len > end || hint > end - len || hint < self.space.engine.config().mmap_min_addr {
            return false;
        }
        self.next_slot(hint).is_none_or(|slot| hint + len <= self.kept_from(&slot))
    }

    /// The first gap in a window for `len` bytes from a multiple of `align` on.
    fn gap_in(&self, window: &Window, len: u64, align: u64) -> Option<u64> {
        let low = window.range.start.max(self.space.engine.config().mmap_min_addr);
        let range = low.checked_next_multiple_of(PAGE_SIZE)?..window.range.end;
        match window.from {
            Direction::TopDown => self.highest_gap(len, align, range),
            Direction::BottomUp => self.lowest_gap(len, align, range),
        }
    }

    /// A gap is looked for as if stacks kept nothing free. If the one found lies below a stack that wants
    /// some of it, the search goes on below what it wants. So a stack right above something else takes
    /// nothing from what is below that.
    fn highest_gap(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let Range { start: low, end: mut high } = range;
        // As much as the alignment can cost, as on Linux: gaps are not to be tried one by one.
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        let highest = |len, high| self.gap(len, low..high, Direction::TopDown);
        for _ in 0..DETOURS {
            let room = highest(wanted, high)?;
            let at = (room + wanted - len) & !(align - 1);
            match self.next_slot(at).map(|slot| self.kept_from(&slot)) {
                Some(kept) if kept < at + len => high = kept,
                _ => return Some(at),
            }
        }
        // So many, and a gap that is larger than any stack can want of it will do, though a smaller one may
        // lie above it.
        let roomy = self.beside_stacks(wanted)?;
        let room = highest(roomy, high)?;
        let kept = self.next_slot(room).map_or(u64::MAX, |slot| self.kept_from(&slot));
        Some((kept.min(room + roomy) - len) & !(align - 1))
    }

    /// The same from below, beyond a stack that wants some of it.
    fn lowest_gap(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let Range { start: mut low, end: high } = range;
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        let lowest = |len, low| self.gap(len, low..high, Direction::BottomUp);
        for _ in 0..DETOURS {
            let at = lowest(wanted, low)?.next_multiple_of(align);
            match self.next_slot(at) {
                Some(slot) if self.kept_from(&slot) < at + len => low = slot.range().end,
                _ => return Some(at),
            }
        }
        lowest(self.beside_stacks(wanted)?, low).map(|at| at.next_multiple_of(align))
    }

    /// How large a gap has to be that has room for `len` whatever is above it.
    fn beside_stacks(&self, len: u64) -> Option<u64> {
        len.checked_add(self.space.engine.config().stack_gap.checked_next_multiple_of(PAGE_SIZE)?)
    }
}
