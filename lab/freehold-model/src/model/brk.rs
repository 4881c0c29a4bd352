//! brk: never fails, but returns the current break.
//!
//! The heap is an anonymous mapping that grows and shrinks at its end. A brk that cannot be done (limits, a
//! mapping in the way) changes nothing. A growing heap merges with the mapping below if the two merge on
//! Linux (`merge.rs`), but never with the mapping above. Shrinking uses the functions of `munmap.rs`.
//! `cases/brk.txt` has the rules that are easy to miss.

use super::merge::Candidate;
use super::*;

impl Model {
    /// Makes the call in process `p`. Returns the break afterwards.
    pub(super) fn brk(&mut self, p: usize, to: u64) -> Res {
        let w = self.world.clone();
        let pr = self.proc(p);
        let now = pr.brk;
        if to < w.heap
            || pr
                .limits
                .data
                .checked_add(w.outside.data_vm as u64)
                .and_then(|l| l.checked_mul(PAGE))
                .is_some_and(|l| to - w.heap > l)
        {
            return Ok(now);
        }
        let (old_end, new_end) = (page_up(now), page_up(to));
        if old_end == new_end {
            pr.brk = to;
            return Ok(to);
        }
        if to <= now {
            if pr.occupied(new_end, old_end) && pr.unmap(new_end, old_end, w.max_map_count).is_ok() {
                pr.brk = to;
            }
            return Ok(pr.brk);
        }
        if pr.grow_brk(&w, old_end, new_end).is_none() {
            return Ok(now);
        }
        pr.brk = to;
        if pr.def_flags & vmflag::LOCKED != 0 {
            let _ = self.populate(p, old_end, new_end, true);
        }
        Ok(to)
    }
}

impl Process {
    /// Maps the range that is added to the heap. Returns `None` if that is not possible.
    fn grow_brk(&mut self, w: &World, start: u64, end: u64) -> Option<()> {
        let len = end.checked_sub(start)?;
        if end > w.task_size || !self.may_lock(self.def_flags, len, w) {
            return None;
        }
        // One page below the next mapping stays free. If the next mapping is a stack, its stack gap also
        // stays free.
        let next = self.find(start).map(|i| self.vmas[i].start_gap(w.stack_gap));
        if next.is_some_and(|next| end + PAGE > next) {
            return None;
        }
        let flags = vmflag::READ
            | vmflag::WRITE
            | vmflag::MAYREAD
            | vmflag::MAYWRITE
            | vmflag::MAYEXEC
            | vmflag::ACCOUNT
            | self.def_flags;
        let pages = (len / PAGE) as i64;
        if !self.may_expand(flags, pages, &w.outside) || self.count.map_count as u64 > w.max_map_count {
            return None;
        }
        let c = Candidate {
            start,
            end,
            flags,
            pgoff: start / PAGE,
            back: Backing::Anon,
            anon: None,
            forked: false,
            just_expand: true,
        };
        let heap = start > w.heap;
        let extended = heap && self.merge_new(&c).is_some();
        if !extended {
            let i = self.vmas.partition_point(|v| v.end <= start);
            let v = Vma { start, end, flags, pgoff: c.pgoff, back: Backing::Anon, anon: None, forked: false };
            self.vmas.insert(i, v);
            self.count.map_count += 1;
        }
        self.count.add(flags, pages);
        if flags & vmflag::LOCKED != 0 {
            self.count.locked_vm += pages;
        }
        Some(())
    }
}
