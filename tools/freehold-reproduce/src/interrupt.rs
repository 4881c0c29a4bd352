//! Converts a signal that ends a run into a message for the thread that must end the run.
//!
//! `work.rs` calls [`watch`] before it starts the thread of the experiments, and [`stop`] when the run ends.
//! The signals are blocked in the calling thread and in threads that start later; a separate thread waits for
//! them. [`watch`] must run before other threads start: a signal that reaches an earlier thread would end the
//! process without a report. `freehold-cli/tests/reproduce.rs` interrupts runs with real signals.
#![expect(unsafe_code, reason = "sigwait and signal masks have no safe wrapper among the dependencies")]

use std::mem;
use std::ptr;
use std::thread;

/// Signals that end a run. A signal that the parent process set to be ignored stays ignored.
const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

/// Starts a thread that waits for the first signal in [`ENDING`] and calls `tell` with its number. Threads
/// that start later are not interrupted by these signals. Until [`stop`] is called, these signals do not end
/// the process.
pub fn watch(tell: impl FnOnce(i32) + Send + 'static) {
    let awaited = awaited();
    // SAFETY: the call changes only the signal mask of the calling thread. The set outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, ptr::null_mut()) };
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: the call reads a set and writes a number, and this closure owns both.
        let failed = unsafe { libc::sigwait(&awaited, &mut signal) };
        if failed == 0 {
            tell(signal);
        }
    });
}

/// Lets signals end the process again.
pub fn stop() {
    // SAFETY: the call changes only the signal mask of the calling thread. The set outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &awaited(), ptr::null_mut()) };
}

/// Returns the signals in [`ENDING`] that are not ignored.
fn awaited() -> libc::sigset_t {
    // SAFETY: `sigemptyset` initialises the set before it is used.
    let mut set = unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    };
    for signal in ENDING.into_iter().filter(|signal| !is_ignored(*signal)) {
        // SAFETY: the set belongs to this function, and `signal` is a valid signal number.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: the call changes no signal action. `action` is a valid destination for the current action, and
    // all zeroes is a valid value of its type.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}
