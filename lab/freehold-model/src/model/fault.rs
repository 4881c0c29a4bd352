//! Access to memory in the model: page faults, stack growth, and populating by the kernel.
//!
//! A fault checks the protection, grows a stack if necessary, gives the VMA an anon_vma before its first
//! private page, and makes the page present. Populating (mmap with MAP_POPULATE, the lock calls, a growing
//! locked mapping) makes the same faults, and checks the protection once for each part of a VMA. An anon_vma
//! that a fault borrows from a neighbour ([`Model::prepare_anon`]) has no effect on contents, but decides
//! later merges. `tests/merges.rs` tries merges of VMAs with own and with shared anon_vmas.

use super::*;

/// The reason why a fault could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The page is a guard.
    Guard,
    /// The page is beyond the end of the file.
    BeyondEnd,
}

impl Model {
    /// Loads bytes, at most a page. Returns the signal of the first byte that cannot be loaded.
    pub(super) fn read(&mut self, p: usize, addr: u64, len: u64) -> Outcome {
        let mut bytes = Vec::new();
        let mut at = addr;
        let end = addr.saturating_add(len.min(PAGE));
        while at < end {
            if let Err(kind) = self.touch(p, at, false) {
                return Outcome::Signal(Signal { kind, addr: at });
            }
            let stop = end.min(page_down(at) + PAGE);
            self.copy_out(p, at, (stop - at) as usize, &mut bytes);
            at = stop;
        }
        Outcome::Bytes(bytes)
    }

    /// Stores one byte.
    pub(super) fn write(&mut self, p: usize, addr: u64, value: u8) -> Outcome {
        if let Err(kind) = self.touch(p, addr, true) {
            return Outcome::Signal(Signal { kind, addr });
        }
        let (n, at) = (addr / PAGE, (addr % PAGE) as usize);
        let pr = self.proc(p);
        if let Some(Page::Anon(page)) = pr.pages.get_mut(&n) {
            Rc::make_mut(page)[at] = value;
        } else {
            let v = &pr.vmas[pr.at(addr).expect("touched")];
            let (back, index) = (v.back, v.pgoff_at(addr));
            let inode = self.inode_of(back).expect("a shared mapping has a file");
            self.inodes[inode].page_mut(index)[at] = value;
        }
        Outcome::Ok(0)
    }

    /// Copies bytes of one present page.
    fn copy_out(&mut self, p: usize, addr: u64, len: usize, into: &mut Vec<u8>) {
        let at = (addr % PAGE) as usize;
        let zeros = [0; PAGE as usize];
        let pr = self.procs[p].as_ref().expect("only living processes call");
        let page: &Bytes = match pr.pages.get(&(addr / PAGE)) {
            Some(Page::Anon(page)) => page,
            Some(Page::Zero) => &zeros,
            _ => {
                let v = &pr.vmas[pr.at(addr).expect("touched")];
                let inode = self.inode_of(v.back).expect("a page that the process does not have is a file's");
                self.inodes[inode].page(v.pgoff_at(addr)).unwrap_or(&zeros)
            }
        };
        into.extend_from_slice(&page[at..at + len]);
    }

    /// Does the work of the hardware and of the fault handler for one access.
    pub(crate) fn touch(&mut self, p: usize, addr: u64, write: bool) -> Result<(), SignalKind> {
        let pr = self.proc(p);
        let i = pr.find(addr).ok_or(SignalKind::SegvMapErr)?;
        if pr.vmas[i].start > addr {
            self.grow_stack(p, i, page_down(addr)).ok_or(SignalKind::SegvMapErr)?;
        }
        let v = &self.proc(p).vmas[i];
        // On this hardware, any access right implies the right to read.
        let right = if write { vmflag::WRITE } else { vmflag::ACCESS };
        if !v.has(right) {
            return Err(SignalKind::SegvAccErr);
        }
        self.fault(p, i, addr / PAGE, write).map_err(|r| match r {
            Refused::Guard => SignalKind::SegvMapErr,
            Refused::BeyondEnd => SignalKind::BusAdrErr,
        })
    }

    /// Grows VMA `i`, a stack, down to `addr`. Returns `None` if that is not permitted.
    fn grow_stack(&mut self, p: usize, i: usize, addr: u64) -> Option<()> {
        let w = self.world.clone();
        let pr = self.proc(p);
        if !pr.vmas[i].has(vmflag::GROWSDOWN) || addr < w.min_addr {
            return None;
        }
        if i > 0 {
            let below = &pr.vmas[i - 1];
            let gap = addr - below.end;
            if !below.has(vmflag::GROWSDOWN) && below.has(vmflag::ACCESS) && gap < w.stack_gap * PAGE {
                return None;
            }
        }
        self.prepare_anon(p, i);
        let pr = self.proc(p);
        let v = &pr.vmas[i];
        let (size, grow) = (v.end - addr, v.start - addr);
        let (flags, pages) = (v.flags, (grow / PAGE) as i64);
        let fits = grow / PAGE <= v.pgoff
            && pr.may_expand(flags, pages, &w.outside)
            && size / PAGE <= pr.limits.stack
            && pr.may_lock(flags, grow, &w);
        if !fits {
            return None;
        }
        pr.count.add(flags, pages);
        if flags & vmflag::LOCKED != 0 {
            pr.count.locked_vm += pages;
        }
        pr.vmas[i].start = addr;
        pr.vmas[i].pgoff -= grow / PAGE;
        Some(())
    }

    /// Makes page `n` of VMA `i` present for the access. Does not check the protection.
    pub(super) fn fault(&mut self, p: usize, i: usize, n: u64, write: bool) -> Result<(), Refused> {
        let pr = self.proc(p);
        let v = &pr.vmas[i];
        let private_write = write && !v.has(vmflag::SHARED);
        match pr.pages.get(&n) {
            Some(Page::Guard) => return Err(Refused::Guard),
            Some(Page::Anon(_)) => return Ok(()),
            Some(Page::Zero) if !write => return Ok(()),
            _ => {}
        }
        let (back, index) = (v.back, v.pgoff_at(n * PAGE));
        if private_write {
            self.prepare_anon(p, i);
        }
        let page = match self.inode_of(back) {
            Some(inode) => {
                if index >= self.inodes[inode].pages() {
                    return Err(Refused::BeyondEnd);
                }
                private_write.then(|| Page::Anon(Rc::new(self.inodes[inode].copy(index))))
            }
            None if write => Some(Page::Anon(Rc::new([0; PAGE as usize]))),
            None => Some(Page::Zero),
        };
        if let Some(page) = page {
            self.proc(p).pages.insert(n, page);
        }
        Ok(())
    }

    /// Gives a VMA an anon_vma before its first private page. If only the protections keep the VMA from
    /// merging with a neighbour, takes the anon_vma of that neighbour. Otherwise creates a new anon_vma.
    pub(super) fn prepare_anon(&mut self, p: usize, i: usize) {
        let fresh = self.next_anon;
        let pr = self.proc(p);
        let v = &pr.vmas[i];
        if v.anon.is_some() {
            return;
        }
        let next = pr.vmas.get(i + 1).filter(|n| like(v, n)).and_then(lends);
        let prev = || (i > 0).then(|| &pr.vmas[i - 1]).filter(|b| like(b, v)).and_then(lends);
        let anon = next.or_else(prev);
        pr.vmas[i].anon = Some(anon.unwrap_or(fresh));
        if anon.is_none() {
            self.next_anon += 1;
        }
    }

    /// Faults in the range, as MAP_POPULATE of mmap and the lock calls do. If `lenient` is true, a failure
    /// skips the rest of the VMA. Otherwise the first failure ends the call.
    pub(super) fn populate(&mut self, p: usize, start: u64, end: u64, lenient: bool) -> Res<()> {
        let mut pos = start;
        while pos < end {
            let pr = self.proc(p);
            let Some(i) = pr.find(pos).filter(|&i| pr.vmas[i].start < end) else { break };
            let v = &pr.vmas[i];
            let (from, stop) = (pos.max(v.start), v.end.min(end));
            if v.back != Backing::Outside {
                let done = self.populate_part(p, i, from, stop);
                if !lenient {
                    done?;
                }
            }
            pos = stop;
        }
        Ok(())
    }

    /// Populates a part of VMA `i`.
    pub(super) fn populate_part(&mut self, p: usize, i: usize, start: u64, end: u64) -> Res<()> {
        let v = &self.proc(p).vmas[i];
        if v.has(vmflag::LOCKONFAULT) {
            return Ok(());
        }
        if !v.has(vmflag::ACCESS) {
            return Err(libc::EFAULT);
        }
        let write = v.flags & (vmflag::WRITE | vmflag::SHARED) == vmflag::WRITE;
        for n in start / PAGE..end / PAGE {
            self.fault(p, i, n, write).map_err(|_| libc::EFAULT)?;
        }
        Ok(())
    }
}

/// Returns true if `a` and `b`, neighbours in this order, could be one VMA if their protections were equal.
fn like(a: &Vma, b: &Vma) -> bool {
    let ignore = vmflag::ACCESS | vmflag::MAYBE_GUARD;
    a.end == b.start && a.back == b.back && (a.flags ^ b.flags) & !ignore == 0 && a.pgoff_at(a.end) == b.pgoff
}

/// Returns the anon_vma that a neighbour may share with the VMA. A VMA that a fork has copied does not share
/// its anon_vma.
fn lends(v: &Vma) -> Option<u32> {
    v.anon.filter(|_| !v.forked)
}
