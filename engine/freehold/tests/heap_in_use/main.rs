//! How much of the heap is in use, in a program of its own: it counts for all threads. Its tests take turns.
#![expect(unsafe_code, reason = "an allocator that counts")]

mod idle;
mod page_index;
#[path = "../support/mod.rs"]
mod support;

use freehold_sync::Host;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicIsize, Ordering::Relaxed},
    },
};
use support::Machine;

/// The system's allocator, and how many bytes it has given out.
struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

#[global_allocator]
static HEAP: Counting = Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) };
    }
}

/// Bytes in use when all that was deferred has run.
fn bytes_in_use() -> isize {
    <Machine>::rcu_barrier();
    BYTES.load(Relaxed)
}

/// No other test counts until this is dropped.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
