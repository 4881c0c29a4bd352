//! Where mappings go that have no fixed place: the highest gap that is large enough, or for addresses of 31
//! bits the lowest.

use super::{TASK_SIZE, locking::WriteGuard, map_flags::MapFlags, mmap::Request};
use crate::{PAGE_SIZE, error::MmapError, platform::Platform};
use core::ops::Range;
use freehold_range::Direction;
use freehold_vmspace::PageIndex;

/// What a 2 MiB page table entry spans: large anonymous mappings are aligned to it.
const HUGE: u64 = 2 << 20;

/// Where MAP_32BIT places.
const LOW: Range<u64> = 1 << 30..1 << 31;

/// How many stacks a search for room goes around one by one, as Linux does for as long as it takes. A program
/// may have as many stacks as VMAs, and others wait for the mmap lock meanwhile.
const DETOURS: usize = 64;

impl<P: Platform> WriteGuard<'_, P> {
    /// Where the mapping goes.
    pub(super) fn place(&self, request: &Request<P>) -> Result<u64, MmapError> {
        let &Request { addr, len, unit, flags, .. } = request;
        if len > TASK_SIZE {
            return Err(MmapError::NoSpace);
        }
        if flags.contains(MapFlags::FIXED) {
            if unit > PAGE_SIZE && !addr.is_multiple_of(unit) {
                return Err(MmapError::Invalid);
            }
            if addr > TASK_SIZE - len {
                return Err(MmapError::NoSpace);
            }
            if !addr.is_multiple_of(request.unit) {
                return Err(MmapError::Invalid);
            }
            return if self.space.may_map_at(addr) { Ok(addr) } else { Err(MmapError::NotPermitted) };
        }
        if flags.contains(MapFlags::BIT32)
            && (addr > LOW.end.saturating_sub(len) || !self.hint_is_free(addr, len))
        {
            return self.place_low(request);
        }
        if unit > PAGE_SIZE {
            return if addr != 0 && self.hint_is_free(addr, len) {
                Ok(addr)
            } else {
                self.find_aligned_gap(len, unit)
            };
        }
        match request.object.aligns(request.is_shared()) {
            true => self.place_file(addr, len, request.pgoff),
            false => self.place_free(addr, len, request.is_private()),
        }
    }

    /// Where `len` bytes of a file from page `pgoff` on go, if huge pages can map it: address and offset
    /// agree within those, as long as there is a whole one and room for another. Room for that is asked
    /// for at the hint, too, as Linux does.
    pub(super) fn place_file(&self, hint: u64, len: u64, pgoff: PageIndex) -> Result<u64, MmapError> {
        let offset = pgoff.byte();
        let first = offset.checked_next_multiple_of(HUGE);
        let whole = first.is_some_and(|first| offset.saturating_add(len) >= first.saturating_add(HUGE));
        let roomy = len + HUGE;
        if !whole || roomy > TASK_SIZE {
            return self.place_free(hint, len, false);
        }
        if hint != 0 && self.hint_is_free(hint, roomy) {
            return Ok(hint);
        }
        match self.find_aligned_gap(roomy, PAGE_SIZE) {
            Ok(at) => Ok(at + 1 + (offset.wrapping_sub(at + 1) & (HUGE - 1))),
            Err(_) => self.place_free(hint, len, false),
        }
    }

    /// Where there is room in the second GiB, from below.
    fn place_low(&self, request: &Request<P>) -> Result<u64, MmapError> {
        let &Request { addr, len, unit, .. } = request;
        let huge = addr == 0 && request.is_private() && len.is_multiple_of(HUGE);
        if huge && let Some(at) = self.lowest_gap(len + HUGE, unit, LOW) {
            return Ok((at + 1).next_multiple_of(HUGE));
        }
        self.lowest_gap(len, unit, LOW).ok_or(MmapError::NoSpace)
    }

    /// Where `len` bytes fit: at the hint, unless it is zero, or wherever there is room.
    /// Large private anonymous memory (`private`) goes where huge pages may start.
    pub(super) fn place_free(&self, hint: u64, len: u64, private: bool) -> Result<u64, MmapError> {
        if hint != 0 && self.hint_is_free(hint, len) {
            return Ok(hint);
        }
        let huge = hint == 0 && private && len.is_multiple_of(HUGE);
        self.find_gap(len, huge)
    }

    /// Whether nothing, stack gaps included, lies in the hinted range.
    pub(super) fn hint_is_free(&self, addr: u64, len: u64) -> bool {
        if addr > TASK_SIZE - len || addr < self.space.engine.config().mmap_min_addr {
            return false;
        }
        self.next_slot(addr).is_none_or(|slot| addr + len <= self.kept_from(&slot))
    }

    /// The highest gap below the mmap base, or else the lowest above a third of the address space. With
    /// `huge`, where a huge page may start, if there is room for one more than needed.
    pub(super) fn find_gap(&self, len: u64, huge: bool) -> Result<u64, MmapError> {
        let roomy = len + HUGE;
        if huge && let Ok(at) = self.find_aligned_gap(roomy, PAGE_SIZE) {
            return Ok((at + 1).next_multiple_of(HUGE));
        }
        self.find_aligned_gap(len, PAGE_SIZE)
    }

    /// The highest gap below the mmap base, or else the lowest above a third of the address space, for `len`
    /// bytes from a multiple of `align` on.
    fn find_aligned_gap(&self, len: u64, align: u64) -> Result<u64, MmapError> {
        let upper = TASK_SIZE / 3..TASK_SIZE;
        self.highest_gap(len, align).or_else(|| self.lowest_gap(len, align, upper)).ok_or(MmapError::NoSpace)
    }

    /// A gap is looked for as if stacks kept nothing free. If the one found lies below a stack that wants
    /// some of it, the search goes on below what it wants. So a stack right above something else takes
    /// nothing from what is below that.
    fn highest_gap(&self, len: u64, align: u64) -> Option<u64> {
        let low = self.space.engine.config().mmap_min_addr.max(PAGE_SIZE);
        let mut high = self.space.mmap_base;
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

    /// The same from below in `range`, beyond a stack that wants some of it.
    fn lowest_gap(&self, len: u64, align: u64, range: Range<u64>) -> Option<u64> {
        let least = self.space.engine.config().mmap_min_addr;
        let mut low = range.start.next_multiple_of(PAGE_SIZE).max(least);
        let wanted = len.checked_add(align - PAGE_SIZE)?;
        let lowest = |len, low| self.gap(len, low..range.end, Direction::BottomUp);
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
