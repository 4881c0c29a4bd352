//! The part of a host that page tables need: the body of a spin loop, and the record of held locks.
//!
//! Page tables neither sleep nor wait for grace periods. A call that would need a CPU number, a clock, a
//! sleeping task or a deferred callback panics.

use super::Memory;
use core::ptr::NonNull;
use freehold_sync::atomic::AtomicU32;
use freehold_sync::{Host, Killed, LockContext, RcuHead};

#[cfg(not(loom))]
std::thread_local! {
    static HELD: LockContext = const { LockContext::new() };
}

// SAFETY: a call that needs a CPU number or a deferred callback panics.
unsafe impl Host for Memory {
    const MAX_CPUS: usize = 1;

    fn relax() {
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(not(loom))]
        std::hint::spin_loop();
    }

    #[cfg(not(loom))]
    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        HELD.try_with(f).ok()
    }

    /// Under loom, all threads are simulated on one thread, so there is no record per thread.
    #[cfg(loom)]
    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    type RcuGuard = ();

    fn wait(_: &AtomicU32, _: u32) {
        unused()
    }
    fn wait_killable(_: &AtomicU32, _: u32) -> Result<(), Killed> {
        unused()
    }
    fn wake_one(_: &AtomicU32) {
        unused()
    }
    fn wake_all(_: &AtomicU32) {
        unused()
    }
    fn with_cpu<R>(_: impl FnOnce(usize) -> R) -> R {
        unused()
    }
    fn now_ns() -> u64 {
        unused()
    }
    fn rcu_read() -> Self::RcuGuard {
        unused()
    }
    unsafe fn rcu_defer(_: NonNull<RcuHead>, _: unsafe fn(NonNull<RcuHead>)) {
        unused()
    }
    fn rcu_barrier() {
        unused()
    }
}

/// Panics in place of a service that page tables do not use.
fn unused() -> ! {
    panic!("page tables neither sleep nor wait for grace periods")
}
