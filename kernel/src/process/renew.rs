//! Effects of the limits of a process: on its space, its descriptors and its writes to files.

use crate::errno::EFBIG;
use crate::process::{Process, signal};
use crate::sched::current;
use freehold::error::Errno;
use linux_raw_sys::general::{RLIMIT_FSIZE, RLIMIT_NOFILE, SIGXFSZ};

/// How many bytes the calling process may write to a regular file from `at` on (RLIMIT_FSIZE).
///
/// # Errors
///
/// EFBIG: none, and SIGXFSZ comes.
pub fn file_room(at: u64) -> Result<usize, Errno> {
    let most = current().process().limits.lock().soft(RLIMIT_FSIZE);
    if at < most {
        return Ok(most.saturating_sub(at) as usize);
    }
    signal::to_itself(SIGXFSZ);
    Err(EFBIG)
}

/// The process's limits or rights have changed: its space follows.
pub fn renew(process: &Process) {
    process.files.set_limit(process.limits.lock().soft(RLIMIT_NOFILE));
    let space = process.space.lock().clone();
    if let Some(space) = space {
        let (limits, ids) = (process.limits.lock().clone(), *process.ids.lock());
        limits.apply(&space, &ids);
    }
}
