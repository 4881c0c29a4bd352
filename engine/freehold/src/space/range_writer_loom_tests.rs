//! A test of the right to move the break under loom, which tries all schedules and the results that the
//! memory model allows.
#![expect(unsafe_code, reason = "the break, which loom checks")]

use super::*;
use freehold_sync::testing::model;
use loom::{cell::UnsafeCell, sync::Arc, thread};

struct Heap {
    locked: AtomicBool,
    brk: UnsafeCell<u64>,
}

// SAFETY: the break is changed with the right to move it; loom checks that this suffices.
unsafe impl Sync for Heap {}
// SAFETY: the break is a number.
unsafe impl Send for Heap {}

impl Heap {
    /// Moves the break if no other range writer does. Returns true if it has moved.
    fn try_move(&self) -> bool {
        let lock = HeapLock::try_lock(&self.locked);
        if lock.is_some() {
            // SAFETY: loom checks the access.
            self.brk.with_mut(|brk| unsafe { *brk += 1 });
        }
        lock.is_some()
    }
}

#[test]
fn one_range_writer_moves_the_break_and_sees_earlier_moves() {
    model(|| {
        let heap = Arc::new(Heap { locked: AtomicBool::new(false), brk: UnsafeCell::new(0) });
        let other = {
            let heap = heap.clone();
            thread::spawn(move || heap.try_move())
        };
        let moved = heap.try_move();
        let moves = u64::from(other.join().unwrap()) + u64::from(moved);
        assert!(moves > 0);
        // SAFETY: loom checks the access.
        assert_eq!(heap.brk.with(|brk| unsafe { *brk }), moves);
    });
}
