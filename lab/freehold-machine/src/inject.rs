//! Failure injection for two kinds of requests: for frames, tables and address spaces of the machine, and for
//! memory of the program's heap.
//!
//! Requests of both kinds are counted per thread, so tests in one process do not affect each other.
//! `local.rs` has the counts for the machine's memory, which `inner.rs` and `machine.rs` check. The counts
//! for the heap are here, because the global allocator may be called before a machine exists. Tests of the
//! engine let each allocation of a call fail in turn (`engine/freehold/tests/support/failure.rs`). After
//! `fail_memory_once` or `fail_memory_from`, the same thread must call `stop_failing_memory`, which returns
//! how many requests failed. The functions for the heap have the same rule. `tests/memory.rs` tests the first
//! kind, `tests/heap/failures.rs` the second.
#![expect(unsafe_code, reason = "a global allocator")]

use crate::exempt::is_exempt;
use crate::host;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Makes this thread's `nth` request for frames, a table or a space's record fail, counted from 1. Later
/// requests succeed again.
pub fn fail_memory_once(nth: u64) {
    host::local(|local| local.set_failure(nth, false));
}

/// Makes all requests of this thread for frames, tables or records of spaces fail, beginning with the `nth`,
/// counted from 1.
pub fn fail_memory_from(nth: u64) {
    host::local(|local| local.set_failure(nth, true));
}

/// Stops the failures of requests for the machine's memory on this thread. Returns how many requests failed.
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

/// Heap allocations of a thread that must fail. The fields are those of `Local` with the same names.
struct Heap {
    countdown: Cell<u64>,
    lasting: Cell<bool>,
    failed: Cell<u64>,
}

/// The system's allocator, with failure injection. Use it as `#[global_allocator]` in tests that run out of
/// memory.
///
/// The allocator also records uses of the heap where they are forbidden, for example under a spin lock. The
/// machine panics at the end of the section, for example when that lock is released. Do not use this
/// allocator under a schedule checker, which allocates at every step and must not fail.
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

/// Makes this thread's `nth` heap allocation fail, counted from 1. Later allocations succeed again. Growing a
/// block is also an allocation. Has an effect only in a program whose global allocator is
/// [`FailingAllocator`].
pub fn fail_heap_once(nth: u64) {
    warm_up();
    HEAP.with(|heap| heap.arm(nth, false));
}

/// Makes all heap allocations of this thread fail, beginning with the `nth`, counted from 1.
pub fn fail_heap_from(nth: u64) {
    warm_up();
    HEAP.with(|heap| heap.arm(nth, true));
}

/// Makes the host allocate its per-thread data, so that no later call allocates it.
fn warm_up() {
    host::with_cpu(|_| ());
    drop(host::rcu_read());
    drop(host::Task::current());
}

/// Stops the failures of heap allocations on this thread. Returns how many allocations failed.
pub fn stop_failing_heap() -> u64 {
    HEAP.with(|heap| {
        heap.countdown.set(0);
        heap.failed.get()
    })
}

impl Heap {
    /// Sets which allocation fails, and whether all later ones fail.
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

/// Records a use of the heap, unless the code that uses it is exempt. If the use is forbidden, the machine
/// panics when the section ends.
fn note_use() {
    if !is_exempt() {
        crate::context::heap_used();
    }
}

fn fails() -> bool {
    note_use();
    HEAP.with(Heap::fails)
}

// SAFETY: every block is allocated and freed by `System`. A failure is a null pointer, which the trait
// permits.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        if fails() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for `System`.
        if fails() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Shrinking a block does not fail.
        if size > layout.size() && fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `realloc`, which is the same for `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note_use();
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same for `System`.
        unsafe { System.dealloc(block, layout) }
    }
}
