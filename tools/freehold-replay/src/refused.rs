//! Calls that Linux refused for a reason that recordings do not show: limits, credentials, overcommit, or how
//! a file was opened and whether it can be mapped.
//!
//! The engine does not know such reasons, so the call may succeed on the engine. Such a success does not
//! count as a difference. Before the call, [`refused`] decides how to handle it. Afterwards `perform.rs`
//! undoes the call with [`Before::restore`], so that later comparisons start from the same state. A call that
//! cannot be undone, for example because it would replace a mapping, is not made ([`Refused::Leave`]).
//!
//! The other functions say what the recording determines about an answer (`tells_*`) or about memory
//! (`is_*`). A rule that is too generous hides a defect of the engine: `tests/limits.rs`, `tests/small.rs`
//! and `tests/untold.rs` check that other refusals are differences. A new reason needs an arm in [`refused`],
//! a text in `freehold_trace::plan::aside`, and a case in these tests.

use super::image::Image;
use super::length;
use super::maps::lines_in;
use super::runs::Runs;
use super::world::{Mapped, World, is_of_driver};
use freehold::report::maps::MapLine;
use freehold::vma::flags::VmFlags;
use freehold::{
    call::{Advice, LockFlags, RemapFlags},
    space::{Mdwe, Prot},
};
use freehold_machine::{Machine, Process};
use freehold_trace::plan::{PlannedCall, aside};
use freehold_trace::{Call, CallName, Returned};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
const EPERM: u16 = 1;
const EAGAIN: u16 = 11;
const ENOMEM: u16 = 12;
const EACCES: u16 = 13;
const EFAULT: u16 = 14;
const EBUSY: u16 = 16;
const ENODEV: u16 = 19;
const EINVAL: u16 = 22;
const ETXTBSY: u16 = 26;
const EOVERFLOW: u16 = 75;
const EOPNOTSUPP: u16 = 95;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_SYNC: u64 = 0x8_0000;
const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;

/// The handling of a call that Linux refused, with the reason why the call is not checked.
pub(super) enum Refused {
    /// Make the call, and undo it if the engine does not refuse it.
    Undo(Before, &'static str),
    /// Do not make the call, because it cannot be undone.
    Leave(&'static str),
}

/// State of an address space before a call, as far as the call may change it.
pub(super) struct Before {
    /// The end of the heap, for a brk.
    brk: Option<u64>,
    /// The VMAs in `range`.
    lines: Vec<MapLine<Machine>>,
    /// The addresses that the call may change.
    range: Range<u64>,
    /// Pages that were present in the range, if the pages that the call brings in must be removed again.
    there: Option<Runs>,
}

/// Returns how to handle a call. Returns `None` if the call succeeded on Linux, or Linux refused it for a
/// recorded reason.
pub(super) fn refused(world: &World, image: &Image, planned: &PlannedCall) -> Option<Refused> {
    let (process, call) = (image.process(), &planned.call);
    let limits = tells_limits(world, image, planned);
    let faults = world.has_faults;
    if !faults && !world.shows_seals && may_be_sealed(call) {
        return Some(Refused::Leave(aside::SEALED));
    }
    if call.returned == Returned::Error(ENOMEM)
        && world.doubts_pools.load(Relaxed)
        && maps_huge(world, planned)
    {
        return Some(Refused::Leave(aside::POOL));
    }
    if collapses(call) && matches!(call.returned, Returned::Error(EAGAIN | EBUSY)) {
        return Some(Refused::Leave(aside::COLLAPSED));
    }
    let unnamed = planned.file.is_some_and(|id| world.is_unnamed(id));
    let reasons: &[u16] = match call.name {
        CallName::Brk => return refused_brk(process, call),
        CallName::Mmap if call.args[3] & MAP_SYNC != 0 && call.returned == Returned::Error(EACCES) => {
            return Some(Refused::Leave(aside::SYNC));
        }
        CallName::Mmap if unnamed => {
            &[EPERM, EAGAIN, ENOMEM, EACCES, ENODEV, EINVAL, ETXTBSY, EOVERFLOW, EOPNOTSUPP]
        }
        CallName::Mmap => &[EPERM, EAGAIN, ENOMEM, EACCES, ENODEV, ETXTBSY],
        CallName::Mprotect | CallName::PkeyMprotect => &[ENOMEM, EACCES],
        CallName::Madvise if matches!(call.returned, Returned::Error(_)) => {
            return behind_the_end(process, call, faults);
        }
        CallName::Mremap
            if (call.returned == Returned::Error(EFAULT)
                || call.returned == Returned::Error(EINVAL) && remap_makes_sense(call))
                && is_drivers(process, call.args[0]) =>
        {
            return Some(Refused::Leave(aside::DRIVERS));
        }
        CallName::Mremap if call.returned == Returned::Error(EFAULT) && !faults => {
            return apart(process, call);
        }
        CallName::Mremap
            if call.args[3] & MREMAP_FIXED != 0 && call.returned == Returned::Error(ENOMEM) && !limits =>
        {
            return Some(Refused::Leave(aside::UNTOLD));
        }
        CallName::Mremap => &[EAGAIN, ENOMEM],
        // If the beginning of the address space is not known, its number of VMAs is not known either.
        CallName::Munmap if planned.partly => &[ENOMEM],
        CallName::Mlock | CallName::Mlock2 | CallName::Mlockall => &[EPERM, EAGAIN, ENOMEM],
        _ => return None,
    };
    let Returned::Error(number) = call.returned else { return None };
    if !reasons.contains(&number) {
        return None;
    }
    let start = call.args[0] & !(PAGE - 1);
    let end = call.args[0].saturating_add(call.args[1]).checked_next_multiple_of(PAGE);
    let range = start..end.unwrap_or(!(PAGE - 1));
    let lines: Vec<MapLine<Machine>> = match call.name {
        CallName::Mlockall | CallName::Munmap if !limits => return Some(Refused::Leave(aside::UNTOLD)),
        CallName::Mmap if call.args[3] & MAP_FIXED == 0 => Vec::new(),
        _ => lines_in(process, range.clone()).collect(),
    };
    let told = number == EACCES
        && (process.mdwe().contains(Mdwe::REFUSE_EXEC_GAIN)
            || tells_opening(world, process, planned, &lines));
    if told {
        return None;
    }
    // Linux did not get some page, perhaps because it was behind the end of a file. In this case Linux locks
    // the whole range, and brings in no page after the missing page.
    let is_of_file =
        |line: &&MapLine<Machine>| process.find_vma(line.start).is_some_and(|vma| !vma.is_anonymous());
    let locks = matches!(call.name, CallName::Mlock | CallName::Mlock2) && number == ENOMEM;
    if let Some(file) = lines.iter().find(is_of_file).filter(|_| locks) {
        let range = file.start.max(range.start)..range.end;
        return Some(Refused::Undo(Before::populating(process, range), aside::UNTOLD));
    }
    if limits {
        return None;
    }
    if call.name == CallName::Mmap && !lines.is_empty() {
        // The call would replace a mapping.
        let sealed = lines.iter().any(|line| line.flags.contains(VmFlags::SEALED));
        return if number == EPERM && sealed { None } else { Some(Refused::Leave(aside::UNTOLD)) };
    }
    Some(Refused::Undo(Before { lines, range, ..Before::nothing() }, aside::UNTOLD))
}

/// Returns true if Linux refused the call with the error that it uses only for sealed memory.
fn may_be_sealed(call: &Call) -> bool {
    const FAILURES: [u64; 2] = [100, 101];
    let changes = match call.name {
        CallName::Munmap | CallName::Mprotect | CallName::PkeyMprotect | CallName::Mremap => true,
        CallName::Mmap => call.args[3] & (MAP_FIXED | MAP_ANONYMOUS) == MAP_FIXED | MAP_ANONYMOUS,
        CallName::Madvise => !FAILURES.contains(&call.args[2]),
        _ => false,
    };
    changes && call.returned == Returned::Error(EPERM)
}

/// Returns true if the call maps huge pages of a pool.
fn maps_huge(world: &World, planned: &PlannedCall) -> bool {
    const MAP_HUGETLB: u64 = 0x4_0000;
    let flags = planned.call.args[3];
    let is_huge =
        |id| matches!(world.mapped(id), Some(Mapped::File(file)) if file.mapping.huge_page_size().is_some());
    planned.call.name == CallName::Mmap
        && (flags & MAP_ANONYMOUS != 0 && flags & MAP_HUGETLB != 0 || planned.file.is_some_and(is_huge))
}

/// Returns true if the call is madvise(MADV_COLLAPSE), for the caller itself or by process_madvise.
pub(super) fn collapses(call: &Call) -> bool {
    const COLLAPSE: u64 = 25;
    let advice = match call.name {
        CallName::Madvise => call.args[2],
        CallName::ProcessMadvise => call.args[3],
        _ => return false,
    };
    advice == COLLAPSE
}

/// Returns true if the recording contains every limit that may be the reason for Linux's refusal of the call.
/// The overcommit setting counts as a limit.
fn tells_limits(world: &World, image: &Image, planned: &PlannedCall) -> bool {
    let call = &planned.call;
    if planned.partly || !image.limited.load(Relaxed) {
        return false;
    }
    // A process that once had the right to lock more than the limit may have lost this right.
    let lock_limit = !image.process().limits().get().may_lock;
    let locks = matches!(call.name, CallName::Mlock | CallName::Mlock2 | CallName::Mlockall);
    let grows = match call.name {
        CallName::Mremap => call.args[2],
        _ => call.args[1],
    };
    match call.returned {
        Returned::Error(EAGAIN) => lock_limit,
        Returned::Error(EPERM) => lock_limit && locks,
        Returned::Error(ENOMEM) if locks => lock_limit,
        Returned::Error(ENOMEM) => grows <= world.promises,
        _ => false,
    }
}

/// Returns true if the recording contains every limit that may be the reason for Linux's refusal to grow the
/// memory that begins at `start`.
pub(super) fn tells_growth(world: &World, image: &Image, start: u64) -> bool {
    let process = image.process();
    let locked = process.find_vma(start).is_some_and(|vma| vma.flags().contains(VmFlags::LOCKED));
    let lock_limit = !process.limits().get().may_lock;
    image.limited.load(Relaxed) && world.promises > 0 && (lock_limit || !locked)
}

/// Returns true if these arguments are valid for some mapping, so that Linux does not always return EINVAL.
fn remap_makes_sense(call: &Call) -> bool {
    let [old, old_len, len, flags, new, ..] = call.args;
    let (moves, fixed, stays) =
        (flags & MREMAP_MAYMOVE != 0, flags & MREMAP_FIXED != 0, flags & MREMAP_DONTUNMAP != 0);
    let apart = new.checked_add(len).is_none_or(|end| end <= old)
        || old.checked_add(old_len).is_none_or(|end| end <= new);
    let known = flags & !(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
    known
        && old.is_multiple_of(PAGE)
        && len != 0
        && (moves || !fixed && !stays)
        && (!stays || old_len == len)
        && (!fixed || new.is_multiple_of(PAGE) && apart)
}

/// Returns true if a driver's file is mapped at `address`.
fn is_drivers(process: &Process, address: u64) -> bool {
    let vma = process.find_vma(address).filter(|vma| vma.start() <= address);
    let file = vma.as_ref().and_then(|vma| vma.object().open_file());
    file.is_some_and(|file| is_of_driver(file.name()))
}

/// Handles a madvise in which Linux could not bring in a page, perhaps behind the end of a file.
fn behind_the_end(process: &Process, call: &Call, faults: bool) -> Option<Refused> {
    const POPULATE_READ: u64 = 22;
    const POPULATE_WRITE: u64 = 23;
    let [at, len, advice, ..] = call.args;
    let range = at & !(PAGE - 1)..at.saturating_add(len);
    // strace output has no faults that correct the assumed length.
    let is_unknown = |at| match faults {
        true => is_of_unknown_length(process, at),
        false => process.find_vma(at).is_some_and(|vma| vma.object().file().is_some()),
    };
    let unknown = lines_in(process, range.clone()).find(|line| is_unknown(line.start.max(range.start)));
    let first = unknown.filter(|_| matches!(advice, POPULATE_READ | POPULATE_WRITE))?;
    Some(Refused::Undo(
        Before::populating(process, first.start.max(range.start)..range.end),
        aside::POPULATED,
    ))
}

/// Returns true if the mapping at `address` is of a file whose length, or whose number of huge pages, is not
/// known.
pub(super) fn is_of_unknown_length(process: &Process, address: u64) -> bool {
    let vma = process.find_vma(address);
    let mapping = vma.as_ref().and_then(|vma| vma.object().file()).map(|file| file.mapping());
    mapping.is_some_and(|mapping| length::known(mapping).is_none() || mapping.huge_page_size().is_some())
}

/// Returns the page numbers of the huge page of a pool that is mapped at `address`.
pub(super) fn huge_page(process: &Process, address: u64) -> Option<Range<u64>> {
    let bytes = process.find_vma(address)?.huge_page_size()?.bytes();
    let start = address & !(bytes - 1);
    Some(start / PAGE..(start + bytes) / PAGE)
}

/// Returns true if the mapping at `address` is readable.
pub(super) fn is_readable(process: &Process, address: u64) -> bool {
    let vma = process.find_vma(address).filter(|vma| vma.start() <= address);
    vma.is_some_and(|vma| vma.flags().contains(VmFlags::READ))
}

/// Unmaps memory that has grown down to `address` from `start`.
pub(super) fn shrink(process: &Process, address: u64, start: u64) {
    if let Some(from) = process.find_vma(address).map(|vma| vma.start()) {
        let _ = process.munmap(from, start.saturating_sub(from));
    }
}

/// Returns true if some VMA in `range` maps a file of unknown length.
pub(super) fn rests_on_length(process: &Process, range: Range<u64>) -> bool {
    let mut lines = lines_in(process, range);
    lines.any(|line| is_of_unknown_length(process, line.start))
}

/// Returns false for a mincore that Linux refused with EFAULT, if its result vector lies in a file of unknown
/// length: the vector may have been behind the end of the file.
pub(super) fn tells_own_memory(process: &Process, call: &Call) -> bool {
    let answer = call.args[2]..call.args[2].saturating_add(call.args[1].div_ceil(PAGE));
    let refused = call.name == CallName::Mincore && call.returned == Returned::Error(EFAULT);
    !refused || !rests_on_length(process, answer)
}

/// Handles an mremap in strace output. The call may have covered several VMAs on Linux, but covers only one
/// VMA in the replay. strace output has no page faults. Anonymous memory in the replay therefore has no
/// pages, and may merge with a neighbour where pages prevented the merge on Linux.
fn apart(process: &Process, call: &Call) -> Option<Refused> {
    let [at, old, new, flags, target, _] = call.args;
    let vma = process.find_vma(at).filter(|vma| vma.is_anonymous() && vma.end() - at >= old)?;
    drop(vma);
    if flags & MREMAP_FIXED != 0 {
        let end = target.saturating_add(new);
        let replaces = process.maps(target & !(PAGE - 1)).next().is_some_and(|line| line.start < end);
        return replaces
            .then_some(Refused::Leave(aside::APART))
            .or(Some(Refused::Undo(Before::nothing(), aside::APART)));
    }
    // A call that shrinks a mapping is not made, because the replay could not restore the part that is cut
    // off.
    Some(if new < old {
        Refused::Leave(aside::APART)
    } else {
        Refused::Undo(Before::nothing(), aside::APART)
    })
}

/// Returns true if the recording shows how the files of the call were opened. `lines` are the VMAs that map
/// them.
fn tells_opening(
    world: &World,
    process: &Process,
    planned: &PlannedCall,
    lines: &[MapLine<Machine>],
) -> bool {
    if planned.call.name == CallName::Mmap {
        return planned.access.is_some();
    }
    let told = |line: &MapLine<Machine>| {
        let vma = process.find_vma(line.start);
        let file = vma.as_ref().and_then(|vma| vma.object().open_file());
        file.is_none_or(|file| world.tells_opening(file))
    };
    lines.iter().all(told)
}

/// Handles a brk after which the break did not move on Linux.
fn refused_brk(process: &Process, call: &Call) -> Option<Refused> {
    // This condition comes first, because the query below takes the mmap lock, which the lock statistics
    // count.
    let stays = call.returned.value().filter(|&stays| call.args[0] > stays)?;
    let now = process.brk(0).ok()?;
    (now == stays).then(|| Refused::Undo(Before { brk: Some(now), ..Before::nothing() }, aside::UNTOLD))
}

impl Before {
    /// Returns a state that restores nothing except moved memory.
    fn nothing() -> Before {
        Before { brk: None, lines: Vec::new(), range: 0..0, there: None }
    }

    /// Returns a state that removes pages that the call brings into the range. Linux stopped in this range,
    /// perhaps at its first page.
    fn populating(process: &Process, range: Range<u64>) -> Before {
        let there = Some(pages_in(process, range.clone()));
        Before { range, there, ..Before::nothing() }
    }

    /// Undoes `call`, which returned `value`.
    pub(super) fn restore(&self, process: &Process, call: &Call, value: u64) {
        let [at, old, new, ..] = call.args;
        // The results are ignored: if undoing fails, a later comparison reports a difference.
        match call.name {
            CallName::Brk => drop(self.brk.map(|brk| process.brk(brk))),
            CallName::Mmap => drop(process.munmap(value, old)),
            CallName::Mremap if value == at => drop(process.mremap(at, new, old, RemapFlags::empty(), 0)),
            CallName::Mremap => {
                let back = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let _ = process.mremap(value, new, old, back, at);
            }
            CallName::Mprotect | CallName::PkeyMprotect => self.each(|part, flags| {
                let rights =
                    [(VmFlags::READ, Prot::READ), (VmFlags::WRITE, Prot::WRITE), (VmFlags::EXEC, Prot::EXEC)];
                let rights = rights.into_iter().filter(|(flag, _)| flags.contains(*flag));
                let prot = rights.fold(Prot::empty(), |all, (_, right)| all | right);
                let _ = process.mprotect(part.start, part.end - part.start, prot);
            }),
            _ => {
                self.take_pages_back(process);
                self.put_locks_back(process);
            }
        }
    }

    /// Frees the pages that the call has brought in.
    fn take_pages_back(&self, process: &Process) {
        let Some(there) = &self.there else { return };
        for page in pages_in(process, self.range.clone()).not_in(there) {
            let _ = process.madvise(page * PAGE, PAGE, Advice::DontNeedLocked);
        }
    }

    /// Locks or unlocks each part of the range, as it was before the call.
    fn put_locks_back(&self, process: &Process) {
        self.each(|part, flags| {
            let len = part.end - part.start;
            let _ = match flags.contains(VmFlags::LOCKED) {
                false => process.munlock(part.start, len),
                true if flags.contains(VmFlags::LOCKONFAULT) => {
                    process.mlock2(part.start, len, LockFlags::ONFAULT)
                }
                true => process.mlock(part.start, len),
            };
        });
    }

    /// Calls `restore` for each part that was mapped, with its flags.
    fn each(&self, mut restore: impl FnMut(Range<u64>, VmFlags)) {
        for line in &self.lines {
            restore(line.start.max(self.range.start)..line.end.min(self.range.end), line.flags);
        }
    }
}

/// Returns the pages that are present in a range of addresses.
fn pages_in(process: &Process, range: Range<u64>) -> Runs {
    let mut pages = Runs::default();
    process.pagemap(range, |present| pages.push(present.range.start() / PAGE..present.range.end() / PAGE));
    pages
}
