//! The choice of the address of a mapping without a fixed address.
//!
//! `mmap.rs` and `mremap.rs` get the address from [`Process::place`]. The rules are those of Linux: a fixed
//! address, then a hint if it is free, then the highest (or lowest) gap in the window of the layout; large
//! anonymous lengths are aligned for huge pages. All addresses outside the arena are mapped, so a search ends
//! in the arena. `tests/places.rs` compares the rules for other windows with the kernel in a layout that is
//! not randomised.

use super::*;
use crate::world::LEGACY_BASE;

/// A request for an address.
pub(super) struct Want {
    /// The hint, or the fixed address.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// True for MAP_FIXED.
    pub fixed: bool,
    /// True for private anonymous memory: large aligned lengths are placed where huge pages fit.
    pub anon: bool,
    /// `MAP_32BIT`.
    pub low: bool,
    /// `MAP_ABOVE4G`.
    pub high: bool,
}

const HUGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// A range to search for free addresses, and the direction of the search.
struct Window {
    /// The lowest address.
    low: u64,
    /// The highest address at which a mapping may end.
    high: u64,
    /// True if the lowest gap is chosen.
    upwards: bool,
}

impl Want {
    /// Returns the upper limit of hints and of the search.
    fn end(&self, w: &World) -> u64 {
        match self.low {
            true => 2 * GIB,
            false if self.addr > w.layout.window_end => w.task_size,
            false => w.layout.window_end,
        }
    }

    /// Returns the windows to search, in order.
    fn windows(&self, w: &World) -> Vec<Window> {
        let end = self.end(w);
        let up = |low| Window { low, high: end, upwards: true };
        if self.low {
            return vec![up(GIB)];
        }
        if w.layout.upwards {
            return vec![up(w.layout.base)];
        }
        let more = end - w.layout.window_end;
        let low = if self.high { 4 * GIB } else { 0 };
        vec![Window { low, high: w.layout.base + more, upwards: false }, up(LEGACY_BASE)]
    }
}

impl Process {
    /// Returns the address of a new mapping, or the errno.
    pub(super) fn place(&self, w: &World, want: &Want) -> Res {
        if want.len > w.task_size {
            return Err(libc::ENOMEM);
        }
        let addr = if want.fixed {
            // The kernel reads an address in the last page as an errno.
            if want.addr > u64::MAX - 4095 {
                return Err(want.addr.wrapping_neg() as i32);
            }
            want.addr
        } else if want.anon && want.addr == 0 && want.len.is_multiple_of(HUGE) {
            self.huge_gap(w, want).map_or_else(|| self.gap(w, want), Ok)?
        } else {
            self.gap(w, want)?
        };
        if addr > w.task_size - want.len {
            return Err(libc::ENOMEM);
        }
        if !aligned(addr) {
            return Err(libc::EINVAL);
        }
        if addr < w.min_addr {
            return Err(libc::EPERM);
        }
        Ok(addr)
    }

    /// Returns the hint if that range is free, otherwise the first gap that is long enough.
    fn gap(&self, w: &World, want: &Want) -> Res {
        let (hint, len, end) = (page_down(want.addr), want.len, want.end(w));
        if hint != 0 && len <= end && hint <= end - len {
            let free = self.find(hint).is_none_or(|i| hint + len <= self.vmas[i].start_gap(w.stack_gap));
            if free {
                return Ok(hint);
            }
        }
        let found = want.windows(w).into_iter().find_map(|window| match window.upwards {
            true => self.lowest(w, &window, len),
            false => self.highest(w, &window, len),
        });
        found.ok_or(libc::ENOMEM)
    }

    /// Searches downwards. A stack above a gap lowers the limit for the rest of the search, but only if the
    /// gap was long enough without the stack gap. A stack directly above another mapping keeps nothing free
    /// below that mapping.
    fn highest(&self, w: &World, window: &Window, len: u64) -> Option<u64> {
        let mut limit = window.high;
        for pair in self.vmas.windows(2).rev() {
            let (below, above) = (&pair[0], &pair[1]);
            let fits = |end: u64| end >= len && end - len >= below.end.max(window.low);
            if fits(above.start.min(limit)) {
                limit = limit.min(above.start_gap(w.stack_gap));
                let end = above.start.min(limit);
                if fits(end) {
                    return Some(end - len);
                }
            }
        }
        None
    }

    /// Searches upwards. Here a stack reduces only the gap below it.
    fn lowest(&self, w: &World, window: &Window, len: u64) -> Option<u64> {
        self.vmas.windows(2).find_map(|pair| {
            let (below, above) = (&pair[0], &pair[1]);
            let at = below.end.max(window.low);
            let fits = |end: u64| at + len <= end.min(window.high);
            (fits(above.start) && fits(above.start_gap(w.stack_gap))).then_some(at)
        })
    }

    /// Searches for a gap for the length plus a huge page, and aligns the address inside the gap.
    fn huge_gap(&self, w: &World, want: &Want) -> Option<u64> {
        let len = want.len.checked_add(HUGE).filter(|&l| l <= w.task_size)?;
        let at = self.gap(w, &Want { len, ..*want }).ok()?;
        let sub = at.wrapping_neg() & (HUGE - 1);
        Some(if sub == 0 && !w.layout.upwards { at + HUGE } else { at + sub })
    }
}
