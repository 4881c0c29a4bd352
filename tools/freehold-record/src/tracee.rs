//! The command that is recorded, and all it forks, as ptrace(2) holds and stops them.
#![expect(unsafe_code, reason = "fork, and the calls of ptrace, of which no library takes every signal")]

use anyhow::{Context, bail};
use std::ffi::{CString, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null_mut;
use std::time::Duration;

/// A command that is about to begin: its process waits for leave to execve.
#[derive(Debug)]
pub struct Waiting {
    /// Its process.
    pub process: i32,
    go: PipeWriter,
    failed: PipeReader,
}

impl Waiting {
    /// Forks. Nothing else may run in this process: the child is a copy of this thread alone.
    ///
    /// # Errors
    ///
    /// Those of pipe(2) and fork(2); an argument with a zero byte.
    pub fn new(command: &[OsString]) -> anyhow::Result<Waiting> {
        let words = command.iter().map(|word| CString::new(word.clone().into_vec()));
        let words = words.collect::<Result<Vec<_>, _>>().context("the command holds a zero byte")?;
        let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let (mut wait, go) = io::pipe()?;
        let (failed, mut report) = io::pipe()?;
        // SAFETY: the child has all memory as it was and is the only thread of its process, as this one is
        // here: nobody holds a lock.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("no fork"),
            0 => {
                drop(go);
                if matches!(wait.read(&mut [0]), Ok(1)) {
                    // SAFETY: a list of strings with a null at its end, all of them alive.
                    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
                    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                    // The reader may be gone.
                    let _ = report.write_all(&errno.to_ne_bytes());
                }
                // SAFETY: ends the process and runs nothing that belongs to the parent.
                unsafe { libc::_exit(127) }
            }
            process => Ok(Waiting { process, go, failed }),
        }
    }

    /// Lets it go on to execve.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn go(mut self) -> anyhow::Result<Started> {
        self.go.write_all(&[1]).context("the command's process is gone")?;
        Ok(Started { failed: self.failed })
    }

    /// Has it end without execve.
    pub fn cancel(self) {
        drop(self.go);
        // SAFETY: asks for no status.
        unsafe { libc::waitpid(self.process, null_mut(), libc::__WALL) };
    }
}

/// A command that began.
#[derive(Debug)]
pub struct Started {
    failed: PipeReader,
}

impl Started {
    /// Why there was no execve, once the process is gone.
    pub fn failure(mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.failed.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}

/// What a thread that is followed did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is gone: with the exit status a shell would show.
    Gone(u8),
    /// It execs: the new image is mapped. The number it had before.
    Exec(i32),
    /// It is about to exit.
    Exits,
    /// It made a thread or process.
    Made(i32),
    /// It stands still because all of its process do, until a SIGCONT.
    Group,
    /// It stands still for us, or begins.
    Trap,
    /// It is about to get this signal.
    Signal(i32),
}

/// Begins to follow a process, and everything that it forks.
///
/// # Errors
///
/// What keeps us from it, for the user.
pub fn seize(process: i32) -> anyhow::Result<()> {
    let options = libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE;
    match ptrace(libc::PTRACE_SEIZE, process, options as usize) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            bail!("no leave to follow a process with ptrace (is this a debugger's or a container's child?)")
        }
        Err(error) => Err(error).context("ptrace"),
    }
}

/// What has happened and was not yet asked for; nothing: nothing yet. `None` as error: nobody is left.
///
/// # Errors
///
/// Those of waitpid(2).
pub fn next() -> io::Result<Option<(i32, Stop)>> {
    let mut status = 0;
    // SAFETY: the status is ours to be written.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::WNOHANG) };
    match thread {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        thread => Ok(Some((thread, meaning(thread, status)))),
    }
}

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

/// What the last event of a thread carries; 0 when it is gone.
fn message(thread: i32) -> i32 {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the request writes one such number there.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, &raw mut message) };
    if done == 0 { message as i32 } else { 0 }
}

/// Lets a thread go on, with a signal or with none (0). One that is gone meanwhile needs no leave.
pub fn go_on(thread: i32, signal: i32) {
    let _ = ptrace(libc::PTRACE_CONT, thread, signal as usize);
}

/// Lets a thread that is about to exit go its way: its end is for its parent alone, as if nobody followed it.
pub fn release(thread: i32) {
    let _ = ptrace(libc::PTRACE_DETACH, thread, 0);
}

/// Leaves a thread standing as its whole process does, until a SIGCONT.
pub fn leave_standing(thread: i32) {
    let _ = ptrace(libc::PTRACE_LISTEN, thread, 0);
}

/// Stops a thread at the next moment at which no call of it is half done.
pub fn interrupt(thread: i32) {
    let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0);
}

fn ptrace(request: libc::c_uint, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests above take no address, and a number for data.
    match unsafe { libc::ptrace(request, thread, 0_usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// From now on SIGCHLD waits for [`pause`], and so does what is to end the recording; what the terminal sends
/// to stop the command does not stop the recording.
pub fn prepare_signals() {
    // SAFETY: sets how signals are treated, with values made by the calls for it.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &awaited(), null_mut());
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
    }
}

/// What [`pause`] waits for.
fn awaited() -> libc::sigset_t {
    // SAFETY: a set that is made empty before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Waits until something happens to a thread that is followed, or for so long. A signal that somebody sent to
/// end the recording: SIGTERM, or a SIGINT that does not come from the terminal, which has sent it to the
/// command as well.
pub fn pause(most: Duration) -> Option<i32> {
    let wait = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // SAFETY: reads a set of signals and a time, and writes what came.
    let (signal, sent) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::sigtimedwait(&awaited(), &mut info, &wait), info.si_code <= 0)
    };
    (signal == libc::SIGTERM || signal == libc::SIGINT && sent).then_some(signal)
}

/// Sends a signal to a process. One that is gone needs none.
pub fn tell(process: i32, signal: i32) {
    // SAFETY: has no effect on this process.
    unsafe { libc::kill(process, signal) };
}

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is ours to be written. This clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
