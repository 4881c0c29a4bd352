//! Tests of calls that break a contract: each call panics before it stores anything. The map is then
//! unchanged, and still works.
//!
//! [`Refuse`] adds such calls to [`Pair`]: a call is made with `catch_unwind`, and afterwards the map is
//! compared with the model. `QUIET` suppresses the report of the expected panic. To add a case, pass the
//! wrong arguments to `refused`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::support::model::entry;
use crate::support::pair::Pair;
use freehold_range::{Entry, RangeMap, WriteSet};
use freehold_sync::testing::StdHost;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if `f` panics. The panic is not reported.
fn panics(f: impl FnOnce()) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    result.is_err()
}

/// Calls on a [`Pair`] that must be refused.
trait Refuse {
    /// Asserts that the replacement panics and changes nothing.
    fn refused(&mut self, start: u64, end: u64, with: &[Entry]);

    /// Replaces without a preallocation, using only the existing spare nodes. Returns true if the replacement
    /// succeeded. Otherwise asserts that nothing changed.
    fn replace_unreserved(&mut self, start: u64, end: u64, with: &[Entry]) -> bool;

    /// Uses up all spare nodes.
    fn use_up(&mut self);
}

impl<const SLOTS: usize> Refuse for Pair<SLOTS> {
    fn refused(&mut self, start: u64, end: u64, with: &[Entry]) {
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { self.map.exclusive_writer() };
        assert!(panics(|| writer.replace(start, end, with)), "{start}..{end} {with:?}");
        self.compare();
    }

    fn replace_unreserved(&mut self, start: u64, end: u64, with: &[Entry]) -> bool {
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { self.map.exclusive_writer() };
        let worked = !panics(|| writer.replace(start, end, with));
        match worked {
            true => self.model.replace(start, end, with),
            false => self.compare(),
        }
        worked
    }

    fn use_up(&mut self) {
        let mut at = self.model.entries.values().last().map_or(0, |last| last.end.next_multiple_of(10));
        while self.replace_unreserved(at, at + 8, &[entry(at, at + 8, 9)]) {
            at += 10;
        }
    }
}

#[test]
fn a_range_that_cuts_an_entry_changes_nothing() {
    for size in [1, 4, 5, 9, 16, 23] {
        let mut pair = Pair::<4>::of_size(size);
        for from in 0..size {
            for to in (from..size).step_by(if size > 10 { 2 } else { 1 }) {
                let (start, end) = (from * 10, to * 10 + 8);
                for (start, end) in [(start + 3, end), (start, end - 3), (start + 3, end - 3)] {
                    let new = [entry(start, start + 1, 90), entry(end - 1, end, 91)];
                    pair.refused(start, end, if from % 2 == 0 { &new } else { &[] });
                }
            }
        }
        pair.put(1, size * 10, 7);
        pair.compare();
    }
}

#[test]
fn entries_that_do_not_fit_change_nothing() {
    for size in [1, 4, 5, 23] {
        let mut pair = Pair::<4>::of_size(size);
        let (start, end) = (0, size * 10);
        pair.refused(start, start, &[]);
        pair.refused(end, start, &[]);
        let wrong: [&[Entry]; 5] = [
            &[entry(end, end + 1, 1)],
            &[entry(start + 2, end, 1), entry(start, start + 2, 1)],
            &[entry(start, start + 3, 1), entry(start + 2, end, 1)],
            &[Entry { end: start, ..entry(start, end, 1) }],
            &[0, 1, 2, 3, 4].map(|at| entry(start + at, start + at + 1, 1)),
        ];
        wrong.into_iter().for_each(|with| pair.refused(start, end, with));
        pair.put(1, size * 10, 7);
        pair.compare();
    }
}

/// Without a preallocation, a replacement may use up the spare nodes. A replacement that needs more nodes has
/// no effect.
#[test]
fn a_replacement_without_preallocated_nodes_changes_nothing() {
    for size in [5, 9, 14] {
        for thin in 0..3 {
            for from in (1..size).step_by(2) {
                for to in (from..size).step_by(3) {
                    unreserved(size, thin, from * 10, to * 10 + 8);
                }
            }
        }
    }
}

/// Tests a map of `size` entries. Every other node is sparse. If `thin` is 0, the first node is sparse.
fn unreserved(size: u64, thin: u64, start: u64, end: u64) {
    let mut pair = Pair::<4>::of_size(size);
    pair.use_up();
    for at in (0..size).filter(|at| at / 4 % 2 == thin && at % 4 >= 2) {
        assert!(pair.replace_unreserved(at * 10, at * 10 + 8, &[]), "a removal needed a node");
    }
    let piece = |at: u64| entry(start + at * 2, start + at * 2 + 2, 50 + at);
    let with = [0, 1, 2, 3].map(piece);
    for pieces in 1..=4 {
        if !pair.replace_unreserved(start, end, &with[..pieces]) {
            // With preallocated nodes, the same replacement works.
            pair.replace(start, end, &with[..pieces]);
            pair.use_up();
        }
    }
}

/// The root moves with the map. The finger forgets the old root.
#[test]
fn a_moved_map_works() {
    for size in [1, 4, 5, 60] {
        let mut pair = Box::new(Pair::<4>::of_size(size));
        for step in 0..size {
            pair.put(step * 10 + 1, step * 10 + 2, 100 + step);
            let mut elsewhere = Box::new(Pair::new());
            std::mem::swap(&mut pair, &mut elsewhere);
            std::mem::swap(&mut *pair, &mut *elsewhere);
            // A map at the old address does not affect the moved map.
            elsewhere.put(0, 1000, 1);
            pair.put(step * 10 + 1, step * 10 + 3, 100 + step);
            drop(elsewhere);
            pair.put(step * 10 + 1, step * 10 + 2, 0);
        }
        pair.compare();
    }
}

/// A claim looks for touching entries beyond the end of its range. The end of this search must not wrap to
/// address 0.
#[test]
fn a_claim_up_to_the_last_address_finds_its_entries() {
    for touching in [false, true] {
        let mut pair = Pair::<4>::of_size(4);
        let last = entry(u64::MAX - 8, u64::MAX, 1);
        pair.replace(last.start, last.end, &[last]);
        let write_set = WriteSet::new();
        // SAFETY: only this thread uses the map, and there is no other writer.
        let writer = unsafe { pair.map.claim_writer(&write_set) };
        writer.claim(u64::MAX - 4, u64::MAX, touching, false).unwrap();
        assert_eq!(writer.claimed_range(), (last.start, last.end));
        writer.publish(None);
    }
}

#[test]
fn an_empty_entry_is_rejected() {
    let mut pair = Pair::<4>::of_size(9);
    for (start, end) in [(205, 205), (206, 205), (u64::MAX, 0)] {
        let write_set = WriteSet::new();
        let map: &RangeMap<StdHost, 4> = &pair.map;
        // SAFETY: only this thread uses the map, and there is no other writer.
        let writer = unsafe { map.claim_writer(&write_set) };
        let new = Entry { start, end, ..entry(0, 1, 1) };
        assert!(panics(|| _ = writer.insert_unclaimed(&new, |_| 0, |_| false, |_| false)));
        assert!(panics(|| _ = writer.claim_hole(start, end, |_| 0)));
        assert!(start == end || panics(|| _ = writer.claim(start, end, true, true)));
        assert_eq!(writer.claimed_range(), (0, 0), "something is claimed");
    }
    pair.compare();
    pair.put(1, 90, 7);
    pair.compare();
}
