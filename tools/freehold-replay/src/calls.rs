//! System calls: translates recorded arguments to calls of the engine, and answers of the engine to the form
//! of recorded answers.
//!
//! `perform.rs` calls [`answer`] for each call step, on the virtual CPU of the worker. [`answer`] returns the
//! engine's answer in the form of the recording, and compares nothing. Other files handle calls on files
//! (`opened.rs`), on userfaultfds (`pagers.rs`) and between processes (`transfer.rs`), and `prctl`
//! (`prctl.rs`).
//!
//! Arguments are passed on as recorded. The engine must refuse invalid arguments like Linux. An argument that
//! the engine's types cannot express gets the errno that Linux returns. To replay another system call, add an
//! arm to [`answer`]; a call without an arm is counted as not checked. Cases of calls belong in
//! `tests/small.rs` (any recording) and `tests/strace.rs` (strace output).

use super::TASK_SIZE;
use super::answers::returned;
use super::length;
use super::prctl;
use super::world::{Mapped, UNNAMED, World};
use freehold::error::{Errno, MadviseError, MmapError};
use freehold::platform::PkeyRights;
use freehold::remote::IoVec;
use freehold::vma::flags::VmFlags;
use freehold::{
    call::{Advice, LockAllFlags, LockFlags, RemapFlags, ShmFlags, SyncFlags},
    space::{MapFlags, Prot},
};
use freehold_machine::Process;
use freehold_trace::plan::PlannedCall;
use freehold_trace::{CallName, Returned};

const PAGE: u64 = 4096;
/// Largest number of pages for which a mincore call is replayed.
const MAX_PAGES: u64 = 1 << 22;

/// Makes the call on `process`. Returns `None` if the engine has no such call. A mapping without a fixed
/// address gets the address that Linux chose. If `chooses` is set, the engine chooses the address.
pub(super) fn answer(
    world: &World,
    process: &Process,
    planned: &PlannedCall,
    chooses: bool,
) -> Option<Returned> {
    let call = &planned.call;
    let args = call.args;
    let done = |result: Result<(), Errno>| returned(result.map(|()| 0));
    Some(match call.name {
        CallName::Mmap => returned(mmap(world, process, planned, chooses)),
        CallName::Munmap => done(process.munmap(args[0], args[1]).map_err(|error| error.errno())),
        CallName::Mprotect => mprotect(process, &args),
        CallName::PkeyMprotect => pkey_mprotect(process, &args),
        CallName::PkeyAlloc => returned(pkey_alloc(process, &args)),
        // The key is an int: the low part of the argument.
        CallName::PkeyFree => match u8::try_from(args[0] as i32) {
            Ok(pkey) => done(process.pkey_free(pkey).map_err(|error| error.errno())),
            Err(_) => Returned::Error(Errno::EINVAL.0 as u16),
        },
        CallName::RemapFilePages => {
            let [at, len, prot, pgoff, flags, _] = args;
            let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
            done(process.remap_file_pages(at, len, prot, pgoff, flags).map_err(|error| error.errno()))
        }
        CallName::Brk => {
            if let Some(start) = planned.heap {
                process.set_heap(start..start).ok()?;
            }
            returned(process.brk(args[0]).map_err(|_| Errno::EINTR))
        }
        CallName::Mremap => mremap(process, planned, chooses),
        CallName::Madvise => done(madvise(process, &args)),
        CallName::ProcessMadvise => returned(process_madvise(process, planned)?),
        CallName::Mbind => {
            let tag = policy(args[2], args[3]);
            done(process.set_policy(args[0], args[1], tag).map_err(|error| error.errno()))
        }
        CallName::Mlock => done(process.mlock(args[0], args[1]).map_err(|error| error.errno())),
        CallName::Mlock2 => {
            let flags = LockFlags::from_bits_retain(args[2] as _);
            done(process.mlock2(args[0], args[1], flags).map_err(|error| error.errno()))
        }
        CallName::Munlock => done(process.munlock(args[0], args[1]).map_err(|error| error.errno())),
        CallName::Mlockall => {
            let flags = LockAllFlags::from_bits_retain(args[0] as _);
            done(process.mlockall(flags).map_err(|error| error.errno()))
        }
        CallName::Munlockall => done(process.munlockall().map_err(|error| error.errno())),
        CallName::Msync => {
            let flags = SyncFlags::from_bits_retain(args[2] as _);
            done(process.msync(args[0], args[1], flags).map_err(|error| error.errno()))
        }
        CallName::Mincore => done(mincore(process, planned)?),
        CallName::Mseal => done(process.mseal(args[0], args[1], args[2]).map_err(|error| error.errno())),
        CallName::Shmat => returned(shmat(world, process, planned, chooses)),
        CallName::Shmdt => done(process.shmdt(args[0]).map_err(|error| error.errno())),
        CallName::Ftruncate | CallName::Fallocate | CallName::Fcntl => world.change(planned.file, call)?,
        CallName::Prctl => return prctl::answer(process, &args),
        _ => return None,
    })
}

/// Makes the call mincore. Returns `None` if the range has more than [`MAX_PAGES`] pages.
fn mincore(process: &Process, planned: &PlannedCall) -> Option<Result<(), Errno>> {
    let args = &planned.call.args;
    let pages = args[1].div_ceil(PAGE);
    if pages > MAX_PAGES {
        return None;
    }
    let mut out = vec![0; pages as usize];
    let found = process.mincore(args[0], args[1], &mut out).map_err(|error| error.errno());
    // strace output shows the contents of the result vector, but not the address of the vector.
    if planned.call.returned != Returned::Error(Errno::EFAULT.0 as u16) {
        return Some(found);
    }
    // Linux checks first that the vector lies within the user's addresses.
    if args[0].is_multiple_of(PAGE) && args[2].checked_add(pages).is_none_or(|end| end > TASK_SIZE) {
        return Some(Err(Errno::EFAULT));
    }
    // Linux copies out the result for the pages below a hole, and only then finds the hole.
    let begins = process.find_vma(args[0]).is_some();
    Some(match found {
        Ok(()) => may_write(process, args[2], pages),
        Err(Errno::ENOMEM) if begins => may_write(process, args[2], 1).and(Err(Errno::ENOMEM)),
        other => other,
    })
}

/// Returns `EFAULT` unless the kernel could write `len` bytes at `at` on behalf of the program.
fn may_write(process: &Process, at: u64, len: u64) -> Result<(), Errno> {
    may_use(process, at, len, VmFlags::WRITE)
}

/// Returns `EFAULT` unless the kernel could access `len` bytes at `at` in VMAs with these `rights`.
pub(super) fn may_use(process: &Process, at: u64, len: u64, rights: VmFlags) -> Result<(), Errno> {
    let (mut at, end) = (at, at.checked_add(len).ok_or(Errno::EFAULT)?);
    while at < end {
        // A stack that may grow to this address has grown already. A page that the task has no right to
        // access is not faulted in.
        let vma = process.find_vma(at).filter(|vma| vma.flags().contains(rights)).ok_or(Errno::EFAULT)?;
        let end_of_vma = vma.end();
        drop(vma);
        // The page itself may be inaccessible, for example behind the end of a file.
        let here = [IoVec { base: at, len: 1 }];
        process.read_vectored(&here, &mut [0]).map_err(|_| Errno::EFAULT)?;
        at = end_of_vma;
    }
    Ok(())
}

/// Makes the call mmap, with the file of the plan. Requests the address that Linux chose, unless `chooses` is
/// true.
fn mmap(world: &World, process: &Process, planned: &PlannedCall, chooses: bool) -> Result<u64, Errno> {
    let [addr, len, prot, flags, _, offset] = planned.call.args;
    let flags = MapFlags::from_bits_retain(flags);
    // Each anonymous shared mapping gets a new file, which the engine creates.
    let named = planned.file.filter(|_| !flags.contains(MapFlags::ANONYMOUS));
    let file = named.and_then(|id| match world.mapped(id) {
        Some(Mapped::File(file)) => file.file(planned.access),
        _ => None,
    });
    let file = file.as_ref();
    // The file may be a device, which can have any length.
    let endless = file.is_some_and(|file| file.name().starts_with(UNNAMED));
    let beyond = offset.saturating_add(len) > length::MAX_SIZE;
    let offset = if endless && beyond { offset % (1 << 40) } else { offset };
    // Linux mistakes a fixed address in the last page for an error number.
    if flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE)
        && addr > u64::MAX - 4095
        && len <= TASK_SIZE
    {
        let refused = process.mmap(addr, len, Prot::from_bits_retain(prot), flags, file, offset);
        return refused.map_err(|error| match error {
            MmapError::NoSpace => Errno(addr.wrapping_neg() as _),
            error => error.errno(),
        });
    }
    // Requests the address that Linux chose. The engine uses this address if it is free.
    let fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
    let place = planned.call.returned.value().filter(|_| !fixed && !chooses);
    let addr = place.unwrap_or(addr);
    // A hint is accepted only if there is also room for alignment, and for the gap below memory that grows
    // downwards. The room or the gap may be missing in the replay although Linux placed the mapping, so the
    // address is forced in these cases.
    let aligned = file.is_some_and(|file| file.mapping().aligns_to_huge_pages());
    let private = flags & MapFlags::SHARED_VALIDATE == MapFlags::PRIVATE;
    let flags = match place {
        Some(_) if aligned && private || planned.unsure => flags | MapFlags::FIXED_NOREPLACE,
        _ => flags,
    };
    let mmap = || {
        let mapped = process.mmap(addr, len, Prot::from_bits_retain(prot), flags, file, offset);
        mapped.map_err(MmapError::errno)
    };
    match mmap() {
        // Linux had enough huge pages for this call, so the pools must be larger.
        Err(Errno::ENOMEM) if planned.call.returned.value().is_some() => {
            world.has_larger_pools();
            mmap()
        }
        answer => answer,
    }
}

/// Makes the call mprotect.
fn mprotect(process: &Process, args: &[u64; 6]) -> Returned {
    let result = process.mprotect(args[0], args[1], Prot::from_bits_retain(args[2]));
    returned(result.map(|()| 0).map_err(|error| error.errno()))
}

/// Makes the call pkey_mprotect. With key -1 the call has the effect of mprotect.
fn pkey_mprotect(process: &Process, args: &[u64; 6]) -> Returned {
    let prot = Prot::from_bits_retain(args[2]);
    match (args[3] as i32, u8::try_from(args[3] as i32)) {
        (-1, _) => mprotect(process, args),
        (_, Ok(pkey)) => {
            let result = process.pkey_mprotect(args[0], args[1], prot, pkey);
            returned(result.map(|()| 0).map_err(|error| error.errno()))
        }
        _ => Returned::Error(Errno::EINVAL.0 as u16),
    }
}

/// Makes the call pkey_alloc.
fn pkey_alloc(process: &Process, args: &[u64; 6]) -> Result<u64, Errno> {
    // The first argument has no valid flags and must be 0; the second holds the rights.
    let rights = u32::try_from(args[1]).ok().filter(|_| args[0] == 0).ok_or(Errno::EINVAL)?;
    process.pkey_alloc(PkeyRights::from_bits_retain(rights)).map(u64::from).map_err(|error| error.errno())
}

/// Returns the advice with this number, which is an int. A replay takes no pages away for PAGEOUT, because
/// Linux takes only some of the pages: those that it finds in its lists and that no CPU uses. COLD has the
/// same checks and keeps all pages.
fn advice(number: u64) -> Result<Advice, MadviseError> {
    match Advice::from_raw(number as u32)? {
        Advice::PageOut => Ok(Advice::Cold),
        advice => Ok(advice),
    }
}

/// Makes the call madvise.
fn madvise(process: &Process, args: &[u64; 6]) -> Result<(), Errno> {
    advice(args[2])
        .and_then(|advice| process.madvise(args[0], args[1], advice))
        .map_err(|error| error.errno())
}

/// Makes the call process_madvise on the caller itself. Returns `None` if the recording does not show the
/// ranges.
fn process_madvise(process: &Process, planned: &PlannedCall) -> Option<Result<u64, Errno>> {
    let about = planned.call.transfer.as_ref()?;
    let ranges: Vec<IoVec> = about.remote.iter().map(|&(base, len)| IoVec { base, len }).collect();
    // No flags are valid.
    let [_, _, _, number, flags, _] = planned.call.args;
    if flags as u32 != 0 {
        return Some(Err(Errno::EINVAL));
    }
    let advice = match advice(number) {
        Ok(advice) => advice,
        Err(error) => return Some(if ranges.is_empty() { Ok(0) } else { Err(error.errno()) }),
    };
    Some(process.process_madvise(&ranges, advice, true).map_err(|error| error.errno()))
}

/// Makes the call mremap. Requests the new address that Linux chose, unless `chooses` is true.
fn mremap(process: &Process, planned: &PlannedCall, chooses: bool) -> Returned {
    let [at, old, new, flags, target, _] = planned.call.args;
    let mut flags = RemapFlags::from_bits_retain(flags as _);
    if matches!(planned.call.returned, Returned::Error(512..=516)) {
        return interrupted_mremap(process, planned, flags);
    }
    let mut target = target;
    if let Some(to) = planned.call.returned.value()
        && to != at
        && !flags.contains(RemapFlags::FIXED)
        && !chooses
    {
        // The engine must use the address that Linux chose.
        flags |= RemapFlags::FIXED;
        target = to;
    }
    returned(process.mremap(at, old, new, flags, target).map_err(|error| error.errno()))
}

/// Repeats the effect of a move that a signal interrupted after the target and the tail were unmapped. The
/// kernel restarts such a call, and the recording contains the restarted call separately.
fn interrupted_mremap(process: &Process, planned: &PlannedCall, flags: RemapFlags) -> Returned {
    let [at, old, new, _, target, _] = planned.call.args;
    if flags.contains(RemapFlags::FIXED) {
        let _ = process.munmap(target, new);
        if old > new {
            let _ = process.munmap(at.wrapping_add(new), old - new);
        }
    }
    planned.call.returned
}

/// Makes the call shmat. Requests the address that Linux chose, unless `chooses` is true.
fn shmat(world: &World, process: &Process, planned: &PlannedCall, chooses: bool) -> Result<u64, Errno> {
    let Some(Mapped::Segment(segment)) = planned.file.and_then(|id| world.mapped(id)) else {
        return Err(Errno::EINVAL);
    };
    let [_, mut addr, how, ..] = planned.call.args;
    let mut flags = ShmFlags::from_bits_retain(how as u32);
    // Requests the address that Linux chose.
    if let Some(at) = planned.call.returned.value().filter(|at| !chooses && *at != 0) {
        (addr, flags) = (at, flags - ShmFlags::RND);
    }
    if segment.is_destroyed() {
        // A destroyed segment has no identifier.
        return Err(Errno::EINVAL);
    }
    process.shmat(segment, addr, flags).map_err(|error| error.errno())
}

/// Returns one number for a memory policy. The plan's model computes the same number.
fn policy(mode: u64, nodes: u64) -> u64 {
    if mode == 0 { 0 } else { (mode << 48) ^ nodes }
}
