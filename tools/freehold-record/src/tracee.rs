//! Controls the recorded command and its descendants with ptrace(2).
//!
//! 1. [`Waiting::new`] forks the process of the command, which waits at a pipe. Its events can be enabled
//!    before it runs.
//! 2. [`seize`] follows the process and all its later descendants with ptrace.
//! 3. [`Waiting::go`] lets the process call execve.
//! 4. `follow.rs` takes the stops of the threads from [`next`], and continues each thread with [`go_on`].
//!
//! Only the thread that called [`seize`] may use the functions on stopped threads, as ptrace requires. A
//! stopped thread must be continued or released on every path, or the command hangs. This file has no tests
//! of its own: `freehold-cli/tests/record.rs` follows real programs, and ends them by signals.
#![expect(unsafe_code, reason = "fork, and ptrace, for which no library supports every signal")]

use anyhow::{Context, bail};
use std::ffi::{CString, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null_mut;
use std::time::Duration;

/// A command before its start. Its process waits for permission to call execve.
#[derive(Debug)]
pub struct Waiting {
    /// The process of the command.
    pub process: i32,
    /// Writing a byte lets the process call execve. Dropping the writer ends the process.
    go: PipeWriter,
    /// The errno of a failed execve arrives here, as four bytes.
    failed: PipeReader,
}

impl Waiting {
    /// Forks. This process must have only one thread, because the child is a copy of this thread only.
    ///
    /// # Errors
    ///
    /// Fails with the errors of pipe(2) and fork(2), or if an argument contains a zero byte.
    pub fn new(command: &[OsString]) -> anyhow::Result<Waiting> {
        let words = command.iter().map(|word| CString::new(word.clone().into_vec()));
        let words = words.collect::<Result<Vec<_>, _>>().context("the command contains a zero byte")?;
        let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let (mut wait, go) = io::pipe()?;
        let (failed, mut report) = io::pipe()?;
        // SAFETY: the child has a copy of all memory and is the only thread of its process. This process has
        // one thread too, so no other thread holds a lock.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("cannot fork"),
            0 => {
                drop(go);
                if matches!(wait.read(&mut [0]), Ok(1)) {
                    // SAFETY: `argv` is a list of strings with a null at its end, and all strings live.
                    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
                    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                    // The reader may have exited.
                    let _ = report.write_all(&errno.to_ne_bytes());
                }
                // SAFETY: ends the process without running code that belongs to the parent.
                unsafe { libc::_exit(127) }
            }
            process => Ok(Waiting { process, go, failed }),
        }
    }

    /// Lets the command call execve.
    ///
    /// # Errors
    ///
    /// Fails if the process has ended.
    pub fn go(mut self) -> anyhow::Result<Started> {
        self.go.write_all(&[1]).context("the command's process has ended")?;
        Ok(Started { failed: self.failed })
    }

    /// Ends the process without execve.
    pub fn cancel(self) {
        drop(self.go);
        // SAFETY: with a null pointer, the call writes no status.
        unsafe { libc::waitpid(self.process, null_mut(), libc::__WALL) };
    }
}

/// A command that has started.
#[derive(Debug)]
pub struct Started {
    /// The errno of a failed execve arrives here, as four bytes.
    failed: PipeReader,
}

impl Started {
    /// Returns the reason why execve failed. Called after the process has ended.
    pub fn failure(mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.failed.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}

/// The event of a followed thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The thread has ended, with the exit status that a shell would show.
    Gone(u8),
    /// The thread called execve, and the new image is mapped. The value is the thread's previous number.
    Exec(i32),
    /// The thread is about to exit.
    Exits,
    /// The thread created a thread or process.
    Made(i32),
    /// The whole process is stopped until a SIGCONT.
    Group,
    /// The thread stopped at the recorder's request, or has just started.
    Trap,
    /// The thread is about to get this signal.
    Signal(i32),
}

/// Starts to follow a process and all its descendants.
///
/// # Errors
///
/// Fails with a message for the user if the process cannot be followed.
pub fn seize(process: i32) -> anyhow::Result<()> {
    let options = libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE;
    match ptrace(libc::PTRACE_SEIZE, process, options as usize) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            bail!("no permission to use ptrace (is this process under a debugger or in a container?)")
        }
        Err(error) => Err(error).context("ptrace"),
    }
}

/// Returns the next stop or end of a followed thread, with the thread. Returns `None` if there is none yet.
///
/// # Errors
///
/// Fails with the errors of waitpid(2): ECHILD if no process is left.
pub fn next() -> io::Result<Option<(i32, Stop)>> {
    let mut status = 0;
    // SAFETY: the call writes only to `status`.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::WNOHANG) };
    match thread {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        thread => Ok(Some((thread, meaning(thread, status)))),
    }
}

/// Converts the status that wait(2) returned for a thread to a stop.
fn meaning(thread: i32, status: i32) -> Stop {
    if libc::WIFEXITED(status) {
        return Stop::Gone(libc::WEXITSTATUS(status) as u8);
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Gone(128_u8.saturating_add(libc::WTERMSIG(status) as u8));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec(message(thread)),
        libc::PTRACE_EVENT_EXIT => Stop::Exits,
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
            Stop::Made(message(thread))
        }
        libc::PTRACE_EVENT_STOP => match signal {
            libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => Stop::Group,
            _ => Stop::Trap,
        },
        0 => Stop::Signal(signal),
        _ => Stop::Trap,
    }
}

/// Returns the value of a thread's last event, or 0 if the thread has ended.
fn message(thread: i32) -> i32 {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the request writes one `c_ulong` to `message`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, &raw mut message) };
    if done == 0 { message as i32 } else { 0 }
}

/// Lets a thread continue, with a signal or with none (0). Does nothing if the thread has ended.
pub fn go_on(thread: i32, signal: i32) {
    let _ = ptrace(libc::PTRACE_CONT, thread, signal as usize);
}

/// Stops following a thread that is about to exit. From then on, only the thread's parent waits for the
/// thread, as without a tracer.
pub fn release(thread: i32) {
    let _ = ptrace(libc::PTRACE_DETACH, thread, 0);
}

/// Keeps a thread stopped until a SIGCONT. A signal has stopped the whole process of the thread.
pub fn leave_standing(thread: i32) {
    let _ = ptrace(libc::PTRACE_LISTEN, thread, 0);
}

/// Requests that a thread stops. The thread stops as soon as none of its system calls is in progress.
pub fn interrupt(thread: i32) {
    let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0);
}

/// Makes a ptrace call with a number as data.
fn ptrace(request: libc::c_uint, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests above take no address, and a number as data.
    match unsafe { libc::ptrace(request, thread, 0_usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes SIGCHLD, SIGINT and SIGTERM wait for [`pause`]. Ignores SIGQUIT, which is meant for the command: the
/// terminal sends the signal to the recorder too.
pub fn prepare_signals() {
    // SAFETY: the calls change only the handling of signals, and their arguments are a valid set and a valid
    // handler.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &awaited(), null_mut());
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
    }
}

/// Returns the set of signals that [`pause`] waits for.
fn awaited() -> libc::sigset_t {
    // SAFETY: the set is initialised as empty before use.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Waits for an event of a followed thread, for at most the time `most`. Returns a signal that requests the
/// end of the recording: SIGTERM, or a SIGINT that a process sent. A SIGINT from the terminal is not
/// returned, because the terminal also sends it to the command.
pub fn pause(most: Duration) -> Option<i32> {
    let wait = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // SAFETY: the call reads a set of signals and a time, and writes to `info`.
    let (signal, sent) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::sigtimedwait(&awaited(), &mut info, &wait), info.si_code <= 0)
    };
    (signal == libc::SIGTERM || signal == libc::SIGINT && sent).then_some(signal)
}

/// Sends a signal to a process. Does nothing if the process has ended.
pub fn tell(process: i32, signal: i32) {
    // SAFETY: the call has no effect on this process.
    unsafe { libc::kill(process, signal) };
}

/// Returns the current time in nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to `time`. This clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
