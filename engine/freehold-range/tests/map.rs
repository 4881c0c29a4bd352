//! Compares the range map with the naive map (`support/model.rs`), in one thread.
//!
//! A [`Pair`] makes each change in both maps, runs `check` and compares all entries. The tests try every
//! replacement of every small map, every gap request in every small layout, and random sequences of
//! operations. C-36: a small fan-out puts every edge at the limit of a node. A new operation becomes a
//! variant of [`Op`], so that the random sequences contain it.

use std::collections::BTreeMap;

use crate::support::model::{Model, entry};
use crate::support::pair::Pair;
use freehold_range::{Direction, Entry, GapRequest, RangeMap};
use freehold_sync::Host;
use freehold_sync::testing::StdHost;
use proptest::prelude::*;

#[test]
fn a_new_map_contains_no_address() {
    let pair = Pair::<15>::new();
    for key in [0, 1, 4096, u64::MAX - 1, u64::MAX] {
        pair.compare_at(key);
    }
}

#[test]
fn only_the_last_address_cannot_be_mapped() {
    let mut pair = Pair::<4>::new();
    pair.put(0, 4096, 1);
    pair.put(u64::MAX - 4096, u64::MAX, 2);
    for key in [0, 4095, 4096, u64::MAX - 4097, u64::MAX - 4096, u64::MAX - 1, u64::MAX] {
        pair.compare_at(key);
    }
    for _ in 0..2 {
        pair.put(u64::MAX - 8192, u64::MAX - 4096, 3);
        pair.put(4096, 8192, 4);
        pair.put(4096, u64::MAX - 4096, 0);
    }
}

#[test]
fn an_entry_is_split_into_three_and_merged_again() {
    let mut pair = Pair::<15>::new();
    for page in 0..100 {
        pair.put(page * 10, page * 10 + 9, page + 1);
    }
    for page in 0..100 {
        let (start, end) = (page * 10, page * 10 + 9);
        let parts = [entry(start, start + 3, 1), entry(start + 3, start + 6, 2), entry(start + 6, end, 3)];
        pair.replace(start, end, &parts);
        pair.replace(start, end, &[entry(start, end, page + 1)]);
    }
}

/// C-36: the replaced range covers several nodes and ends exactly where a node ends. The test tries all edges
/// on trees of every small size, grown upwards, downwards and from the middle.
#[test]
fn every_range_of_every_small_map_is_replaced() {
    for size in 1..=22u64 {
        for order in [0, 1, 2] {
            for from in 0..size {
                for to in from + 1..=size {
                    for pieces in 0..=4 {
                        cut_one::<4>(size, order, from, to, pieces);
                    }
                }
            }
        }
    }
}

/// Tests a map of `size` entries of 8 bytes, with holes of 2 bytes between them. Replaces the entries from
/// `from` up to `to` by `pieces` entries.
fn cut_one<const SLOTS: usize>(size: u64, order: u64, from: u64, to: u64, pieces: u64) {
    let mut pair = Pair::<SLOTS>::new();
    for step in 0..size {
        let at = match order {
            0 => step,
            1 => size - 1 - step,
            _ if step % 2 == 0 => size / 2 + step / 2,
            _ => size / 2 - 1 - step / 2,
        };
        let at = if at < size { at } else { step };
        pair.insert(at * 10, at * 10 + 8, at + 1);
    }
    let start = from * 10;
    let with: Vec<Entry> =
        (0..pieces).map(|piece| entry(start + 2 * piece, start + 2 * piece + 2, 100 + piece)).collect();
    pair.replace(start, to * 10 - 2, &with);
    for key in (start.saturating_sub(3)..to * 10 + 3).step_by(2) {
        pair.compare_at(key);
    }
}

/// A cut visits only the nodes at the edges of the range. If it visited all nodes at the edges of unlinked
/// subtrees, it would hold more nodes than it has room for.
#[test]
fn most_entries_of_a_deep_map_are_cut_out() {
    const SIZE: u64 = 4_000;
    for (from, to) in [(0, SIZE), (0, SIZE - 5), (5, SIZE), (400, SIZE - 1), (1, SIZE - 1)] {
        let mut pair = Pair::<4>::new();
        (0..SIZE).for_each(|at| pair.insert(at * 10, at * 10 + 8, at + 1));
        pair.replace(from * 10, to * 10, &[]);
    }
}

#[test]
fn clear_leaves_an_empty_map_that_works() {
    for size in [0, 1, 4, 5, 60] {
        let mut pair = Pair::<4>::new();
        for at in 0..size {
            pair.put(at * 4, at * 4 + 2, at + 1);
        }
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { pair.map.exclusive_writer() };
        writer.clear();
        writer.check();
        assert!(writer.is_empty());
        pair.model = Model::default();
        pair.compare_at(1);
        pair.put(8, 10, 1);
        pair.compare_at(8);
    }
    StdHost::rcu_barrier();
}

#[test]
#[should_panic(expected = "reaches across")]
fn an_entry_across_the_start_is_refused() {
    let mut pair = Pair::<4>::new();
    pair.put(10, 20, 1);
    pair.replace(15, 30, &[]);
}

#[test]
#[should_panic(expected = "reaches across")]
fn an_entry_across_the_end_of_several_nodes_is_refused() {
    let mut pair = Pair::<4>::new();
    for at in 0..30 {
        pair.put(at * 10, at * 10 + 8, 1);
    }
    pair.replace(100, 205, &[]);
}

#[test]
#[should_panic(expected = "without preallocated nodes")]
fn splitting_needs_preallocated_nodes() {
    let map = RangeMap::<StdHost, 4>::new();
    // SAFETY: only this thread uses the map.
    let mut writer = unsafe { map.exclusive_writer() };
    for at in 0..5 {
        writer.replace(at, at + 1, &[entry(at, at + 1, 1)]);
    }
}

/// If nodes are preallocated for `many` replacements, any `many` replacements succeed.
#[test]
fn nodes_preallocated_for_many_replacements_suffice() {
    for many in 1..=12 {
        let map = RangeMap::<StdHost, 4>::new();
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { map.exclusive_writer() };
        for round in 0..40u64 {
            writer.preallocate(many).unwrap();
            for step in 0..many as u64 {
                let at = 1000 - (round * 12 + step) % 700;
                let room = writer.find(at * 10).is_none();
                if room {
                    let with = [0, 2, 4, 6].map(|part| entry(at * 10 + part, at * 10 + part + 1, 1));
                    writer.replace(at * 10, at * 10 + 8, &with);
                }
            }
            writer.check();
        }
    }
}

/// A map that grows downwards, as mappings do, has full nodes. So the tree has the minimum depth.
#[test]
fn mappings_added_downwards_fill_their_nodes() {
    let map = RangeMap::<StdHost>::new();
    // SAFETY: only this thread uses the map.
    let mut writer = unsafe { map.exclusive_writer() };
    for at in (0..5000).rev() {
        writer.preallocate(1).unwrap();
        writer.replace(at, at + 1, &[entry(at, at + 1, 1)]);
    }
    writer.check();
    assert!(writer.node_count() < 5000 / 14 + 5000 / 100, "{} nodes", writer.node_count());
}

const SPAN: u64 = 160;

/// A random operation on a [`Pair`].
#[derive(Clone, Debug)]
enum Op {
    Put { start: u64, len: u64, value: u64 },
    Split { start: u64, len: u64 },
    Gap { request: GapRequest, guard: u64 },
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![4 => 1..4u64, 2 => 1..12u64, 1 => 1..SPAN];
    prop_oneof![
        8 => (0..SPAN, size(), 1..9u64).prop_map(|(start, len, value)| Op::Put { start, len, value }),
        5 => (0..SPAN, size()).prop_map(|(start, len)| Op::Put { start, len, value: 0 }),
        2 => (0..SPAN, 4..16u64).prop_map(|(start, len)| Op::Split { start, len }),
        6 => (request(), 0..6u64).prop_map(|(request, guard)| Op::Gap { request, guard }),
        1 => (0..40u32).prop_map(|rare| if rare == 0 { Op::Clear } else { Op::Put { start: 7, len: 3, value: 3 } }),
    ]
}

fn request() -> impl Strategy<Value = GapRequest> {
    let direction = prop_oneof![Just(Direction::TopDown), Just(Direction::BottomUp)];
    (1..12u64, 0..4u32, 0..SPAN, 0..2 * SPAN, direction).prop_map(|(len, shift, low, high, direction)| {
        GapRequest { len, align: 1 << shift, low: low.saturating_sub(SPAN / 2), high, direction }
    })
}

fn run<const SLOTS: usize>(ops: &[Op]) {
    let mut pair = Pair::<SLOTS>::new();
    for op in ops {
        match *op {
            Op::Put { start, len, value } => pair.put(start, start + len, value),
            Op::Split { start, len } => {
                let (from, to, left, right) = pair.model.widen(start, start + len);
                let middle = [entry(start, start + 2, 1), entry(start + 2, start + len, 2)];
                let with: Vec<Entry> = left.into_iter().chain(middle).chain(right).collect();
                pair.replace(from, to, &with);
            }
            Op::Gap { ref request, guard } => pair.compare_gap(request, guard),
            Op::Clear => {
                // SAFETY: only this thread uses the map.
                unsafe { pair.map.exclusive_writer() }.clear();
                pair.model.entries = BTreeMap::new();
            }
        }
    }
    for key in 0..=2 * SPAN {
        pair.compare_at(key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fan_out_4_agrees_with_the_model(ops in prop::collection::vec(op(), 1..160)) {
        run::<4>(&ops);
    }

    #[test]
    fn fan_out_5_agrees_with_the_model(ops in prop::collection::vec(op(), 1..160)) {
        run::<5>(&ops);
    }

    #[test]
    fn fan_out_15_agrees_with_the_model(ops in prop::collection::vec(op(), 1..160)) {
        run::<15>(&ops);
    }
}

/// Tries every gap request in every layout of nine cells, each free or mapped.
#[test]
fn gap_searches_agree_with_the_model_in_every_small_layout() {
    const CELLS: u64 = 9;
    for layout in 0..1u64 << CELLS {
        let mut pair = Pair::<4>::new();
        for cell in (0..CELLS).filter(|cell| layout >> cell & 1 == 1) {
            pair.put(cell, cell + 1, cell + 1);
        }
        for direction in [Direction::TopDown, Direction::BottomUp] {
            for len in 1..4 {
                for low in 0..CELLS {
                    for high in [low, low + 2, CELLS / 2, CELLS, CELLS + 2] {
                        for (align, guard) in [(1, 0), (2, 0), (1, 2), (4, 1)] {
                            pair.compare_gap(&GapRequest { len, align, low, high, direction }, guard);
                        }
                    }
                }
            }
        }
    }
}

/// The gap words of filled gaps are too large until a search corrects them.
#[test]
fn a_failing_search_corrects_overstated_gaps() {
    let mut pair = Pair::<4>::new();
    for at in 0..64 {
        pair.put(4 * at, 4 * at + 2, 1);
    }
    for at in 0..63 {
        pair.put(4 * at + 2, 4 * at + 4, 2);
    }
    for direction in [Direction::TopDown, Direction::BottomUp] {
        // Removes and fills one gap once more.
        pair.put(42, 44, 0);
        pair.put(42, 44, 3);
        // SAFETY: only this thread uses the map, and there is no writer.
        let reader = unsafe { pair.map.reader() };
        assert!(reader.overstated_gaps(2) > 0);
        let request = GapRequest { len: 2, align: 1, low: 0, high: 4 * 63, direction };
        assert_eq!(reader.gap(&request, |_| 0), None);
        assert_eq!(reader.overstated_gaps(2), 0);
    }
}
