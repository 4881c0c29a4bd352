//! What parent and child share: one channel per process, in shared memory, with a word each way to sleep on.
#![expect(unsafe_code, reason = "memory shared between processes, and the futex call")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Calls in one batch.
pub(super) const BATCH: usize = 512;
/// Bytes that one batch can give back.
pub(super) const BYTES: usize = 64 << 10;

/// A call as numbers: a system call with its arguments, or one of [`super::child`]'s own.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Cmd {
    pub what: u64,
    pub args: [u64; 6],
}

/// What came of it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Answer {
    /// Return value (negative: errno), or for a touch 0 or the signal.
    pub value: i64,
    /// `si_code` and `si_addr` after a signal.
    pub code: i64,
    pub addr: u64,
    /// Bytes written to the channel's byte area.
    pub bytes: u64,
}

/// `asked` counts batches handed to the child, `answered` those done. Everything else in the channel belongs
/// to the child while `asked != answered`, to the parent otherwise.
#[repr(C)]
pub(super) struct Channel {
    pub asked: AtomicU32,
    pub answered: AtomicU32,
    pub len: u32,
    pub cmds: [Cmd; BATCH],
    pub answers: [Answer; BATCH],
    pub bytes: [u8; BYTES],
}

/// Sleeps while the word holds `value`, at most `timeout`.
pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let spec =
        timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos() as i64 });
    let spec = spec.as_ref().map_or(std::ptr::null(), |s| s as *const libc::timespec);
    // SAFETY: the word outlives the call; the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, spec) };
}

/// Stores and wakes. Pairs with the acquire loads of [`wait_change`] and the parent's poll: a process that
/// sees the new value sees what was written to the channel before. All sleepers are woken: one may be a
/// process that was killed and is not gone yet.
pub(super) fn post(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Waits until the word is something else; spins a little first, for the other side is usually quick.
pub(super) fn wait_change(word: &AtomicU32, old: u32) -> u32 {
    for _ in 0..200 {
        // Acquire pairs with the release store in `post`.
        let now = word.load(Ordering::Acquire);
        if now != old {
            return now;
        }
        std::hint::spin_loop();
    }
    loop {
        let now = word.load(Ordering::Acquire);
        if now != old {
            return now;
        }
        wait(word, old, None);
    }
}
