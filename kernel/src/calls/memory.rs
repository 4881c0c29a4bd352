//! The memory calls. The engine implements nearly all of them: a call decodes its arguments, calls a function
//! of the thread's address space, and returns the error number. The engine takes its own locks.
//!
//! The kernel adds only rules that depend on a process or on the machine: READ_IMPLIES_EXEC, access to other
//! processes, the peak of resident memory, and membarrier. `calls/memory_options.rs` has the options of
//! prctl, `calls/policies.rs` has memory policies, and `calls/shm.rs` has segments. The test `transcript`
//! compares the answers, the contents and the maps after random calls with those on Linux.
//!
//! A call that makes the program's memory smaller calls `note_peak` first. A call that changes mappings needs
//! a line in `CALLS` of `record.rs`, because without this line a replay differs from the recorded run.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::parts;
use crate::calls::pidfds::process_by;
use crate::errno;
use crate::files::open::Open;
use crate::memory::tlb;
use crate::platform::{self, Machine, Space, user};
use crate::process::shortage::{self, Need};
use crate::process::{self, Process, exit};
use crate::sched::{checkpoint, current};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::error::{AccessError, Errno, MlockError, MmapError};
use freehold::platform::PkeyRights;
use freehold::remote::IoVec;
use freehold::{
    call::{Advice, LockAllFlags, LockFlags, RemapFlags, SyncFlags},
    space::{AddressSpace, MapFlags, Prot},
};
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_membarrier, membarrier),
    (__NR_mmap, mmap),
    (__NR_munmap, munmap),
    (__NR_mprotect, mprotect),
    (__NR_mremap, mremap),
    (__NR_madvise, madvise),
    (__NR_brk, brk),
    (__NR_mincore, mincore),
    (__NR_msync, msync),
    (__NR_mlock, mlock),
    (__NR_mlock2, mlock2),
    (__NR_munlock, munlock),
    (__NR_mlockall, mlockall),
    (__NR_munlockall, munlockall),
    (__NR_remap_file_pages, remap_file_pages),
    (__NR_mseal, mseal),
    (__NR_process_madvise, process_madvise),
    (__NR_process_vm_readv, process_vm_readv),
    (__NR_process_vm_writev, process_vm_writev),
    (__NR_pkey_alloc, pkey_alloc),
    (__NR_pkey_free, pkey_free),
    (__NR_pkey_mprotect, pkey_mprotect),
];

fn mmap(frame: &mut Frame) -> Answer {
    let [at, len, prot, flags, descriptor, offset] = frame.args();
    let (prot, flags) = (asked(prot), MapFlags::from_bits_retain(flags));
    if !offset.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(MapFlags::FIXED) {
        note_peak(len);
    }
    let thread = current();
    let file = match flags.contains(MapFlags::ANONYMOUS) {
        true => None,
        false => {
            let open = thread.files.get(descriptor)?;
            Some(open.mapped().map_err(|error| refusal(&open, error, len, prot, flags))?)
        }
    };
    let mapped = thread.space().mmap(at, len, prot, flags, file.as_ref(), offset);
    mapped.map_err(|error| {
        let fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
        // Linux interprets a fixed address in the last page as an error number, if the length is valid.
        let is_error = fixed && len <= AddressSpace::<Machine>::TASK_SIZE && at > u64::MAX - (PAGE_SIZE - 1);
        match error {
            MmapError::NoSpace if is_error => Errno(at.wrapping_neg() as i32),
            error => error.errno(),
        }
    })
}

/// Returns the error of mmap for a file that has no pages. As on Linux, ENODEV is the last error that is
/// checked.
fn refusal(open: &Open, error: Errno, len: u64, prot: Prot, flags: MapFlags) -> Errno {
    let is_shared = flags.contains(MapFlags::SHARED);
    match error {
        errno::ENODEV if len == 0 || !is_shared && !flags.contains(MapFlags::PRIVATE) => Errno::EINVAL,
        errno::ENODEV if is_shared && prot.contains(Prot::WRITE) && !open.may_write() => Errno::EACCES,
        errno::ENODEV if !open.may_read() => Errno::EACCES,
        error => error,
    }
}

/// Returns the requested protection. With READ_IMPLIES_EXEC, reading implies executing (personality(2)).
fn asked(prot: u64) -> Prot {
    let prot = Prot::from_bits_retain(prot);
    if reading_executes() && prot.contains(Prot::READ) { prot | Prot::EXEC } else { prot }
}

/// Returns true if the calling process has the personality READ_IMPLIES_EXEC.
pub fn reading_executes() -> bool {
    current().process().personality.load(Relaxed) & READ_IMPLIES_EXEC != 0
}

/// The flag of personality(2): memory that can be read can also be executed.
pub const READ_IMPLIES_EXEC: u32 = 0x40_0000;

/// Updates the peaks of the program's memory before `len` bytes are unmapped. Does nothing for a short range,
/// because adding up the counters of all CPUs would cost more than the call. Linux's counters may be wrong by
/// the same number of pages.
fn note_peak(len: u64) {
    if len >= 32 * PAGE_SIZE {
        current().process().usage.note_peak(current().space());
    }
}

fn munmap(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    note_peak(len);
    current().space().munmap(at, len).map(|()| 0).map_err(|error| error.errno())
}

fn mprotect(frame: &mut Frame) -> Answer {
    let [at, len, prot, ..] = frame.args();
    current().space().mprotect(at, len, asked(prot)).map(|()| 0).map_err(|error| error.errno())
}

fn mremap(frame: &mut Frame) -> Answer {
    let [at, old, new, flags, to, _] = frame.args();
    let flags = RemapFlags::from_bits_retain(flags);
    note_peak(old.saturating_sub(new));
    current().space().mremap(at, old, new, flags, to).map_err(|error| error.errno())
}

fn madvise(frame: &mut Frame) -> Answer {
    let [at, len, advice, ..] = frame.args();
    let advice = Advice::from_raw(advice as u32).map_err(|error| error.errno())?;
    if matches!(advice, Advice::DontNeed | Advice::DontNeedLocked) {
        note_peak(len);
    }
    current().space().madvise(at, len, advice).map(|()| 0).map_err(|error| error.errno())
}

fn brk(frame: &mut Frame) -> Answer {
    let [to, ..] = frame.args();
    if to != 0 {
        current().process().usage.note_peak(current().space());
    }
    current().space().brk(to).map_err(|_| Errno::EINTR)
}

fn mincore(frame: &mut Frame) -> Answer {
    let [at, len, out, ..] = frame.args();
    /// Number of pages whose states one step copies.
    const PART: usize = 256;
    if !at.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    // Linux checks the range before it touches the output buffer.
    if at.checked_add(len).is_none_or(|end| end > AddressSpace::<Machine>::TASK_SIZE) {
        return Err(Errno::ENOMEM);
    }
    let (pages, mut states) = (len.div_ceil(PAGE_SIZE), [0; PART]);
    for first in (0..pages.max(1)).step_by(PART) {
        checkpoint()?;
        let count = (pages - first).min(PART as u64);
        let from = at.checked_add(first * PAGE_SIZE).ok_or(Errno::ENOMEM)?;
        let states = &mut states[..count as usize];
        current().space().mincore(from, count * PAGE_SIZE, states).map_err(|error| error.errno())?;
        user::copy_out(out.wrapping_add(first), states)?;
    }
    Ok(0)
}

fn msync(frame: &mut Frame) -> Answer {
    let [at, len, flags, ..] = frame.args();
    let flags = SyncFlags::from_bits_retain(flags as _);
    current().space().msync(at, len, flags).map(|()| 0).map_err(|error| error.errno())
}

fn mlock(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    locked(|| current().space().mlock(at, len))
}

fn mlock2(frame: &mut Frame) -> Answer {
    let [at, len, flags, ..] = frame.args();
    let flags = LockFlags::from_bits_retain(flags as _);
    locked(|| current().space().mlock2(at, len, flags))
}

/// Performs mlock or mlock2. If memory for a locked page has run out, ends the largest process, as a page fault
/// would. If the call returned an error instead, the program might retry for ever.
fn locked(lock: impl Fn() -> Result<(), MlockError>) -> Answer {
    loop {
        match lock() {
            Err(MlockError::OutOfFrames) if shortage::relieve(Need::Must) => {}
            Err(MlockError::OutOfFrames) => exit::out_of_memory(),
            done => return done.map(|()| 0).map_err(|error| error.errno()),
        }
    }
}

fn munlock(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    current().space().munlock(at, len).map(|()| 0).map_err(|error| error.errno())
}

fn mlockall(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    let flags = LockAllFlags::from_bits_retain(flags as _);
    current().space().mlockall(flags).map(|()| 0).map_err(|error| error.errno())
}

fn munlockall(_: &mut Frame) -> Answer {
    current().space().munlockall().map(|()| 0).map_err(|error| error.errno())
}

fn remap_file_pages(frame: &mut Frame) -> Answer {
    let [at, len, prot, page, flags, _] = frame.args();
    let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
    let space = current().space();
    space.remap_file_pages(at, len, prot, page, flags).map(|()| 0).map_err(|error| error.errno())
}

fn mseal(frame: &mut Frame) -> Answer {
    let [at, len, flags, ..] = frame.args();
    current().space().mseal(at, len, flags).map(|()| 0).map_err(|error| error.errno())
}

/// Reads an array of `struct iovec` and returns its ranges as the engine's type.
fn ranges(at: u64, count: u64) -> Result<Vec<IoVec>, Errno> {
    Ok(parts(at, count)?.iter().map(|[base, len]| IoVec { base: *base, len: *len }).collect())
}

/// Returns the address space of a process. Fails with ESRCH if the process has ended. Permissions are not
/// checked.
fn space_of(process: &Process) -> Result<Space, Errno> {
    let space = process.space.lock().clone();
    space.ok_or(Errno::ESRCH)
}

/// Performs process_madvise: advises about the memory of the process that a pidfd represents.
fn process_madvise(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, advice, flags, _] = frame.args();
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let ranges = ranges(at, count)?;
    let space = space_of(&*process_by(descriptor)?)?;
    let own = Counted::ptr_eq(&space, current().space());
    let advice = match Advice::from_raw(advice as u32) {
        Ok(advice) => advice,
        // Linux accepts any advice for empty ranges.
        Err(_) if own && ranges.iter().all(|range| range.len == 0) => Advice::Normal,
        Err(error) => return Err(error.errno()),
    };
    space.process_madvise(&ranges, advice, own).map_err(|error| error.errno())
}

fn process_vm_readv(frame: &mut Frame) -> Answer {
    transfer(frame, |own, local, other, remote| own.process_vm_readv(local, other, remote))
}

fn process_vm_writev(frame: &mut Frame) -> Answer {
    transfer(frame, |own, local, other, remote| own.process_vm_writev(local, other, remote))
}

/// A function of the engine that copies between two address spaces.
type Transfer = fn(&Space, &[IoVec], &Space, &[IoVec]) -> Result<usize, AccessError>;

/// Performs process_vm_readv or process_vm_writev.
fn transfer(frame: &mut Frame, f: Transfer) -> Answer {
    let [pid, local, locals, remote, remotes, flags] = frame.args();
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (local, remote) = (ranges(local, locals)?, ranges(remote, remotes)?);
    let other = space_of(&*process::of_thread(pid as u32).ok_or(Errno::ESRCH)?)?;
    f(current().space(), &local, &other, &remote).map(|bytes| bytes as u64).map_err(|error| error.errno())
}

fn pkey_alloc(frame: &mut Frame) -> Answer {
    let [flags, rights, ..] = frame.args();
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let rights = PkeyRights::from_bits(rights as u32).ok_or(Errno::EINVAL)?;
    current().space().pkey_alloc(rights).map(u64::from).map_err(|error| error.errno())
}

fn pkey_free(frame: &mut Frame) -> Answer {
    let [pkey, ..] = frame.args();
    let pkey = u8::try_from(pkey).map_err(|_| Errno::EINVAL)?;
    current().space().pkey_free(pkey).map(|()| 0).map_err(|error| error.errno())
}

fn pkey_mprotect(frame: &mut Frame) -> Answer {
    let [at, len, prot, pkey, ..] = frame.args();
    let (space, prot) = (current().space(), asked(prot));
    let done = match pkey as i32 {
        -1 => space.mprotect(at, len, prot),
        pkey => space.pkey_mprotect(at, len, prot, u8::try_from(pkey).map_err(|_| Errno::EINVAL)?),
    };
    done.map(|()| 0).map_err(|error| error.errno())
}

/// The commands of membarrier, one bit each.
const BARRIERS: u64 = 0x27f;
/// Commands that need a registration. The command for the registration is the next higher bit.
const PRIVATE: [u64; 2] = [1 << 3, 1 << 5];
/// The registration for a barrier that also makes CPUs execute a serializing instruction.
const REGISTER_SYNC_CORE: u64 = 1 << 6;
/// Returns the registrations.
const GET_REGISTRATIONS: u64 = 1 << 9;

/// Orders memory on the CPUs that run threads of the process or, for the commands for all processes, on all CPUs.
/// For the process, every such CPU executes a barrier now. For all processes, the call waits for a grace period,
/// in which each CPU passes a quiescent state.
fn membarrier(frame: &mut Frame) -> Answer {
    let [command, flags, ..] = frame.args();
    let registered = &current().process().barriers;
    match command & 0xffff_ffff {
        _ if flags as u32 != 0 => Err(Errno::EINVAL),
        0 => Ok(BARRIERS),
        command if !command.is_power_of_two() || command & BARRIERS == 0 => Err(Errno::EINVAL),
        command if PRIVATE.contains(&command) => {
            if registered.load(Relaxed) & command << 1 == 0 {
                return Err(Errno::EPERM);
            }
            tlb::barrier(current().space().mmu());
            Ok(0)
        }
        1 | 2 => {
            platform::wait_for_grace_period();
            Ok(0)
        }
        GET_REGISTRATIONS => {
            let own = registered.load(Relaxed);
            // Linux reports this registration as both, although it allows only one of the barriers.
            Ok(own | if own & REGISTER_SYNC_CORE != 0 { PRIVATE[0] << 1 } else { 0 })
        }
        command => {
            registered.fetch_or(command, Relaxed);
            Ok(0)
        }
    }
}
