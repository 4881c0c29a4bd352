//! The list of VMAs of a process in the model: lookup, split, merge, and the limits that a new or changed VMA
//! must respect.
//!
//! Operations split, merge and add VMAs by these functions, so that merges follow the kernel's rules
//! everywhere. `brk.rs`, `fork.rs` and `munmap.rs` also change the list directly. A merge depends on the
//! flags, the file and offset, and the anon_vma of both sides (`mod.rs`). `tests/lines.txt` draws merges and
//! splits, and `tests/merges.rs` tries every small layout; both compare with the engine.

use super::*;

/// A range that becomes a VMA, and the properties that decide its merges.
pub(super) struct Candidate {
    pub start: u64,
    pub end: u64,
    pub flags: u32,
    pub pgoff: u64,
    pub back: Backing,
    /// The anon_vma of the range, if it has one.
    pub anon: Option<u32>,
    /// True if the anon_vma is from a fork.
    pub forked: bool,
    /// True if the range never merges with the VMA after it (`brk`).
    pub just_expand: bool,
}

impl Candidate {
    /// Returns true if flags and file permit a merge with `other`.
    fn fits(&self, other: &Vma) -> bool {
        let ignore = vmflag::MAYBE_GUARD;
        (self.flags ^ other.flags) & !ignore == 0
            && self.back == other.back
            && other.back != Backing::Outside
            && (self.flags | other.flags) & vmflag::DONTEXPAND == 0
    }
    /// Returns true if the two anon_vmas permit a merge with `target`.
    fn anon_fits(&self, target: &Vma) -> bool {
        match (target.anon, self.anon) {
            (None, Some(_)) => !self.forked,
            (Some(_), None) => !target.forked,
            (a, b) => a == b,
        }
    }
    /// Returns true if the range can merge with `prev`, which ends at its start.
    fn after(&self, prev: &Vma) -> bool {
        prev.end == self.start
            && self.fits(prev)
            && self.anon_fits(prev)
            && prev.pgoff_at(prev.end) == self.pgoff
    }
    /// Returns true if the range can merge with `next`, which begins at its end.
    fn before(&self, next: &Vma) -> bool {
        let pgoff = self.pgoff.wrapping_add((self.end - self.start) / PAGE);
        next.start == self.end && self.fits(next) && self.anon_fits(next) && next.pgoff == pgoff
    }
}

/// Returns true if the anon_vmas of two VMAs permit that both merge with the range between them.
fn compatible(a: &Vma, b: &Vma) -> bool {
    a.anon.is_none() || b.anon.is_none() || a.anon == b.anon
}

/// Gives `to` the anon_vma of the other side, if `to` has no anon_vma.
fn inherit(to: &mut Vma, anon: Option<u32>, forked: bool) {
    if to.anon.is_none() && anon.is_some() {
        to.anon = anon;
        to.forked = forked;
    }
}

impl Process {
    /// Returns the index of the first VMA that ends above `addr`.
    pub(super) fn find(&self, addr: u64) -> Option<usize> {
        let i = self.vmas.partition_point(|v| v.end <= addr);
        (i < self.vmas.len()).then_some(i)
    }
    /// Returns the index of the VMA that contains `addr`.
    pub(super) fn at(&self, addr: u64) -> Option<usize> {
        self.find(addr).filter(|&i| self.vmas[i].start <= addr)
    }
    /// Returns true if a VMA overlaps `[start, end)`.
    pub(super) fn occupied(&self, start: u64, end: u64) -> bool {
        self.find(start).is_some_and(|i| self.vmas[i].start < end)
    }

    /// Splits VMA `i` at `addr`.
    pub(super) fn split(&mut self, i: usize, addr: u64) {
        let mut upper = self.vmas[i].clone();
        upper.pgoff = upper.pgoff_at(addr);
        upper.start = addr;
        self.vmas[i].end = addr;
        self.vmas.insert(i + 1, upper);
        self.count.map_count += 1;
    }

    /// Grows a neighbour of a free range over the range, if a neighbour fits. Returns its index.
    pub(super) fn merge_new(&mut self, c: &Candidate) -> Option<usize> {
        let i = self.vmas.partition_point(|v| v.end <= c.start);
        let left = i > 0 && c.after(&self.vmas[i - 1]);
        let mut right = !c.just_expand && i < self.vmas.len() && c.before(&self.vmas[i]);
        if left && right {
            right = compatible(&self.vmas[i - 1], &self.vmas[i]);
        }
        let guard = c.flags & vmflag::MAYBE_GUARD;
        match (left, right) {
            (false, false) => None,
            (true, false) => {
                let v = &mut self.vmas[i - 1];
                v.end = c.end;
                v.flags |= guard;
                inherit(v, c.anon, c.forked);
                Some(i - 1)
            }
            (false, true) => {
                let v = &mut self.vmas[i];
                v.start = c.start;
                v.pgoff = c.pgoff;
                v.flags |= guard;
                inherit(v, c.anon, c.forked);
                Some(i)
            }
            (true, true) => {
                let next = self.vmas.remove(i);
                self.count.map_count -= 1;
                let v = &mut self.vmas[i - 1];
                v.end = next.end;
                v.flags |= guard | next.flags & vmflag::MAYBE_GUARD;
                inherit(v, next.anon, next.forked);
                inherit(v, c.anon, c.forked);
                Some(i - 1)
            }
        }
    }

    /// Adds a VMA over a free range, merged if possible. Returns its index.
    pub(super) fn insert(&mut self, c: &Candidate) -> usize {
        if let Some(i) = self.merge_new(c) {
            return i;
        }
        let i = self.vmas.partition_point(|v| v.end <= c.start);
        let v = Vma {
            start: c.start,
            end: c.end,
            flags: c.flags,
            pgoff: c.pgoff,
            back: c.back,
            anon: c.anon,
            forked: c.forked,
        };
        self.vmas.insert(i, v);
        self.count.map_count += 1;
        i
    }

    /// Gives the part `[start, end)` of VMA `i` new flags, and merges or splits as needed. A merge needs no
    /// room for another VMA. A split fails with `ENOMEM` at the limit of mappings `max`. If quirks are not
    /// cured, the second of two splits may fail after the first split was made.
    pub(super) fn modify(&mut self, i: usize, start: u64, end: u64, flags: u32, max: u64) -> Res<()> {
        let v = &self.vmas[i];
        let c = Candidate {
            start,
            end,
            flags,
            pgoff: v.pgoff_at(start),
            back: v.back,
            anon: v.anon,
            forked: v.forked,
            just_expand: false,
        };
        let (first, last) = (v.start == start, v.end == end);
        let left = first && i > 0 && c.after(&self.vmas[i - 1]);
        let mut right = last && i + 1 < self.vmas.len() && c.before(&self.vmas[i + 1]);
        if left && right {
            right = compatible(&self.vmas[i - 1], &self.vmas[i + 1]);
        }
        if left || right {
            self.merge_existing(i, &c, left, right);
            return Ok(());
        }
        let mut i = i;
        let full = |count: &Counters, cuts| count.map_count as u64 + cuts > max;
        if self.quirks == Quirks::Cured && !first && !last && full(&self.count, 2) {
            return Err(libc::ENOMEM);
        }
        if !first {
            if full(&self.count, 1) {
                return Err(libc::ENOMEM);
            }
            self.split(i, start);
            i += 1;
        }
        if !last {
            if full(&self.count, 1) {
                self.met_quirk |= !first;
                return Err(libc::ENOMEM);
            }
            self.split(i, end);
        }
        self.vmas[i].flags = flags;
        Ok(())
    }

    /// Merges the part `c` of VMA `i` with its left neighbour, its right neighbour, or both.
    fn merge_existing(&mut self, i: usize, c: &Candidate, left: bool, right: bool) {
        let v = self.vmas[i].clone();
        let whole = v.start == c.start && v.end == c.end;
        let guard = (c.flags | v.flags) & vmflag::MAYBE_GUARD;
        if left && right {
            let next = self.vmas.remove(i + 1);
            self.vmas.remove(i);
            self.count.map_count -= 2;
            let prev = &mut self.vmas[i - 1];
            prev.end = next.end;
            prev.flags |= guard | next.flags & vmflag::MAYBE_GUARD;
            inherit(prev, next.anon, next.forked);
            inherit(prev, v.anon, v.forked);
        } else if left {
            let prev = &mut self.vmas[i - 1];
            prev.end = c.end;
            prev.flags |= guard;
            inherit(prev, v.anon, v.forked);
            if !whole {
                self.vmas[i].pgoff = v.pgoff_at(c.end);
                self.vmas[i].start = c.end;
            }
        } else {
            let next = &mut self.vmas[i + 1];
            next.start = c.start;
            next.pgoff = c.pgoff;
            next.flags |= guard;
            inherit(next, v.anon, v.forked);
            if !whole {
                self.vmas[i].end = c.start;
            }
        }
        if whole && !(left && right) {
            self.vmas.remove(i);
            self.count.map_count -= 1;
        }
    }

    /// Returns true if RLIMIT_AS and RLIMIT_DATA permit `pages` more pages with these flags. `pages` may be
    /// negative.
    pub(super) fn may_expand(&self, flags: u32, pages: i64, outside: &Counters) -> bool {
        let over = |now: i64, out: i64, limit: u64| {
            limit <= i64::MAX as u64 && i128::from(now + pages - out) > i128::from(limit)
        };
        if over(self.count.total_vm, outside.total_vm, self.limits.space) {
            return false;
        }
        let data = flags & (vmflag::WRITE | vmflag::SHARED | vmflag::GROWSDOWN) == vmflag::WRITE;
        !(data && over(self.count.data_vm, outside.data_vm, self.limits.data))
    }

    /// Returns true if RLIMIT_MEMLOCK permits `bytes` more with these flags.
    pub(super) fn may_lock(&self, flags: u32, bytes: u64, world: &World) -> bool {
        flags & vmflag::LOCKED == 0
            || world.may_lock
            || (bytes / PAGE) as i128 + self.count.locked_vm as i128 <= self.limits.lock as i128
    }
}
