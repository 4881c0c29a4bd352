//! Tests of concurrent claim writers under loom. The tests combine changes of one leaf with changes of the
//! structure, claims with conflicting claims, and new gaps with searches that correct gap words.
//!
//! Most tests pass a map and two closures to [`run_concurrently`], which runs the closures in two threads and
//! then checks the map: no entry is claimed, and a search finds every gap. The tests also assert that one of
//! two conflicting claims is refused, that a reader never finds a hole at an address that is always mapped,
//! and that the map finally contains what its writers stored. A map of five entries has two leaves; the
//! helpers below make maps of other shapes. A bound on preemptions keeps each test short. `loom_map.rs` tests
//! the exclusive writer, and `claims/mod.rs` tests claims in one thread.
#![cfg(loom)]

mod support;

use std::num::NonZeroU64;

use freehold_range::{
    ClaimError, ClaimWriter, Direction, Entry, Filled, GapRequest, Lookup, RESERVED, RangeMap, WriteSet,
};
use freehold_sync::Host;
use freehold_sync::testing::{LoomHost, model_bounded};
use loom::sync::Arc;
use loom::thread;
use support::model::entry;

/// The map under test. Its nodes have four slots, so that few entries fill a leaf.
type Map = RangeMap<LoomHost, 4>;
/// A claim writer of [`Map`].
type Writer<'a> = ClaimWriter<'a, LoomHost, 4>;

/// The start of the second subtree of a map with 18 adjacent entries of ten bytes.
const BORDER: u64 = 90;

/// Maximum number of preemptions of a runnable thread.
const BOUND: usize = 2;

/// Returns the entry `[10 * at, 10 * at + 8)` with the value `at + 1`.
fn nth(at: u64) -> Entry {
    entry(at * 10, at * 10 + 8, at + 1)
}

/// Returns a map of these entries.
fn map_of(entries: impl IntoIterator<Item = Entry>) -> Arc<Map> {
    let map = Arc::new(Map::new());
    // SAFETY: only this thread uses the map.
    let mut writer = unsafe { map.exclusive_writer() };
    for entry in entries {
        writer.preallocate(1).unwrap();
        writer.replace(entry.start, entry.end, &[entry]);
    }
    drop(writer);
    map
}

/// Returns a map of the entries 0 to `size` (exclusive). With 5 entries there are two leaves, of 3 and 2
/// entries.
fn filled(size: u64) -> Arc<Map> {
    map_of((0..size).map(nth))
}

/// Makes a leaf end at or below `key`.
fn split_at(map: Arc<Map>, key: u64) -> Arc<Map> {
    let write_set = WriteSet::new();
    // SAFETY: only this thread uses the map.
    unsafe { map.claim_writer(&write_set) }.split_leaf_at(key);
    drop(write_set);
    map
}

/// Splits the leaf at `key` while another thread runs. Loom interleaves two threads only after both have
/// accessed the same word. The empty read section accesses such a word: the counter of readers.
fn split_leaf_at(writer: &Writer<'_>, key: u64) {
    drop(LoomHost::rcu_read());
    writer.split_leaf_at(key);
}

/// Runs `one` and `two` concurrently, each with its own writer. Afterwards asserts that no entry is claimed
/// and that a search finds every gap.
fn run_concurrently<A, B>(
    map: Arc<Map>,
    one: fn(&Map, &Writer<'_>) -> A,
    two: fn(&Map, &Writer<'_>) -> B,
) -> (A, B)
where
    A: Send + 'static,
    B: 'static,
{
    let other = {
        let map = map.clone();
        thread::spawn(move || {
            let write_set = WriteSet::new();
            // SAFETY: only claim writers exist until both threads have finished.
            one(&map, &unsafe { map.claim_writer(&write_set) })
        })
    };
    let write_set = WriteSet::new();
    // SAFETY: only claim writers exist until both threads have finished.
    let b = two(&map, &unsafe { map.claim_writer(&write_set) });
    drop(write_set);
    let a = other.join().unwrap();
    // SAFETY: both writers have finished.
    let locked = unsafe { map.reader() };
    locked.check();
    let mut before = 0;
    for entry in locked.iter() {
        assert!(entry.value.get() & freehold_range::MARKS == 0, "{entry:?} is still claimed");
        if entry.start > before {
            let len = entry.start - before;
            let found = locked.gap(&within(before, entry.start, len), |_| 0);
            assert_eq!(found, Some(before), "the gap below {entry:?}");
        }
        before = entry.end;
    }
    LoomHost::rcu_barrier();
    (a, b)
}

/// Returns a request for a gap of `len` bytes between `low` and `high`.
fn within(low: u64, high: u64, len: u64) -> GapRequest {
    GapRequest { len, align: 1, low, high, direction: Direction::TopDown }
}

/// Inserts `new` into a hole.
fn fill(writer: &Writer<'_>, new: Entry) -> Result<(), ClaimError> {
    writer.claim_hole(new.start, new.end, |_| 0)?;
    writer.replace(new.start, new.end, &[new]);
    writer.publish(None);
    Ok(())
}

/// Removes the entries that overlap a range.
fn unmap(writer: &Writer<'_>, start: u64, end: u64) -> Result<bool, ClaimError> {
    writer.claim(start, end, false, false)?;
    let (from, to) = writer.claimed_range();
    if from == to {
        return Ok(false);
    }
    writer.replace(from, to, &[]);
    writer.publish(None);
    Ok(true)
}

/// Fills a hole by extending the entry that touches it, or with a new entry if no entry touches it.
fn grow(writer: &Writer<'_>, start: u64, end: u64) -> Result<Filled, ClaimError> {
    writer.insert_unclaimed(&entry(start, end, 9), |_| 0, |_| true, |_| true)
}

/// Removes the entries of a range, or cuts the range off an entry: without a claim if that is possible, and
/// with a claim otherwise.
fn remove(writer: &Writer<'_>, start: u64, end: u64) -> Result<bool, ClaimError> {
    if writer.remove_or_claim(start, end, |_| true, |_, _| None, |_, _, _| true)? {
        return Ok(true);
    }
    let (from, to) = writer.claimed_range();
    for at in [start, end] {
        if let Some(cut) = writer.find(at).filter(|found| found.start < at) {
            writer.replace(cut.start, cut.end, &[Entry { end: at, ..cut }, Entry { start: at, ..cut }]);
        }
    }
    if from < to {
        writer.replace(start, end, &[]);
        writer.publish(None);
    }
    Ok(from < to)
}

/// Replaces the entries of a range by one entry with this value: with the leaf latched if the entries are
/// whole and in one leaf, and with a claim otherwise.
fn join(writer: &Writer<'_>, start: u64, end: u64, value: u64) -> Result<(), ClaimError> {
    let change = || {
        let (from, to) = writer.claimed_range();
        writer.replace(from, to, &[entry(from, to, value)]);
        Some(())
    };
    if writer.change_or_claim(start, end, change)?.is_none() {
        change();
        writer.publish(None);
    }
    Ok(())
}

fn has(map: &Map, entry: Entry) -> bool {
    let rcu = LoomHost::rcu_read();
    map.lookup(&rcu, entry.start) == Lookup::Found(entry)
}

#[test]
fn one_of_two_writers_fills_a_hole() {
    model_bounded(BOUND, || {
        let map = filled(2);
        let (one, two) = run_concurrently(
            map.clone(),
            |_, writer| fill(writer, entry(30, 36, 7)),
            |_, writer| fill(writer, entry(34, 40, 8)),
        );
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
        assert!(has(&map, if one.is_ok() { entry(30, 36, 7) } else { entry(34, 40, 8) }));
    });
}

#[test]
fn two_writers_fill_two_holes_of_a_leaf() {
    model_bounded(BOUND, || {
        let map = filled(2);
        let done = run_concurrently(
            map.clone(),
            |_, writer| fill(writer, entry(8, 9, 7)),
            |_, writer| fill(writer, entry(30, 40, 8)),
        );
        assert_eq!(done, (Ok(()), Ok(())));
        assert!(has(&map, entry(8, 9, 7)) && has(&map, entry(30, 40, 8)));
    });
}

/// Both writers need the entry that touches their holes. If the two claims overlap in time, one claim is
/// refused.
#[test]
fn at_least_one_of_two_adjacent_claims_succeeds() {
    model_bounded(BOUND, || {
        let map = filled(1);
        let (one, two) = run_concurrently(
            map,
            |_, writer| fill(writer, entry(20, 30, 7)),
            |_, writer| fill(writer, entry(30, 40, 8)),
        );
        assert!(one.is_ok() || two.is_ok());
        assert!(one.is_ok() || one == Err(ClaimError::Contended), "{one:?}");
        assert!(two.is_ok() || two == Err(ClaimError::Contended), "{two:?}");
    });
}

/// An entry that touches a hole is claimed together with the hole. One writer joins the entry with its new
/// entry, and the other writer shrinks the entry.
#[test]
fn a_hole_is_filled_during_a_claim_of_its_neighbour() {
    model_bounded(BOUND, || {
        let map = map_of([entry(10, 20, 2)]);
        let (shrunk, joined) = run_concurrently(
            map.clone(),
            |_, writer| {
                writer.claim(10, 20, false, false)?;
                let (from, to) = writer.claimed_range();
                writer.replace(from, to, &[entry(from, to - 2, 5)]);
                writer.publish(None);
                Ok::<_, ClaimError>(())
            },
            |_, writer| {
                writer.claim_hole(20, 30, |_| 0)?;
                let from = writer.prev(20).filter(|touching| touching.end == 20).map_or(20, |it| it.start);
                writer.replace(from, 30, &[entry(from, 30, 8)]);
                writer.publish(None);
                Ok(())
            },
        );
        match (shrunk, joined) {
            (Ok(()), Ok(())) => {
                assert!(
                    has(&map, entry(10, 18, 5)) && has(&map, entry(20, 30, 8)) || has(&map, entry(10, 28, 5))
                );
            }
            (Ok(()), Err(ClaimError::Contended)) => assert!(has(&map, entry(10, 18, 5))),
            (Err(ClaimError::Contended), Ok(())) => assert!(has(&map, entry(10, 30, 8))),
            other => panic!("{other:?}"),
        }
    });
}

/// An entry has at most one owner.
#[test]
fn an_entry_is_claimed_by_one_writer() {
    model_bounded(BOUND, || {
        fn claim(_: &Map, writer: &Writer<'_>) -> (bool, bool) {
            if writer.claim(12, 22, false, false).is_err() {
                return (false, false);
            }
            // No other writer owns the entry during the claim.
            let (from, to) = writer.claimed_range();
            let seen = writer.next_in_map(from).unwrap();
            assert!(
                seen.value.get() & freehold_range::MARKS != 0 && writer.next(from).unwrap().end == seen.end
            );
            writer.replace(from, to, &[entry(from, to, 60 + from)]);
            writer.publish(None);
            (true, writer.had_waiters())
        }
        let map = map_of([entry(10, 20, 2), entry(20, 28, 3)]);
        let (one, two) = run_concurrently(map, claim, claim);
        assert!(one.0 || two.0);
        // If one writer is refused, the owner learns that a writer waits.
        assert!(one.0 && two.0 || one.1 || two.1);
    });
}

/// An entry is removed without a claim, while another writer inserts an entry into the same leaf, or splits
/// it.
#[test]
fn an_entry_is_removed_without_a_claim_during_a_change_in_its_leaf() {
    let insert = |_: &Map, writer: &Writer<'_>| fill(writer, entry(8, 9, 9)).unwrap();
    let split = |_: &Map, writer: &Writer<'_>| split_leaf_at(writer, 20);
    for change in [insert as fn(&Map, &Writer<'_>), split] {
        model_bounded(1, move || {
            let map = filled(3);
            let (removed, ()) = run_concurrently(map.clone(), |_, writer| remove(writer, 10, 18), change);
            assert_eq!(removed, Ok(true));
            assert!(has(&map, nth(0)) && !has(&map, nth(1)) && has(&map, nth(2)));
        });
    }
}

/// One writer removes an entry without a claim, and the other claims the entry. Each writer either sees the
/// result of the other writer or is refused.
#[test]
fn an_entry_is_removed_without_a_claim_or_claimed() {
    model_bounded(1, || {
        let map = filled(3);
        let mark = |_: &Map, writer: &Writer<'_>| {
            writer.claim(10, 18, false, false)?;
            let (from, to) = writer.claimed_range();
            if from < to {
                writer.replace(from, to, &[entry(from, to, 9)]);
            }
            writer.publish(None);
            Ok::<_, ClaimError>(from < to)
        };
        let done = run_concurrently(map.clone(), |_, writer| remove(writer, 10, 18), mark);
        match done {
            (Ok(true), marked) => assert!(marked.is_ok() && !has(&map, entry(10, 18, 9))),
            (Err(ClaimError::Contended), Ok(true)) => assert!(has(&map, entry(10, 18, 9))),
            other => panic!("{other:?}"),
        }
    });
}

/// One writer changes two entries with their leaf latched. Another writer claims one of the entries, or splits
/// the leaf. If both writers change the entries, one change sees the result of the other.
#[test]
fn entries_are_changed_with_a_latched_leaf_during_another_change() {
    let claim = |_: &Map, writer: &Writer<'_>| {
        writer.claim(12, 18, false, false)?;
        let (from, to) = writer.claimed_range();
        writer.replace(from, to, &[entry(from, to, 8)]);
        writer.publish(None);
        Ok(())
    };
    let split = |_: &Map, writer: &Writer<'_>| {
        split_leaf_at(writer, 20);
        Ok(())
    };
    for other in [claim as fn(&Map, &Writer<'_>) -> Result<(), ClaimError>, split] {
        model_bounded(1, move || {
            let map = map_of([entry(0, 8, 1), entry(10, 20, 2), entry(20, 28, 3)]);
            let done = run_concurrently(map.clone(), other, |_, writer| join(writer, 10, 28, 9));
            let joined = has(&map, entry(10, 28, 9)) || has(&map, entry(10, 28, 8));
            match done {
                (Ok(()), Ok(())) => assert!(joined),
                (Ok(()), Err(ClaimError::Contended)) => assert!(has(&map, entry(10, 20, 8))),
                other => panic!("{other:?}"),
            }
        });
    }
}

/// A change of a map with the entries `[0, 8)` and `[20, 28)`, and a check of its result.
type Other = (fn(&Map, &Writer<'_>) -> Result<(), ClaimError>, fn(&Map, Result<(), ClaimError>) -> bool);

/// Returns a map with two entries and a hole between them.
fn with_hole() -> Arc<Map> {
    map_of([entry(0, 8, 1), entry(20, 28, 2)])
}

/// Claims the entry at address 5 and gives it the value 5.
fn mark(_: &Map, writer: &Writer<'_>) -> Result<(), ClaimError> {
    writer.claim(5, 6, false, false)?;
    let (from, to) = writer.claimed_range();
    if from < to {
        writer.replace(from, to, &[entry(from, to, 5)]);
        writer.publish(None);
    }
    Ok(())
}

/// Splits the leaf at address 20.
fn split(_: &Map, writer: &Writer<'_>) -> Result<(), ClaimError> {
    split_leaf_at(writer, 20);
    Ok(())
}

/// An entry grows, while another writer fills a part of the same hole, claims the entry, or splits the leaf.
#[test]
fn an_entry_grows_during_another_change_in_its_leaf() {
    let has_one = |map: &Map, value| has(map, entry(0, 12, value));
    let others: [Other; 4] = [
        (
            |_, writer| grow(writer, 10, 14).map(|_| ()),
            |map, done| done.is_ok() == has(map, entry(10, 14, 9)),
        ),
        (
            |_, writer| grow(writer, 10, 20).map(|_| ()),
            |map, done| done.is_ok() == has(map, entry(10, 28, 2)),
        ),
        (mark, |map, done| done.is_ok() && (has(map, entry(0, 8, 5)) || has(map, entry(0, 12, 5)))),
        (split, |_, done| done.is_ok()),
    ];
    for (other, is_right) in others {
        model_bounded(BOUND, move || {
            let map = with_hole();
            let (done, grown) = run_concurrently(map.clone(), other, |_, writer| grow(writer, 8, 12));
            assert!(is_right(&map, done), "{done:?} {grown:?}");
            assert_eq!(grown == Ok(Filled::Extended), has_one(&map, 1) || has_one(&map, 5), "{done:?}");
        });
    }
}

/// An end of an entry is cut off, while another writer fills the hole behind the entry, claims the entry, or
/// splits the leaf.
#[test]
fn an_entry_is_cut_during_another_change_in_its_leaf() {
    let has_one = |map: &Map, value| has(map, entry(0, 4, value));
    let others: [Other; 3] = [
        (
            |_, writer| grow(writer, 8, 20).map(|_| ()),
            // The writer finds the entry whole and joins neither side, or finds it cut and joins one side.
            |map, done| done.is_ok() && !has(map, entry(0, 8, 1)),
        ),
        (mark, |map, done| done.is_ok() && !has(map, entry(0, 8, 1))),
        (split, |_, done| done.is_ok()),
    ];
    for (other, is_right) in others {
        model_bounded(BOUND, move || {
            let map = with_hole();
            let (done, cut) = run_concurrently(map.clone(), other, |_, writer| remove(writer, 4, 8));
            assert!(is_right(&map, done), "{done:?} {cut:?}");
            assert!(matches!(cut, Ok(true) | Err(ClaimError::Contended)), "{cut:?}");
            assert_eq!(cut == Ok(true), has_one(&map, 1) || has_one(&map, 5), "{done:?}");
        });
    }
}

/// The leaf is full: one writer splits it while the other changes an entry of the same leaf.
#[test]
fn a_leaf_splits_during_a_change_in_it() {
    model_bounded(BOUND, || {
        let map = map_of((0..5).map(nth).chain([entry(18, 19, 8)]));
        let done = run_concurrently(
            map.clone(),
            |_, writer| fill(writer, entry(8, 9, 9)),
            |_, writer| unmap(writer, 22, 23),
        );
        assert_eq!(done, (Ok(()), Ok(true)));
        assert!(has(&map, entry(8, 9, 9)) && !has(&map, nth(2)) && has(&map, nth(3)));
    });
}

/// The map is one leaf, the root. A claim there has to split the root, and all entries move during the split.
#[test]
fn the_only_leaf_is_claimed_during_a_change_in_it() {
    model_bounded(1, || {
        let map = filled(3);
        let other = {
            let map = map.clone();
            thread::spawn(move || {
                let write_set = WriteSet::new();
                // SAFETY: only claim writers exist.
                unsafe { map.claim_writer(&write_set) }.insert_unclaimed(
                    &entry(8, 9, 9),
                    |_| 0,
                    |_| false,
                    |_| false,
                )
            })
        };
        let write_set = WriteSet::new();
        // SAFETY: only claim writers exist.
        let writer = unsafe { map.claim_writer(&write_set) };
        assert_eq!(writer.claim(22, 24, false, true), Ok(()));
        assert_eq!(writer.claimed_range(), (20, 28));
        writer.publish(None);
        drop(write_set);
        // After the split, the inserted entry may touch the last entry of the preceding leaf.
        other.join().unwrap().unwrap();
        LoomHost::rcu_barrier();
    });
}

/// Moves the entry at `from` to a hole.
fn relocate(writer: &Writer<'_>, from: u64, to: Entry) -> Result<(), ClaimError> {
    writer.claim(from, from + 8, false, false)?;
    let claimed = writer.claim_additional_hole(to.start, to.end, |_| 0);
    if claimed.is_ok() {
        writer.replace(to.start, to.end, &[to]);
        writer.replace(from, from + 8, &[]);
    }
    writer.publish(None);
    claimed
}

/// An entry moves to an adjacent or a distant hole, while another entry is inserted into the same hole.
#[test]
fn a_hole_is_claimed_in_addition_to_an_entry() {
    let touching = |_: &Map, writer: &Writer<'_>| relocate(writer, 10, entry(18, 20, 7));
    let apart = |_: &Map, writer: &Writer<'_>| relocate(writer, 0, entry(18, 20, 7));
    for mover in [touching, apart] {
        model_bounded(1, move || {
            let map = filled(3);
            let (moved, filled) =
                run_concurrently(map.clone(), mover, |_, writer| fill(writer, entry(19, 20, 9)));
            assert!(moved.is_ok() != filled.is_ok(), "{moved:?} {filled:?}");
            assert!(has(&map, if moved.is_ok() { entry(18, 20, 7) } else { entry(19, 20, 9) }));
        });
    }
}

/// A writer splits a leaf at a key while another writer changes the leaf and a reader reads the leaf.
#[test]
fn a_leaf_is_split_at_a_key_during_a_change_in_it() {
    for size in [3, 4] {
        model_bounded(1, move || {
            let map = filled(size);
            let done = run_concurrently(
                map.clone(),
                |map, writer| {
                    writer.split_leaf_at(20);
                    let rcu = LoomHost::rcu_read();
                    assert_ne!(map.lookup(&rcu, 21), Lookup::Hole, "21 is always mapped");
                },
                |_, writer| unmap(writer, 12, 13),
            );
            assert_eq!(done, ((), Ok(true)));
            assert!(has(&map, nth(0)) && !has(&map, nth(1)) && has(&map, nth(2)));
        });
    }
}

/// The last entry of a leaf is removed, while an entry is inserted in front of the first entry of the next
/// leaf.
#[test]
fn the_end_of_a_leaf_moves_during_a_change_behind_it() {
    model_bounded(BOUND, || {
        let map = filled(5);
        let done = run_concurrently(
            map.clone(),
            |_, writer| unmap(writer, 20, 21),
            |_, writer| fill(writer, entry(28, 29, 9)),
        );
        // The two ranges touch, so one of the claims may be refused.
        assert!(done.0.is_ok() || done.1.is_ok(), "{done:?}");
        if done.0.is_ok() {
            assert!(!has(&map, nth(2)));
        }
    });
}

/// The last entry of a leaf and the first entry of the next leaf are removed concurrently. The gap words must
/// cover the combined gap.
#[test]
fn the_end_of_a_leaf_moves_while_a_gap_appears_behind_it() {
    model_bounded(BOUND, || {
        // The leaves hold the entries 0 to 2 and 3 to 5, without gaps.
        let map = map_of([0, 1, 2, 3, 4, 5].map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        let done =
            run_concurrently(map, |_, writer| unmap(writer, 20, 30), |_, writer| unmap(writer, 30, 40));
        assert_eq!(done, (Ok(true), Ok(true)));
    });
}

/// The end of a subtree moves while a gap appears in the next subtree. The root stores the address where that
/// gap begins; the node above the leaf does not.
#[test]
fn the_end_of_a_subtree_moves_while_a_gap_appears_behind_it() {
    model_bounded(1, || {
        let map = map_of((0..18).map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        // SAFETY: no thread writes yet.
        let border = |map: &Map| unsafe { map.reader() }.first_of_second_subtree().expect("three levels");
        assert_eq!(border(&map), BORDER);
        let done = run_concurrently(
            map,
            |_, writer| unmap(writer, BORDER - 10, BORDER),
            |_, writer| unmap(writer, BORDER, BORDER + 10),
        );
        assert_eq!(done, (Ok(true), Ok(true)));
    });
}

/// A leaf is unlinked while an entry is inserted into the hole at the place of the leaf.
#[test]
fn a_leaf_is_unlinked_during_a_change_of_its_hole() {
    model_bounded(BOUND, || {
        let map = split_at(filled(5), 40);
        let done = run_concurrently(
            map.clone(),
            |_, writer| unmap(writer, 42, 43),
            |_, writer| fill(writer, entry(39, 40, 9)),
        );
        assert!(done.0.is_ok() || done.1.is_ok(), "{done:?}");
        if done.1.is_ok() {
            assert!(has(&map, entry(39, 40, 9)));
        }
    });
}

/// A search finds no gap and corrects the gap word of a leaf, while a gap appears in the leaf. A later search
/// finds the gap.
#[test]
fn a_gap_appears_during_a_failing_search() {
    model_bounded(BOUND, || {
        // Two leaves, of 3 and 2 entries, have no gap. The gap word of the first leaf is still 10 bytes, from
        // an earlier gap.
        let map = map_of([0, 1, 2, 3, 4].map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        {
            // SAFETY: only this thread uses the map.
            let mut writer = unsafe { map.exclusive_writer() };
            writer.preallocate(2).unwrap();
            writer.replace(10, 20, &[]);
            writer.replace(10, 20, &[entry(10, 20, 9)]);
        }
        run_concurrently(
            map.clone(),
            |_, writer| unmap(writer, 10, 20).unwrap(),
            |_, writer| {
                let found = writer.gap(&within(0, 50, 5), |_| 0);
                assert!(found.is_none() || found == Some(15), "{found:?}");
            },
        );
    });
}

/// Two entries of different leaves become one entry in the second leaf. The gap in front of the entry moves
/// to that leaf too. A search finds the gap at every moment.
#[test]
fn a_gap_moves_to_the_leaf_behind() {
    model_bounded(1, || {
        let map = map_of([0, 1, 12, 13, 14].map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        let merge = |_: &Map, writer: &Writer<'_>| {
            assert_eq!(writer.claim(120, 140, false, true), Ok(()));
            writer.replace(120, 140, &[entry(120, 140, 20)]);
            writer.publish(None);
        };
        run_concurrently(map, merge, |_, writer| {
            assert_eq!(writer.gap(&within(0, 140, 100), |_| 0), Some(20))
        });
    });
}

/// Two entries of different leaves become one while a reader reads the map.
#[test]
fn publishing_over_two_leaves_is_one_step() {
    model_bounded(1, || {
        let map = map_of([0, 1, 2, 3, 4].map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        let exchange = |_: &Map, writer: &Writer<'_>| {
            assert_eq!(writer.claim(20, 40, false, true), Ok(()));
            writer.replace(20, 40, &[entry(20, 25, 20), entry(25, 40, 21)]);
            writer.publish(None);
        };
        run_concurrently(map, exchange, |map, _| match map.lookup(&LoomHost::rcu_read(), 27) {
            Lookup::Found(found) => {
                let value = found.value.get() >> 6;
                assert!(found.start <= 27 && 27 < found.end && (value == 3 || value == 21), "{found:?}");
            }
            Lookup::Hole => panic!("27 is always mapped"),
            Lookup::Contended => {}
        });
    });
}

/// The first range of one subtree of the root becomes a part of the last entry of the preceding subtree. An
/// end in the root and the end of a leaf change, while a reader may be between these nodes.
#[test]
fn a_boundary_moves_between_two_subtrees_under_a_reader() {
    model_bounded(BOUND, || {
        // The map has three levels, and there are no gaps between its entries.
        let map = map_of((0..18).map(|at| entry(at * 10, at * 10 + 10, at + 1)));
        // SAFETY: no thread writes.
        let key = unsafe { map.reader() }.first_of_second_subtree().expect("three levels");
        let writer = {
            let map = map.clone();
            thread::spawn(move || {
                let write_set = WriteSet::new();
                // SAFETY: there is no other writer.
                let writer = unsafe { map.claim_writer(&write_set) };
                assert_eq!(writer.claim(key - 10, key + 10, false, false), Ok(()));
                assert_eq!(writer.claimed_range(), (key - 10, key + 10));
                let moved = [entry(key - 10, key + 5, 60), entry(key + 5, key + 10, 61)];
                writer.replace(key - 10, key + 10, &moved);
                writer.publish(None);
            })
        };
        {
            let rcu = LoomHost::rcu_read();
            let found = map.lookup(&rcu, key + 2);
            assert_ne!(found, Lookup::Hole, "the address is always mapped");
        }
        writer.join().unwrap();
        LoomHost::rcu_barrier();
    });
}

/// Runs `change` concurrently with a search for the first entry above `key`. The search must always find
/// `expected`.
fn next_in_map_during(map: Arc<Map>, key: u64, expected: Entry, change: fn(&Map, &Writer<'_>)) {
    let other = {
        let map = map.clone();
        thread::spawn(move || {
            let write_set = WriteSet::new();
            // SAFETY: only claim writers exist.
            change(&map, &unsafe { map.claim_writer(&write_set) });
        })
    };
    let write_set = WriteSet::new();
    // SAFETY: only claim writers exist.
    let writer = unsafe { map.claim_writer(&write_set) };
    assert_eq!(writer.next_in_map(key), Some(expected));
    other.join().unwrap();
    drop(write_set);
    LoomHost::rcu_barrier();
}

#[test]
fn an_entry_is_seen_while_others_of_its_leaf_move() {
    model_bounded(1, || {
        next_in_map_during(filled(3), 20, nth(2), |_, writer| {
            writer.insert_unclaimed(&entry(8, 9, 9), |_| 0, |_| false, |_| false).unwrap();
        });
    });
}

#[test]
fn an_entry_is_seen_while_the_one_before_is_removed_without_a_claim() {
    model_bounded(1, || {
        next_in_map_during(filled(3), 20, nth(2), |_, writer| assert_eq!(remove(writer, 10, 18), Ok(true)));
    });
}

#[test]
fn an_entry_is_seen_while_the_one_before_grows_or_is_cut() {
    let grow = |_: &Map, writer: &Writer<'_>| assert_eq!(grow(writer, 18, 19), Ok(Filled::Extended));
    let cut = |_: &Map, writer: &Writer<'_>| assert_eq!(remove(writer, 14, 18), Ok(true));
    for change in [grow as fn(&Map, &Writer<'_>), cut] {
        model_bounded(BOUND, move || next_in_map_during(filled(3), 19, nth(2), change));
    }
}

#[test]
fn an_entry_is_seen_while_those_before_are_joined_with_the_leaf_latched() {
    model_bounded(BOUND, || {
        let map = map_of([entry(0, 10, 1), entry(10, 18, 2), nth(2)]);
        next_in_map_during(map, 18, nth(2), |_, writer| assert_eq!(join(writer, 0, 18, 9), Ok(())));
    });
}

#[test]
fn an_entry_is_seen_while_its_leaf_is_split() {
    model_bounded(1, || next_in_map_during(filled(5), 20, nth(2), |_, writer| split_leaf_at(writer, 20)));
}

#[test]
fn an_entry_is_seen_while_its_leaf_becomes_the_root() {
    model_bounded(1, || {
        next_in_map_during(filled(5), 10, nth(1), |_, writer| assert_eq!(unmap(writer, 40, 41), Ok(true)));
    });
}

/// Returns a map of three leaves. The first leaf has three entries and the second has one, with large gaps
/// between the entries. The third leaf has three adjacent entries.
fn gaps_before_a_leaf_without() -> Arc<Map> {
    let wide = [0, 1, 2, 3].map(|at| entry(at * 20, at * 20 + 2, at + 1));
    let dense = [62, 72, 82].map(|at| entry(at, at + 10, at));
    let map = map_of(wide.into_iter().chain(dense));
    split_at(map, 62)
}

/// A gap appears in a leaf while the slot of the leaf in the node above changes. Afterwards the old slot
/// links another leaf, which has a larger gap word.
#[test]
fn a_gap_appears_while_the_leaf_before_is_split() {
    let unmapped = |_: &Map, writer: &Writer<'_>| unmap(writer, 72, 73);
    let removed = |_: &Map, writer: &Writer<'_>| remove(writer, 72, 82);
    let cut = |_: &Map, writer: &Writer<'_>| remove(writer, 74, 82);
    for make_gap in [unmapped as fn(&Map, &Writer<'_>) -> _, removed, cut] {
        model_bounded(1, move || {
            let map = gaps_before_a_leaf_without();
            let done = run_concurrently(map, |_, writer| split_leaf_at(writer, 20), make_gap);
            assert_eq!(done, ((), Ok(true)));
        });
    }
}

/// A reservation is removed from a leaf while the slot of the leaf in the node above changes.
#[test]
fn a_reservation_is_removed_while_the_leaf_before_is_split() {
    model_bounded(1, || {
        let map = gaps_before_a_leaf_without();
        {
            let write_set = WriteSet::new();
            // SAFETY: only this thread uses the map.
            let writer = unsafe { map.claim_writer(&write_set) };
            writer.claim(72, 82, false, false).unwrap();
            let value = NonZeroU64::new(RESERVED).unwrap();
            writer.replace(72, 82, &[Entry { value, ..entry(72, 82, 1) }]);
            writer.publish(None);
        }
        run_concurrently(
            map,
            |_, writer| split_leaf_at(writer, 20),
            |_, writer| writer.remove_reservation(72, 82, None),
        );
    });
}

/// A search finds a gap that always exists.
#[test]
fn a_gap_is_found_while_leaves_change() {
    let changes: [fn(&Map, &Writer<'_>); 4] = [
        |_, writer| split_leaf_at(writer, 20),
        |_, writer| split_leaf_at(writer, 50),
        |_, writer| fill(writer, entry(18, 19, 9)).unwrap(),
        |_, writer| assert_eq!(unmap(writer, 50, 51), Ok(true)),
    ];
    for change in changes {
        for direction in [Direction::TopDown, Direction::BottomUp] {
            model_bounded(1, move || {
                // The leaves have three entries each. The gap between the leaves is the largest.
                let map = map_of([0, 1, 2, 4, 5, 6].map(|at| entry(at * 10, at * 10 + 8, at + 1)));
                let other = {
                    let map = map.clone();
                    thread::spawn(move || {
                        let write_set = WriteSet::new();
                        // SAFETY: only claim writers exist.
                        change(&map, &unsafe { map.claim_writer(&write_set) });
                    })
                };
                let write_set = WriteSet::new();
                // SAFETY: only claim writers exist.
                let writer = unsafe { map.claim_writer(&write_set) };
                let request = GapRequest { len: 9, align: 1, low: 0, high: 48, direction };
                let found = writer.gap(&request, |_| 0);
                assert!(found.is_some_and(|at| (28..=31).contains(&at)), "{found:?}");
                other.join().unwrap();
                drop(write_set);
                LoomHost::rcu_barrier();
            });
        }
    }
}
