//! The effect of a system call on the planner's model of an address space, and the call's reach.
//!
//! [`reach`] returns the addresses that a call concerns. [`Space::apply`] changes the VMAs of the model as
//! Linux did, from the arguments and the recorded result of the call: the model never decides if a call
//! succeeds. A failed call has no effect, except a madvise or mprotect that stopped at a hole.
//!
//! `syscall.rs` calls both functions for each planned call, and `vmas.rs` calls them for readers that plan
//! nothing. The model has no pages: `populate` only notes first writes. The effects of mremap are in
//! `mremap.rs`, and those of userfaultfds in `registered.rs`.
//!
//! A new call needs an arm in `Space::apply` if it changes VMAs, its addresses in `addresses.rs`, and
//! [`Reach::Pages`] in [`reach`] if it changes only pages. The snapshots of recordings check the effects
//! (`tests.rs`).

use super::area::{Area, PAGE, Purpose, flag, page_of, whole_pages};
use super::order::Stamp;
use super::space::{AppliedCall, MAP_ANONYMOUS, MAP_GROWSDOWN, Reach, Space, replaces};
use crate::addresses::{addresses, lock_range, span};
use crate::operation::prctl;
use crate::{Call, CallName, Returned};
use std::ops::Range;

const MAP_TYPE: u64 = 0xf;
const MAP_LOCKED: u64 = 0x2000;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NONBLOCK: u64 = 0x1_0000;
const MAP_STACK: u64 = 0x2_0000;
const MAP_SYNC: u64 = 0x8_0000;
const PROT_WRITE: u64 = 2;
const PROT_GROWSDOWN: u64 = 0x100_0000;
const SHM_RDONLY: u64 = 0o10000;

/// Returns true if the call failed, or never returned.
fn failed(call: &Call) -> bool {
    !matches!(call.returned, Returned::Value(_))
}

/// Returns the addresses that the call concerns, from its arguments and its result. `segment` is the size in
/// bytes of the System V segment that shmat attaches.
pub(crate) fn reach(call: &Call, space: &Space, segment: u64) -> Reach {
    let args = &call.args;
    let segment = match call.name {
        CallName::Brk => return Reach::Vmas([heap_change(call, space).unwrap_or(0..0), 0..0]),
        CallName::Shmdt => space.areas.attached(args[0]).last().map_or(PAGE, |last| last.end - args[0]),
        _ => segment,
    };
    let Some(ranges) = addresses(call.name, args, call.returned.value(), segment) else {
        return Reach::Whole;
    };
    match (call.name, args[2]) {
        // Pages change, and VMAs do not: DONTNEED, FREE, REMOVE, WILLNEED, COLD, PAGEOUT, DONTNEED_LOCKED.
        (CallName::Madvise, 3 | 4 | 8 | 9 | 20 | 21 | 24) | (CallName::Msync | CallName::Mincore, _) => {
            let [pages, _] = ranges;
            Reach::Pages(pages)
        }
        _ => Reach::Vmas(ranges),
    }
}

/// Returns the pages between the old and the new end of the heap. Returns `None` if the old end is unknown,
/// or if the brk did not set the end that it requested.
fn heap_change(call: &Call, space: &Space) -> Option<Range<u64>> {
    let (_, old) = space.heap?;
    let new = call.returned.value().filter(|&new| new == call.args[0])?;
    let (old, new) = (whole_pages(old)?, whole_pages(new)?);
    Some(old.min(new)..old.max(new))
}

impl Space {
    /// Applies the effect of a call to the model.
    pub(crate) fn apply(&mut self, applied: &mut AppliedCall<'_>) {
        let args = applied.call.args;
        if applied.call.name == CallName::Mremap && applied.call.returned == Returned::Error(512) {
            return self.interrupted_mremap(&args);
        }
        let hole = applied.call.returned == Returned::Error(12);
        if failed(applied.call)
            && !(hole && matches!(applied.call.name, CallName::Madvise | CallName::Mprotect))
        {
            return;
        }
        let range = span(args[0], args[1]);
        match applied.call.name {
            CallName::Mmap => self.mmap(applied),
            CallName::Munmap => self.areas.unmap(&range),
            CallName::Mprotect | CallName::PkeyMprotect => self.mprotect(applied, range),
            CallName::Brk => self.brk(applied),
            CallName::Mremap => self.mremap(applied),
            CallName::Madvise => self.madvise(applied, args[2], &range),
            CallName::ProcessMadvise => {
                for &(at, len) in applied.call.transfer.iter().flat_map(|about| &about.remote) {
                    self.madvise(applied, args[3], &span(at, len));
                }
            }
            CallName::Mbind => {
                let tag = policy_tag(args[2], args[3]);
                self.areas.change(&range, true, applied.stamp, |area| area.tag = tag);
            }
            CallName::Mlock | CallName::Mlock2 | CallName::Munlock => self.mlock(applied),
            CallName::Mlockall | CallName::Munlockall => self.mlockall(applied),
            CallName::Prctl => self.prctl(&args),
            CallName::RemapFilePages => self.remap_file_pages(applied),
            CallName::Shmat => self.shmat(applied),
            CallName::Ioctl => self.register(applied),
            CallName::Shmdt => {
                let parts = self.areas.attached(args[0]);
                parts.iter().for_each(|part| self.areas.unmap(part));
            }
            _ => {}
        }
    }

    /// Inserts the new VMA, with the flags that Linux derives from the arguments.
    fn mmap(&mut self, applied: &mut AppliedCall<'_>) {
        let Some(at) = applied.call.returned.value() else { return };
        let [_, len, prot, flags, _, offset] = applied.call.args;
        let range = span(at, len);
        let at = range.start;
        if range.is_empty() {
            return;
        }
        if replaces(applied.call) {
            self.areas.unmap(&range);
        }
        let shared = matches!(flags & MAP_TYPE, 1 | 3);
        let anonymous = flags & MAP_ANONYMOUS != 0 && !shared;
        let mut bits = if shared { self.future & !flag::MERGEABLE } else { self.future };
        let set = |bits: &mut u32, when: bool, flag: u32| *bits |= if when { flag } else { 0 };
        set(&mut bits, flags & MAP_GROWSDOWN != 0, flag::GROWSDOWN);
        set(&mut bits, flags & MAP_NORESERVE != 0, flag::NORESERVE);
        set(&mut bits, !shared && prot & PROT_WRITE != 0 && flags & MAP_NORESERVE == 0, flag::ACCOUNT);
        set(&mut bits, flags & MAP_LOCKED != 0, flag::LOCKED);
        set(&mut bits, flags & MAP_STACK != 0, flag::NOHUGEPAGE);
        set(&mut bits, flags & MAP_SYNC != 0, flag::SYNC);
        set(&mut bits, applied.zeroes && flags & MAP_ANONYMOUS == 0 && !shared, flag::ZEROES);
        let stack = !shared && flags & MAP_ANONYMOUS != 0 && flags & (MAP_GROWSDOWN | MAP_STACK) != 0;
        let area = Area {
            shared,
            purpose: if stack { Purpose::Stack } else { Purpose::Any },
            file: if anonymous { None } else { applied.file },
            access: if anonymous { None } else { applied.access },
            offset: match (anonymous, flags & MAP_ANONYMOUS != 0) {
                (true, _) => at,
                (false, true) => 0,
                (false, false) => offset,
            },
            ..Area::anonymous(range.clone(), prot as u8 & 7, bits, applied.stamp)
        };
        self.areas.insert(at, area);
        let populates = flags & MAP_POPULATE != 0 && flags & MAP_NONBLOCK == 0;
        if populates || bits & flag::LOCKS == flag::LOCKED {
            self.populate(range, applied);
        }
    }

    /// Changes the rights of the VMAs in the range, and the protection key if the call gives one.
    fn mprotect(&mut self, applied: &mut AppliedCall<'_>, mut range: Range<u64>) {
        let args = applied.call.args;
        let prot = args[2];
        if prot & PROT_GROWSDOWN != 0
            && let Some((start, area)) = self.areas.find(range.start)
            && area.flags & flag::GROWSDOWN != 0
        {
            range.start = start;
        }
        let key = match applied.call.name {
            CallName::PkeyMprotect if args[3] as i64 >= 0 => Some(args[3]),
            _ => None,
        };
        // If the call succeeded, Linux found no hole. A hole in the model is then unknown memory, and is
        // skipped.
        self.areas.change(&range, !failed(applied.call), applied.stamp, |area| {
            area.prot = prot as u8 & 7;
            if prot & PROT_WRITE != 0 {
                if !area.shared && area.flags & flag::NORESERVE == 0 {
                    area.flags |= flag::ACCOUNT;
                }
            } else if area.is_anonymous() && area.family == 0 {
                area.flags &= !flag::ACCOUNT;
            }
            if let Some(key) = key {
                area.tag = area.tag & !0xff | key & 0xff;
            }
        });
    }

    /// Grows or shrinks the heap. The first brk only shows where the heap is.
    fn brk(&mut self, applied: &mut AppliedCall<'_>) {
        let Some(at) = applied.call.returned.value() else { return };
        let Some((start, _)) = self.heap else {
            self.heap = Some((at, at));
            return;
        };
        let Some(range) = heap_change(applied.call, self) else { return };
        let grows = self.heap.is_some_and(|(_, old)| at > old);
        self.heap = Some((start, at));
        if range.is_empty() {
            return;
        }
        if !grows {
            return self.areas.unmap(&range);
        }
        let flags = flag::ACCOUNT | self.future;
        let area = Area { purpose: Purpose::Heap, ..Area::anonymous(range.clone(), 3, flags, applied.stamp) };
        self.areas.insert(range.start, area);
    }

    /// Sets or clears the VMA flag that belongs to the advice. Advice without such a flag does not change
    /// VMAs.
    fn madvise(&mut self, applied: &mut AppliedCall<'_>, advice: u64, range: &Range<u64>) {
        let (add, remove) = match advice {
            0 => (0, flag::RANDOM | flag::SEQUENTIAL),
            1 => (flag::RANDOM, flag::SEQUENTIAL),
            2 => (flag::SEQUENTIAL, flag::RANDOM),
            10 => (flag::DONTCOPY, 0),
            11 => (0, flag::DONTCOPY),
            12 => (flag::MERGEABLE, 0),
            13 => (0, flag::MERGEABLE),
            14 => (flag::HUGEPAGE, flag::NOHUGEPAGE),
            15 => (flag::NOHUGEPAGE, flag::HUGEPAGE),
            16 => (flag::DONTDUMP, 0),
            17 => (0, flag::DONTDUMP),
            18 => (flag::WIPEONFORK, 0),
            19 => (0, flag::WIPEONFORK),
            22 if self.is_supplied(range.start) => return self.populate(range.clone(), applied),
            23 => return self.populate(range.clone(), applied),
            _ => return,
        };
        self.areas.change(range, true, applied.stamp, |area| {
            // MADV_MERGEABLE has no effect on shared mappings.
            if !(add == flag::MERGEABLE && area.shared) {
                area.flags = area.flags & !remove | add;
            }
        });
    }

    /// Locks or unlocks the VMAs in a range.
    fn mlock(&mut self, applied: &mut AppliedCall<'_>) {
        let args = applied.call.args;
        let range = lock_range(args[0], args[1]);
        let add = match applied.call.name {
            CallName::Munlock => 0,
            CallName::Mlock2 if args[2] & 1 != 0 => flag::LOCKS,
            _ => flag::LOCKED,
        };
        self.areas.change(&range, false, applied.stamp, |area| area.flags = area.flags & !flag::LOCKS | add);
        if add == flag::LOCKED {
            self.populate(range, applied);
        }
    }

    /// Locks or unlocks all VMAs, and sets the lock flags of future mappings.
    fn mlockall(&mut self, applied: &mut AppliedCall<'_>) {
        let how = if applied.call.name == CallName::Mlockall { applied.call.args[0] } else { 0 };
        let add = if how & 4 != 0 { flag::LOCKS } else { flag::LOCKED };
        if how & 1 != 0 || applied.call.name == CallName::Munlockall {
            let now = if how & 1 != 0 { add } else { 0 };
            let ranges: Vec<_> = self
                .areas
                .iter()
                .filter(|(_, area)| area.flags & flag::SPECIAL == 0)
                .map(|(start, area)| start..area.end)
                .collect();
            for range in ranges {
                self.areas.change(&range, false, applied.stamp, |area| {
                    area.flags = area.flags & !flag::LOCKS | now;
                });
                if now == flag::LOCKED {
                    self.populate(range, applied);
                }
            }
        }
        self.future = self.future & flag::MERGEABLE | if how & 2 != 0 { add } else { 0 };
    }

    /// Applies a prctl. The only operation that changes VMAs is `PR_SET_MEMORY_MERGE`. As in Linux,
    /// neighbours do not merge even if their flags become equal.
    fn prctl(&mut self, args: &[u64; 6]) {
        if args[0] != prctl::SET_MEMORY_MERGE || (self.future & flag::MERGEABLE != 0) == (args[1] != 0) {
            return;
        }
        self.future ^= flag::MERGEABLE;
        let wanted = self.future & flag::MERGEABLE;
        for area in self.areas.iter_mut() {
            let can = !area.shared && area.flags & flag::SPECIAL == 0;
            area.flags = area.flags & !flag::MERGEABLE | if can { wanted } else { 0 };
        }
    }

    /// Maps another part of the file over an existing mapping.
    fn remap_file_pages(&mut self, applied: &AppliedCall<'_>) {
        let [at, len, _, pgoff, ..] = applied.call.args;
        let range = page_of(at)..page_of(at).saturating_add(page_of(len));
        let Some((_, area)) = self.areas.find(range.start).filter(|_| !range.is_empty()) else { return };
        let area =
            Area { end: range.end, offset: pgoff.wrapping_mul(PAGE), last: applied.stamp, ..area.clone() };
        self.areas.unmap(&range);
        self.areas.insert(range.start, area);
    }

    /// Inserts the VMA of an attached System V segment.
    fn shmat(&mut self, applied: &mut AppliedCall<'_>) {
        let Some(range) = applied.call.returned.value().map(|at| span(at, applied.segment)) else { return };
        if range.is_empty() {
            return;
        }
        let prot = if applied.call.args[2] & SHM_RDONLY != 0 { 1 } else { 3 };
        let attached = Area::anonymous(range.clone(), prot, flag::SEGMENT, applied.stamp);
        let area = Area { shared: true, file: applied.file, offset: 0, ..attached };
        self.areas.insert(range.start, area);
    }

    /// Notes the first writes of a call that brings in every page of the range: such a call writes to
    /// writable memory. Stops at the first hole.
    fn populate(&mut self, range: Range<u64>, applied: &mut AppliedCall<'_>) {
        let mut at = range.start;
        while at < range.end {
            let Some((_, area)) = self.areas.find(at) else { return };
            let (end, writes) = (area.end, area.prot & PROT_WRITE as u8 != 0);
            if writes {
                self.first_write(at, applied.stamp, applied.families);
            }
            at = end;
        }
    }

    /// Returns the model of the address space of a forked child. `families` is the highest number of a family
    /// so far.
    pub(crate) fn fork(&self, families: &mut u32) -> Space {
        let mut child = Space {
            heap: self.heap,
            known_ranges: self.known_ranges.clone(),
            assumed: self.assumed.clone(),
            grows: self.grows,
            grown: self.grown.clone(),
            // With UFFD_FEATURE_EVENT_FORK the copied VMAs are registered with a new userfaultfd, whose
            // descriptor is unknown.
            doubts_userfaultfd: self.doubts_userfaultfd || self.copies_registrations(),
            written: self.written.clone(),
            limits: self.limits,
            future: self.future & flag::MERGEABLE,
            ..Space::default()
        };
        for (start, area) in self.areas.iter().filter(|(_, area)| area.flags & flag::DONTCOPY == 0) {
            let mut copy = Area {
                flags: area.flags & !flag::LOCKS,
                last: Stamp::START,
                family_by: Stamp::START,
                ..area.clone()
            };
            copy.unregister();
            if copy.family != 0 && !copy.shared {
                *families = families.wrapping_add(1).max(1);
                (copy.family, copy.alone) = (*families, false);
            }
            if copy.flags & flag::WIPEONFORK != 0 {
                (copy.family, copy.alone) = (0, true);
            }
            child.areas.put(start, copy);
        }
        child
    }
}

/// Returns a number that stands for a memory policy in [`Area::tag`]. The contents of the node mask are not
/// recorded, so the number is made of the mode and the address of the mask.
pub(crate) fn policy_tag(mode: u64, nodes: u64) -> u64 {
    if mode == 0 { 0 } else { (mode << 48 ^ nodes) << 8 }
}
