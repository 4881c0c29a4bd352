//! Memory that parent and child share: one channel per process, with a futex word in each direction.
//!
//! The parent (`mod.rs`) writes a batch of commands into the [`Channel`] and posts `asked`; the child
//! (`child.rs`) executes them, writes the answers, and posts `answered`. Between the two posts, only the
//! child may touch the rest of the channel. At all other times, only the parent may touch it. The memory is
//! mapped before the fork, at one address in both. All bytes zero must be a valid [`Channel`], and a batch
//! must not exceed [`BATCH`] calls or return more than [`BYTES`] bytes.
#![expect(unsafe_code, reason = "memory shared between processes, and the futex call")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum number of calls in one batch.
pub(super) const BATCH: usize = 512;
/// Maximum number of bytes that one batch can return.
pub(super) const BYTES: usize = 64 << 10;

/// A call as numbers: a system call with its arguments, or a command of [`super::child`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Cmd {
    /// Number of the system call, or of the command.
    pub what: u64,
    pub args: [u64; 6],
}

/// The result of a command.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Answer {
    /// Return value (negative: errno). For an access to memory, 0 or the signal.
    pub value: i64,
    /// `si_code` after a signal.
    pub code: i64,
    /// `si_addr` after a signal.
    pub addr: u64,
    /// Number of bytes written to the channel's byte area.
    pub bytes: u64,
}

/// The channel of one process. `asked` counts batches passed to the child, and `answered` counts batches that
/// are done. Everything else in the channel belongs to the child while `asked != answered`, and to the parent
/// at all other times.
#[repr(C)]
pub(super) struct Channel {
    /// Number of batches that the parent has passed.
    pub asked: AtomicU32,
    /// Number of batches that the child has answered.
    pub answered: AtomicU32,
    /// Number of commands in the batch.
    pub len: u32,
    pub cmds: [Cmd; BATCH],
    pub answers: [Answer; BATCH],
    pub bytes: [u8; BYTES],
}

/// Sleeps while the word holds `value`, for at most the time `timeout`.
pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let spec =
        timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos() as i64 });
    let spec = spec.as_ref().map_or(std::ptr::null(), |s| s as *const libc::timespec);
    // SAFETY: the word outlives the call, and the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, spec) };
}

/// Stores the value and wakes the sleepers. Release: pairs with the acquire loads of [`wait_change`] and of
/// the parent's poll, so a process that sees the new value also sees the earlier writes to the channel. Wakes
/// all sleepers, because one of them may be a killed process that still exists.
pub(super) fn post(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Waits until the word differs from `old`. Spins first, because the other side is usually quick.
pub(super) fn wait_change(word: &AtomicU32, old: u32) -> u32 {
    for _ in 0..200 {
        // Acquire: pairs with the release store in `post`.
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
