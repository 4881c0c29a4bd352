//! Waiting for a grace period.
#![expect(unsafe_code, reason = "defers a call to wait for a grace period")]

use crate::platform::Platform;
use core::ptr::NonNull;
use freehold_sync::RcuHead;

/// Waits until every read section that exists now has ended. The caller holds no lock that a fault or a
/// lookup may need.
pub(crate) fn grace_period<P: Platform>() {
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head stays in place, untouched, until the barrier has waited for the function to run.
    unsafe { P::rcu_defer(NonNull::from(&head), nothing) };
    P::rcu_barrier();
}
