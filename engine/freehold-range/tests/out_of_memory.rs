//! Tests that a failed allocation changes nothing. Each allocation of a preallocation is refused once; the
//! map is then unchanged, and no node is leaked.
//!
//! The global allocator of this program refuses one allocation of the current thread, and counts the blocks
//! that the thread has in use. [`UNTIL_REFUSAL`] selects the allocation. A global allocator applies to a
//! whole program, so these tests are a separate program. A test sets [`UNTIL_REFUSAL`], makes the call,
//! checks the map, and repeats with the next allocation until none is refused. A new call that allocates gets
//! a function like `refuse_each`.
#![cfg(not(loom))]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use freehold_range::{AllocError, ClaimWriter, Entry, Filled, RangeMap, WriteSet};
use freehold_sync::testing::StdHost;
use support::model::entry;

/// An allocator that refuses one allocation of the current thread.
struct Refusing;

thread_local! {
    /// Number of allocations of this thread up to and including the allocation that fails. 0 if no allocation
    /// fails.
    static UNTIL_REFUSAL: Cell<usize> = const { Cell::new(0) };
    /// Number of blocks that this thread has allocated and not freed.
    static BLOCKS: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: passes every call to the system's allocator, or refuses an allocation.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let left = UNTIL_REFUSAL.get();
        UNTIL_REFUSAL.set(left.saturating_sub(1));
        if left == 1 {
            return std::ptr::null_mut();
        }
        BLOCKS.set(BLOCKS.get() + 1);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BLOCKS.set(BLOCKS.get() - 1);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

#[test]
fn a_new_map_allocates_nothing() {
    let before = BLOCKS.get();
    let map = RangeMap::<StdHost>::new();
    assert_eq!(BLOCKS.get(), before);
    drop(map);
}

/// C-10: each allocation of the call is refused once.
#[test]
fn a_failed_preallocation_changes_nothing() {
    for size in [0, 4, 5, 40, 200u64] {
        for replaces in [1, 2, 5] {
            refuse_each(size, replaces);
        }
    }
}

fn refuse_each(size: u64, replaces: usize) {
    for refused in 1.. {
        let before = BLOCKS.get();
        let map = RangeMap::<StdHost, 4>::new();
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { map.exclusive_writer() };
        for at in 0..size {
            writer.preallocate(1).unwrap();
            writer.replace(at * 10, at * 10 + 5, &[entry(at * 10, at * 10 + 5, at + 1)]);
        }
        let entries: Vec<Entry> = writer.iter().collect();
        UNTIL_REFUSAL.set(refused);
        let result = writer.preallocate(replaces);
        let was_refused = UNTIL_REFUSAL.replace(0) == 0;
        assert_eq!(result, if was_refused { Err(AllocError) } else { Ok(()) });
        writer.check();
        assert!(writer.iter().eq(entries.iter().copied()));
        // When memory is available again, the same call succeeds, and the changes that it allows need no
        // memory.
        writer.preallocate(replaces).unwrap();
        for at in 0..replaces as u64 {
            let start = (size + at) * 10;
            writer.replace(start, start + 5, &[entry(start, start + 5, 1)]);
        }
        writer.check();
        drop(entries);
        drop(map);
        assert_eq!(BLOCKS.get(), before, "a node was not freed");
        if !was_refused {
            return;
        }
    }
}

/// A claim by a claim writer leaves spare nodes in the map for the exclusive writer that follows.
#[test]
fn the_exclusive_writer_needs_no_memory_after_a_claim_writer() {
    /// A claim writer of the map under test.
    type Writer<'a> = ClaimWriter<'a, StdHost, 4>;
    let changes: [fn(&Writer<'_>, u64); 3] = [
        |writer, last| writer.claim(last + 2, last + 3, false, true).unwrap(),
        |writer, last| writer.claim_hole(last - 4, last - 2, |_| 0).unwrap(),
        |writer, last| {
            let new = entry(last - 4, last - 2, 9);
            let filled = writer.insert_unclaimed(&new, |_| 0, |_| false, |_| false);
            assert_eq!(filled, Ok(Filled::Inserted));
        },
    ];
    for size in [2, 5, 8] {
        for change in changes {
            let map = RangeMap::<StdHost, 4>::new();
            {
                // SAFETY: only this thread uses the map.
                let mut writer = unsafe { map.exclusive_writer() };
                for at in 0..size {
                    writer.preallocate(1).unwrap();
                    writer.replace(at * 10, at * 10 + 5, &[entry(at * 10, at * 10 + 5, at + 1)]);
                }
                writer.trim();
            }
            let write_set = WriteSet::new();
            // SAFETY: only this thread uses the map.
            let shared = unsafe { map.claim_writer(&write_set) };
            change(&shared, (size - 1) * 10);
            shared.publish(None);
            UNTIL_REFUSAL.set(1);
            // SAFETY: the claim writer has claimed nothing and is not used again.
            let reserved = unsafe { map.exclusive_writer() }.preallocate(1);
            UNTIL_REFUSAL.set(0);
            assert_eq!(reserved, Ok(()), "{size} entries");
        }
    }
}
