//! The heap that fails on demand (`src/inject.rs`).
//!
//! The allocator [`FailingAllocator`](freehold_machine::FailingAllocator) makes the nth allocation of a
//! thread fail. The tests check the allocator itself: which allocation fails, whether later ones fail too,
//! and that other threads and the host's own allocations are not affected. All tests of failed allocations
//! rely on these rules. Failures of requests for frames and tables are tested in `tests/memory.rs`.

use freehold_machine::{Machine, fail_heap_from, fail_heap_once, stop_failing_heap};
use freehold_sync::{Host, RcuHead};
use std::ptr::NonNull;

/// Makes one allocation. Returns true if it succeeds.
fn room() -> bool {
    let mut list = Vec::<u8>::new();
    list.try_reserve_exact(100).is_ok()
}

#[test]
fn the_nth_allocation_fails_once() {
    fail_heap_once(2);
    let got = [room(), room(), room()];
    assert_eq!(stop_failing_heap(), 1);
    assert_eq!(got, [true, false, true]);
}

#[test]
fn all_allocations_fail_from_the_nth_on() {
    fail_heap_from(2);
    let got = [room(), room(), room()];
    let failures = stop_failing_heap();
    assert_eq!((got, failures), ([true, false, false], 2));
}

#[test]
fn failed_growth_keeps_the_contents() {
    let mut list = vec![1u8, 2, 3];
    fail_heap_once(1);
    let grown = list.try_reserve_exact(1000);
    stop_failing_heap();
    assert!(grown.is_err());
    assert_eq!(list, [1, 2, 3]);
}

#[test]
fn heap_failures_apply_to_one_thread() {
    let (start, wait) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || wait.recv().is_ok() && room());
    fail_heap_from(1);
    let own = room();
    stop_failing_heap();
    start.send(()).unwrap();
    assert!(!own && other.join().unwrap());
}

/// Allocations of the host itself, for grace periods, do not count as allocations of the engine.
#[test]
fn deferring_and_reading_need_no_heap() {
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let heads: Vec<RcuHead> = (0..1000).map(|_| RcuHead::new()).collect();
    fail_heap_from(1);
    for head in &heads {
        drop(<Machine>::rcu_read());
        // SAFETY: each head is deferred once and lives until the barrier below has returned.
        unsafe { <Machine>::rcu_defer(NonNull::from(head), nothing) };
    }
    <Machine>::rcu_barrier();
    assert_eq!(stop_failing_heap(), 0);
}
