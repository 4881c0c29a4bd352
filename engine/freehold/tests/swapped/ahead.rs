//! Readahead of swapped pages (`src/fault/swap_ahead.rs` and `src/swap/window.rs`).

use super::{swapped_pages, with_swapped};
use crate::support::*;
use freehold::call::Advice;

const PAGES: u64 = 48;

/// Reads the pages with these numbers. Returns the numbers of requests and of pages that were read from the
/// device.
fn reads(
    swapped: &super::Swapped,
    process: &Process,
    cpu: &mut Vcpu,
    pages: impl Iterator<Item = u64>,
) -> (u64, u64) {
    let before = swapped.device.stats();
    for page in pages {
        assert_filled(process, cpu, BASE + page * PAGE, 1, page + 1);
    }
    let after = swapped.device.stats();
    (after.read_requests - before.read_requests, after.pages_read - before.pages_read)
}

#[test]
fn sequential_accesses_read_many_pages_at_a_time() {
    with_swapped(PAGES, |swapped, process, cpu| {
        // Windows of 1, 4, 8, 8, 8, 8, 8 and 8 pages.
        assert_eq!(reads(swapped, process, cpu, 0..PAGES), (8, PAGES));
        assert_eq!(swapped_pages(process), 0);
    });
}

#[test]
fn descending_accesses_read_many_pages_at_a_time() {
    with_swapped(PAGES, |swapped, process, cpu| {
        let (requests, pages) = reads(swapped, process, cpu, (0..PAGES).rev());
        // The device has pages in ascending order, so a request for the page of the fault comes first.
        assert_eq!(pages, PAGES);
        assert!(requests < PAGES / 2, "{requests} requests");
    });
}

#[test]
fn distant_accesses_read_single_pages() {
    with_swapped(PAGES, |swapped, process, cpu| {
        let distant = [0, 20, 40, 10, 30, 5, 25, 45, 15, 35];
        assert_eq!(reads(swapped, process, cpu, distant.into_iter()), (10, 10));
    });
}

#[test]
fn window_becomes_smaller_when_its_pages_are_not_used() {
    with_swapped(PAGES, |swapped, process, cpu| {
        // Windows of 1 and 4 pages; then of 2 and 1, because three pages of the window are not used.
        assert_eq!(reads(swapped, process, cpu, [0, 1, 20, 40].into_iter()), (4, 1 + 4 + 2 + 1));
    });
}

#[test]
fn random_advice_turns_readahead_off() {
    with_swapped(PAGES, |swapped, process, cpu| {
        process.madvise(BASE, PAGES * PAGE, Advice::Random).unwrap();
        assert_eq!(reads(swapped, process, cpu, 0..PAGES), (PAGES, PAGES));
    });
}

#[test]
fn readahead_stays_in_the_vma() {
    with_swapped(PAGES, |swapped, process, cpu| {
        // The protection splits the VMA behind page 2.
        process.mprotect(BASE + 2 * PAGE, (PAGES - 2) * PAGE, R).unwrap();
        assert_eq!(reads(swapped, process, cpu, 0..2), (2, 2));
    });
}

/// Makes a fault at page 1 with a device that completes requests late. Returns when the fault has ended. A
/// request with pages that were read ahead then waits at the device.
fn fault_with_late_device(swapped: &super::Swapped, process: &Process, cpu: &mut Vcpu) {
    process.load::<u64>(cpu, BASE).unwrap();
    // The slots of the window are in two requests: an entry between them is gone.
    process.madvise(BASE + 2 * PAGE, PAGE, Advice::DontNeed).unwrap();
    swapped.device.complete_later(true);
    std::thread::scope(|scope| {
        let space = process.space();
        let fault = scope.spawn(move || space.handle_fault(BASE + PAGE, freehold::fault::Access::READ));
        while swapped.device.waiting() < 2 {
            std::thread::yield_now();
        }
        // The request of the page of the fault is not the last one to be sent.
        while !fault.is_finished() && swapped.device.waiting() > 1 {
            swapped.device.complete_next();
        }
        assert!(fault.join().unwrap().is_ok());
    });
    assert_eq!(swapped.device.waiting(), 1, "pages that were read ahead");
    swapped.device.complete_later(false);
}

#[test]
fn fault_does_not_wait_for_pages_that_are_read_ahead() {
    with_swapped(PAGES, |swapped, process, cpu| {
        fault_with_late_device(swapped, process, cpu);
        while swapped.device.complete_next() {}
        assert_filled(process, cpu, BASE + 3 * PAGE, 2, 4);
    });
}

#[test]
fn failure_to_read_ahead_is_no_error() {
    with_swapped(PAGES, |swapped, process, cpu| {
        let stored = swapped.device.stored();
        process.load::<u64>(cpu, BASE).unwrap();
        // The fault at page 1 also reads the pages 2 to 4, whose slots fail.
        swapped.device.fail_reads(stored[2..5].iter().copied());
        assert_filled(process, cpu, BASE + PAGE, 1, 2);
        swapped.device.fail_reads([]);
        assert_filled(process, cpu, BASE, PAGES, 1);
    });
}

#[test]
fn exit_does_not_wait_for_pages_that_are_read_ahead() {
    with_swapped(PAGES, |swapped, process, cpu| {
        fault_with_late_device(swapped, process, cpu);
        process.clear();
        assert_eq!(swapped_pages(process), 0);
        while swapped.device.complete_next() {}
    });
}
