//! Global allocator of the program `engine` (`main.rs`). Allocations fail on demand, through
//! `FailingAllocator` of the machine, and the size of the last failed allocation is recorded for each thread.
//! `scarce.rs` uses this size to tell whether a block of VMAs or only a tree node could not be allocated.

use freehold_machine::FailingAllocator;
use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
};

thread_local! {
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the size of the last allocation of this thread that failed.
pub fn last_refused() -> usize {
    REFUSED.get()
}

/// The allocator, which records the size of the last failed allocation.
pub struct Recorder;

// SAFETY: every method forwards to `FailingAllocator`, which upholds the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Recorder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        let block = unsafe { FailingAllocator.alloc(layout) };
        if block.is_null() {
            REFUSED.set(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { FailingAllocator.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { FailingAllocator.realloc(block, layout, size) }
    }
}
