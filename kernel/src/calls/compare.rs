//! The call kcmp: whether two processes share an object of the kernel, such as an open file or a table of
//! descriptors. Tools that save and restore processes use it.
//!
//! The answer also orders different objects, so that a tool can sort them. The order is that of their addresses
//! after a secret change, because programs must not learn addresses of the kernel. The program `processes.c`
//! tests the call.

use crate::arch::{frame::Frame, random};
use crate::calls::answer::{Answer, Calls};
use crate::process::{self, Process};
use crate::sched::Thread;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::counted::Counted;
use freehold::error::Errno;
use linux_raw_sys::general::__NR_kcmp;

pub const CALLS: Calls = &[(__NR_kcmp, kcmp)];

// The kinds of objects.
const FILE: u32 = 0;
const SPACE: u32 = 1;
const FILES: u32 = 2;
const PLACE: u32 = 3;
const ACTIONS: u32 = 4;
const IO: u32 = 5;
const SEMAPHORES: u32 = 6;
const WATCHED: u32 = 7;

/// The secret by which addresses are changed; 0 before the first call.
static SECRET: AtomicU64 = AtomicU64::new(0);

/// Returns the secret, an odd number.
fn secret() -> u64 {
    if SECRET.load(Relaxed) == 0 {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        // If two calls come here, the first one decides.
        let _ = SECRET.compare_exchange(0, u64::from_ne_bytes(bytes) | 1, Relaxed, Relaxed);
    }
    SECRET.load(Relaxed)
}

/// Answers 0 if both objects are the same, 1 if the first is before the second, 2 otherwise.
fn kcmp(frame: &mut Frame) -> Answer {
    let [first, second, kind, index, other_index, _] = frame.args();
    let process = |pid: u64| {
        let process = process::of_thread(pid as u32).ok_or(Errno::ESRCH)?;
        Ok((process.thread(pid as u32), process))
    };
    let (a, b) = (process(first)?, process(second)?);
    let kind = kind as u32;
    let [a, b] = [address(&a, kind, index)?, address(&b, kind, other_index)?];
    // The multiplication by an odd number maps different numbers to different numbers.
    let [x, y] = [a, b].map(|address| address.wrapping_mul(secret()));
    Ok(if x == y { 0 } else { 1 + u64::from(x > y) })
}

/// Returns the address of an object of a thread, which may have ended, or of its process.
///
/// # Errors
///
/// EBADF if a descriptor is not in use; ESRCH if the process has ended; EOPNOTSUPP for files that an epoll
/// watches; EINVAL if there is no such kind.
fn address(
    (thread, process): &(Option<Arc<Thread>>, Arc<Process>),
    kind: u32,
    index: u64,
) -> Result<u64, Errno> {
    Ok(match kind {
        FILE => Arc::as_ptr(&thread.as_ref().ok_or(Errno::EBADF)?.files.get_any(index)?).addr() as u64,
        SPACE => Counted::as_ptr(process.space.lock().as_ref().ok_or(Errno::ESRCH)?).addr() as u64,
        FILES => thread.as_ref().map_or(0, |thread| thread.files.address()),
        PLACE => thread.as_ref().map_or(0, |thread| Arc::as_ptr(&thread.place()).addr() as u64),
        ACTIONS => Arc::as_ptr(&process.actions()).addr() as u64,
        // The threads of a process undo their changes of semaphores together.
        SEMAPHORES if process.has_undo.load(Relaxed) => Arc::as_ptr(process).addr() as u64,
        // No process has a context of input and output.
        IO | SEMAPHORES => 0,
        WATCHED => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    })
}
