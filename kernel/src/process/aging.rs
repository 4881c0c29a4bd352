//! Aging of pages by walks of page tables, for the policy `Generations` of reclaim (option `generations`).
//!
//! `thread.rs` notes on the way back to a program that its space runs. [`age_spaces`] walks the page tables of
//! the spaces that ran since their last walk, and gives the accessed pages a younger age. A walk finds many
//! accessed pages at a time; without it, reclaim finds each page by the reverse map. `shortage.rs` calls it
//! when memory is short, before reclaim. The test `swap-generations` runs with this option.

use crate::arch::{clock, preempt::preempt_point};
use crate::{options, process};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds between two walks of all spaces.
const PAUSE_NS: u64 = 100_000_000;
/// Number of pages that a walk visits without letting in interrupts and other threads.
const PAGES_AT_A_TIME: u64 = 512;

/// Number of accessed pages that walks have found since the start.
static ACCESSED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of accessed pages that walks have found since the start.
pub fn accessed_pages() -> u64 {
    // Relaxed, also where it is written: statistics.
    ACCESSED.load(Relaxed)
}

/// Ages the pages of all processes that ran since the last call. Does nothing without the option, or if the
/// last call was a short time ago. The caller holds no lock.
pub fn age_spaces() {
    /// The time from which on spaces are walked again.
    static NEXT_NS: AtomicU64 = AtomicU64::new(0);
    let (now, next) = (clock::now_ns(), NEXT_NS.load(Relaxed));
    // Relaxed: the exchange only chooses the thread that walks.
    if !options::has_generations()
        || now < next
        || NEXT_NS.compare_exchange(next, now + PAUSE_NS, Relaxed, Relaxed).is_err()
    {
        return;
    }
    for process in process::all() {
        let mut from = Some(0);
        while let Some(at) = from {
            preempt_point();
            // The lock is released before the space is used, and the reference is dropped after each part, so
            // that the space of a process that ends is freed.
            let space = process.space.lock().clone();
            from = space.and_then(|space| {
                let aged = space.age_pages(at, PAGES_AT_A_TIME);
                ACCESSED.fetch_add(aged.accessed, Relaxed);
                aged.next
            });
        }
    }
}
