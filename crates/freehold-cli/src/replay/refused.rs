//! Calls that Linux refused for a reason of which recordings say nothing: limits, credentials, how much memory was promised to
//! others, how a file was opened and whether it can be mapped.
//!
//! Where the engine, which knows of no such reason, makes such a call all the same, that is no difference; but it is undone, so
//! that what comes later is compared with the same state.

use super::world::World;
use freehold::space::maps::MapLine;
use freehold::space::{LockFlags, Mdwe, Prot, RemapFlags};
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use freehold_trace::plan::PlannedCall;
use freehold_trace::{Call, CallName, Returned};
use std::ops::Range;

const PAGE: u64 = 4096;
const EPERM: u16 = 1;
const EAGAIN: u16 = 11;
const ENOMEM: u16 = 12;
const EACCES: u16 = 13;
const ENODEV: u16 = 19;
const EINVAL: u16 = 22;
const ETXTBSY: u16 = 26;
const MAP_FIXED: u64 = 0x10;

/// Why such calls are not checked.
pub(super) const UNTOLD: &str = "calls that Linux refused for limits, credentials, overcommit or how a file was opened, which are not recorded";

/// What to do about a call that Linux refused.
pub(super) enum Refused {
    /// Make it; if the engine does not refuse it, undo it.
    Undo(Before),
    /// It cannot be undone, so it is not made.
    Leave,
}

/// What an address space was like before a call, as far as the call may change it.
pub(super) struct Before {
    brk: Option<u64>,
    lines: Vec<MapLine<Machine>>,
    range: Range<u64>,
}

/// What is to be done about a call; `None`: Linux made it, or refused it for what the recording shows.
pub(super) fn refused(world: &World, process: &Process, planned: &PlannedCall) -> Option<Refused> {
    let call = &planned.call;
    let unnamed = planned.file.is_some_and(|id| world.is_unnamed(id));
    let reasons: &[u16] = match call.name {
        CallName::Brk => return refused_brk(process, call),
        CallName::Mmap if unnamed => &[EPERM, EAGAIN, ENOMEM, EACCES, ENODEV, EINVAL, ETXTBSY],
        CallName::Mmap => &[EPERM, EAGAIN, ENOMEM, EACCES, ENODEV, ETXTBSY],
        CallName::Mprotect | CallName::PkeyMprotect => &[ENOMEM, EACCES],
        CallName::Mremap => &[EAGAIN, ENOMEM],
        // How many VMAs there are is not known where it is not known how the address space began.
        CallName::Munmap if planned.partly => &[ENOMEM],
        CallName::Mlock | CallName::Mlock2 | CallName::Mlockall => &[EPERM, EAGAIN, ENOMEM],
        _ => return None,
    };
    let Returned::Error(number) = call.returned else { return None };
    if !reasons.contains(&number) {
        return None;
    }
    let start = call.args[0] & !(PAGE - 1);
    let range = start..call.args[0].saturating_add(call.args[1]).checked_next_multiple_of(PAGE)?;
    let lines: Vec<MapLine<Machine>> = match call.name {
        CallName::Mlockall | CallName::Munmap => return Some(Refused::Leave),
        CallName::Mmap if call.args[3] & MAP_FIXED == 0 => Vec::new(),
        _ => process.maps(range.start).take_while(|line| line.start < range.end).collect(),
    };
    let told = number == EACCES
        && (process.mdwe().contains(Mdwe::REFUSE_EXEC_GAIN)
            || tells_opening(world, process, planned, &lines));
    if told {
        return None;
    }
    if call.name == CallName::Mmap && !lines.is_empty() {
        // Something would be replaced.
        let sealed = lines.iter().any(|line| line.flags.contains(VmFlags::SEALED));
        return if number == EPERM && sealed { None } else { Some(Refused::Leave) };
    }
    Some(Refused::Undo(Before { brk: None, lines, range }))
}

/// Whether it is recorded how the files were opened that the call concerns, which are mapped at `lines`.
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
        let file = vma.as_ref().and_then(|vma| vma.object().file());
        file.is_none_or(|file| world.tells_opening(file))
    };
    lines.iter().all(told)
}

/// The break stays where it was.
fn refused_brk(process: &Process, call: &Call) -> Option<Refused> {
    // Asking takes the mmap lock, which is counted.
    let stays = call.returned.value().filter(|&stays| call.args[0] > stays)?;
    let now = process.brk(0).ok()?;
    (now == stays).then(|| Refused::Undo(Before { brk: Some(now), lines: Vec::new(), range: 0..0 }))
}

impl Before {
    /// Takes back what `call` did, which returned `value`.
    pub(super) fn restore(&self, process: &Process, call: &Call, value: u64) {
        let [at, old, new, ..] = call.args;
        // What cannot be taken back shows in what comes.
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
            _ => self.each(|part, flags| {
                let len = part.end - part.start;
                let _ = match flags.contains(VmFlags::LOCKED) {
                    false => process.munlock(part.start, len),
                    true if flags.contains(VmFlags::LOCKONFAULT) => {
                        process.mlock2(part.start, len, LockFlags::ONFAULT)
                    }
                    true => process.mlock(part.start, len),
                };
            }),
        }
    }

    /// Each part that was mapped, with its flags.
    fn each(&self, mut restore: impl FnMut(Range<u64>, VmFlags)) {
        for line in &self.lines {
            restore(line.start.max(self.range.start)..line.end.min(self.range.end), line.flags);
        }
    }
}
