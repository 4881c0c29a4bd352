//! The machine's short lock is a mutex of the checker here. The checker may run another thread while a thread
//! holds the lock. `host_std/lock.rs` describes the rules for holders. A spin lock is not possible here: the
//! checker need not run the holder, so a thread could spin for ever.

use shuttle::sync::{Mutex, MutexGuard, PoisonError};

/// The short lock of the machine; see `host_std::lock`.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
