//! The model of madvise: checks the arguments in the kernel's order, and applies the advice to each VMA of
//! the range.
//!
//! Advice that changes flags splits and merges VMAs (`merge.rs`). Advice that populates makes faults
//! (`fault.rs`). Advice that discards drops pages; guards are pages of their own kind. The numbers are those
//! of Linux's headers. A hole does not stop the call: the call advises all VMAs and then fails with ENOMEM.
//! An advice whose effect only the kernel sees (WILLNEED, COLD) has no effect here. A new advice is a number
//! in `known`, and an arm in `advise_part`, or in `advise_flags` if it changes flags; `generate.rs` must draw
//! the advice. `cases/flags-split-merge.txt`, `guards.txt` and `holes.txt` have the rules that are easy to
//! miss.

use super::ksm::may_merge;
use super::*;
use crate::world::GuardMark;

pub(super) const DONTNEED_LOCKED: u64 = 24;

impl Model {
    /// Makes the call in process `p`.
    pub(super) fn madvise(&mut self, p: usize, addr: u64, len: u64, advice: u64) -> Res {
        let advice = u64::from(advice as u32); // The parameter is an int.
        let known = matches!(advice, 0..=4 | 8..=25 | 102 | 103);
        let end = addr.wrapping_add(page_up(len));
        if !known || !aligned(addr) || (len != 0 && page_up(len) == 0) || end < addr {
            return Err(libc::EINVAL);
        }
        if end == addr {
            return Ok(0);
        }
        if matches!(advice, 22 | 23) {
            return self.madvise_populate(p, addr, end, advice == 23);
        }
        let mut pos = addr;
        let mut hole = false;
        while pos < end {
            let pr = self.proc(p);
            let Some(i) = pr.find(pos) else {
                hole = true;
                break;
            };
            let v = &pr.vmas[i];
            if pos < v.start {
                hole = true;
                pos = v.start;
                continue;
            }
            let stop = v.end.min(end);
            self.advise_part(p, i, pos, stop, advice)?;
            pos = stop;
        }
        if hole { Err(libc::ENOMEM) } else { Ok(0) }
    }

    /// Applies the advice to a part of one VMA.
    fn advise_part(&mut self, p: usize, i: usize, start: u64, end: u64, advice: u64) -> Res<()> {
        let v = self.proc(p).vmas[i].clone();
        if v.resists(advice) {
            return Err(libc::EPERM);
        }
        match advice {
            3 => Ok(()),
            4 | DONTNEED_LOCKED => {
                if advice == 4 && v.has(vmflag::LOCKED) {
                    return Err(libc::EINVAL);
                }
                self.proc(p).forget_pages(start, end, |page| !matches!(page, Page::Guard));
                Ok(())
            }
            // Freed pages keep their contents until memory is short, and memory is never short here.
            8 if v.has(vmflag::LOCKED) || v.back != Backing::Anon => Err(libc::EINVAL),
            8 => Ok(()),
            9 => self.advise_remove(&v, start, end),
            20 | 21 if v.has(vmflag::LOCKED) => Err(libc::EINVAL),
            20 | 21 => Ok(()),
            // These processes have no huge pages (`PR_SET_THP_DISABLE`).
            25 => Err(libc::EINVAL),
            102 => self.guard_install(p, i, start, end),
            103 => {
                self.proc(p).forget_pages(start, end, |page| matches!(page, Page::Guard));
                Ok(())
            }
            _ => self.advise_flags(p, i, start, end, advice),
        }
    }

    /// Applies an advice that changes flags to a part of VMA `i`.
    fn advise_flags(&mut self, p: usize, i: usize, start: u64, end: u64, advice: u64) -> Res<()> {
        use vmflag::*;
        let max = self.world.max_map_count;
        let pr = self.proc(p);
        let v = &pr.vmas[i];
        let f = v.flags;
        let read = RANDOM | SEQUENTIAL;
        let flags = match advice {
            0 => f & !read,
            1 => f & !read | RANDOM,
            2 => f & !read | SEQUENTIAL,
            10 => f | DONTFORK,
            11 => f & !DONTFORK,
            12 if !may_merge(f) => f,
            12 => f | MERGEABLE,
            13 => f & !MERGEABLE,
            14 => f & !NOHUGEPAGE | HUGEPAGE,
            15 => f & !HUGEPAGE | NOHUGEPAGE,
            16 => f | DONTDUMP,
            17 | 19 if f & DROPPABLE != 0 => return Err(libc::EINVAL),
            17 => f & !DONTDUMP,
            18 if v.back != Backing::Anon || f & SHARED != 0 => return Err(libc::EINVAL),
            18 => f | WIPEONFORK,
            _ => f & !WIPEONFORK,
        };
        if flags == f {
            return Ok(());
        }
        // The call fails with `EAGAIN` if the limit of mappings is reached.
        pr.modify(i, start, end, flags, max).map_err(|e| if e == libc::ENOMEM { libc::EAGAIN } else { e })
    }

    /// MADV_REMOVE: punches a hole into the file.
    fn advise_remove(&mut self, v: &Vma, start: u64, end: u64) -> Res<()> {
        if v.has(vmflag::LOCKED) || matches!(v.back, Backing::Anon) {
            return Err(libc::EINVAL);
        }
        if v.flags & (vmflag::SHARED | vmflag::MAYWRITE) != vmflag::SHARED | vmflag::MAYWRITE {
            return Err(libc::EACCES);
        }
        let first = v.pgoff_at(start);
        let inode = self.inode_of(v.back).expect("has a file");
        self.inodes[inode].punch(first, first + (end - start) / PAGE);
        Ok(())
    }

    /// MADV_GUARD_INSTALL: replaces the pages of a part of VMA `i` by guards.
    fn guard_install(&mut self, p: usize, i: usize, start: u64, end: u64) -> Res<()> {
        if self.proc(p).vmas[i].has(vmflag::LOCKED) {
            return Err(libc::EINVAL);
        }
        let flag = self.world.guards == GuardMark::Flag;
        if flag {
            self.proc(p).vmas[i].flags |= vmflag::MAYBE_GUARD;
        }
        if !flag || self.proc(p).vmas[i].back == Backing::Anon {
            self.prepare_anon(p, i);
        }
        for n in start / PAGE..end / PAGE {
            self.proc(p).pages.insert(n, Page::Guard);
        }
        Ok(())
    }

    /// MADV_POPULATE_READ and MADV_POPULATE_WRITE: faults in every page. The first failure ends the call.
    fn madvise_populate(&mut self, p: usize, start: u64, end: u64, write: bool) -> Res {
        let mut pos = start;
        while pos < end {
            let pr = self.proc(p);
            let i = pr.at(pos).ok_or(libc::ENOMEM)?;
            let v = &pr.vmas[i];
            let need = if write { vmflag::WRITE } else { vmflag::READ };
            if !v.has(need) {
                return Err(libc::EINVAL);
            }
            self.fault(p, i, pos / PAGE, write).map_err(|_| libc::EFAULT)?;
            pos += PAGE;
        }
        Ok(0)
    }
}
