//! Tracing (ptrace(2)): a thread stops, and its tracer looks at it, changes it, and lets it go on.
//!
//! A traced thread stops where a signal would be acted on, where it was told to at calls, and after exec. It
//! leaves a copy of its registers in [`Stop`], tells the tracer as a child tells its parent, and sleeps until
//! the copy says that it goes on; then the copy becomes its registers. So nobody touches the registers of a
//! thread that runs.

use crate::arch::frame::{Frame, UserAddr};
use crate::arch::{features::VectorState, lock::SpinLock};
use crate::options;
use crate::process::signal::{self, Info, job};
use crate::process::{Process, Tracees, signal::frame::vectors_of, status::Status};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{Thread, current, work};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// Options of a tracer that are known here, with one bit for each of the events below.
pub const SYSGOOD: u64 = 1;
const EXIT_KILL: u64 = 1 << 20;
pub const OPTIONS: u64 = SYSGOOD | EXIT_KILL | 0b111_1110;
/// Events that stop a thread, in the second byte of the word that a wait stores.
pub const EVENT_FORK: u32 = 1;
pub const EVENT_VFORK: u32 = 2;
pub const EVENT_CLONE: u32 = 3;
pub const EVENT_EXEC: u32 = 4;
pub const EVENT_VFORK_DONE: u32 = 5;
pub const EVENT_EXIT: u32 = 6;
const EVENT_STOP: u32 = 128;
/// A bit of the flags: an exception after the next instruction.
pub const TRAP_FLAG: u64 = 0x100;

/// How a thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    #[default]
    Free,
    /// To the next call, or the end of this one.
    Calls,
    Step,
}

/// Of a thread: its tracer, and where it has stopped.
#[derive(Default)]
pub struct Trace {
    /// Whether there is a tracer; read without the lock as a hint, by those that come too late anyway.
    is_traced: AtomicBool,
    state: SpinLock<State>,
}

#[derive(Default)]
pub struct State {
    pub tracer: Option<Arc<Process>>,
    pub options: u64,
    /// The tracer has come by PTRACE_SEIZE.
    pub seized: bool,
    pub mode: Mode,
    /// It is to stop at once (PTRACE_INTERRUPT).
    pub interrupted: bool,
    /// What PTRACE_GETEVENTMSG says.
    pub message: u64,
    /// Debug registers, as the tracer has set them. The processor does not get them.
    pub debug: [u64; 8],
    pub stop: Option<Box<Stop>>,
}

/// A thread that has stopped.
pub struct Stop {
    /// A signal, and an event above it.
    pub word: u32,
    pub info: Info,
    /// Its registers now, and as it goes on.
    pub frame: Frame,
    pub vectors: VectorState,
    /// The tracer has changed `vectors`.
    pub has_vectors: bool,
    pub bases: [UserAddr; 2],
    /// The tracer has waited for it.
    pub told: bool,
    /// It goes on, with this signal, or none: 0.
    pub resumed: Option<u32>,
}

impl Trace {
    pub fn is_traced(&self) -> bool {
        self.is_traced.load(Relaxed)
    }

    /// What the tracer, the process `by`, may do with it.
    ///
    /// # Errors
    ///
    /// ESRCH: another traces it, or nobody does.
    pub fn with<R>(&self, by: &Arc<Process>, f: impl FnOnce(&mut State) -> R) -> Result<R, Errno> {
        let mut state = self.state.lock();
        match &state.tracer {
            Some(tracer) if Arc::ptr_eq(tracer, by) => Ok(f(&mut state)),
            _ => Err(Errno::ESRCH),
        }
    }

    /// The number of the tracer; 0: none.
    pub fn tracer_pid(&self) -> u32 {
        self.state.lock().tracer.as_ref().map_or(0, |tracer| tracer.pid)
    }

    /// Whether it has stopped for its tracer.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stop.is_some()
    }

    /// What a wait of the tracer finds, which may be told once.
    pub fn take_report(&self, keep: bool) -> Option<(u32, Info)> {
        let mut state = self.state.lock();
        let stop = state.stop.as_mut().filter(|stop| !stop.told && stop.resumed.is_none())?;
        stop.told = !keep;
        Some((stop.word, stop.info))
    }
}

/// `struct user_regs_struct`, in words.
pub const REGISTERS: usize = 27;

/// The registers of a program, as debuggers have them, with the bases of fs and gs.
pub fn registers(f: &Frame, bases: [UserAddr; 2]) -> [u64; REGISTERS] {
    let [fs, gs] = bases.map(UserAddr::get);
    let call = if f.vector == Frame::SYSTEM_CALL { f.error } else { u64::MAX };
    [
        f.r15, f.r14, f.r13, f.r12, f.rbp, f.rbx, f.r11, f.r10, f.r9, f.r8, f.rax, f.rcx, f.rdx, f.rsi,
        f.rdi, call, f.rip, f.cs, f.rflags, f.rsp, f.ss, fs, gs, 0, 0, 0, 0,
    ]
}

fn key(thread: &Thread) -> Key {
    Key::kernel(&raw const thread.trace as u64)
}

/// `tracer` traces the thread from now on.
///
/// # Errors
///
/// EPERM: it is traced, or the tracer ends.
pub fn begin(
    tracer: &Arc<Process>,
    process: &Arc<Process>,
    thread: &Arc<Thread>,
    options: u64,
    seized: bool,
) -> Result<(), Errno> {
    let mut tracees = tracer.tracees.lock();
    let mut state = thread.trace.state.lock();
    if state.tracer.is_some() || tracees.is_over {
        return Err(Errno::EPERM);
    }
    let stop = state.stop.take();
    *state = State { tracer: Some(tracer.clone()), options, seized, stop, ..State::default() };
    thread.trace.is_traced.store(true, Relaxed);
    tracees.live.push((process.clone(), thread.clone()));
    Ok(())
}

/// Returns the event of a fork or clone of the calling thread, if its tracer wants to know of it.
pub fn event_of_clone(is_vfork: bool, exit_signal: u32) -> Option<u32> {
    let trace = &current().trace;
    let event = match exit_signal {
        _ if is_vfork => EVENT_VFORK,
        SIGCHLD => EVENT_FORK,
        _ => EVENT_CLONE,
    };
    (trace.is_traced() && trace.state.lock().options & 1 << event != 0).then_some(event)
}

/// The tracer of the calling thread traces its new child or thread, too, which stops before it runs.
pub fn follow(process: &Arc<Process>, thread: &Arc<Thread>) {
    let state = current().trace.state.lock();
    let (tracer, options, seized) = (state.tracer.clone(), state.options, state.seized);
    drop(state);
    let Some(tracer) = tracer.filter(|tracer| begin(tracer, process, thread, options, seized).is_ok()) else {
        return;
    };
    drop(tracer);
    match seized {
        true => interrupt(thread),
        false => drop(signal::send(process, Some(thread), Info::from_here(SIGSTOP, 0))),
    }
}

/// The thread goes on where it has stopped, in this way, with this signal.
pub fn resume(thread: &Thread, mode: Mode, signal: u32) {
    if mode == Mode::Calls {
        options::watch_calls();
    }
    let mut state = thread.trace.state.lock();
    state.mode = mode;
    if let Some(stop) = &mut state.stop {
        stop.frame.rflags &= !TRAP_FLAG;
        if mode == Mode::Step {
            stop.frame.rflags |= TRAP_FLAG;
        }
        stop.resumed = Some(signal);
    }
    drop(state);
    wait::wake(key(thread), usize::MAX);
}

/// Nobody traces the thread any more; where it has stopped, it goes on, with this signal.
pub fn end(tracer: &Process, thread: &Arc<Thread>, signal: u32) {
    let mut state = thread.trace.state.lock();
    let before = state.tracer.take();
    thread.trace.is_traced.store(false, Relaxed);
    drop(state);
    drop(before);
    let mut tracees = tracer.tracees.lock();
    let at = tracees.live.iter().position(|(_, other)| Arc::ptr_eq(other, thread));
    let gone = at.map(|at| tracees.live.swap_remove(at));
    drop(tracees);
    drop(gone);
    resume(thread, Mode::Free, signal);
}

/// The process ends: what it traces goes on, or ends too.
pub fn tracer_ends(tracer: &Process) {
    let over = Tracees { is_over: true, ..Tracees::default() };
    let tracees = core::mem::replace(&mut *tracer.tracees.lock(), over);
    for (process, thread) in &tracees.live {
        let kills = thread.trace.state.lock().options & EXIT_KILL != 0;
        end(tracer, thread, 0);
        if kills {
            process.end(Status::by_signal(SIGKILL as u8));
        }
    }
}

/// The calling thread ends: its tracer is told, unless the parent is, who is the same.
pub fn tracee_ends(here: &Thread, status: Status) {
    let mut state = here.trace.state.lock();
    let Some(tracer) = state.tracer.take() else { return };
    here.trace.is_traced.store(false, Relaxed);
    drop(state);
    let process = here.process();
    let told =
        here.tid() == process.pid && process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, &tracer));
    let mut tracees = tracer.tracees.lock();
    let at = tracees.live.iter().position(|(_, other)| core::ptr::eq(&raw const **other, here));
    let gone = at.map(|at| tracees.live.swap_remove(at));
    if !told {
        tracees.ended.push((here.tid(), process.clone(), status));
    }
    drop(tracees);
    drop(gone);
    if !told {
        wait::wake(tracer.child_key(), usize::MAX);
    }
}

/// The calling thread stops, if it is traced, and tells its tracer this. Returns the signal that it goes on
/// with.
pub fn stop(frame: &mut Frame, word: u32, info: Info) -> u32 {
    let here = current();
    let Some(tracer) = leave_copy(here, frame, word, info) else { return info.signal };
    tell(&tracer, here, word);
    drop(tracer);
    loop {
        let waiting = wait::enqueue(key(here), u32::MAX);
        let mut state = here.trace.state.lock();
        let goes_on = state.stop.as_ref().is_none_or(|stop| stop.resumed.is_some());
        let stop = if goes_on { state.stop.take() } else { None };
        drop(state);
        if goes_on {
            waiting.cancel();
            return stop.map_or(0, |stop| take_copy(here, frame, &stop));
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            let stop = here.trace.state.lock().stop.take();
            drop(stop);
            return 0;
        }
    }
}

/// Sleeps until a thread that was stopped already stops for its tracer, the calling process.
///
/// # Errors
///
/// EINTR: the calling thread has to end.
pub fn wait_for_stop(here: &Process, thread: &Thread) -> Result<(), Errno> {
    loop {
        let waiting = wait::enqueue(here.child_key(), u32::MAX);
        if thread.trace.is_stopped() || !thread.trace.is_traced() {
            waiting.cancel();
            return Ok(());
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

fn leave_copy(here: &Thread, frame: &Frame, word: u32, info: Info) -> Option<Arc<Process>> {
    let mut stop = Box::new(Stop {
        word,
        info,
        frame: *frame,
        vectors: VectorState::of_program(Thread::user_vectors(frame)),
        has_vectors: false,
        bases: [here.fs_base.get(), here.gs_base.get()],
        told: false,
        resumed: None,
    });
    let mut state = here.trace.state.lock();
    let tracer = state.tracer.clone()?;
    state.interrupted = false;
    // The tracer's step has set this flag, not the program.
    if state.mode == Mode::Step {
        stop.frame.rflags &= !TRAP_FLAG;
    }
    state.stop = Some(stop);
    Some(tracer)
}

fn take_copy(here: &Thread, frame: &mut Frame, stop: &Stop) -> u32 {
    *frame = Frame { vector: Frame::WHOLE, ..stop.frame };
    if stop.has_vectors {
        stop.vectors.load();
        *vectors_of(frame) = stop.vectors.vectors();
    }
    here.fs_base.set(stop.bases[0]);
    here.gs_base.set(stop.bases[1]);
    crate::sched::scheduler::load_bases(here);
    stop.resumed.unwrap_or(0)
}

/// The tracer gets SIGCHLD, and its waits look again.
fn tell(tracer: &Arc<Process>, here: &Thread, word: u32) {
    if !tracer.action(SIGCHLD).has(SA_NOCLDSTOP) {
        let info = job::child_info(here.process(), SIGCHLD, CLD_TRAPPED, word & 0x7f);
        signal::send(tracer, None, info);
    }
    wait::wake(tracer.child_key(), usize::MAX);
}

/// The calling thread was asked to stop.
pub fn stop_if_interrupted(frame: &mut Frame) {
    let here = current();
    if here.trace.is_traced() && here.trace.state.lock().interrupted {
        stop_for(frame, EVENT_STOP);
    }
}

/// The calling thread is to stop at calls.
pub fn watches_calls() -> bool {
    let trace = &current().trace;
    trace.is_traced() && trace.state.lock().mode == Mode::Calls
}

/// The calling thread stops before or after a call; `frame.error` is the call's number.
pub fn stop_at_call(frame: &mut Frame) {
    let here = current();
    let good = here.trace.state.lock().options & SYSGOOD != 0;
    let word = SIGTRAP | if good { 0x80 } else { 0 };
    let vector = frame.vector;
    let signal = stop(frame, word, Info::from_here(SIGTRAP, word as i32));
    frame.vector = vector;
    if signal != 0 {
        signal::to_itself(signal);
    }
}

/// The calling thread has executed a program.
pub fn has_executed(frame: &mut Frame) {
    let here = current();
    let tells = stop_at(frame, EVENT_EXEC, here.tid());
    if !tells && here.trace.is_traced() && !here.trace.state.lock().seized {
        signal::to_itself(SIGTRAP);
    }
}

/// The calling thread stops for an event, if its tracer wants to know of it, with this message. Returns
/// whether it has.
pub fn stop_at(frame: &mut Frame, event: u32, message: u32) -> bool {
    let trace = &current().trace;
    if !trace.is_traced() {
        return false;
    }
    let mut state = trace.state.lock();
    state.message = message.into();
    let tells = state.options & 1 << event != 0;
    drop(state);
    if tells {
        let vector = frame.vector;
        stop_for(frame, event);
        frame.vector = vector;
    }
    tells
}

fn stop_for(frame: &mut Frame, event: u32) {
    let word = SIGTRAP | event << 8;
    stop(frame, word, Info::from_here(SIGTRAP, word as i32));
}

/// The thread comes by, and stops.
pub fn interrupt(thread: &Arc<Thread>) {
    thread.trace.state.lock().interrupted = true;
    thread.give_work(work::SIGNAL);
}
