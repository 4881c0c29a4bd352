//! Memory that the engine keeps allocated: heap, frames and page tables. These tests are a program of their
//! own, because the allocator counts the bytes of all threads of the program. A test first locks out the
//! other tests ([`one_at_a_time`]), so that only its own allocations change the count.
//!
//! [`bytes_in_use`] waits for deferred functions, and then returns the count. Each test compares the count
//! with the count at its start and permits a fixed number of bytes in addition, for lists that the host
//! keeps.
//!
//! `idle.rs` measures an idle engine. `page_index.rs` measures the index of a page cache. Only tests that
//! count the bytes of the heap belong here; `World::end` already detects a leaked frame or page table in
//! every other test. `cargo test --package freehold-tests --test heap_in_use` runs this program.
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

/// The system allocator, which also counts the allocated bytes.
struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

#[global_allocator]
static HEAP: Counting = Counting;

// SAFETY: every call is forwarded to the system allocator, which upholds the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(at, layout) };
    }
}

/// Returns the bytes in use after all deferred functions have run.
fn bytes_in_use() -> isize {
    <Machine>::rcu_barrier();
    BYTES.load(Relaxed)
}

/// Locks out the other tests until the guard is dropped.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
