//! Reports the state of all CPUs and threads of a machine that no longer makes progress. When the time limit
//! is over, the command `cargo xtask boot` sends every CPU a nonmaskable interrupt, which calls [`tell`]
//! through the table of handlers. The interrupt can come in any code, so nothing here takes a lock that other
//! code uses. The test `end-standstill` compares parts of the report, so its words must not change.

use crate::arch::{apic, clock, cpu, frame::Frame, halt, report::report_now};
use crate::memory::stacks;
use crate::process;
use crate::sched::{Thread, thread};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Time for which the first CPU waits for the others.
const PATIENCE_NS: u64 = 500_000_000;
/// Maximum number of return addresses that the report contains for a stack.
const DEPTH: usize = 24;

/// True while a CPU reports. This flag is a lock: its acquire and release accesses order the reports.
static TELLS: AtomicBool = AtomicBool::new(false);
/// Number of CPUs that have reported. Relaxed: changed only by the CPU that holds `TELLS`; CPU 0 also polls
/// it.
static TOLD: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    static text_begin: u8;
    static text_end: u8;
}

/// Reports where the calling CPU was interrupted. CPU 0 ends the machine when all CPUs have reported.
pub fn tell(frame: &Frame) -> ! {
    let number = apic::own_number();
    while TELLS.swap(true, Acquire) {
        core::hint::spin_loop();
    }
    if TOLD.load(Relaxed) == 0 {
        report_now!("panic nonmaskable interrupt");
    }
    // SAFETY: the pointer is that of the thread that runs on this CPU, and the CPU holds a reference to the
    // thread.
    let tid = unsafe { cpu::other(number).current.get().cast::<Thread>().as_ref() }.map_or(0, Thread::tid);
    report_now!("CPU {number}, thread {tid} at {:#x}", frame.rip);
    if !frame.is_user() {
        tell_stack(frame.rsp, stacks::top_of(frame.rsp));
    }
    TOLD.fetch_add(1, Relaxed);
    TELLS.store(false, Release);
    if number != 0 {
        halt::stop();
    }
    let until = clock::now_ns() + PATIENCE_NS;
    while TOLD.load(Relaxed) < cpu::count() && clock::now_ns() < until {
        core::hint::spin_loop();
    }
    while TELLS.swap(true, Acquire) {
        core::hint::spin_loop();
    }
    // SAFETY: the other CPUs have stopped, so nothing changes the list. If a CPU was stopped in the middle of
    // a change of the list, the walk may fault; the machine ends anyway.
    for process in unsafe { process::all_at_standstill() }.values() {
        // SAFETY: as above.
        unsafe { process.threads.at_standstill() }.iter().for_each(|thread| tell_thread(thread));
    }
    halt::exit_after_panic()
}

/// Reports the state of a thread and, if no CPU runs it, its stack.
fn tell_thread(thread: &Thread) {
    let state = match thread.state.load(Relaxed) {
        thread::RUNNABLE => "can run",
        thread::PARKED => "sleeps",
        _ => "was woken",
    };
    let at = if thread.on_cpu.load(Relaxed) { "on" } else { "last on" };
    let (cpu, todo) = (thread.last_cpu.load(Relaxed), thread.work.load(Relaxed));
    let (pid, tid) = (thread.process().pid, thread.tid());
    // SAFETY: all CPUs have stopped.
    let comm = unsafe { thread.comm.at_standstill() };
    let name = core::str::from_utf8(comm).unwrap_or("?").trim_end_matches('\0');
    report_now!("thread {tid} of {pid} ({name}) {state}, {at} {cpu}, work {todo:#x}");
    if let Some(stack) = &thread.stack
        && !thread.on_cpu.load(Relaxed)
    {
        // SAFETY: as above.
        tell_stack(unsafe { *thread.stack_pointer.get() }, stack.top());
    }
}

/// Reports the words between two addresses of a stack that look like return addresses.
fn tell_stack(from: u64, to: u64) {
    let code = &raw const text_begin as u64..&raw const text_end as u64;
    // SAFETY: the range lies in a mapped stack, from its pointer to its top.
    let words = (from..to).step_by(8).map(|at| unsafe { (at as *const u64).read() });
    words.filter(|word| code.contains(word)).take(DEPTH).for_each(|word| report_now!("  {word:#x}"));
}
