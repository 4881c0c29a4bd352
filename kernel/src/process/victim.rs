//! The memory of a process that was killed and has not ended: its private pages are freed by another thread.
//!
//! A killed process frees its memory when its last thread ends, and a thread may wait: for a tracer, or for a
//! CPU. The contents are not needed any more, so the thread that wants the memory frees it
//! ([`AddressSpace::reap`](freehold::space::AddressSpace::reap)). The rule is that of Linux: all processes that
//! share the address space must have to end, and none may write a core file.
//!
//! No process that shares the address space can appear behind the check: every thread that could make one has
//! the bit `work::KILL` before the check begins, and `clone` looks at this bit after the new process is in the
//! list of processes and has the address space.
//!
//! process_mrelease (`calls/pidfds.rs`) and `shortage.rs` call [`release`]. The program `reaped.c` of the tests
//! checks it.

use crate::arch::preempt::preempt_point;
use crate::process::{self, Process};
use alloc::sync::Arc;
use freehold::counted::Counted;
use freehold::error::Errno;

/// Frees the private pages of a process that has to end.
///
/// # Errors
///
/// ESRCH if the process has no memory any more. EINVAL if it does not have to end, shares its memory with a
/// process that does not have to end, or writes a core file. EINTR if the calling thread is killed.
pub fn release(process: &Arc<Process>) -> Result<(), Errno> {
    // The lock is released before the space is used, because its last reference frees memory.
    let space = process.space.lock().clone().ok_or(Errno::ESRCH)?;
    if !has_to_end(process) {
        return Err(Errno::EINVAL);
    }
    process.end_threads();
    for other in process::all() {
        preempt_point();
        let shares = other.space.lock().as_ref().is_some_and(|other| Counted::ptr_eq(other, &space));
        if shares && !has_to_end(&other) {
            return Err(Errno::EINVAL);
        }
        if shares {
            other.end_threads();
        }
    }
    space.reap().map_err(|_| Errno::EINTR)
}

/// Returns true if no thread of the process returns to its program, and its memory is not dumped.
fn has_to_end(process: &Process) -> bool {
    // A dump takes the locks in this order, too.
    let ending = process.ending.lock();
    ending.is_some() && process.dumping.lock().is_none()
}
