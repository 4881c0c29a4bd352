//! Failures on demand: of the machine's frames and tables, and of the program's heap.
//!
//! Both count down per thread, so tests in one process do not disturb each other.
#![expect(unsafe_code, reason = "a global allocator")]

use crate::exempt::is_exempt;
use crate::host;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Makes the `nth` request of this thread for frames, a table or a space's record fail, counted from 1;
/// those after it succeed again.
pub fn fail_memory_once(nth: u64) {
    host::local(|local| local.set_failure(nth, false));
}

/// Makes the `nth` such request of this thread and all after it fail.
pub fn fail_memory_from(nth: u64) {
    host::local(|local| local.set_failure(nth, true));
}

/// No more such failures on this thread; returns how many there were.
pub fn stop_failing_memory() -> u64 {
    host::local(|local| {
        let failures = local.failures();
        local.set_failure(0, false);
        failures
    })
}

thread_local! {
    static HEAP: Heap = const {
        Heap { countdown: Cell::new(0), lasting: Cell::new(false), failed: Cell::new(0) }
    };
}

struct Heap {
    countdown: Cell<u64>,
    lasting: Cell<bool>,
    failed: Cell<u64>,
}

/// The system's allocator, which fails on demand. For `#[global_allocator]` in tests of running out of
/// memory. It also notes uses of the heap where there may be none, under a spin lock for instance: the
/// machine then panics at the lock's end. Not under a schedule checker, which allocates at every step and may
/// not fail.
///
/// ```
/// use freehold_machine::{FailingAllocator, fail_heap_once, stop_failing_heap};
///
/// #[global_allocator]
/// static HEAP: FailingAllocator = FailingAllocator;
///
/// let mut list = Vec::<u64>::new();
/// fail_heap_once(1);
/// assert!(list.try_reserve(100).is_err());
/// assert_eq!(stop_failing_heap(), 1);
/// assert!(list.try_reserve(100).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FailingAllocator;

/// Makes the `nth` allocation of this thread fail, counted from 1; those after it succeed again. Growing
/// is an allocation too. Only for a program whose global allocator is [`FailingAllocator`].
pub fn fail_heap_once(nth: u64) {
    warm_up();
    HEAP.with(|heap| heap.arm(nth, false));
}

/// Makes the `nth` allocation of this thread and all after it fail.
pub fn fail_heap_from(nth: u64) {
    warm_up();
    HEAP.with(|heap| heap.arm(nth, true));
}

/// Lets the host allocate what it keeps per thread, so that no later call has to.
fn warm_up() {
    host::with_cpu(|_| ());
    drop(host::rcu_read());
    drop(host::Task::current());
}

/// No more such failures on this thread; returns how many there were.
pub fn stop_failing_heap() -> u64 {
    HEAP.with(|heap| {
        heap.countdown.set(0);
        heap.failed.get()
    })
}

impl Heap {
    fn arm(&self, nth: u64, lasting: bool) {
        self.failed.set(0);
        self.lasting.set(lasting);
        self.countdown.set(nth);
    }

    fn fails(&self) -> bool {
        let left = self.countdown.get();
        if left == 0 || is_exempt() || std::thread::panicking() {
            return false;
        }
        if left > 1 || !self.lasting.get() {
            self.countdown.set(left - 1);
        }
        self.failed.set(self.failed.get() + u64::from(left == 1));
        left == 1
    }
}

/// The heap is used: not by a part of the host, and not under a spin lock.
fn note_use() {
    if !is_exempt() {
        crate::context::heap_used();
    }
}

fn fails() -> bool {
    note_use();
    HEAP.with(Heap::fails)
}

// SAFETY: every block comes from and goes back to `System`; a refusal is a null pointer, as allowed.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        if fails() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        if fails() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Getting smaller does not fail.
        if size > layout.size() && fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note_use();
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(block, layout) }
    }
}
