//! The heap of the test programs: memory runs out on demand, and how much was asked for then is noted.

use freehold_machine::FailingAllocator;
use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
};

thread_local! {
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// How large the block was that this thread was last refused.
pub fn last_refused() -> usize {
    REFUSED.get()
}

/// The heap, which notes how large the last refused block was.
pub struct Recorder;

// SAFETY: all is passed on.
unsafe impl GlobalAlloc for Recorder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        let block = unsafe { FailingAllocator.alloc(layout) };
        if block.is_null() {
            REFUSED.set(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { FailingAllocator.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { FailingAllocator.realloc(block, layout, size) }
    }
}
