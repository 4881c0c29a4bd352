//! mprotect: changes the rights of the VMAs in a range.
//!
//! The call works VMA by VMA, as Linux does: a hole or a forbidden change ends the call, and the VMAs that
//! were changed before keep their new rights. Each change splits the VMA at the edges of the range and merges
//! it with its neighbours (`merge.rs`). Seals, write-execute rules (`seal.rs`) and the limits on data and
//! mappings are checked in the order of Linux. The cases whose names begin with `mprotect` have the rules
//! that are easy to miss.

use super::*;

const GROWSDOWN: u64 = 0x0100_0000;
const GROWSUP: u64 = 0x0200_0000;

impl Model {
    /// Makes the call in process `p`.
    pub(super) fn mprotect(&mut self, p: usize, addr: u64, len: u64, prot: u64) -> Res {
        let grows = prot & (GROWSDOWN | GROWSUP);
        let prot = prot & !grows;
        if grows == GROWSDOWN | GROWSUP || !aligned(addr) {
            return Err(libc::EINVAL);
        }
        if len == 0 {
            return Ok(0);
        }
        let end = addr.wrapping_add(page_up(len));
        if end <= addr {
            return Err(libc::ENOMEM);
        }
        // Bit 3 is PROT_SEM, which is accepted and has no effect.
        if prot & !0xf != 0 {
            return Err(libc::EINVAL);
        }
        let pr = self.proc(p);
        let first = pr.find(addr).filter(|&i| pr.vmas[i].start < end).ok_or(libc::ENOMEM)?;
        let v = &pr.vmas[first];
        let mut pos = addr;
        if grows == GROWSDOWN {
            pos = v.start;
            if !v.has(vmflag::GROWSDOWN) {
                return Err(libc::EINVAL);
            }
        } else {
            if v.start > addr {
                return Err(libc::ENOMEM);
            }
            if grows == GROWSUP {
                return Err(libc::EINVAL);
            }
        }
        while pos < end {
            let pr = self.proc(p);
            let i = pr.at(pos).ok_or(libc::ENOMEM)?;
            let v = &pr.vmas[i];
            let stop = v.end.min(end);
            let flags = v.flags & !vmflag::ACCESS | (prot & 7) as u32;
            if flags & !(flags >> vmflag::MAY_SHIFT) & vmflag::ACCESS != 0 || pr.denies_exec(v.flags, flags) {
                return Err(libc::EACCES);
            }
            self.protect_part(p, i, pos, stop, flags)?;
            pos = stop;
        }
        Ok(0)
    }

    /// Changes the rights of the part `start..end` of VMA `i`.
    fn protect_part(&mut self, p: usize, i: usize, start: u64, end: u64, mut flags: u32) -> Res<()> {
        let (max, outside) = (self.world.max_map_count, self.world.outside);
        let pr = self.proc(p);
        let v = &pr.vmas[i];
        let old = v.flags;
        let pages = ((end - start) / PAGE) as i64;
        if v.has(vmflag::SEALED) {
            return Err(libc::EPERM);
        }
        if flags == old {
            return Ok(());
        }
        if flags & vmflag::WRITE != 0 {
            if !pr.may_expand(flags, pages, &outside) && pr.may_expand(old, pages, &outside) {
                return Err(libc::ENOMEM);
            }
            if old & (vmflag::ACCOUNT | vmflag::WRITE | vmflag::SHARED | vmflag::NORESERVE) == 0 {
                flags |= vmflag::ACCOUNT;
            }
        } else if old & vmflag::ACCOUNT != 0 && v.back == Backing::Anon && v.anon.is_none() {
            flags &= !vmflag::ACCOUNT;
        }
        pr.modify(i, start, end, flags, max)?;
        pr.count.add(old, -pages);
        pr.count.add(flags, pages);
        // A locked private VMA that becomes writable gets its private copies in advance.
        if old & (vmflag::WRITE | vmflag::SHARED | vmflag::LOCKED) == vmflag::LOCKED
            && flags & vmflag::WRITE != 0
        {
            let i = self.proc(p).at(start).expect("still mapped");
            let _ = self.populate_part(p, i, start, end);
        }
        Ok(())
    }
}
