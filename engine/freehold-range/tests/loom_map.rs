//! Tests of lookups that run concurrently with the exclusive writer, under loom. Loom tries every schedule up
//! to a number of preemptions, and every order of accesses that the memory model allows.
//!
//! The fan-out is 4, so that a fifth entry splits the root. Each test asserts the following. An address that
//! is always mapped is never a hole. A lookup returns only values that were mapped at the address. No freed
//! node is read: nodes are poisoned when they are freed, and the host frees them as soon as no reader is
//! left. A lookup may be contended while the writer runs, but not afterwards. `loom_claims.rs` tests claim
//! writers. A new test passes a map, a lookup and a change to [`run_concurrently`].
#![cfg(loom)]

mod support;

use freehold_range::{Entry, Lookup, RangeMap};
use freehold_sync::Host;
use freehold_sync::testing::{LoomHost, model_bounded};
use loom::sync::Arc;
use loom::thread;
use support::model::entry;

/// The map under test. Its nodes have four slots, so that few entries fill a leaf.
type Map = RangeMap<LoomHost, 4>;

/// Maximum number of preemptions of a runnable thread.
const BOUND: usize = 2;

/// Maximum number of preemptions in tests whose writer makes several times as many stores as the writers of
/// the other tests. `LOOM_MAX_PREEMPTIONS=2` overrides it for a long run.
const BOUND_OF_LONG: usize = 1;

/// Returns the entry `[10 * at, 10 * at + 8)` with the value `at + 1`.
fn nth(at: u64) -> Entry {
    entry(at * 10, at * 10 + 8, at + 1)
}

fn replace(map: &Map, start: u64, end: u64, with: &[Entry]) {
    // SAFETY: only one thread of each model writes.
    let mut writer = unsafe { map.exclusive_writer() };
    writer.preallocate(1).unwrap();
    writer.replace(start, end, with);
}

/// Returns a map of the entries 0 to `size` (exclusive).
fn filled(size: u64) -> Arc<Map> {
    let map = Arc::new(Map::new());
    for at in 0..size {
        replace(&map, at * 10, at * 10 + 8, &[nth(at)]);
    }
    map
}

/// Runs `read` concurrently with `write`, and checks the map afterwards.
fn run_concurrently(map: Arc<Map>, read: fn(&Map, &<LoomHost as Host>::RcuGuard), write: impl FnOnce(&Map)) {
    let reader = {
        let map = map.clone();
        thread::spawn(move || {
            let rcu = LoomHost::rcu_read();
            read(&map, &rcu);
        })
    };
    write(&map);
    reader.join().unwrap();
    let rcu = LoomHost::rcu_read();
    // SAFETY: the writer has finished.
    let locked = unsafe { map.reader() };
    locked.check();
    for entry in locked.iter() {
        assert_eq!(map.lookup(&rcu, entry.start), Lookup::Found(entry));
    }
    drop(rcu);
    LoomHost::rcu_barrier();
}

/// Returns the value at `key`, which is always mapped. Returns `None` if the lookup was contended.
fn value(map: &Map, rcu: &<LoomHost as Host>::RcuGuard, key: u64) -> Option<u64> {
    match map.lookup(rcu, key) {
        Lookup::Found(entry) => {
            assert!(entry.start <= key && key < entry.end, "{entry:?} does not contain {key}");
            Some(entry.value.get() >> 6)
        }
        Lookup::Contended => None,
        Lookup::Hole => panic!("{key} is a hole, but is always mapped"),
    }
}

#[test]
fn a_reader_never_sees_a_partial_entry() {
    model_bounded(BOUND, || {
        run_concurrently(
            filled(0),
            |map, rcu| match map.lookup(rcu, 3) {
                Lookup::Found(found) => assert_eq!(found, nth(0)),
                Lookup::Hole | Lookup::Contended => {}
            },
            |map| replace(map, 0, 8, &[nth(0)]),
        );
    });
}

#[test]
fn an_entry_is_split_into_three_under_a_reader() {
    model_bounded(BOUND, || {
        run_concurrently(
            filled(2),
            |map, rcu| {
                if let Some(value) = value(map, rcu, 4) {
                    assert!(value == 1 || value == 8);
                }
            },
            |map| replace(map, 0, 8, &[entry(0, 2, 7), entry(2, 5, 8), entry(5, 8, 9)]),
        );
    });
}

#[test]
fn the_root_splits_under_a_reader() {
    model_bounded(BOUND, || {
        run_concurrently(
            filled(4),
            |map, rcu| {
                if let Some(value) = value(map, rcu, 31) {
                    assert_eq!(value, 4);
                }
            },
            |map| replace(map, 8, 9, &[entry(8, 9, 9)]),
        );
    });
}

#[test]
fn a_leaf_splits_under_a_reader() {
    model_bounded(BOUND, || {
        // The left leaf is full.
        run_concurrently(
            filled(5),
            |map, rcu| {
                if let Some(value) = value(map, rcu, 25) {
                    assert_eq!(value, 3);
                }
            },
            |map| replace(map, 8, 9, &[entry(8, 9, 9)]),
        );
    });
}

#[test]
fn leaves_merge_and_the_root_lowers_under_a_reader() {
    model_bounded(BOUND_OF_LONG, || {
        run_concurrently(
            filled(5),
            |map, rcu| {
                if let Some(value) = value(map, rcu, 42) {
                    assert_eq!(value, 5);
                }
            },
            |map| replace(map, 10, 38, &[]),
        );
    });
}

/// C-36: the replaced range covers whole leaves and ends where a leaf ends.
#[test]
fn a_range_of_several_leaves_is_replaced_under_a_reader() {
    model_bounded(BOUND_OF_LONG, || {
        let map = filled(9);
        run_concurrently(
            map,
            |map, rcu| {
                if let Some(value) = value(map, rcu, 45) {
                    assert!(value == 5 || value == 20, "{value}");
                }
            },
            |map| replace(map, 10, 78, &[entry(10, 75, 20)]),
        );
    });
}

/// A reader may be inside the subtree that is cut off and freed.
#[test]
fn a_cut_subtree_is_not_freed_under_a_reader() {
    model_bounded(BOUND_OF_LONG, || {
        run_concurrently(
            filled(9),
            |map, rcu| match map.lookup(rcu, 45) {
                Lookup::Found(found) => assert_eq!(found, nth(4)),
                Lookup::Hole | Lookup::Contended => {}
            },
            |map| {
                replace(map, 10, 78, &[]);
                LoomHost::rcu_barrier();
            },
        );
    });
}

/// The last entry of a leaf is removed. The ends in the nodes above the leaf also change, and the next entry
/// is in the next leaf.
#[test]
fn the_next_entry_is_found_while_the_end_of_a_leaf_changes() {
    model_bounded(BOUND, || {
        run_concurrently(
            filled(5),
            |map, rcu| match map.next(rcu, 28) {
                Lookup::Found(found) => assert!(found == nth(3) || found == nth(4), "{found:?}"),
                Lookup::Hole => panic!("entry 4 is always mapped"),
                Lookup::Contended => {}
            },
            |map| replace(map, 30, 38, &[]),
        );
    });
}

/// The reader finds the map cleared or unchanged.
#[test]
fn a_map_is_cleared_under_a_reader() {
    model_bounded(BOUND, || {
        run_concurrently(
            filled(5),
            |map, rcu| match map.lookup(rcu, 33) {
                Lookup::Found(found) => assert_eq!(found, nth(3)),
                Lookup::Hole | Lookup::Contended => {}
            },
            |map| {
                // SAFETY: this is the only writer.
                unsafe { map.exclusive_writer() }.clear();
                LoomHost::rcu_barrier();
            },
        );
    });
}
