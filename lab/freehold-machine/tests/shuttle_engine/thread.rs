//! Threads of a scenario, either of the checker or of the system.
//!
//! Scenarios use these functions instead of those of `std::thread`, because the checker must start each
//! thread and choose when it runs. Closures are boxed, so that the code that starts a thread is compiled once
//! for each type of result, and not for each closure.

#[cfg(shuttle)]
use shuttle::thread as real;
#[cfg(not(shuttle))]
use std::thread as real;

pub use real::{ScopedJoinHandle, yield_now};

/// Starts threads that may borrow the data around [`scope`].
#[derive(Clone, Copy)]
pub struct Scope<'scope, 'env: 'scope>(&'scope real::Scope<'scope, 'env>);

/// Runs `body`, which may start threads. Returns when all these threads have ended.
pub fn scope<'env, R>(body: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> R) -> R {
    real::scope(|scope| body(Scope(scope)))
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    pub fn spawn<R: Send + 'scope>(
        self,
        body: impl FnOnce() -> R + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, R> {
        let body: Box<dyn FnOnce() -> R + Send + 'scope> = Box::new(body);
        self.0.spawn(body)
    }
}
