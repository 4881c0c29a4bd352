//! The waits and holds of mmap locks by one thread, for tools that show which task waited for which.
//!
//! Each host keeps one [`LockLog`] per thread, or per task of a checker or of a run. `machine.rs` adds what
//! the engine passes to `Host::lock_used`; [`log_locks`] begins and ends a log, and [`take_lock_log`] empties
//! it. Without a log, nothing is kept. Only locks with statistics (`Config::lock_stats`) are logged. The
//! engine calls no function of the log, and the log calls no function of the engine. `freehold-replay` has
//! the tests.

use crate::host;
use freehold_sync::Rank;
use freehold_sync::stats::LockUse;
use std::cell::RefCell;

/// The log of one thread. `None` if no log is wanted.
pub(crate) struct LockLog(RefCell<Option<Vec<LockUse>>>);

impl LockLog {
    pub(crate) const fn new() -> LockLog {
        LockLog(RefCell::new(None))
    }
}

/// Adds a use of an mmap lock to the log of the calling thread.
pub(crate) fn add(used: &LockUse) {
    if used.rank == Rank::Mmap {
        host::lock_log(|log| {
            if let Some(uses) = &mut *log.0.borrow_mut() {
                uses.push(*used);
            }
        });
    }
}

/// Begins an empty log of the calling thread, or ends the log.
pub fn log_locks(on: bool) {
    host::lock_log(|log| *log.0.borrow_mut() = on.then(Vec::new));
}

/// Moves the uses that the calling thread has logged to the end of `uses`.
pub fn take_lock_log(uses: &mut Vec<LockUse>) {
    host::lock_log(|log| {
        if let Some(logged) = &mut *log.0.borrow_mut() {
            uses.append(logged);
        }
    });
}
