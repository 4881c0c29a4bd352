//! The model of mremap: resizes a mapping in place, or moves one or several VMAs.
//!
//! Shrinking and the removal of the target use `munmap.rs`; `merge.rs` adds the VMA at the new address. Pages
//! move with the VMA, and an anonymous VMA that was never written gets the offset of its new address.
//! MREMAP_DONTUNMAP has a quirk with locked memory ([`Quirks`]). A target is unmapped before later checks, so
//! a failed call may have removed the mappings at the target, as on Linux. Several files in `cases/` begin
//! with `mremap`.

use super::merge::Candidate;
use super::place::Want;
use super::*;

const MAYMOVE: u64 = 1;
const FIXED: u64 = 2;
const DONTUNMAP: u64 = 4;

/// The arguments, with rounded lengths. A move of several VMAs makes one such request for each VMA.
#[derive(Clone, Copy)]
struct Move {
    addr: u64,
    old_len: u64,
    new_len: u64,
    flags: u64,
    new_addr: u64,
}

impl Move {
    /// Returns true if the caller gives the new address, or keeps the source mapped.
    fn to(&self) -> bool {
        self.flags & (FIXED | DONTUNMAP) != 0
    }
    fn grows(&self) -> bool {
        self.new_len > self.old_len
    }
}

impl Model {
    /// Makes the call in process `p`. Returns the new address.
    pub(super) fn mremap(
        &mut self,
        p: usize,
        addr: u64,
        old: u64,
        new: u64,
        flags: u64,
        new_addr: u64,
    ) -> Res {
        let r = Move { addr, old_len: page_up(old), new_len: page_up(new), flags, new_addr };
        self.check_params(p, &r)?;
        if flags & FIXED != 0 && r.old_len == r.new_len {
            return self.move_several(p, r);
        }
        let grown_locked = self.check_source(p, &r)?;
        let at = if r.to() { self.move_to(p, r)? } else { self.resize(p, r)? };
        if grown_locked {
            let _ = self.populate(p, at + r.old_len, at + r.new_len, true);
        }
        Ok(at)
    }

    /// Checks the arguments without looking at the source.
    fn check_params(&mut self, p: usize, r: &Move) -> Res<()> {
        let w = self.world.clone();
        if r.flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0
            || !aligned(r.addr)
            || r.new_len == 0
            || r.new_len > w.task_size
        {
            return Err(libc::EINVAL);
        }
        if !r.to() {
            return Ok(());
        }
        let overlap =
            r.addr.wrapping_add(r.old_len) > r.new_addr && r.new_addr.wrapping_add(r.new_len) > r.addr;
        if r.new_addr > w.task_size - r.new_len
            || !aligned(r.new_addr)
            || r.flags & MAYMOVE == 0
            || (r.flags & DONTUNMAP != 0 && r.old_len != r.new_len)
            || overlap
        {
            return Err(libc::EINVAL);
        }
        if self.proc(p).count.map_count as u64 + 2 >= w.max_map_count - 3 {
            return Err(libc::ENOMEM);
        }
        Ok(())
    }

    /// Moves every VMA of the range, and keeps the gaps between them. Used for equal lengths and a fixed
    /// target.
    fn move_several(&mut self, p: usize, r: Move) -> Res {
        let end = r.addr.wrapping_add(r.old_len);
        let mut result = Err(libc::EFAULT);
        let mut pos = r.addr;
        let mut target = r.new_addr;
        let mut last_end = None;
        loop {
            let pr = self.proc(p);
            let next = pr.find(pos).filter(|&i| pos < end && pr.vmas[i].start < end);
            let Some(i) = next else { return result };
            let v = &pr.vmas[i];
            let (start, stop) = (v.start.max(r.addr), v.end.min(end));
            let gap = match last_end {
                None if r.addr < start => return Err(libc::EFAULT),
                None => 0,
                Some(last) => v.start - last,
            };
            last_end = Some(v.end);
            let len = stop - start;
            let one = Move { addr: start, old_len: len, new_len: len, new_addr: target + gap, ..r };
            self.check_source(p, &one)?;
            let at = self.move_to(p, one)?;
            if result.is_err() {
                result = Ok(at);
            }
            target = at + len;
            pos = stop;
        }
    }

    /// Checks the VMA at the address. Returns true if the VMA is locked and grows.
    fn check_source(&mut self, p: usize, r: &Move) -> Res<bool> {
        let w = self.world.clone();
        let pr = self.proc(p);
        let v = &pr.vmas[pr.at(r.addr).ok_or(libc::EFAULT)?];
        if v.has(vmflag::SEALED) {
            return Err(libc::EPERM);
        }
        if !r.grows() && !r.to() {
            return Ok(false);
        }
        if r.old_len == 0 && !v.has(vmflag::SHARED | vmflag::MAYSHARE) {
            return Err(libc::EINVAL);
        }
        let kept = r.old_len.min(r.new_len);
        if kept > v.end - r.addr {
            return Err(libc::EFAULT);
        }
        if r.new_len <= r.old_len {
            return Ok(false);
        }
        if v.pgoff_at(r.addr).checked_add(r.new_len / PAGE).is_none() {
            return Err(libc::EINVAL);
        }
        let delta = r.new_len - r.old_len;
        if !pr.may_lock(v.flags, delta, &w) {
            return Err(libc::EAGAIN);
        }
        if !pr.may_expand(v.flags, (delta / PAGE) as i64, &w.outside) {
            return Err(libc::ENOMEM);
        }
        Ok(v.has(vmflag::LOCKED))
    }

    /// Resizes without a given address: does nothing, shrinks, grows in place, or moves to free addresses.
    fn resize(&mut self, p: usize, r: Move) -> Res {
        if r.new_len == r.old_len {
            return Ok(r.addr);
        }
        if !r.grows() {
            self.munmap(p, r.addr + r.new_len, r.old_len - r.new_len)?;
            return Ok(r.addr);
        }
        let w = self.world.clone();
        let pr = self.proc(p);
        let i = pr.at(r.addr).ok_or(libc::EFAULT)?;
        let v = pr.vmas[i].clone();
        let delta = r.new_len - r.old_len;
        if r.old_len == v.end - r.addr {
            let end = v.end.checked_add(delta);
            let free = end.is_some_and(|end| !pr.occupied(v.end, end) && end <= w.task_size);
            if free {
                let end = end.expect("tested");
                pr.insert(&Candidate {
                    start: v.end,
                    end,
                    flags: v.flags,
                    pgoff: v.pgoff_at(v.end),
                    back: v.back,
                    anon: v.anon,
                    forked: false,
                    just_expand: false,
                });
                pr.account(v.flags, delta);
                return Ok(r.addr);
            }
        }
        if r.flags & MAYMOVE == 0 {
            return Err(libc::ENOMEM);
        }
        let to = self.choose(p, &r)?;
        self.move_vma(p, Move { new_addr: to, ..r })
    }

    /// Moves to the given address. First unmaps the target and the excess of the source.
    fn move_to(&mut self, p: usize, mut r: Move) -> Res {
        let w = self.world.clone();
        if r.flags & FIXED != 0 {
            self.proc(p).unmap(r.new_addr, r.new_addr + r.new_len, w.max_map_count)?;
            self.proc(p).at(r.addr).ok_or(libc::EFAULT)?;
        }
        if r.old_len > r.new_len {
            self.munmap(p, r.addr + r.new_len, r.old_len - r.new_len)?;
            r.old_len = r.new_len;
        }
        if r.flags & DONTUNMAP != 0 {
            let pr = self.proc(p);
            let flags = pr.vmas[pr.at(r.addr).ok_or(libc::EFAULT)?].flags;
            if !pr.may_expand(flags, (r.old_len / PAGE) as i64, &w.outside) {
                return Err(libc::ENOMEM);
            }
        }
        let to = self.choose(p, &r)?;
        self.move_vma(p, Move { new_addr: to, ..r })
    }

    /// Returns the new address.
    fn choose(&mut self, p: usize, r: &Move) -> Res {
        let w = self.world.clone();
        let addr = if r.to() { r.new_addr } else { 0 };
        let pr = self.proc(p);
        let v = &pr.vmas[pr.at(r.addr).ok_or(libc::EFAULT)?];
        let anon = v.back == Backing::Anon;
        pr.place(
            &w,
            &Want { addr, len: r.new_len, fixed: r.flags & FIXED != 0, anon, low: false, high: false },
        )
    }

    /// Moves the VMA to `new_addr`, which is free.
    fn move_vma(&mut self, p: usize, r: Move) -> Res {
        let (max, quirks) = (self.world.max_map_count, self.world.quirks);
        let pr = self.proc(p);
        if pr.count.map_count as u64 >= max - 3 {
            return Err(libc::ENOMEM);
        }
        let old = pr.vmas[pr.at(r.addr).ok_or(libc::EFAULT)?].clone();
        let unfaulted = old.back == Backing::Anon && old.anon.is_none();
        let copy = Candidate {
            start: r.new_addr,
            end: r.new_addr + r.new_len,
            flags: old.flags,
            pgoff: if unfaulted { r.new_addr / PAGE } else { old.pgoff_at(r.addr) },
            back: old.back,
            anon: old.anon,
            forked: old.forked,
            just_expand: false,
        };
        pr.insert(&copy);
        pr.move_pages(r.addr, r.old_len, r.new_addr);
        pr.account(old.flags, r.new_len);
        if r.flags & DONTUNMAP != 0 {
            let i = pr.at(r.addr).expect("the source is still mapped");
            let merged = pr.at(r.new_addr) == Some(i);
            let v = &mut pr.vmas[i];
            let locked = v.has(vmflag::LOCKED);
            if locked && quirks == Quirks::Cured {
                pr.count.locked_vm -= v.pages() as i64;
            }
            v.flags &= !vmflag::LOCK_MASK;
            if !merged && v.start == r.addr && v.end == r.addr + r.old_len {
                v.anon = None;
                v.forked = false;
            }
            self.met_quirk |= locked;
        } else if r.old_len > 0 {
            pr.unmap(r.addr, r.addr + r.old_len, u64::MAX)?;
        }
        Ok(r.new_addr)
    }
}

impl Process {
    /// Adds `bytes` of a VMA with these flags to the counters.
    fn account(&mut self, flags: u32, bytes: u64) {
        let pages = (bytes / PAGE) as i64;
        self.count.add(flags, pages);
        if flags & vmflag::LOCKED != 0 {
            self.count.locked_vm += pages;
        }
    }

    /// Moves the pages of a range to another address.
    fn move_pages(&mut self, from: u64, len: u64, to: u64) {
        for n in 0..len / PAGE {
            if let Some(page) = self.pages.remove(&(from / PAGE + n)) {
                self.pages.insert(to / PAGE + n, page);
            }
        }
    }
}
