//! Where a mapping goes when its address is not fixed.

use super::*;

/// What is asked of the address space.
pub(super) struct Want {
    pub addr: u64,
    pub len: u64,
    pub fixed: bool,
    /// Private anonymous memory: large aligned lengths are put where huge pages fit.
    pub anon: bool,
}

const HUGE: u64 = 2 << 20;

impl Process {
    /// The address of a new mapping, or the errno.
    pub(super) fn place(&self, w: &World, want: &Want) -> Res {
        if want.len > w.task_size {
            return Err(libc::ENOMEM);
        }
        let addr = if want.fixed {
            // The kernel takes an address in the last page for an error number.
            if want.addr > u64::MAX - 4095 {
                return Err(want.addr.wrapping_neg() as i32);
            }
            want.addr
        } else if want.anon && want.addr == 0 && want.len.is_multiple_of(HUGE) {
            self.huge_gap(w, want.len).map_or_else(|| self.gap(w, 0, want.len), Ok)?
        } else {
            self.gap(w, want.addr, want.len)?
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

    /// The hint if that range is free, else the highest gap that is long enough.
    fn gap(&self, w: &World, hint: u64, len: u64) -> Res {
        let hint = page_down(hint);
        if hint != 0 && w.task_size - len >= hint {
            let free = self.find(hint).is_none_or(|i| hint + len <= self.vmas[i].start_gap(w.stack_gap));
            if free {
                return Ok(hint);
            }
        }
        // A stack above a gap lowers the limit of the whole search, but only if the gap itself was long
        // enough: a stack right above another mapping keeps nothing free below that one.
        let mut limit = w.task_size;
        for pair in self.vmas.windows(2).rev() {
            let (below, above) = (&pair[0], &pair[1]);
            let fits = |end: u64| end >= len && end - len >= below.end;
            if fits(above.start.min(limit)) {
                limit = limit.min(above.start_gap(w.stack_gap));
                let end = above.start.min(limit);
                if fits(end) {
                    return Ok(end - len);
                }
            }
        }
        Err(libc::ENOMEM)
    }

    /// Asks for a huge page more than needed and aligns inside that.
    fn huge_gap(&self, w: &World, len: u64) -> Option<u64> {
        let at = self.gap(w, 0, len.checked_add(HUGE).filter(|&l| l <= w.task_size)?).ok()?;
        let sub = at.wrapping_neg() & (HUGE - 1);
        Some(if sub == 0 { at + HUGE } else { at + sub })
    }
}
