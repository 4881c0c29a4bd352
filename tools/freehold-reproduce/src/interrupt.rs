//! Signals that are to end a run, as messages to the thread that has to end it.
#![expect(unsafe_code, reason = "sigwait and masks of signals, for which no library is here")]

use std::mem;
use std::ptr;
use std::thread;

/// What ends a run in order. A parent that started us ignoring one of them wants it ignored.
const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

/// From now on has `tell` called, by a thread of its own, with the first signal that is to end the process.
/// Threads that are started later are not interrupted by it; until [`stop`], neither is the process.
pub fn watch(tell: impl FnOnce(i32) + Send + 'static) {
    let awaited = awaited();
    // SAFETY: changes the mask of the calling thread; the set lives as long as the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, ptr::null_mut()) };
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: reads a set that is ours, and writes a number that is ours.
        let failed = unsafe { libc::sigwait(&awaited, &mut signal) };
        if failed == 0 {
            tell(signal);
        }
    });
}

/// Lets signals end the process again, as they do.
pub fn stop() {
    // SAFETY: as in `watch`.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &awaited(), ptr::null_mut()) };
}

/// Those of [`ENDING`] that are not ignored.
fn awaited() -> libc::sigset_t {
    // SAFETY: a set that is made empty before it is used.
    let mut set = unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    };
    for signal in ENDING.into_iter().filter(|signal| !is_ignored(*signal)) {
        // SAFETY: a set that is ours, and a number that is a signal's.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: changes nothing, and writes how the signal is treated to what is ours; all zeroes is a value of
    // it.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}
