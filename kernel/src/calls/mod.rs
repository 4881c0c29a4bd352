//! System calls: the table, and one file for each subject.
//!
//! A call is a function that gets the program's frame. [`Frame::args`] returns the arguments of the call, and
//! the answer of the call is a number or an error. Calls access programs' memory only through
//! [`user`](crate::platform::user), and hold no spin lock there. A call that stops because of a signal
//! answers EINTR. The signal itself is handled on the way back to the program
//! ([`before_user`](crate::process::thread::before_user)). The files of this folder decode arguments and
//! check them in Linux's order, so that a call with several errors reports the same error as on Linux. The
//! state and its locks are in `files/`, `process/` and the engine. A loop whose length the program chooses
//! passes checkpoints (`sched/checkpoint.rs`).
//!
//! To add a call, write a function in the file of its subject and add a line to that file's `CALLS`. A new
//! file of calls also adds its `CALLS` to [`TABLE`]. A number may be in one `CALLS` only: in [`TABLE`] a
//! later entry replaces an earlier one. A call that may be interrupted may need a line in
//! `process/signal/restart.rs`. A call that maps memory may need a line in `record.rs`. Programs in
//! `kernel/tests/programs` test the calls; the head of each file names the programs that test it. The program
//! `wild.rs` passes random arguments.

pub mod answer;
mod attributes;
mod compare;
mod contents;
mod descriptors;
mod events;
pub mod files;
mod futexes;
mod identity;
mod memory;
mod memory_options;
mod messages;
mod names;
mod page_moves;
mod pidfds;
mod policies;
mod poll;
mod processes;
mod ptrace;
mod scheduling;
pub mod semaphores;
pub mod shm;
mod signals;
mod sockets;
mod splices;
mod status;
mod swap;
mod system;
mod time;
mod timers;
mod usage;

use crate::arch::frame::{Frame, UserAddr};
use crate::arch::report::{report, say};
use crate::arch::{clock, entry_work, irq_off};
use crate::process::shortage::{self, Need};
use crate::process::{thread, trace};
use crate::sched::current;
use crate::{errno, options, record};
use answer::{Answer, Call, Calls};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::{__NR_io_uring_setup, __NR_restart_syscall};

/// Number of entries of the table.
const COUNT: usize = 512;
/// Number of times that a call without memory is repeated because memory is free again. A call frees what it
/// took when it fails, so memory may be free only until the call is repeated.
const REPEATS: u32 = 3;

/// Numbers of the calls that the table lacks and programs have made, one bit each. The report lists each
/// number once.
static ABSENT: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

/// The functions of all calls, by number. Built at compile time from the lists `CALLS`.
static TABLE: [Call; COUNT] = {
    let mut table = [unknown as Call; COUNT];
    let files: &[Calls] = &[
        memory::CALLS,
        files::CALLS,
        descriptors::CALLS,
        sockets::CALLS,
        messages::CALLS,
        processes::CALLS,
        futexes::CALLS,
        signals::CALLS,
        time::CALLS,
        system::CALLS,
        identity::CALLS,
        scheduling::CALLS,
        timers::CALLS,
        usage::CALLS,
        names::CALLS,
        status::CALLS,
        contents::CALLS,
        splices::CALLS,
        attributes::CALLS,
        poll::CALLS,
        events::CALLS,
        semaphores::CALLS,
        shm::CALLS,
        page_moves::CALLS,
        policies::CALLS,
        pidfds::CALLS,
        compare::CALLS,
        ptrace::CALLS,
        swap::CALLS,
        &[(__NR_restart_syscall, restart), (__NR_io_uring_setup, no_rings)],
    ];
    let mut file = 0;
    while file < files.len() {
        let mut call = 0;
        while call < files[file].len() {
            let (number, function) = files[file][call];
            table[number as usize] = function;
            call += 1;
        }
        file += 1;
    }
    table
};

/// Performs a system call. Called by `entry.s` with interrupts off. Returns the address of the program's next
/// instruction.
#[unsafe(no_mangle)]
extern "C" fn system_call(frame: &mut Frame) -> UserAddr {
    // Keeps the call's number, which `process/signal/restart.rs` needs after rax has the answer.
    frame.error = frame.rax;
    match entry_work::any() {
        true => observed(frame),
        false => answer(frame),
    }
}

/// Performs the call of `frame.error` and the pending work of the thread.
#[inline(always)]
fn answer(frame: &mut Frame) -> UserAddr {
    perform(frame);
    thread::before_user(frame)
}

/// Performs the call of `frame.error` and stores its answer in the frame.
#[inline(always)]
fn perform(frame: &mut Frame) {
    let result = match TABLE.get(frame.error as usize) {
        Some(call) => call(frame),
        None => unknown(frame),
    };
    frame.rax = match result {
        Ok(answer) => answer,
        Err(error) => failed(frame, error),
    };
}

/// Returns the answer of a call that failed with this error. If the call failed for want of memory, and
/// another process has more memory than the caller's, that process ends and the call is repeated. A call that
/// fails with ENOMEM has done nothing, or only what the repeated call does again.
#[inline(never)]
fn failed(frame: &mut Frame, error: Errno) -> u64 {
    let result = match error {
        Errno::ENOMEM => with_memory(frame, TABLE.get(frame.error as usize).copied().unwrap_or(unknown)),
        error => Err(error),
    };
    result.unwrap_or_else(|error| -i64::from(error.0) as u64)
}

/// Repeats a call that failed with ENOMEM, as long as the calling thread was refused memory and finds memory.
#[cold]
fn with_memory(frame: &mut Frame, call: Call) -> Answer {
    let mut repeats = 0;
    let need = |repeats: u32| if repeats < REPEATS { Need::May } else { Need::MayDespiteFree };
    while current().wants_memory.get() && shortage::relieve(need(repeats)) {
        repeats += 1;
        frame.rax = frame.error;
        match call(frame) {
            Err(Errno::ENOMEM) => {}
            answer => return answer,
        }
    }
    Err(Errno::ENOMEM)
}

/// Performs a call that takes the slower path: see [`entry_work`].
#[cold]
fn observed(frame: &mut Frame) -> UserAddr {
    match entry_work::has(entry_work::WATCHED) {
        true => watched(frame),
        false => {
            shortage::before_call();
            answer(frame)
        }
    }
}

/// Performs a call while an option or a tracer observes calls.
fn watched(frame: &mut Frame) -> UserAddr {
    let number = frame.rax;
    options::crash_if_asked();
    irq_off::begin();
    shortage::before_call();
    let next = if options::is_tracing() {
        traced(frame)
    } else if options::records() {
        recorded(frame)
    } else if trace::watches_calls() {
        stopped(frame)
    } else {
        answer(frame)
    };
    irq_off::end(number & 0xfff);
    next
}

/// Performs a call between two stops for a tracer, which may change the arguments and the answer.
fn stopped(frame: &mut Frame) -> UserAddr {
    frame.rax = -i64::from(errno::ENOSYS.0) as u64;
    trace::stop_at_call(frame, trace::CALL_ENTRY);
    if current().is_killed() {
        return thread::before_user(frame);
    }
    // A tracer skips the call with the number -1, and then chooses the answer.
    if frame.error as i32 != -1 {
        frame.rax = frame.error;
        perform(frame);
    }
    if trace::watches_calls() {
        trace::stop_at_call(frame, trace::CALL_EXIT);
    }
    thread::before_user(frame)
}

/// Performs a call for option `trace`: logs its arguments and its answer.
#[cold]
fn traced(frame: &mut Frame) -> UserAddr {
    let (tid, number, [a, b, c, d, e, f]) = (current().tid(), frame.rax, frame.args());
    say!("[{tid}] {number}({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {f:#x})");
    let next = answer(frame);
    say!("[{tid}] {number} = {}", frame.rax as i64);
    next
}

/// Performs a call for option `record`.
#[cold]
fn recorded(frame: &mut Frame) -> UserAddr {
    let (number, args, began) = (frame.rax, frame.args(), clock::now_ns());
    perform(frame);
    record::call(number, args, frame, began);
    thread::before_user(frame)
}

/// Performs the call restart_syscall: continues a call that a signal interrupted, with the original end of
/// its timeout.
fn restart(frame: &mut Frame) -> Answer {
    let thread = current();
    let (call, deadline) = thread.restart.take().ok_or(Errno::EINTR)?;
    frame.error = call.into();
    thread.resumed.set(Some(deadline));
    let answer = match TABLE[call as usize](frame) {
        Err(Errno::ENOMEM) => with_memory(frame, TABLE[call as usize]),
        answer => answer,
    };
    thread.resumed.set(None);
    answer
}

/// Answers io_uring_setup, which programs call to learn that they must do without io_uring. The answer is
/// that of a kernel without io_uring, and is not reported as missing.
fn no_rings(_: &mut Frame) -> Answer {
    Err(errno::ENOSYS)
}

/// Answers a call that the kernel lacks. Reports its number once.
#[cold]
fn unknown(frame: &mut Frame) -> Answer {
    if let Some(word) = ABSENT.get(frame.rax as usize / 64) {
        let bit = 1 << (frame.rax % 64);
        // Relaxed: the bit publishes no other memory.
        if word.fetch_or(bit, Relaxed) & bit == 0 {
            report!("missing {}", frame.rax);
        }
    }
    Err(errno::ENOSYS)
}
