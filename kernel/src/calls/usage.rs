//! Calls for the resource use and the resource limits of processes: getrusage, times, sysinfo, getrlimit,
//! prlimit. They read counters and fill structures in Linux's layout.
//!
//! The counters are in `process::Usage` and in the threads: run times in nanoseconds, faults, and peaks of
//! resident pages. They are atomic and read without a lock, so they may be slightly inconsistent. All run
//! time counts as user time. The limits are in `process/limits.rs`, under the lock `Process::limits`. After a
//! change of limits, [`set`] calls `renew::renew`, because the engine and the table of descriptors have
//! copies. `processes.rs` uses [`of_ended`] for wait4 and waitid. The programs `usage.c` and `jobs.c` test
//! getrusage.

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::identity::of;
use crate::memory;
use crate::platform::swap;
use crate::platform::user::{self, UserPtr};
use crate::process::{self, Process, limits, renew};
use crate::sched::{current, scheduler};
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_getrusage, getrusage),
    (__NR_times, times),
    (__NR_sysinfo, sysinfo),
    (__NR_getrlimit, getrlimit),
    (__NR_setrlimit, setrlimit),
    (__NR_prlimit64, prlimit),
];

const SECOND: u64 = 1_000_000_000;
const RUSAGE_SELF: i32 = 0;
const RUSAGE_CHILDREN: i32 = -1;
const RUSAGE_THREAD: i32 = 1;

/// Returns a `struct rusage` with this run time in nanoseconds, this peak of resident pages, and these minor
/// and major faults.
fn rusage(ns: u64, pages: u64, [minor, major]: [u64; 2]) -> [u64; 18] {
    let mut words = [0; 18];
    words[0] = ns / SECOND;
    words[1] = ns % SECOND / 1000;
    words[4] = pages * (PAGE_SIZE / 1024);
    words[8] = minor;
    words[9] = major;
    words
}

/// Returns the `struct rusage` of an ended process and its children, for wait4 and waitid.
pub fn of_ended(process: &Process) -> [u64; 18] {
    let usage = &process.usage;
    let ns = process.ran_ns() + usage.children_ns.load(Relaxed);
    let pages = usage.most_pages.load(Relaxed).max(usage.children_most_pages.load(Relaxed));
    let [minor, major] = process.faults();
    let [more_minor, more_major] = usage.children_faults.each_ref().map(|count| count.load(Relaxed));
    rusage(ns, pages, [minor + more_minor, major + more_major])
}

fn getrusage(frame: &mut Frame) -> Answer {
    let [who, out, ..] = frame.args();
    scheduler::count_turn();
    let thread = current();
    let process = thread.process();
    let usage = &process.usage;
    usage.note_peak(thread.space());
    let words = match who as i32 {
        RUSAGE_SELF => rusage(process.ran_ns(), usage.most_resident(), process.faults()),
        RUSAGE_THREAD => {
            let faults = thread.faults.each_ref().map(|count| count.load(Relaxed));
            rusage(thread.ran_ns.load(Relaxed), usage.most_resident(), faults)
        }
        RUSAGE_CHILDREN => {
            let faults = usage.children_faults.each_ref().map(|count| count.load(Relaxed));
            rusage(usage.children_ns.load(Relaxed), usage.children_most_pages.load(Relaxed), faults)
        }
        _ => return Err(Errno::EINVAL),
    };
    UserPtr::<[u64; 18]>::new(out).write(&words)?;
    Ok(0)
}

fn times(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    const TICK: u64 = SECOND / 100;
    scheduler::count_turn();
    let process = current().process();
    if let Some(out) = UserPtr::<[u64; 4]>::optional(out) {
        let children = process.usage.children_ns.load(Relaxed);
        out.write(&[process.ran_ns() / TICK, 0, children / TICK, 0])?;
    }
    Ok(clock::now_ns() / TICK)
}

fn sysinfo(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    let mut words = [0u64; 14];
    words[0] = clock::now_ns() / SECOND;
    words[4] = memory::total_bytes();
    words[5] = memory::frames::free_count() * PAGE_SIZE;
    let swap = swap::usage().unwrap_or_default();
    words[8] = swap.slots * PAGE_SIZE;
    words[9] = (swap.slots - swap.used) * PAGE_SIZE;
    words[10] = process::count() as u64 & 0xffff;
    // The unit of all sizes is one byte. The two fields before this one are for high memory, which does not
    // exist.
    words[13] = 1;
    UserPtr::<[u64; 14]>::new(out).write(&words)?;
    Ok(0)
}

fn getrlimit(frame: &mut Frame) -> Answer {
    let [resource, out, ..] = frame.args();
    let limit = current().process().limits.lock().get(resource)?;
    UserPtr::<[u64; 2]>::new(out).write(&limit)?;
    Ok(0)
}

fn setrlimit(frame: &mut Frame) -> Answer {
    let [resource, at, ..] = frame.args();
    let to = UserPtr::<[u64; 2]>::new(at).read()?;
    set(current().process(), resource, to)
}

/// Sets a limit of a process and renews the copies of the limit. The privileges are those of the calling
/// process.
fn set(process: &Process, resource: u64, to: limits::Limit) -> Answer {
    let privileged = current().process().ids.lock().may(CAP_SYS_RESOURCE);
    process.limits.lock().set(resource, to, privileged)?;
    renew::renew(process);
    Ok(0)
}

fn prlimit(frame: &mut Frame) -> Answer {
    let [pid, resource, new, old, ..] = frame.args();
    let new = UserPtr::<[u64; 2]>::optional(new).map(UserPtr::read).transpose()?;
    let process = of(pid as u32)?;
    let before = process.limits.lock().get(resource)?;
    if let Some(new) = new {
        set(&process, resource, new)?;
    }
    if old != 0 {
        user::copy_out(old, &before.map(u64::to_ne_bytes).concat())?;
    }
    Ok(0)
}
