//! munmap, and the removal that other calls share.
//!
//! mmap, mremap and brk remove mappings with the same functions: [`Process::cut_out`] splits VMAs at the
//! edges of a range and checks the limit of mappings, and [`Process::drop_range`] removes the VMAs and their
//! pages. Only `cut_out` can fail, so callers change nothing before `cut_out` has succeeded. After a failure,
//! the splits that were already made stay, as on Linux. `tests/lines.txt` draws removals and their splits.

use super::*;

impl Model {
    /// Makes the call in process `p`.
    pub(super) fn munmap(&mut self, p: usize, addr: u64, len: u64) -> Res {
        let (task_size, max) = (self.world.task_size, self.world.max_map_count);
        if !aligned(addr) || addr > task_size || len > task_size - addr || len == 0 {
            return Err(libc::EINVAL);
        }
        self.proc(p).unmap(addr, addr + page_up(len), max)?;
        Ok(0)
    }
}

impl Process {
    /// Removes all mappings and pages in the range.
    pub(super) fn unmap(&mut self, start: u64, end: u64, max: u64) -> Res<()> {
        self.cut_out(start, end, max)?;
        self.drop_range(start, end);
        Ok(())
    }

    /// Number of pages of the range that are mapped.
    pub(super) fn pages_in(&self, start: u64, end: u64) -> u64 {
        let inside = self.vmas.iter().filter(|v| v.end > start && v.start < end);
        inside.map(|v| (v.end.min(end) - v.start.max(start)) / PAGE).sum()
    }

    /// Splits VMAs so that no VMA crosses an edge of the range. Fails if a hole inside one VMA would exceed
    /// the limit of mappings, or if a VMA is sealed. VMAs that were split before the failure stay split.
    pub(super) fn cut_out(&mut self, start: u64, end: u64, max: u64) -> Res<()> {
        let Some(mut i) = self.find(start).filter(|&i| self.vmas[i].start < end) else { return Ok(()) };
        if start > self.vmas[i].start {
            if end < self.vmas[i].end && self.count.map_count as u64 >= max {
                return Err(libc::ENOMEM);
            }
            if self.vmas[i].has(vmflag::SEALED) {
                return Err(libc::EPERM);
            }
            self.split(i, start);
            i += 1;
        }
        while i < self.vmas.len() && self.vmas[i].start < end {
            if self.vmas[i].has(vmflag::SEALED) {
                return Err(libc::EPERM);
            }
            if end < self.vmas[i].end {
                self.split(i, end);
            }
            i += 1;
        }
        Ok(())
    }

    /// Drops the VMAs of a range that [`Process::cut_out`] has prepared, and their pages.
    pub(super) fn drop_range(&mut self, start: u64, end: u64) {
        let count = &mut self.count;
        self.vmas.retain(|v| {
            let inside = start <= v.start && v.end <= end;
            if inside {
                count.map_count -= 1;
                count.add(v.flags, -(v.pages() as i64));
                if v.has(vmflag::LOCKED) {
                    count.locked_vm -= v.pages() as i64;
                }
            }
            !inside
        });
        self.forget_pages(start, end, |_| true);
    }

    /// Drops from a range the pages that `which` accepts.
    pub(super) fn forget_pages(&mut self, start: u64, end: u64, which: impl Fn(&Page) -> bool) {
        let picked: Vec<u64> = self
            .pages
            .range(start / PAGE..end / PAGE)
            .filter(|(_, page)| which(page))
            .map(|(n, _)| *n)
            .collect();
        for n in picked {
            self.pages.remove(&n);
        }
    }
}
