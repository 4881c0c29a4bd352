//! msync and mincore.
//!
//! msync has no effect in the model, because memory and file are the same bytes; only its errors are modelled
//! (holes, locked memory with MS_INVALIDATE). mincore lists present pages. For pages of files the answer
//! depends on the page cache and is not compared (`compare.rs`), so the model reports all pages of files as
//! present. `cases/holes.txt` has both calls on ranges with holes.

use super::*;

const MS_ASYNC: u64 = 1;
const MS_INVALIDATE: u64 = 2;
const MS_SYNC: u64 = 4;

impl Model {
    /// Makes an msync in process `p`.
    pub(super) fn msync(&mut self, p: usize, addr: u64, len: u64, flags: u64) -> Res {
        let flags = u64::from(flags as u32); // The parameter is an int.
        if flags & !(MS_ASYNC | MS_INVALIDATE | MS_SYNC) != 0
            || !aligned(addr)
            || flags & (MS_ASYNC | MS_SYNC) == MS_ASYNC | MS_SYNC
        {
            return Err(libc::EINVAL);
        }
        let end = addr.wrapping_add(page_up(len));
        if end < addr {
            return Err(libc::ENOMEM);
        }
        let mut pos = addr;
        let mut hole = false;
        let pr = self.proc(p);
        while pos < end {
            let v = &pr.vmas[pr.find(pos).ok_or(libc::ENOMEM)?];
            if pos < v.start {
                if flags == MS_ASYNC || v.start >= end {
                    return Err(libc::ENOMEM);
                }
                hole = true;
            }
            if flags & MS_INVALIDATE != 0 && v.has(vmflag::LOCKED) {
                return Err(libc::EBUSY);
            }
            pos = v.end;
        }
        if hole { Err(libc::ENOMEM) } else { Ok(0) }
    }

    /// Returns one byte per page. The byte is 1 for every page of a file, regardless of the page cache.
    pub(super) fn mincore(&mut self, p: usize, addr: u64, len: u64) -> Res<Vec<u8>> {
        let task_size = self.world.task_size;
        if !aligned(addr) {
            return Err(libc::EINVAL);
        }
        if addr.checked_add(len).is_none_or(|end| end > task_size) {
            return Err(libc::ENOMEM);
        }
        let pr = self.proc(p);
        let mut bits = Vec::new();
        for n in addr / PAGE..addr / PAGE + len.div_ceil(PAGE) {
            let v = &pr.vmas[pr.at(n * PAGE).ok_or(libc::ENOMEM)?];
            let resident = match pr.pages.get(&n) {
                Some(Page::Zero | Page::Anon(_)) => true,
                Some(Page::Guard) | None => v.back != Backing::Anon,
            };
            bits.push(resident as u8);
        }
        Ok(bits)
    }
}
