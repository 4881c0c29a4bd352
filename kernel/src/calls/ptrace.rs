//! ptrace(2): the requests of a tracer. Debug registers are stored but stop no thread. `process/trace.rs` has
//! the state of tracing, its locks, and the functions that a tracee calls.
//!
//! Almost all requests need a stopped tracee, and read or change only the copy of its registers ([`Stop`]).
//! Functions that get a [`Stop`] run under a spin lock, so they touch no program's memory. Values are checked
//! before they are stored, because the tracee loads them in the kernel. The engine accesses the memory of the
//! tracee. The programs `traced.c`, `keys.c` and `canonical.c` test the requests.
//!
//! A new request needs its number and an arm in `ptrace`. If the tracee may run, the arm belongs in the
//! `match` before `with_stop`. If the tracee must be stopped, the arm belongs in the `match` after
//! `with_stop`.

use crate::arch::features::VectorState;
use crate::arch::frame::{Frame, UserAddr};
use crate::calls::answer::{Answer, Calls};
use crate::errno::ERANGE;
use crate::platform::Space;
use crate::platform::user::{self, UserPtr, copy_in};
use crate::process::signal::{self, Info, MAX_SIGNAL, job};
use crate::process::trace::{self, EIO, Mode, OPTIONS, REGISTERS, State, Stop};
use crate::process::{self, Process};
use crate::sched::{Thread, current};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use freehold::remote::AccessMode;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_ptrace, ptrace)];

const TRACEME: u32 = 0;
const PEEK_TEXT: u32 = 1;
const PEEK_DATA: u32 = 2;
const PEEK_USER: u32 = 3;
const POKE_TEXT: u32 = 4;
const POKE_DATA: u32 = 5;
const POKE_USER: u32 = 6;
const CONT: u32 = 7;
const KILL: u32 = 8;
const SINGLE_STEP: u32 = 9;
const GET_REGISTERS: u32 = 12;
const SET_REGISTERS: u32 = 13;
const GET_VECTORS: u32 = 14;
const SET_VECTORS: u32 = 15;
const ATTACH: u32 = 16;
const DETACH: u32 = 17;
const SYSCALL: u32 = 24;
const SET_OPTIONS: u32 = 0x4200;
const GET_MESSAGE: u32 = 0x4201;
const GET_INFO: u32 = 0x4202;
const SET_INFO: u32 = 0x4203;
const GET_SET: u32 = 0x4204;
const SET_SET: u32 = 0x4205;
const SEIZE: u32 = 0x4206;
const INTERRUPT: u32 = 0x4207;
const LISTEN: u32 = 0x4208;
const GET_CALL: u32 = 0x420e;
const SET_CALL: u32 = 0x4212;

fn ptrace(frame: &mut Frame) -> Answer {
    let [request, pid, at, data, ..] = frame.args();
    let request = request as u32;
    match request {
        TRACEME => return trace_me(),
        ATTACH => return attach(pid, None),
        SEIZE if at != 0 => return Err(EIO),
        SEIZE => return attach(pid, Some(known(data).map_err(|_| EIO)?)),
        _ => {}
    }
    let (process, thread) = process::find_thread(pid as i32 as u32).ok_or(Errno::ESRCH)?;
    let tracee = Tracee { process, thread };
    match request {
        INTERRUPT => {
            tracee.with(|_| ())?;
            return trace::interrupt(&tracee.thread).map(|()| 0);
        }
        KILL => {
            tracee.with(|_| ())?;
            signal::send(&tracee.process, None, Info::from_here(SIGKILL, 0));
            return Ok(0);
        }
        _ => tracee.with_stop(|_| ())?,
    }
    match request {
        PEEK_TEXT | PEEK_DATA => {
            let mut word = [0; 8];
            let read = tracee.space()?.read_memory(at, &mut word, AccessMode::Forced);
            if !read.is_ok_and(|bytes| bytes == word.len()) {
                return Err(EIO);
            }
            user::copy_out(data, &word).map(|()| 0)
        }
        POKE_TEXT | POKE_DATA => {
            let wrote = tracee.space()?.write_memory(at, &data.to_ne_bytes(), AccessMode::Forced);
            if wrote.is_ok_and(|bytes| bytes == 8) { Ok(0) } else { Err(EIO) }
        }
        PEEK_USER => {
            let word = tracee.peek_user(at)?;
            UserPtr::<u64>::new(data).write(&word).map(|()| 0)
        }
        POKE_USER => tracee.poke_user(at, data),
        CONT | SYSCALL | SINGLE_STEP | DETACH => tracee.go_on(request, data),
        SET_OPTIONS => {
            let options = known(data)?;
            tracee.with(|state| state.options = options).map(|()| 0)
        }
        GET_MESSAGE => {
            let message = tracee.with(|state| state.message)?;
            UserPtr::<u64>::new(data).write(&message).map(|()| 0)
        }
        GET_INFO => {
            let info = tracee.with_stop(|stop| stop.info)?.ok_or(Errno::EINVAL)?;
            UserPtr::<[u64; 16]>::new(data).write(&info.words()).map(|()| 0)
        }
        SET_INFO => {
            let info = Info::read(data)?;
            let set = |stop: &mut Stop| stop.info.as_mut().map(|old| *old = info);
            tracee.with_stop(set)?.map(|()| 0).ok_or(Errno::EINVAL)
        }
        LISTEN => trace::listen(current().process(), &tracee.thread).map(|()| 0),
        GET_CALL => tracee.get_call(at, data),
        SET_CALL => tracee.set_call(at, data),
        _ => tracee.registers(request, at, data),
    }
}

/// Returns the options. Fails with EINVAL if one of them is not supported.
fn known(options: u64) -> Result<u64, Errno> {
    if options & !OPTIONS != 0 { Err(Errno::EINVAL) } else { Ok(options) }
}

/// Makes the parent trace the calling thread.
fn trace_me() -> Answer {
    let here = current().process();
    let parent = here.parent().ok_or(Errno::EPERM)?;
    trace::begin(&parent, here, &Thread::hold_current(), 0, false).map(|()| 0)
}

/// Attaches to a thread. Stops the thread, unless `options` is given (PTRACE_SEIZE).
fn attach(pid: u64, options: Option<u64>) -> Answer {
    let here = current().process();
    let (process, thread) = process::find_task(pid as i32 as u32).ok_or(Errno::ESRCH)?;
    let thread = thread.ok_or(Errno::EPERM)?;
    if Arc::ptr_eq(here, &process) {
        return Err(Errno::EPERM);
    }
    trace::begin(here, &process, &thread, options.unwrap_or(0), options.is_some())?;
    if options.is_some() {
        job::pass_to_tracer(&process);
        return Ok(0);
    }
    signal::send(&process, Some(&thread), Info::from_here(SIGSTOP, 0));
    if job::leave_to_tracer(&process) {
        trace::wait_for_stop(here, &thread)?;
    }
    Ok(0)
}

/// A thread that should be a tracee of the calling process; `with` checks this.
struct Tracee {
    process: Arc<Process>,
    thread: Arc<Thread>,
}

impl Tracee {
    /// Calls `f` with the tracing state. Fails with ESRCH if the calling process does not trace the thread.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> Result<R, Errno> {
        self.thread.trace.with(current().process(), f)
    }

    /// Calls `f` with the tracee's stop. Fails with ESRCH if the tracee has not stopped. `f` touches no
    /// program's memory.
    fn with_stop<R>(&self, f: impl FnOnce(&mut Stop) -> R) -> Result<R, Errno> {
        let stopped = |state: &mut State| {
            let stop = state.stop.as_mut().filter(|stop| stop.resumed.is_none() && !stop.listens)?;
            Some(f(stop))
        };
        self.with(stopped)?.ok_or(Errno::ESRCH)
    }

    /// Returns the tracee's address space.
    fn space(&self) -> Result<Space, Errno> {
        self.process.space.lock().clone().ok_or(EIO)
    }

    /// Makes the tracee continue with a signal, or 0 for none.
    fn go_on(&self, request: u32, signal: u64) -> Answer {
        if signal > MAX_SIGNAL.into() {
            return Err(EIO);
        }
        let signal = signal as u32;
        match request {
            DETACH => trace::end(current().process(), &self.thread, signal),
            SYSCALL => trace::resume(&self.thread, Mode::Calls, signal),
            SINGLE_STEP => trace::resume(&self.thread, Mode::Step, signal),
            _ => trace::resume(&self.thread, Mode::Free, signal),
        }
        Ok(0)
    }

    /// Returns a word of `struct user`.
    fn peek_user(&self, at: u64) -> Result<u64, Errno> {
        match place(at)? {
            Place::Register(n) => self.with_stop(|stop| registers(stop)[n]),
            Place::Debug(n) => self.with(|state| state.debug[n]),
            Place::Other => Ok(0),
        }
    }

    /// Changes a word of `struct user`.
    fn poke_user(&self, at: u64, value: u64) -> Answer {
        match place(at)? {
            Place::Register(n) => self.with_stop(|stop| {
                let mut all = registers(stop);
                all[n] = value;
                set_registers(stop, &all)
            })??,
            // As on Linux: breakpoints must not be at kernel addresses, and the upper bits of the control
            // register do not exist.
            Place::Debug(0..4) if UserAddr::new(value).is_none() => return Err(Errno::EINVAL),
            Place::Debug(4 | 5) => return Err(EIO),
            Place::Debug(7) if value >> 32 != 0 => return Err(EIO),
            Place::Debug(n) => self.with(|state| state.debug[n] = value)?,
            Place::Other => return Err(EIO),
        }
        Ok(0)
    }

    /// Reads or writes a whole set of registers.
    fn registers(&self, request: u32, at: u64, data: u64) -> Answer {
        match (request, at) {
            (GET_REGISTERS, _) => {
                let all = self.with_stop(|stop| registers(stop))?;
                UserPtr::<[u64; REGISTERS]>::new(data).write(&all).map_err(|_| EIO)?;
            }
            (SET_REGISTERS, _) => {
                let all = UserPtr::<[u64; REGISTERS]>::new(data).read().map_err(|_| EIO)?;
                self.with_stop(|stop| set_registers(stop, &all))??;
            }
            (GET_VECTORS, _) => {
                user::copy_out(data, self.image()?.for_tracer(false)).map_err(|_| EIO)?;
            }
            (SET_VECTORS, _) => self.set_image(data, 512).map_err(|_| EIO)?,
            (GET_SET | SET_SET, _) => {
                let part = UserPtr::<[u64; 2]>::new(data);
                let done = self.register_set(request == SET_SET, at as u32, part.read()?)?;
                UserPtr::<u64>::new(data).add(1).write(&done)?;
            }
            _ => return Err(EIO),
        }
        Ok(0)
    }

    /// Reads or, with `sets`, writes the register set that has this note number in core files. Returns the
    /// number of bytes.
    fn register_set(&self, sets: bool, note: u32, [base, bytes]: [u64; 2]) -> Answer {
        match note {
            1 => {
                let mut all = self.with_stop(|stop| registers(stop))?;
                let count = (bytes / 8).min(REGISTERS as u64) as usize;
                if bytes % 8 != 0 {
                    return Err(Errno::EINVAL);
                }
                for (n, word) in all.iter_mut().enumerate().take(count) {
                    let place = UserPtr::<u64>::new(base).add(n as u64);
                    match sets {
                        true => *word = place.read()?,
                        false => place.write(word)?,
                    }
                }
                if sets {
                    self.with_stop(|stop| set_registers(stop, &all))??;
                }
                Ok(count as u64 * 8)
            }
            2 | 0x202 => {
                let mut image = self.image()?;
                let whole = image.for_tracer(note == 0x202);
                let count = bytes.min(whole.len() as u64) as usize;
                match sets {
                    // As on Linux, this set is written completely or not at all.
                    true if note == 0x202 && bytes != whole.len() as u64 => return Err(Errno::EFAULT),
                    true => self.set_image(base, count)?,
                    false => user::copy_out(base, &whole[..count])?,
                }
                Ok(count as u64)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the kind of a stop: `CALL_ENTRY` or `CALL_EXIT` at a system call, 0 otherwise. Stops at system
    /// calls are recognised only with PTRACE_O_TRACESYSGOOD.
    fn kind_of_stop(state: &State) -> Option<u64> {
        let stop = state.stop.as_ref().filter(|stop| stop.resumed.is_none() && !stop.listens)?;
        let at_call = SIGTRAP | trace::SYSTEM_CALL;
        let is_call = stop.info.is_some_and(|info| info.code == at_call as i32);
        Some(if is_call { state.message } else { CALL_NONE })
    }

    /// Performs PTRACE_GET_SYSCALL_INFO: stores what the tracee's stop says about a system call, as far as
    /// there is room. Returns the size of the whole answer.
    fn get_call(&self, room: u64, at: u64) -> Answer {
        let describe = |state: &mut State| {
            let kind = Self::kind_of_stop(state)?;
            let f = &state.stop.as_ref()?.frame;
            let mut words = [kind | ARCHITECTURE << 32, f.rip, f.rsp, 0, 0, 0, 0, 0, 0, 0, 0];
            let bytes = match kind {
                trace::CALL_ENTRY => {
                    words[3] = f.error;
                    words[4..10].copy_from_slice(&f.args());
                    80
                }
                trace::CALL_EXIT => {
                    let is_error = (-4095..0).contains(&(f.rax as i64));
                    (words[3], words[4]) = (f.rax, is_error.into());
                    33
                }
                _ => 24,
            };
            Some((words, bytes))
        };
        let (words, bytes) = self.with(describe)?.ok_or(Errno::ESRCH)?;
        let image: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        user::copy_out(at, &image[..room.min(bytes) as usize])?;
        Ok(bytes)
    }

    /// Performs PTRACE_SET_SYSCALL_INFO: changes the number and the arguments of the call at whose start the
    /// tracee has stopped, or the answer of the call at whose end it has stopped.
    fn set_call(&self, room: u64, at: u64) -> Answer {
        if room < size_of::<[u64; 11]>() as u64 {
            return Err(Errno::EINVAL);
        }
        let words = UserPtr::<[u64; 11]>::new(at).read()?;
        // The lowest byte is the kind. The following three bytes are 0.
        let kind = words[0] & 0xffff_ffff;
        let change = |state: &mut State| {
            let is = Self::kind_of_stop(state)?;
            let f = &mut state.stop.as_mut()?.frame;
            Some(match kind {
                _ if kind != is => Err(Errno::EINVAL),
                trace::CALL_ENTRY if words[3] as i32 as u64 != words[3] => Err(ERANGE),
                trace::CALL_ENTRY => {
                    f.error = words[3];
                    if words[3] as i32 != -1 {
                        let [.., rdi, rsi, rdx, r10, r8, r9, _] = words;
                        (f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9) = (rdi, rsi, rdx, r10, r8, r9);
                    }
                    Ok(0)
                }
                trace::CALL_EXIT => {
                    f.rax = words[3];
                    Ok(0)
                }
                _ => Err(Errno::EINVAL),
            })
        };
        self.with(change)?.ok_or(Errno::ESRCH)?
    }

    /// Returns a copy of the tracee's vector state.
    fn image(&self) -> Result<Box<VectorState>, Errno> {
        let mut image = Box::new(VectorState::new());
        self.with_stop(|stop| *image = stop.vectors.copy())?;
        Ok(image)
    }

    /// Reads vector state from the tracer's memory, checks it, and stores it for the tracee.
    fn set_image(&self, at: u64, bytes: usize) -> Result<(), Errno> {
        let mut image = self.image()?;
        image.take_from_tracer(at, bytes, copy_in)?;
        self.with_stop(|stop| {
            stop.vectors = image.copy();
            stop.has_vectors = true;
        })
    }
}

/// The kind of a stop that is not at a system call.
const CALL_NONE: u64 = 0;
/// The architecture of all programs: AUDIT_ARCH_X86_64.
const ARCHITECTURE: u64 = 0xc000_003e;

/// Offset of the debug registers in `struct user`.
const DEBUG: u64 = 848;
/// Size of `struct user`.
const USER: u64 = 912;

/// The kind of a word of `struct user`.
enum Place {
    /// A register, by its index.
    Register(usize),
    /// A debug register, by its number.
    Debug(usize),
    /// A word that reads as 0 and cannot be changed.
    Other,
}

/// Returns the kind of the word at this offset.
fn place(at: u64) -> Result<Place, Errno> {
    match at {
        _ if !at.is_multiple_of(8) || at >= USER => Err(EIO),
        DEBUG.. => Ok(Place::Debug(((at - DEBUG) / 8) as usize)),
        _ if at < REGISTERS as u64 * 8 => Ok(Place::Register(at as usize / 8)),
        _ => Ok(Place::Other),
    }
}

/// Returns the registers of a stopped tracee.
fn registers(stop: &Stop) -> [u64; REGISTERS] {
    trace::registers(&stop.frame, stop.bases)
}

/// Sets the registers of a stopped tracee. Fails with EIO if a program cannot have these values.
fn set_registers(stop: &mut Stop, all: &[u64; REGISTERS]) -> Result<(), Errno> {
    /// Flags that a program may change: arithmetic, direction, alignment, resume, and single step.
    const OWN_FLAGS: u64 = 0x0004_0dd5 | 0x0001_0000;
    let f = &mut stop.frame;
    let [call, rip, cs, flags, rsp, ss, fs, gs] = core::array::from_fn(|n| all[15 + n]);
    let (Some(fs), Some(gs)) = (UserAddr::new(fs), UserAddr::new(gs)) else { return Err(EIO) };
    if cs & 3 != 3 || ss & 3 != 3 {
        return Err(EIO);
    }
    let general = [
        &mut f.r15, &mut f.r14, &mut f.r13, &mut f.r12, &mut f.rbp, &mut f.rbx, &mut f.r11, &mut f.r10,
        &mut f.r9, &mut f.r8, &mut f.rax, &mut f.rcx, &mut f.rdx, &mut f.rsi, &mut f.rdi,
    ];
    general.into_iter().zip(all).for_each(|(register, value)| *register = *value);
    f.rflags = f.rflags & !OWN_FLAGS | flags & OWN_FLAGS;
    (f.rip, f.rsp) = (rip, rsp);
    if f.vector == Frame::SYSTEM_CALL {
        f.error = call;
    }
    stop.bases = [fs, gs];
    Ok(())
}
