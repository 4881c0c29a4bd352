//! Tests of claims. They use a small map of every [`Shape`], and every third range on each map. One entry of
//! a map may be claimed by another writer or may be a reservation. The tests compare four results with a
//! model: the refusal of a claim, the claimed entries, the contents of the map after the claim is published,
//! and the hole that the callback gets.
//!
//! One thread makes all calls, so no result depends on timing. The entries lie in every combination of
//! leaves. `stage.rs` has the maps and the model; the tests here pass each map to a function that makes one
//! claim. A new kind of claim gets a function like `claim_and_publish`, which makes the claim and compares
//! the result with the model.

mod stage;

use std::cell::Cell;

use freehold_range::{ClaimError, Entry, Filled, RESERVED, WriteSet};

use crate::support::model::entry;
use stage::{BASE, END, Item, Kind, Map, Shape, Stage};

/// Calls `each` for every shape with a third of all ranges. Different shapes get different thirds. The last
/// argument of `each` is a number that differs from case to case.
fn cases(each: impl Fn(&Shape, (u64, u64), usize)) {
    for (nth, shape) in Shape::all().enumerate() {
        let ranges = (BASE - 1..=END).flat_map(|start| (start + 1..=END + 1).map(move |end| (start, end)));
        for (number, range) in ranges.enumerate().skip(nth % 3).step_by(3) {
            each(&shape, range, nth + number / 3);
        }
    }
}

/// A change of the claimed entries.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// Cuts the entries that reach across the ends of the range.
    Cut,
    /// Cuts the entries that reach across the ends of the range, and removes everything in the range.
    Remove,
    RemoveAll,
    /// Replaces all entries by one.
    Join,
    /// Replaces all entries by two, and moves the border between them.
    Shift,
}

/// Returns the entries that replace `taken` in its range.
fn changed(change: Change, taken: &[Entry], (start, end): (u64, u64)) -> Vec<Entry> {
    let (from, to) = (taken[0].start, taken[taken.len() - 1].end);
    let cut = |at: u64| {
        move |it: Entry| match it.start < at && at < it.end {
            true => vec![Entry { end: at, ..it }, Entry { start: at, ..it }],
            false => vec![it],
        }
    };
    let cut = || taken.iter().copied().flat_map(cut(start)).flat_map(cut(end));
    match change {
        Change::Nothing => taken.to_vec(),
        Change::Cut => cut().collect(),
        Change::Remove => cut().filter(|it| it.end <= start || end <= it.start).collect(),
        Change::RemoveAll => vec![],
        Change::Join => vec![entry(from, to, 70)],
        Change::Shift => vec![entry(from, to - 1, 71), entry(to - 1, to, 72)],
    }
}

/// Publishes `with` in place of the claimed entries in `[from, to)`, and checks which hole the callback gets.
#[track_caller]
fn publish(stage: &mut Stage<'_>, (from, to): (u64, u64), with: &[Entry], address: u64) {
    stage.writer.replace(from, to, &[]);
    for new in with {
        stage.writer.replace(new.start, new.end, &[*new]);
    }
    stage.put(from, to, with);
    let mut reported = None;
    let mut report = |before: u64, behind: u64| assert_eq!(reported.replace((before, behind)), None);
    stage.writer.publish(Some((address, &mut report)));
    assert_eq!(reported, stage.hole(address), "the hole at {address}");
    stage.check(&[]);
}

#[test]
fn claims_agree_with_the_model() {
    let changes =
        [Change::Nothing, Change::Cut, Change::Remove, Change::RemoveAll, Change::Join, Change::Shift];
    let flags = [(false, false), (true, true), (false, true), (true, false)];
    cases(|shape, range, number| {
        let (flags, change) = (flags[number % 4], changes[number / 4 % changes.len()]);
        shape.act(|stage| claim_and_publish(stage, range, flags, change));
    });
}

fn claim_and_publish(
    stage: &mut Stage<'_>,
    range: (u64, u64),
    (touching, cuts): (bool, bool),
    change: Change,
) {
    let expected = stage.claim_of(range.0, range.1, touching);
    let result = stage.writer.claim(range.0, range.1, touching, cuts);
    let taken = match (result, expected) {
        (Ok(()), Ok(taken)) => taken,
        (result, expected) => {
            assert_eq!(result, expected.map(|_| ()), "{range:?}, touching: {touching}");
            return stage.check(&[]);
        }
    };
    let starts: Vec<_> = taken.iter().map(|it| it.entry.start).collect();
    stage.check(&starts);
    let taken: Vec<_> = taken.iter().map(|it| it.entry).collect();
    let span = taken.first().map_or((0, 0), |first| (first.start, taken[taken.len() - 1].end));
    assert_eq!(stage.writer.claimed_range(), span, "{range:?}, touching: {touching}");
    if taken.is_empty() {
        return;
    }
    let change = match change {
        Change::Cut | Change::Remove if !cuts => Change::RemoveAll,
        Change::Shift if taken.len() < 2 => Change::Join,
        other => other,
    };
    match change {
        Change::Nothing => stage.writer.publish(None),
        _ => publish(stage, span, &changed(change, &taken, range), range.0.clamp(span.0, span.1 - 1)),
    }
    stage.check(&[]);
}

/// Returns the entry that a claim of a hole inserts into the map: a reservation that is claimed.
fn reservation((start, end): (u64, u64)) -> Item {
    let value = std::num::NonZeroU64::new(RESERVED).unwrap();
    Item { entry: Entry { start, end, value }, kind: Kind::Reserved }
}

/// Returns the number of bytes that an entry keeps free below it.
fn kept(entry: &Entry) -> u64 {
    if entry.value.get() >> 6 == 3 { 1 } else { 0 }
}

#[test]
fn claims_of_holes_agree_with_the_model() {
    cases(|shape, range, number| shape.act(|stage| claim_hole_and_publish(stage, range, number % 4)));
}

fn claim_hole_and_publish(stage: &mut Stage<'_>, range: (u64, u64), variant: usize) {
    let expected = stage.hole_claim_of(range, kept, &[]);
    let result = stage.writer.claim_hole(range.0, range.1, kept);
    let [before, behind] = match (result, expected) {
        (Ok(()), Ok(sides)) => sides,
        (result, expected) => {
            assert_eq!(result, expected.map(|_| ()), "{range:?}");
            return stage.check(&[]);
        }
    };
    let sides: Vec<_> = before.iter().chain(&behind).map(|it| it.entry.start).collect();
    let without = stage.items.clone();
    stage.put(range.0, range.1, &[]);
    stage.items.push(reservation(range));
    let claimed: Vec<_> = sides.iter().copied().chain([range.0]).collect();
    stage.check(&claimed);
    stage.items = without;
    let span = (before.map_or(range.0, |it| it.entry.start), behind.map_or(range.1, |it| it.entry.end));
    assert_eq!(stage.writer.claimed_range(), span, "{range:?}");
    let own: Vec<_> = before.iter().map(|it| it.entry).collect();
    let end: Vec<_> = behind.iter().map(|it| it.entry).collect();
    let new = entry(range.0, range.1, 70);
    let with = match variant {
        0 => [own, end].concat(),
        1 => vec![entry(span.0, span.1, 70)],
        _ => [own, vec![new], end].concat(),
    };
    publish(stage, span, &with, range.0);
}

#[test]
fn holes_are_filled_without_a_claim() {
    let extended = Cell::new(0);
    cases(|shape, range, number| {
        shape.act(|stage| {
            let filled = insert_unclaimed(stage, range, number % 3);
            extended.set(extended.get() + usize::from(filled == Ok(Filled::Extended)));
        })
    });
    assert!(extended.get() > 0, "no entry was extended");
}

/// Fills a hole without a claim. In variants 1 and 2, each entry that touches the hole must be joined. In
/// variant 2, the entry needs a claim.
fn insert_unclaimed(stage: &mut Stage<'_>, range: (u64, u64), variant: usize) -> Result<Filled, ClaimError> {
    let new = entry(range.0, range.1, 70);
    let sides = stage.hole_claim_of(range, kept, &[]);
    let touching: Vec<_> = sides.iter().flatten().flatten().map(|it| it.entry).collect();
    let mut extended = None;
    let extend = |whole: &Entry| {
        extended = Some(*whole);
        variant == 1
    };
    let result = stage.writer.insert_unclaimed(&new, kept, |_| variant > 0, extend);
    match result {
        Ok(Filled::Inserted) => {
            assert!(sides.is_ok(), "{range:?}: a neighbour belongs to another writer, or this is no hole");
            assert!(variant == 0 || touching.is_empty(), "{range:?} joins");
            stage.put(range.0, range.1, &[new]);
        }
        Ok(Filled::Extended) => {
            assert!(variant == 1 && touching.len() == 1, "{range:?} joins {touching:?}");
            let (start, end) = (touching[0].start.min(range.0), touching[0].end.max(range.1));
            let whole = Entry { start, end, ..touching[0] };
            assert_eq!(extended, Some(whole), "{range:?}");
            stage.put(start, end, &[whole]);
        }
        Ok(Filled::NeedsClaim) => {}
        Err(why) => assert_eq!(Err(why), sides.map(|_| ()), "{range:?}"),
    }
    stage.check(&[]);
    result
}

#[test]
fn whole_entries_are_removed_and_others_claimed() {
    cases(|shape, range, number| {
        let one_leaf = shape.cuts == 0 && shape.around == (0, 0) && shape.special.is_none();
        shape.act(|stage| remove_or_claim(stage, range, number % 4, one_leaf));
    });
}

/// Removes the entries of a range or claims them. In variant 1 a reservation replaces the entries. In
/// variants 2 and 3 the first or the last entry must not be removed, and no entry must be cut.
fn remove_or_claim(stage: &mut Stage<'_>, range: (u64, u64), variant: usize, one_leaf: bool) {
    let inside: Vec<_> = stage.within(range.0, range.1).copied().collect();
    let is_whole = |it: &Item| it.kind == Kind::Free && range.0 <= it.entry.start && it.entry.end <= range.1;
    let removable = !inside.is_empty() && inside.iter().all(is_whole) && variant < 2;
    let entries: Vec<_> = inside.iter().map(|it| it.entry).collect();
    let rest = match inside[..] {
        [Item { entry, kind: Kind::Free }] => match (entry.start < range.0, range.1 < entry.end) {
            (true, false) => Some((Entry { end: range.0, ..entry }, range.0)),
            (false, true) => Some((Entry { start: range.1, ..entry }, entry.start)),
            _ => None,
        },
        _ => None,
    };
    let (mut taken, mut hole, mut cut) = (Vec::new(), None, None);
    let value = std::num::NonZeroU64::new(RESERVED).unwrap();
    let result = stage.writer.remove_or_claim(
        range.0,
        range.1,
        |entry| {
            taken.push(*entry);
            variant < 2 || variant == 3 && taken.len() < entries.len()
        },
        |before, behind| {
            hole = Some((before, behind));
            (variant == 1).then_some(value)
        },
        |rest, before, behind| {
            cut = Some((*rest, (before, behind)));
            variant < 2
        },
    );
    if let Some((rest, gone)) = rest
        && result == Ok(true)
    {
        stage.put(entries[0].start, entries[0].end, &[rest]);
        assert_eq!(cut, stage.hole(gone).map(|hole| (rest, hole)), "{range:?}");
        assert!(variant < 2 && taken.is_empty() && hole.is_none(), "{range:?}: an entry was cut and removed");
        return stage.check(&[]);
    }
    if result != Ok(true) {
        assert!(!(removable && one_leaf), "{range:?}: whole entries of one leaf were not removed");
        assert!(!(rest.is_some() && variant < 2 && one_leaf), "{range:?}: the only entry was not cut");
        assert_eq!(hole, None, "{range:?}: a refused removal makes a hole");
        let expected = stage.claim_of(range.0, range.1, true);
        assert_eq!(result.map(|_| ()), expected.as_ref().map(|_| ()).map_err(|why| *why), "{range:?}");
        let claimed = expected.unwrap_or_default();
        stage.check(&claimed.iter().map(|it| it.entry.start).collect::<Vec<_>>());
        stage.writer.publish(None);
        return stage.check(&[]);
    }
    assert!(removable && taken == entries, "{range:?}: removed {taken:?}");
    let (from, to) = (entries[0].start, entries[entries.len() - 1].end);
    stage.put(from, to, &[]);
    assert_eq!(hole, stage.hole(from), "{range:?}");
    if variant == 1 {
        stage.put(from, to, &[Entry { start: from, end: to, value }]);
    }
    stage.check(&[]);
}

#[test]
fn changes_with_a_latched_leaf_agree_with_the_model() {
    let changes = [Change::Nothing, Change::Cut, Change::Join, Change::Shift];
    cases(|shape, range, number| {
        let one_leaf = shape.cuts == 0 && shape.around == (0, 0) && shape.special.is_none();
        let change = (number % 5 < 4).then(|| changes[number % 4]);
        shape.act(|stage| change_or_claim(stage, range, change, one_leaf));
    });
}

/// Changes the entries of a range in one step, or claims them if there is no change.
fn change_or_claim(stage: &mut Stage<'_>, range: (u64, u64), change: Option<Change>, one_leaf: bool) {
    let expected = stage.claim_of(range.0, range.1, true);
    let writer = &stage.writer;
    let result = writer.change_or_claim(range.0, range.1, || {
        let (from, to) = writer.claimed_range();
        let mut taken = Vec::new();
        assert!(writer.all_claimed(|entry| {
            taken.push(*entry);
            true
        }));
        // Readers still read the latched leaf.
        stage.find(taken[0]);
        let change = match change? {
            Change::Shift if taken.len() < 2 => Change::Join,
            other => other,
        };
        let with = changed(change, &taken, range);
        if !matches!(change, Change::Nothing) {
            writer.replace(from, to, &with);
        }
        Some((from, to, with))
    });
    let taken = match (result, expected) {
        (Ok(Some((from, to, with))), Ok(taken)) => {
            assert!(!taken.is_empty(), "{range:?}: no entry was changed");
            stage.put(from, to, &with);
            return stage.check(&[]);
        }
        (Ok(None), Ok(taken)) => taken,
        (result, expected) => {
            assert_eq!(result.map(|_| ()), expected.map(|_| ()), "{range:?}");
            return stage.check(&[]);
        }
    };
    let is_cut = |it: &Item| it.entry.start < range.0 || range.1 < it.entry.end;
    let is_simple = !taken.is_empty() && !taken.iter().any(is_cut);
    assert!(change.is_none() || !(is_simple && one_leaf), "{range:?}: entries of one leaf were claimed");
    stage.check(&taken.iter().map(|it| it.entry.start).collect::<Vec<_>>());
    stage.writer.publish(None);
    stage.check(&[]);
}

#[test]
fn holes_are_claimed_in_addition_to_an_entry() {
    cases(|shape, range, number| {
        let own = number % stage::ENTRIES;
        shape.act(|stage| claim_hole_in_addition(stage, own, range, number / stage::ENTRIES % 3));
    });
}

fn claim_hole_in_addition(stage: &mut Stage<'_>, own: usize, range: (u64, u64), variant: usize) {
    let first = stage.items[own].entry;
    if stage.items[own].kind != Kind::Free {
        return;
    }
    assert_eq!(stage.writer.claim(first.start, first.end, false, true), Ok(()));
    let expected = stage.hole_claim_of(range, kept, &[first.start]);
    let result = stage.writer.claim_additional_hole(range.0, range.1, kept);
    let [before, behind] = match (result, expected) {
        (Ok(()), Ok(sides)) => sides,
        (result, expected) => {
            assert_eq!(result, expected.map(|_| ()), "{range:?} in addition to {first:?}");
            stage.check(&[first.start]);
            assert_eq!(stage.writer.claimed_range(), (first.start, first.end));
            return stage.writer.publish(None);
        }
    };
    let before = before.map_or(range.0, |it| it.entry.start);
    let behind = behind.map_or(range.1, |it| it.entry.end);
    let without = stage.items.clone();
    stage.items.push(reservation(range));
    let claimed: Vec<_> =
        [first.start, range.0, before].into_iter().chain((behind > range.1).then_some(range.1)).collect();
    stage.check(&claimed);
    stage.items = without;
    // Moves the entry, joins the new entry with the entries that touch the hole, or abandons both claims.
    let target = match variant {
        0 => None,
        1 => Some((range.0, range.1)),
        _ => Some((before, behind)),
    };
    if let Some((start, end)) = target {
        let new = entry(start, end, 70);
        stage.writer.replace(start, end, &[new]);
        stage.put(start, end, &[new]);
        stage.writer.replace(first.start, first.end, &[]);
        stage.put(first.start, first.end, &[]);
    }
    let mut reported = None;
    let mut report = |before: u64, behind: u64| assert_eq!(reported.replace((before, behind)), None);
    stage.writer.publish(Some((first.start, &mut report)));
    assert_eq!(reported, stage.hole(first.start), "the hole at {}", first.start);
    stage.check(&[]);
}

#[test]
fn reservations_are_removed() {
    for shape in Shape::all() {
        shape.act(|stage| {
            let Some(at) = stage.items.iter().position(Item::is_hole) else { return };
            let Entry { start, end, .. } = stage.items.remove(at).entry;
            let mut reported = None;
            let mut report = |before: u64, behind: u64| assert_eq!(reported.replace((before, behind)), None);
            stage.writer.remove_reservation(start, end, Some((start, &mut report)));
            assert_eq!(reported, stage.hole(start));
            stage.check(&[]);
        });
    }
}

#[test]
fn the_owner_of_a_claim_learns_that_it_has_waiters() {
    cases(|shape, range, number| {
        shape.act(|stage| {
            let refused = match number % 2 {
                0 => stage.writer.claim(range.0, range.1, true, false),
                _ => stage.writer.claim_hole(range.0, range.1, |_| 0),
            };
            if refused == Ok(()) {
                stage.writer.publish(None);
            }
            let contended = stage.taken().is_some() && refused == Err(ClaimError::Contended);
            stage.other.publish(None);
            stage.items.iter_mut().filter(|it| it.kind == Kind::Taken).for_each(|it| it.kind = Kind::Free);
            assert_eq!(stage.other.had_waiters(), contended, "{range:?}");
        });
    });
}

/// Returns a map of `count` adjacent entries of ten bytes each. The first begins at address 10.
fn touching(count: u64) -> Box<Map> {
    let map = Box::new(Map::new());
    // SAFETY: this is the only writer.
    let mut alone = unsafe { map.exclusive_writer() };
    for at in (1..=count).map(|n| n * 10) {
        alone.preallocate(1).unwrap();
        alone.replace(at, at + 10, &[entry(at, at + 10, at)]);
    }
    map
}

#[test]
fn a_claim_has_eight_entries_at_most() {
    for count in 6..11 {
        let map = touching(10);
        let write_set = WriteSet::new();
        // SAFETY: there is no other writer.
        let writer = unsafe { map.claim_writer(&write_set) };
        let end = (count + 1) * 10;
        assert_eq!(writer.claim(15, end - 5, false, true).is_ok(), count <= 8, "{count} entries");
        if count > 8 {
            assert_eq!(writer.claimed_range(), (0, 0));
            continue;
        }
        for (at, value) in [(15, 1), (end - 5, 2)] {
            let found = writer.find(at).unwrap();
            let halves = [entry(found.start, at, value), entry(at, found.end, value)];
            writer.replace(found.start, found.end, &halves);
        }
        writer.publish(None);
        // SAFETY: the writer has claimed nothing.
        let reader = unsafe { map.reader() };
        reader.check();
        assert_eq!(reader.len(), 12);
    }
}

/// The claim of an additional hole takes two entries: the reservation that fills the hole, and the entry that
/// touches the hole.
#[test]
fn a_claim_with_a_hole_has_six_other_entries_at_most() {
    for count in 1..=8 {
        let map = touching(10);
        // SAFETY: this is the only writer.
        unsafe { map.exclusive_writer() }.replace((count + 1) * 10, (count + 2) * 10, &[]);
        let write_set = WriteSet::new();
        // SAFETY: there is no other writer.
        let writer = unsafe { map.claim_writer(&write_set) };
        let (start, end) = ((count + 1) * 10, (count + 2) * 10);
        assert_eq!(writer.claim(15, start - 5, false, true), Ok(()));
        let claimed = writer.claim_additional_hole(start, end, |_| 0);
        assert_eq!(
            claimed,
            if count <= 6 { Ok(()) } else { Err(ClaimError::NeedsExclusive) },
            "{count} entries"
        );
        let span = (10, if count > 6 { start } else { (end + 10).min(110) });
        assert_eq!(writer.claimed_range(), span);
        writer.publish(None);
        // SAFETY: the writer has claimed nothing.
        unsafe { map.reader() }.check();
    }
}

#[test]
fn a_hole_at_address_zero_is_claimed() {
    for count in [1, 4, 5, 20] {
        let map = touching(count);
        let write_set = WriteSet::new();
        // SAFETY: there is no other writer.
        let writer = unsafe { map.claim_writer(&write_set) };
        assert_eq!(writer.claim_hole(0, 10, |_| 0), Ok(()));
        assert_eq!(writer.claimed_range(), (0, 20));
        writer.replace(0, 10, &[entry(0, 10, 1)]);
        writer.publish(None);
        // SAFETY: the writer has claimed nothing.
        unsafe { map.reader() }.check();
    }
}
