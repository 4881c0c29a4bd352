//! Effects of a process's limits: on its space, its descriptors and its writes to files.

use crate::errno::EFBIG;
use crate::process::{Process, signal};
use crate::sched::current;
use freehold::error::Errno;
use linux_raw_sys::general::{RLIMIT_FSIZE, RLIMIT_NOFILE, SIGXFSZ};

/// Returns the number of bytes that the calling process may write to a regular file at `at` (RLIMIT_FSIZE).
///
/// # Errors
///
/// EFBIG, with SIGXFSZ, if the process may write none.
pub fn file_room(at: u64) -> Result<usize, Errno> {
    let most = current().process().limits.lock().soft(RLIMIT_FSIZE);
    if at < most {
        return Ok(most.saturating_sub(at) as usize);
    }
    signal::to_itself(SIGXFSZ);
    Err(EFBIG)
}

/// Applies a change of the process's limits or privileges to its space and descriptors.
pub fn renew(process: &Process) {
    process.files.set_limit(process.limits.lock().soft(RLIMIT_NOFILE));
    let space = process.space.lock().clone();
    if let Some(space) = space {
        let (limits, ids) = (process.limits.lock().clone(), *process.ids.lock());
        limits.apply(&space, &ids);
    }
}
