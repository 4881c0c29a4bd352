//! The step of a loop whose length a program chooses.
//!
//! Every loop over such a count calls [`checkpoint`] in each iteration: over pages, descriptors, entries of an
//! array, bytes of a file. A loop without a checkpoint keeps its CPU from interrupts, from other threads and
//! from grace periods, and no signal ends it. The caller holds no spin lock and keeps no reference from
//! `arch::cpu::cpu`; it may hold a sleeping lock. `calls/`, `files/`, `process/` and `proc/` call this
//! function. The program `extremes.c` of the tests calls every system call with large arguments, and fails if
//! a loop has no checkpoint.

use super::thread::current;
use crate::arch::preempt;
use freehold::error::Errno;

/// Lets in interrupts and other threads, if it is time.
///
/// # Errors
///
/// EINTR if the calling thread has to end. The program never sees the error.
#[inline]
pub fn checkpoint() -> Result<(), Errno> {
    preempt::preempt_point();
    if current().is_killed() { Err(Errno::EINTR) } else { Ok(()) }
}
