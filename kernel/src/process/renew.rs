//! Effects of a process's limits (`limits.rs`): on its space, its descriptors and its writes to files. A call
//! that changes limits or users calls [`renew`] afterwards, and so does an exec, because the new space and
//! the table of descriptors have copies of the limits. Calls that write to files pass [`file_room`] to
//! `Open::write`. The programs `appends.c`, `files.c` and `jobs.c` of the tests check these effects.

use crate::errno::EFBIG;
use crate::process::{Process, signal};
use crate::sched::current;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::{RLIMIT_FSIZE, RLIMIT_NOFILE, SIGXFSZ};

/// Returns the number of bytes that the calling process may write to a regular file at `at` (RLIMIT_FSIZE).
///
/// # Errors
///
/// EFBIG if the process may write no byte there. The thread then also gets SIGXFSZ.
pub fn file_room(at: u64) -> Result<usize, Errno> {
    let most = current().process().limits.lock().soft(RLIMIT_FSIZE);
    if at < most {
        return Ok(most.saturating_sub(at) as usize);
    }
    signal::to_itself(SIGXFSZ);
    Err(EFBIG)
}

/// Copies the process's limits and privileges to its space and its table of descriptors.
pub fn renew(process: &Process) {
    let descriptors = process.limits.lock().soft(RLIMIT_NOFILE);
    process.descriptor_limit.store(descriptors as usize, Relaxed);
    let space = process.space.lock().clone();
    if let Some(space) = space {
        let (limits, ids) = (process.limits.lock().clone(), *process.ids.lock());
        limits.apply(&space, &ids);
    }
}
