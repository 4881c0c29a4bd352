//! Tracing (ptrace(2)): a thread stops, and its tracer reads and changes the thread's state and lets the
//! thread continue.
//!
//! A traced thread stops before it acts on a signal, at system calls if the tracer requested such stops, and
//! after exec. It leaves a copy of its registers in [`Stop`], notifies the tracer as a child notifies its
//! parent, and sleeps until the copy is marked as resumed. Then the thread loads its registers from the copy.
//! So the tracer accesses only the copy, and never the registers of a running thread.
//!
//! `calls/ptrace.rs` has the requests of the tracer, `signal/deliver.rs` and `calls/mod.rs` have the points
//! where a thread stops, and `reap.rs` has the tracer's waits. A spin lock guards the [`State`] of a thread.
//! A thread that needs this lock and the lock of the tracer's `Process::tracees` takes the lock of the
//! tracees first. Values that the tracer sets must be valid before the thread loads them: bases are
//! [`UserAddr`]s, and vector state is checked in `arch/features.rs`. The program `traced.c` of the tests and
//! the test `gdb` check tracing.
//!
//! A new event needs a constant, its bit in [`OPTIONS`], and a call of [`stop_at`] where the event happens. A
//! new request belongs in `calls/ptrace.rs`.

use crate::arch::frame::{Frame, UserAddr};
use crate::arch::{entry_work, features::VectorState, lock::SpinLock};
use crate::process::signal::{self, Info, job};
use crate::process::{Process, Tracees, status::Status};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{Thread, current, work};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// An option of a tracer (PTRACE_SETOPTIONS): the signal of a stop at a system call has the bit 0x80.
pub const SYSGOOD: u64 = 1;
/// An option of a tracer: the end of the tracer kills the tracee.
const EXIT_KILL: u64 = 1 << 20;
/// Options about seccomp, which this kernel lacks. They have no effect.
const SECCOMP: u64 = 1 << 7 | 1 << 21;
/// All options. Bits 1 to 6 request the events with these numbers.
pub const OPTIONS: u64 = SYSGOOD | EXIT_KILL | SECCOMP | 0b111_1110;
/// Answers to PTRACE_GETEVENTMSG at stops at system calls.
pub const CALL_ENTRY: u64 = 1;
pub const CALL_EXIT: u64 = 2;
/// Events that stop a thread. A wait stores the number of the event in the third byte of the status word.
pub const EVENT_FORK: u32 = 1;
pub const EVENT_VFORK: u32 = 2;
pub const EVENT_CLONE: u32 = 3;
pub const EVENT_EXEC: u32 = 4;
pub const EVENT_VFORK_DONE: u32 = 5;
pub const EVENT_EXIT: u32 = 6;
const EVENT_STOP: u32 = 128;
/// A bit in the signal of a stop at a system call (PTRACE_O_TRACESYSGOOD).
pub const SYSTEM_CALL: u32 = 0x80;
/// The error for a request that is invalid for the tracee.
pub const EIO: Errno = Errno(5);
/// A bit of the flags register: the processor raises an exception after the next instruction.
pub const TRAP_FLAG: u64 = 0x100;

/// The way in which a thread continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Runs until the next signal or event.
    #[default]
    Free,
    /// Runs to the start or the end of the next system call.
    Calls,
    /// Runs one instruction.
    Step,
}

/// The tracing state of a thread: its tracer and its stop.
#[derive(Default)]
pub struct Trace {
    /// True if there is a tracer. Read without the lock, as a hint: a reader may see an outdated value.
    is_traced: AtomicBool,
    state: SpinLock<State>,
}

/// The part of the tracing state under the lock.
#[derive(Default)]
pub struct State {
    /// The process that traces the thread.
    pub tracer: Option<Arc<Process>>,
    /// The options that the tracer has set.
    pub options: u64,
    /// True if the tracer attached with PTRACE_SEIZE.
    pub seized: bool,
    /// The way in which the thread continued last.
    pub mode: Mode,
    /// True if the thread is to stop at once (PTRACE_INTERRUPT).
    pub interrupted: bool,
    /// True if the thread was seized and is to report that its process continues (SIGCONT).
    continued: bool,
    /// The answer to PTRACE_GETEVENTMSG.
    pub message: u64,
    /// The debug registers, as the tracer set them. They are not loaded into the processor.
    pub debug: [u64; 8],
    /// The current stop; `None` while the thread runs.
    pub stop: Option<Box<Stop>>,
}

/// The state of a stopped thread.
pub struct Stop {
    /// The signal in the lowest byte and, in the byte above, the event or 0.
    pub word: u32,
    /// The information of the signal that caused the stop; `None` if the process was stopped and the thread
    /// was not seized.
    pub info: Option<Info>,
    /// The registers at the stop. The thread continues with them.
    pub frame: Frame,
    /// The vector registers at the stop.
    pub vectors: VectorState,
    /// True if the tracer has changed `vectors`.
    pub has_vectors: bool,
    /// The bases of fs and gs. The thread continues with them.
    pub bases: [UserAddr; 2],
    /// True if a wait of the tracer has reported the stop.
    pub told: bool,
    /// True if the tracer keeps the thread stopped until the next event of the process (PTRACE_LISTEN).
    pub listens: bool,
    /// `None` until the tracer resumes the thread; then the signal with which the thread continues, 0 for
    /// none.
    pub resumed: Option<u32>,
}

impl Trace {
    /// Returns true if the thread has a tracer.
    pub fn is_traced(&self) -> bool {
        self.is_traced.load(Relaxed)
    }

    /// Calls `f` with the tracing state, for the tracer `by`.
    ///
    /// # Errors
    ///
    /// ESRCH if `by` does not trace the thread.
    pub fn with<R>(&self, by: &Arc<Process>, f: impl FnOnce(&mut State) -> R) -> Result<R, Errno> {
        let mut state = self.state.lock();
        match &state.tracer {
            Some(tracer) if Arc::ptr_eq(tracer, by) => Ok(f(&mut state)),
            _ => Err(Errno::ESRCH),
        }
    }

    /// Returns the number of the tracer, or 0.
    pub fn tracer_pid(&self) -> u32 {
        self.state.lock().tracer.as_ref().map_or(0, |tracer| tracer.pid)
    }

    /// Returns true if the thread has stopped for its tracer.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stop.is_some()
    }

    /// Returns the stop for a wait of the tracer, and marks it as reported unless `keep` is set.
    pub fn take_report(&self, keep: bool) -> Option<u32> {
        let mut state = self.state.lock();
        let stop = state.stop.as_mut().filter(|stop| !stop.told && stop.resumed.is_none())?;
        stop.told = !keep;
        Some(stop.word)
    }

    /// Returns true if the tracer attached with PTRACE_SEIZE.
    pub fn is_seized(&self) -> bool {
        self.is_traced() && self.state.lock().seized
    }
}

/// Words of `struct user_regs_struct`.
pub const REGISTERS: usize = 27;

/// Returns the registers of a program in the layout of debuggers, with the bases of fs and gs.
pub fn registers(f: &Frame, bases: [UserAddr; 2]) -> [u64; REGISTERS] {
    let [fs, gs] = bases.map(UserAddr::get);
    let call = f.call();
    [
        f.r15, f.r14, f.r13, f.r12, f.rbp, f.rbx, f.r11, f.r10, f.r9, f.r8, f.rax, f.rcx, f.rdx, f.rsi,
        f.rdi, call, f.rip, f.cs, f.rflags, f.rsp, f.ss, fs, gs, 0, 0, 0, 0,
    ]
}

/// Returns the key on which a stopped thread sleeps.
fn key(thread: &Thread) -> Key {
    Key::kernel(&raw const thread.trace as u64)
}

/// Makes `tracer` trace the thread.
///
/// # Errors
///
/// EPERM if the thread is already traced, or the tracer is ending.
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

/// Returns the event for a fork or clone of the calling thread, if the thread's tracer requested the event.
pub fn event_of_clone(is_vfork: bool, exit_signal: u32) -> Option<u32> {
    let trace = &current().trace;
    let event = match exit_signal {
        _ if is_vfork => EVENT_VFORK,
        SIGCHLD => EVENT_FORK,
        _ => EVENT_CLONE,
    };
    (trace.is_traced() && trace.state.lock().options & 1 << event != 0).then_some(event)
}

/// Makes the tracer of the calling thread also trace the new child or thread that the calling thread has
/// made. The new thread stops before it runs.
pub fn follow(process: &Arc<Process>, thread: &Arc<Thread>) {
    let state = current().trace.state.lock();
    let (tracer, options, seized) = (state.tracer.clone(), state.options, state.seized);
    drop(state);
    let Some(tracer) = tracer.filter(|tracer| begin(tracer, process, thread, options, seized).is_ok()) else {
        return;
    };
    drop(tracer);
    match seized {
        true => drop(interrupt(thread)),
        false => drop(signal::send(process, Some(thread), Info::from_here(SIGSTOP, 0))),
    }
}

/// Resumes a stopped thread in this mode, with this signal.
pub fn resume(thread: &Thread, mode: Mode, signal: u32) {
    if mode == Mode::Calls {
        entry_work::set(entry_work::WATCHED);
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

/// Ends the tracing of a thread. If the thread has stopped, it continues with this signal.
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

/// Ends all tracing by a process that ends. Its tracees continue, or are killed if PTRACE_O_EXITKILL is set.
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

/// Called when a traced thread ends: ends the tracing of the calling thread and notifies its tracer. If the
/// thread is the first of its process and the tracer is the parent, the parent gets only the notification of
/// a child's end.
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
    process.ended_traced.store(told, Relaxed);
    if !told {
        wait::wake(tracer.child_key(), usize::MAX);
    }
}

/// Stops the calling thread, if it is traced, and notifies its tracer. Returns the signal with which the
/// thread continues; 0 for none. `word` is that of [`Stop`].
pub fn stop(frame: &mut Frame, word: u32, info: Option<Info>) -> u32 {
    let here = current();
    let Some(tracer) = leave_copy(here, frame, word, info) else {
        return info.map_or(0, |info| info.signal);
    };
    tell(&tracer, here, word);
    drop(tracer);
    loop {
        let waiting = wait::enqueue(key(here), u32::MAX);
        if let Some((tracer, word)) = stops_again(here) {
            waiting.cancel();
            tell(&tracer, here, word);
            continue;
        }
        if let Some(stop) = take_resumed(here) {
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

/// Ends PTRACE_LISTEN if there is a new event: the thread has then stopped again, for this event. Returns the
/// tracer and the word of the new stop.
fn stops_again(here: &Thread) -> Option<(Arc<Process>, u32)> {
    let has_event = |state: &State| {
        let listens = state.stop.as_ref().is_some_and(|stop| stop.listens);
        listens && (state.interrupted || state.continued)
    };
    if !has_event(&here.trace.state.lock()) {
        return None;
    }
    // SIGCONT first ends the stop of the process and then sets `continued`, so the signal is read afterwards.
    let signal = here.process().signals.lock().job.signal().unwrap_or(SIGTRAP);
    let mut state = here.trace.state.lock();
    let tracer = state.tracer.clone()?;
    let stop = state.stop.as_mut().filter(|stop| stop.listens)?;
    let (word, info) = of_event(signal, EVENT_STOP);
    (stop.word, stop.info) = (word, Some(info));
    (stop.listens, stop.told) = (false, false);
    (state.interrupted, state.continued) = (false, false);
    Some((tracer, word))
}

/// Sleeps until a thread of a stopped process has stopped for its tracer, which is the calling process.
///
/// # Errors
///
/// EINTR if the calling thread is killed.
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

/// Stores the copy of the registers. Returns the tracer, or `None` if there is none.
fn leave_copy(here: &Thread, frame: &Frame, word: u32, info: Option<Info>) -> Option<Arc<Process>> {
    let mut stop = Box::new(Stop {
        word,
        info,
        frame: *frame,
        vectors: VectorState::of_program(Thread::user_vectors(frame)),
        has_vectors: false,
        bases: [here.fs_base.get(), here.gs_base.get()],
        told: false,
        listens: false,
        resumed: None,
    });
    let mut state = here.trace.state.lock();
    let tracer = state.tracer.clone()?;
    state.interrupted = false;
    if word >> 8 == EVENT_STOP {
        state.continued = false;
    }
    // The flag was set for the tracer's single step, not by the program.
    if state.mode == Mode::Step {
        stop.frame.rflags &= !TRAP_FLAG;
    }
    state.stop = Some(stop);
    Some(tracer)
}

/// Loads the registers from the copy. Returns the signal with which the thread continues.
fn take_copy(here: &Thread, frame: &mut Frame, stop: &Stop) -> u32 {
    *frame = stop.frame;
    frame.make_whole();
    if stop.has_vectors {
        stop.vectors.load();
        *Thread::user_vectors_mut(frame) = stop.vectors.vectors();
    }
    here.fs_base.set(stop.bases[0]);
    here.gs_base.set(stop.bases[1]);
    crate::sched::scheduler::load_bases(here);
    stop.resumed.unwrap_or(0)
}

/// If the calling thread is to continue, takes its stop, which a tracer that has ended leaves as `None`.
#[expect(clippy::option_option, reason = "whether the thread continues, and the stop")]
fn take_resumed(here: &Thread) -> Option<Option<Box<Stop>>> {
    let mut state = here.trace.state.lock();
    let continues = state.stop.as_ref().is_none_or(|stop| stop.resumed.is_some());
    continues.then(|| state.stop.take())
}

/// Sends SIGCHLD to the tracer, and wakes its threads that wait for tracees.
fn tell(tracer: &Arc<Process>, here: &Thread, word: u32) {
    if !tracer.action(SIGCHLD).has(SA_NOCLDSTOP) {
        let info = job::child_info(here.process(), SIGCHLD, CLD_TRAPPED, word & 0x7f);
        signal::send(tracer, None, info);
    }
    wait::wake(tracer.child_key(), usize::MAX);
}

/// Stops the calling thread before it ends, if its tracer requested this event. `status` is its exit status.
/// Unlike other stops, this stop lasts although the thread has to end: only its tracer ends it.
pub fn stop_before_end(here: &Thread, status: Status) {
    if !here.trace.is_traced() {
        return;
    }
    let mut state = here.trace.state.lock();
    state.message = status.word().into();
    let tells = state.options & 1 << EVENT_EXIT != 0;
    drop(state);
    let (word, info) = of_event(SIGTRAP, EVENT_EXIT);
    let copy = || leave_copy(here, &here.own_frame(), word, Some(info));
    let Some(tracer) = tells.then(copy).flatten() else { return };
    tell(&tracer, here, word);
    drop(tracer);
    loop {
        let waiting = wait::enqueue(key(here), u32::MAX);
        if take_resumed(here).is_some() {
            waiting.cancel();
            return;
        }
        waiting.sleep(Sleep::Deaf, u64::MAX);
    }
}

/// Stops the calling thread, if PTRACE_INTERRUPT or SIGCONT requires it. Returns true if the thread stopped.
pub fn stop_if_interrupted(frame: &mut Frame) -> bool {
    let trace = &current().trace;
    let stops = trace.is_traced() && {
        let state = trace.state.lock();
        state.interrupted || state.continued
    };
    if stops {
        stop_for(frame, SIGTRAP, EVENT_STOP);
    }
    stops
}

/// Returns true if the calling thread is to stop at system calls.
pub fn watches_calls() -> bool {
    let trace = &current().trace;
    trace.is_traced() && trace.state.lock().mode == Mode::Calls
}

/// Stops the calling thread before or after a system call. `frame.error` is the call's number, and `message`
/// is [`CALL_ENTRY`] or [`CALL_EXIT`].
pub fn stop_at_call(frame: &mut Frame, message: u64) {
    let here = current();
    let mut state = here.trace.state.lock();
    state.message = message;
    let word = SIGTRAP | if state.options & SYSGOOD != 0 { SYSTEM_CALL } else { 0 };
    drop(state);
    let vector = frame.vector;
    let signal = stop(frame, word, Some(Info::from_here(SIGTRAP, word as i32)));
    frame.vector = vector;
    if signal != 0 {
        signal::to_itself(signal);
    }
}

/// Stops the calling thread after exec, if the tracer requested this stop.
pub fn has_executed(frame: &mut Frame) {
    let here = current();
    let tells = stop_at(frame, EVENT_EXEC, here.tid());
    if !tells && here.trace.is_traced() && !here.trace.state.lock().seized {
        signal::to_itself(SIGTRAP);
    }
}

/// Stores the message of an event, and stops the calling thread if its tracer requested the event. Returns
/// true if the thread stopped.
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
        stop_for(frame, SIGTRAP, event);
        frame.vector = vector;
    }
    tells
}

/// Returns the word and the information of a stop with this signal for an event.
fn of_event(signal: u32, event: u32) -> (u32, Info) {
    let word = signal | event << 8;
    (word, Info::from_here(signal, word as i32))
}

/// Stops the calling thread for an event.
fn stop_for(frame: &mut Frame, signal: u32, event: u32) {
    let (word, info) = of_event(signal, event);
    stop(frame, word, Some(info));
}

/// Stops the calling thread, which is traced, because its process is stopped by this signal.
pub fn stop_with_process(frame: &mut Frame, signal: u32) {
    match current().trace.is_seized() {
        true => stop_for(frame, signal, EVENT_STOP),
        false => drop(stop(frame, signal, None)),
    }
}

/// Makes a thread stop for its tracer when it next returns to the program.
///
/// # Errors
///
/// EIO if the thread was not seized.
pub fn interrupt(thread: &Arc<Thread>) -> Result<(), Errno> {
    let mut state = thread.trace.state.lock();
    if !state.seized {
        return Err(EIO);
    }
    state.interrupted = true;
    drop(state);
    thread.give_work(work::SIGNAL);
    wait::wake(key(thread), usize::MAX);
    Ok(())
}

/// Makes the seized threads of a process report that the process continues.
pub fn has_continued(process: &Process) {
    for thread in process.threads.lock().iter() {
        let mut state = thread.trace.state.lock();
        let is_seized = state.seized && state.tracer.is_some();
        state.continued |= is_seized;
        drop(state);
        if is_seized {
            thread.give_work(work::SIGNAL);
            wait::wake(key(thread), usize::MAX);
        }
    }
}

/// Keeps a thread stopped until the next event of its process (PTRACE_LISTEN).
///
/// # Errors
///
/// EIO if the thread was not seized or has not stopped with its process; ESRCH if `by` does not trace it.
pub fn listen(by: &Arc<Process>, thread: &Thread) -> Result<(), Errno> {
    let listens = |state: &mut State| {
        let is_seized = state.seized;
        let stop = state.stop.as_mut().filter(|_| is_seized)?;
        let is_event = stop.info.is_some_and(|info| info.code >> 8 == EVENT_STOP as i32);
        stop.listens = is_event;
        is_event.then_some(())
    };
    thread.trace.with(by, listens)?.ok_or(EIO)?;
    wait::wake(key(thread), usize::MAX);
    Ok(())
}
