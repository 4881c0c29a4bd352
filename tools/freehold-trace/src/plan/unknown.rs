//! Address spaces whose start is not recorded, as in strace output: what each call shows about the mappings.
//!
//! strace does not show which mappings exist after an execve. At first all addresses are *unknown*; the
//! addresses whose mappings are known are in `Space::known_ranges`. Each recorded call and its result add
//! knowledge:
//!
//! - A call that maps or unmaps memory determines its whole range.
//! - Another call that succeeds shows that memory is mapped in its range, but not which memory. Such memory
//!   is *assumed*: the replay maps anonymous memory there. The addresses stay unknown, and results that
//!   depend on them are *unsure*, which means that they are not compared.
//! - A range that the kernel chose for a call was free.
//! - Below a mapping that grows downwards, mappings change without a call.
//!
//! `syscall.rs` calls the functions `learn_*` before it applies a call to the model. [`Conclusions`] says
//! which steps precede the call, and if the result of the call can be compared. In an address space that a
//! snapshot shows from its start, the functions have no effect except on growth and locks.
//!
//! In case of doubt, mark addresses as unknown. Addresses that are wrongly marked as known lead to false
//! differences; addresses that are wrongly marked as unknown only lead to answers that are not compared. The
//! tests (`unknown_tests.rs`) check single calls.

use super::address_set::AddressSet;
use super::area::{PAGE, flag};
use super::refused;
use super::space::{MAP_GROWSDOWN, MREMAP_DONTUNMAP, Space, replaces};
use crate::addresses::{MAP_FIXED, MAP_FIXED_NOREPLACE, MREMAP_FIXED, span};
use crate::{Beside, Call, CallName, Returned};
use std::ops::Range;

const ENOMEM: u16 = 12;
const EINVAL: u16 = 22;
/// Number of bytes that Linux keeps free below memory that grows downwards.
const GAP: u64 = 1 << 20;

/// The conclusions from a call and its result. The ranges become steps of the plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Conclusions {
    /// True if the result of the call is unsure: it depends on unknown memory.
    pub(super) unsure: bool,
    /// Ranges to unmap before the call, because the call found them free.
    pub(super) cleared: Vec<Range<u64>>,
    /// Assumed memory: ranges to map before the call.
    pub(super) assumed: Vec<Range<u64>>,
    /// Set if the call moved unknown memory. The call may then fail in the replay. After the call, the plan
    /// unmaps the first range, and maps the second range where nothing is mapped.
    pub(super) moved: Option<[Range<u64>; 2]>,
}

/// Returns true if the replay leaves out a failed call whose result is unsure, because the call might succeed
/// in the replay and then change known memory.
pub(super) fn is_skipped_if_unsure(call: &Call) -> bool {
    let changes = matches!(call.name, CallName::Mmap | CallName::Mremap | CallName::Munmap | CallName::Shmat)
        || call.name == CallName::Ioctl;
    changes && matches!(call.returned, Returned::Error(1..512))
}

/// Returns the range that must have been mapped before the call if the call succeeded. May be empty.
fn mapped_before(call: &Call, range: &Range<u64>) -> Range<u64> {
    let [_, old, new, ..] = call.args;
    let [old, new] = [old, new].map(|bytes| bytes.div_ceil(PAGE));
    match call.name {
        CallName::Mmap | CallName::Munmap | CallName::Brk | CallName::Shmat => 0..0,
        // With the default policy, the call skips holes.
        CallName::Mbind if call.args[2] == 0 => 0..0,
        // An mremap that does not grow the range examines only the first VMA: the rest of the range may have
        // holes or other VMAs.
        CallName::Mremap if new <= old || old == 0 => range.start..range.start.saturating_add(PAGE),
        _ => range.clone(),
    }
}

/// Returns the range that must have been free before the call, because the kernel gave it to the call. May be
/// empty.
fn free_before(call: &Call, ranges: &[Range<u64>; 2]) -> Range<u64> {
    let [from, old, new, flags, ..] = call.args;
    let [old, new] = [old, new].map(|bytes| bytes.div_ceil(PAGE));
    let Some(to) = call.returned.value() else { return 0..0 };
    match call.name {
        CallName::Mmap if !replaces(call) => ranges[0].clone(),
        CallName::Shmat => ranges[0].clone(),
        CallName::Brk if to >= ranges[0].end => ranges[0].clone(),
        CallName::Mremap if flags & MREMAP_FIXED == 0 && to != from => ranges[1].clone(),
        CallName::Mremap if flags & MREMAP_FIXED == 0 && new > old => ranges[0].end..ranges[1].end,
        _ => 0..0,
    }
}

/// Returns true if Linux chose the address of the call so that a gap remains below memory that grows
/// downwards. At fixed addresses Linux keeps no gap.
fn keeps_gap(call: &Call) -> bool {
    match call.name {
        CallName::Mmap => call.args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) == 0,
        CallName::Brk => true,
        _ => false,
    }
}

/// Returns true if it is unknown which memory a failed call has locked. The call has locked the memory before
/// a hole, or the whole range if a page was not available, or nothing if a limit was the reason.
fn may_have_locked(call: &Call) -> bool {
    matches!(call.name, CallName::Mlock | CallName::Mlock2 | CallName::Mlockall)
        && call.returned == Returned::Error(ENOMEM)
}

/// Returns true if the result depends on which memory is locked.
fn depends_on_locks(call: &Call) -> bool {
    const MS_INVALIDATE: u64 = 2;
    match call.name {
        // FREE, DONTNEED, REMOVE, COLD, PAGEOUT, GUARD_INSTALL
        CallName::Madvise => matches!(call.args[2], 4 | 8 | 9 | 20 | 21 | 102),
        CallName::Msync => call.args[2] & MS_INVALIDATE != 0,
        CallName::Mremap => true,
        _ => false,
    }
}

/// Returns true if a refused mremap of several VMAs may have moved some of them. Linux has then also removed
/// the mappings of the target.
///
/// Linux checks everything before it changes anything, with two exceptions. If the memory shrinks, Linux
/// unmaps the tail before it moves the rest. If a VMA after the first VMA forbids the move, Linux has already
/// moved the VMAs before it.
fn moved_in_part(call: &Call) -> bool {
    let [at, old, new, flags, to, _] = call.args;
    let sound = [at, to].iter().all(|addr| addr.is_multiple_of(PAGE)) && new != 0;
    let sound = sound && old.div_ceil(PAGE) >= new.div_ceil(PAGE);
    call.name == CallName::Mremap
        && flags & MREMAP_FIXED != 0
        && (call.returned != Returned::Error(EINVAL) || sound)
}

impl Space {
    /// Notes what the result of a call on `ranges` shows about unknown addresses. Returns the conclusions for
    /// the plan.
    pub(super) fn learn_from_call(&mut self, call: &Call, ranges: &[Range<u64>; 2]) -> Conclusions {
        self.grows |= call.name == CallName::Mmap && call.args[3] & MAP_GROWSDOWN != 0;
        self.forget_growth();
        let Some(known_ranges) = &self.known_ranges else { return Conclusions::default() };
        let [mut source, target] = ranges.clone();
        // An mremap with an old length of zero makes a second mapping of the same shared memory.
        let copies = call.name == CallName::Mremap && call.args[1] == 0;
        if copies {
            source.end = source.start.saturating_add(PAGE);
        }
        let replaces =
            matches!(call.name, CallName::Mmap | CallName::Munmap | CallName::Brk | CallName::Shmat);
        let succeeded = call.returned.value().is_some();
        let doubted = depends_on_locks(call) && !self.locks.within(&source).is_empty();
        let unknown = !known_ranges.missing(&source).is_empty() || doubted;
        let unsure = unknown && !(replaces && succeeded) || self.lacks_known_result_buffer(call);
        if !succeeded {
            if let Some(range) = refused::may_have_emptied(call) {
                self.mark_unknown(&range);
                return Conclusions { unsure: true, ..Conclusions::default() };
            }
            let target = call.name == CallName::Mremap && !known_ranges.missing(&target).is_empty();
            let limit = call.name == CallName::Mremap && call.returned == Returned::Error(ENOMEM);
            let unsure = unsure || target;
            let protects = matches!(call.name, CallName::Mprotect | CallName::PkeyMprotect);
            if unsure && protects && call.returned == Returned::Error(ENOMEM) {
                // The call stopped at a hole, and may have changed everything below it. It is unknown where
                // the hole was.
                self.mark_unknown(&source);
            }
            if (unsure || limit) && moved_in_part(call) {
                ranges.iter().for_each(|range| self.mark_unknown(range));
            }
            return Conclusions { unsure, ..Conclusions::default() };
        }
        let missing = known_ranges.missing(&mapped_before(call, &ranges[0]));
        let assumed: Vec<_> = missing.iter().flat_map(|part| self.assumed.missing(part)).collect();
        let mut cleared = known_ranges.missing(&free_before(call, ranges));
        let near = self.near_above(call, ranges);
        let unsure = unsure || near.is_some();
        cleared.extend(near.into_iter().flatten());
        assumed.iter().for_each(|part| self.assumed.add(part.clone()));
        for part in &cleared {
            self.assumed.remove(part);
            self.areas.unmap(part);
        }
        let mut moved = None;
        match call.name {
            CallName::Mremap if copies && unknown => self.assume_mapped(&target),
            CallName::Mremap => {
                self.learn_move(call, [&source, &target], unknown);
                let left = match call.args[3] & MREMAP_DONTUNMAP {
                    _ if target.start == source.start => target.end.min(source.end)..source.end,
                    0 => source,
                    _ => 0..0,
                };
                moved = unknown.then_some([left, target]);
            }
            _ if replaces || call.name == CallName::Shmdt => self.mark_known(&ranges[0]),
            _ => {}
        }
        Conclusions { unsure, cleared, assumed, moved }
    }

    /// Checks the gap between the range that Linux chose for a call and a mapping above it, if this mapping
    /// grows downwards. If the gap is too small, either Linux had unmapped the lower part of the mapping, or
    /// unknown memory lies in the gap. Returns the parts of the mapping that the plan must clear. Returns
    /// `None` if the gap was kept.
    fn near_above(&self, call: &Call, ranges: &[Range<u64>; 2]) -> Option<Vec<Range<u64>>> {
        let known_ranges = self.known_ranges.as_ref().filter(|_| self.grows && keeps_gap(call))?;
        let end = free_before(call, ranges).end;
        let above = end..end.saturating_add(GAP);
        let (start, area) = self.areas.within(&above).next().filter(|_| end != 0)?;
        let between = end..start.max(end);
        if area.flags & flag::GROWSDOWN == 0 || !self.assumed.within(&between).is_empty() {
            return None;
        }
        let gone = known_ranges.missing(&(between.end..area.end.min(above.end)));
        (!gone.is_empty() || !known_ranges.missing(&between).is_empty()).then_some(gone)
    }

    /// Notes that the effects of calls that overlap this call in time (`Call::beside`) are unknown. Such a
    /// call may be earlier or later in the plan. Returns true if the result of this call depends on the order
    /// and is therefore unsure.
    ///
    /// One order is certain: if the kernel gave this call a range that another call unmapped, the other call
    /// came first.
    pub(super) fn learn_from_overlaps(&mut self, call: &Call, ranges: &[Range<u64>; 2]) -> bool {
        let Some(known_ranges) = &mut self.known_ranges else { return false };
        let given = free_before(call, ranges);
        let mut unsure = false;
        for Beside { range, later, locks } in &call.beside {
            if *locks {
                unsure |= depends_on_locks(call);
                self.locks.add(range.clone());
                continue;
            }
            if *later {
                // The order does not change the result of a munmap, which succeeds with or without mappings
                // in its range.
                unsure |= call.name != CallName::Munmap;
                if known_ranges.missing(range).is_empty() && self.areas.cover(range) {
                    self.awaited.add(range.clone());
                }
                continue;
            }
            let certain = given.start <= range.start
                && range.end <= given.end
                && self.awaited.missing(range).is_empty();
            self.awaited.remove(range);
            if !certain {
                unsure = true;
                known_ranges.remove(range);
            }
        }
        unsure
    }

    /// Notes which memory a call locks or unlocks.
    pub(super) fn learn_locks(&mut self, call: &Call, [source, target]: &[Range<u64>; 2]) {
        let succeeded = call.returned.value().is_some();
        match call.name {
            CallName::Mlockall if may_have_locked(call) => self.locks.add(0..u64::MAX),
            _ if may_have_locked(call) => self.locks.add(source.clone()),
            CallName::Munlockall if succeeded => self.locks = AddressSet::default(),
            CallName::Mmap | CallName::Munmap | CallName::Mlock | CallName::Mlock2 | CallName::Munlock
                if succeeded =>
            {
                self.locks.remove(source);
            }
            CallName::Mremap if succeeded && call.args[3] & MREMAP_DONTUNMAP != 0 => {
                // The VMA that stays at the source is unlocked. Page faults, which are not recorded, decide
                // if the new VMA merges with the VMA at the source.
                let whole = self.areas.find(source.start).map(|(start, area)| start..area.end);
                self.locks.add(whole.unwrap_or(source.clone()));
                self.locks.add(target.clone());
            }
            CallName::Mremap if succeeded && !self.locks.within(source).is_empty() => {
                self.locks.add(target.clone());
            }
            CallName::Mremap if succeeded => self.locks.remove(target),
            _ => {}
        }
    }

    /// Returns true if a mincore failed because its result buffer was not writable, and the mappings of the
    /// buffer are unknown.
    fn lacks_known_result_buffer(&self, call: &Call) -> bool {
        const EFAULT: u16 = 14;
        let answer = span(call.args[2], call.args[1].div_ceil(PAGE).saturating_add(call.args[2] % PAGE));
        call.name == CallName::Mincore
            && call.returned == Returned::Error(EFAULT)
            && self
                .known_ranges
                .as_ref()
                .is_some_and(|known_ranges| !known_ranges.missing(&answer).is_empty())
    }

    /// Notes the knowledge that a successful mremap adds. `unknown` is true if a part of the source is
    /// unknown.
    fn learn_move(&mut self, call: &Call, [source, target]: [&Range<u64>; 2], unknown: bool) {
        if !unknown {
            self.mark_known(source);
            return self.mark_known(target);
        }
        let stays = target.start == source.start;
        if call.args[3] & MREMAP_DONTUNMAP == 0 && !stays {
            self.mark_known(source);
        }
        if stays && target.end < source.end {
            return self.mark_known(&(target.end..source.end));
        }
        self.assume_mapped(target);
    }

    /// Marks a range as unknown and assumed.
    fn assume_mapped(&mut self, range: &Range<u64>) {
        self.mark_unknown(range);
        self.assumed.add(range.clone());
        if self.grows {
            self.grown.add(range.clone());
        }
    }

    /// Marks the mappings of a range as unknown.
    pub(super) fn mark_unknown(&mut self, range: &Range<u64>) {
        if let Some(known_ranges) = &mut self.known_ranges {
            known_ranges.remove(range);
        }
    }

    /// Marks the addresses from `at` to the next VMA as unknown, because a mapping of unknown length reaches
    /// to `at` or further.
    pub(super) fn mark_unknown_from(&mut self, at: u64) {
        let next = self.areas.iter().map(|(start, _)| start).find(|start| *start > at);
        self.mark_unknown(&(at..next.unwrap_or(u64::MAX)));
    }

    /// Notes that a range was unmapped. `certain` is true if no overlapping call can have mapped memory there
    /// afterwards.
    pub(super) fn note_unmapped(&mut self, range: &Range<u64>, certain: bool) {
        self.areas.unmap(range);
        if certain {
            self.mark_known(range);
        }
    }

    /// Marks a range as known: the model has exactly its mappings.
    fn mark_known(&mut self, range: &Range<u64>) {
        if let Some(known_ranges) = &mut self.known_ranges {
            known_ranges.add(range.clone());
            self.assumed.remove(range);
            self.grown.remove(range);
        }
    }

    /// Marks as unknown the addresses into which memory may have grown downwards. The addresses extend from
    /// each mapping that grows downwards, and from each range into which memory may already have grown, down
    /// to the next known mapping.
    pub(super) fn forget_growth(&mut self) {
        let Some(known_ranges) = self.known_ranges.as_mut().filter(|_| self.grows) else { return };
        let mut below = 0;
        for (start, area) in self.areas.iter() {
            if area.flags & flag::GROWSDOWN != 0 {
                known_ranges.remove(&(below..start));
                self.grown.add(below..start);
            }
            below = known_ranges.within(&(start..area.end)).last().map_or(below, |known| known.end);
        }
        let known = self.areas.iter().flat_map(|(start, area)| known_ranges.within(&(start..area.end)));
        let ends: Vec<u64> = known.map(|part| part.end).collect();
        for part in self.grown.within(&(0..u64::MAX)) {
            let below = ends.iter().copied().take_while(|end| *end <= part.start).last().unwrap_or(0);
            known_ranges.remove(&(below..part.start));
            self.grown.add(below..part.start);
        }
    }
}

#[cfg(test)]
#[path = "unknown_tests.rs"]
mod tests;
