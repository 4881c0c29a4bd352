//! Waiting for a grace period: until all RCU read sections that exist now have ended.
//!
//! Some changes publish a new state and then wait here: changes of seals and of probes, revocations, and
//! messages of a userfaultfd about removed pages. After the wait, no reader uses the old state any more. The
//! wait may be long, and signals do not end it, so it is only for rare calls. A caller that only frees memory
//! uses `rcu_defer` instead.
#![expect(unsafe_code, reason = "defers a call to wait for a grace period")]

use crate::platform::Platform;
use core::ptr::NonNull;
use freehold_sync::RcuHead;

/// Minimum length of a grace period that the feature `log` reports: a second.
#[cfg(feature = "log")]
const LONG_NS: u64 = 1_000_000_000;

/// Waits until every read section that exists now has ended. The caller holds no lock that a fault or a
/// lookup may need.
pub(crate) fn grace_period<P: Platform>() {
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head stays in place, untouched, until the barrier has waited for the function to run.
    unsafe { P::rcu_defer(NonNull::from(&head), nothing) };
    #[cfg(feature = "log")]
    let before = P::now_ns();
    P::rcu_barrier();
    #[cfg(feature = "log")]
    if let waited @ LONG_NS.. = P::now_ns().saturating_sub(before) {
        log::warn!("a grace period took {} ms", waited / 1_000_000);
    }
}
