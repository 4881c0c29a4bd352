//! mlock, munlock, mlockall and munlockall.
//!
//! Locking sets the flags LOCKED and LOCKONFAULT of VMAs, counts pages in `locked_vm`, and faults pages in
//! (`fault.rs`). `merge.rs` splits and merges the VMAs. As on Linux, a failure may leave a part of the range
//! locked, and the failures of mlockall are ignored. munlock clears the flags and drops no page.
//! `cases/mlock.txt` has the rules that are easy to miss.

use super::*;

const MCL_CURRENT: u64 = 1;
const MCL_FUTURE: u64 = 2;
const MCL_ONFAULT: u64 = 4;

impl Model {
    /// mlock2: like mlock. With flag 1, pages are locked only when they are faulted in.
    pub(super) fn mlock2(&mut self, p: usize, addr: u64, len: u64, flags: u64) -> Res {
        let flags = u64::from(flags as u32); // The parameter is an int.
        if flags & !1 != 0 {
            return Err(libc::EINVAL);
        }
        self.mlock(p, addr, len, if flags == 1 { vmflag::LOCK_MASK } else { vmflag::LOCKED })
    }

    /// mlock: sets the lock flags `flags` in a range and faults the pages in.
    pub(super) fn mlock(&mut self, p: usize, addr: u64, len: u64, flags: u32) -> Res {
        let may = self.world.may_lock;
        let limit = self.proc(p).limits.lock;
        if !may && limit == 0 {
            return Err(libc::EPERM);
        }
        let (start, len) = whole_pages(addr, len);
        if !may {
            let pr = self.proc(p);
            let mut sum = (len / PAGE).wrapping_add(pr.count.locked_vm as u64);
            if sum > limit {
                sum = sum.wrapping_sub(pr.locked_in(start, len));
            }
            if sum > limit {
                return Err(libc::ENOMEM);
            }
        }
        self.set_lock(p, start, len, flags)?;
        self.populate(p, start, start + len, false).map_err(|e| match e {
            libc::EFAULT => libc::ENOMEM,
            libc::ENOMEM => libc::EAGAIN,
            e => e,
        })?;
        Ok(0)
    }

    /// munlock: clears the lock flags of a range.
    pub(super) fn munlock(&mut self, p: usize, addr: u64, len: u64) -> Res {
        let (start, len) = whole_pages(addr, len);
        self.set_lock(p, start, len, 0)?;
        Ok(0)
    }

    /// Sets the lock flags of a range, VMA by VMA. Stops at a hole.
    fn set_lock(&mut self, p: usize, start: u64, len: u64, lock: u32) -> Res<()> {
        let max = self.world.max_map_count;
        let end = start.wrapping_add(len);
        if end < start {
            return Err(libc::EINVAL);
        }
        let mut pos = start;
        while pos < end {
            let pr = self.proc(p);
            let i = pr.at(pos).ok_or(libc::ENOMEM)?;
            let stop = pr.vmas[i].end.min(end);
            pr.lock_part(i, pos, stop, lock, max)?;
            pos = stop;
        }
        Ok(())
    }

    /// mlockall: the current memory, future mappings, or both.
    pub(super) fn mlockall(&mut self, p: usize, flags: u64) -> Res {
        let flags = u64::from(flags as u32); // The parameter is an int.
        if flags == 0 || flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0 || flags == MCL_ONFAULT {
            return Err(libc::EINVAL);
        }
        let may = self.world.may_lock;
        let pr = self.proc(p);
        if !may && pr.limits.lock == 0 {
            return Err(libc::EPERM);
        }
        if flags & MCL_CURRENT != 0 && !may && pr.count.total_vm as u64 > pr.limits.lock {
            return Err(libc::ENOMEM);
        }
        self.set_lock_all(p, flags)?;
        if flags & MCL_CURRENT != 0 {
            let (start, end) = (self.world.start, self.world.end);
            let _ = self.populate(p, start, end, true);
        }
        Ok(0)
    }

    /// Does the work of mlockall, and of munlockall if `flags` is 0. Memory outside the arena also counts as
    /// locked.
    pub(super) fn set_lock_all(&mut self, p: usize, flags: u64) -> Res {
        let (max, lockable) = (self.world.max_map_count, self.world.outside_lockable);
        let mut lock = if flags == 0 { 0 } else { vmflag::LOCKED };
        if flags & MCL_ONFAULT != 0 {
            lock |= vmflag::LOCKONFAULT;
        }
        let pr = self.proc(p);
        pr.def_flags = pr.def_flags & vmflag::MERGEABLE | if flags & MCL_FUTURE != 0 { lock } else { 0 };
        if flags & MCL_FUTURE != 0 && flags & MCL_CURRENT == 0 {
            return Ok(0);
        }
        let mut pos = 0;
        while let Some(i) = pr.find(pos) {
            let v = pr.vmas[i].clone();
            pos = v.end;
            if v.back == Backing::Outside {
                // The first of the two VMAs outside the arena represents all memory there.
                if i == 0 && v.has(vmflag::LOCKED) != (lock != 0) {
                    pr.count.locked_vm += if lock != 0 { lockable } else { -lockable };
                }
                pr.vmas[i].flags = v.flags & !vmflag::LOCK_MASK | lock;
            } else {
                let _ = pr.lock_part(i, v.start, v.end, lock, max);
            }
        }
        Ok(0)
    }
}

impl Process {
    /// Sets the lock bits of a part of VMA `i`.
    fn lock_part(&mut self, i: usize, start: u64, end: u64, lock: u32, max: u64) -> Res<()> {
        let old = self.vmas[i].flags;
        let flags = old & !vmflag::LOCK_MASK | lock;
        if flags == old || old & vmflag::DROPPABLE != 0 {
            return Ok(());
        }
        self.modify(i, start, end, flags, max)?;
        let pages = ((end - start) / PAGE) as i64;
        if lock == 0 {
            self.count.locked_vm -= pages;
        } else if old & vmflag::LOCKED == 0 {
            self.count.locked_vm += pages;
        }
        Ok(())
    }

    /// Number of pages of the range that are already locked.
    fn locked_in(&self, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len);
        let locked = self.vmas.iter().filter(|v| v.has(vmflag::LOCKED) && v.end > start && v.start < end);
        locked.map(|v| (v.end.min(end) - v.start.max(start)) / PAGE).sum()
    }
}

/// Returns start and length of the pages that a range touches.
fn whole_pages(addr: u64, len: u64) -> (u64, u64) {
    (page_down(addr), page_up(len.wrapping_add(addr % PAGE)))
}
