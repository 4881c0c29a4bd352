//! Every claim on every small map, beside a claim of another writer or a reservation: what is refused, what is
//! claimed, what the map holds when it is published, and which hole the caller is told.
//!
//! One thread makes the calls, so nothing depends on luck. The neighbours are in every combination of leaves.

mod stage;

use freehold_range::{Entry, HOLE, Refused};

use crate::support::model::entry;
use stage::{BASE, END, Item, Kind, Shape, Stage};

/// Calls `each` for every shape, with a third of the ranges that it may be asked for, which are others for the
/// next shape, and a number that differs from case to case.
fn cases(each: impl Fn(&Shape, (u64, u64), usize)) {
    for (nth, shape) in Shape::all().enumerate() {
        let ranges = (BASE - 1..=END).flat_map(|start| (start + 1..=END + 1).map(move |end| (start, end)));
        for (number, range) in ranges.enumerate().skip(nth % 3).step_by(3) {
            each(&shape, range, nth + number / 3);
        }
    }
}

/// What is put in place of a claim.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// What reaches across the ends of the range is cut there.
    Cut,
    /// What lies in the range goes, cut at its ends.
    Remove,
    RemoveAll,
    /// One entry takes the place of all.
    Join,
    /// Two entries do, with another border.
    Shift,
}

/// The entries that take the place of `taken` in its range.
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

/// Publishes `with` in place of what is claimed in `[from, to)`, and checks which hole the caller is told.
#[track_caller]
fn publish(stage: &mut Stage<'_>, (from, to): (u64, u64), with: &[Entry], address: u64) {
    stage.writer.replace(from, to, &[]);
    for new in with {
        stage.writer.replace(new.start, new.end, &[*new]);
    }
    stage.put(from, to, with);
    let mut told = None;
    let mut tell = |before: u64, behind: u64| assert_eq!(told.replace((before, behind)), None);
    stage.writer.publish(Some((address, &mut tell)));
    assert_eq!(told, stage.hole(address), "the hole at {address}");
    stage.check(&[]);
}

#[test]
fn every_claim_takes_what_it_should_and_is_published() {
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
    assert_eq!(stage.writer.span(), span, "{range:?}, touching: {touching}");
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

/// The claimed reservation that a claim of a hole puts into the map.
fn reservation((start, end): (u64, u64)) -> Item {
    let value = std::num::NonZeroU64::new(HOLE).unwrap();
    Item { entry: Entry { start, end, value }, kind: Kind::Reserved }
}

/// How much the entries keep free below them.
fn kept(entry: &Entry) -> u64 {
    if entry.value.get() >> 6 == 3 { 1 } else { 0 }
}

#[test]
fn every_claim_of_a_hole_takes_what_touches_it() {
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
    assert_eq!(stage.writer.span(), span, "{range:?}");
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
fn every_hole_is_filled_where_nobody_has_what_touches_it() {
    cases(|shape, range, number| shape.act(|stage| fill_hole(stage, range, number % 2 == 0)));
}

fn fill_hole(stage: &mut Stage<'_>, range: (u64, u64), joins: bool) {
    let new = entry(range.0, range.1, 70);
    let sides = stage.hole_claim_of(range, kept, &[]);
    let result = stage.writer.fill_hole(&new, kept, |_| joins);
    match result {
        Ok(true) => {
            let sides = sides.expect("another writer has what touches it, or it is no hole");
            assert!(!joins || sides == [None, None], "{range:?} joins");
            stage.put(range.0, range.1, &[new]);
        }
        Ok(false) => {}
        Err(why) => assert_eq!(Err(why), sides.map(|_| ()), "{range:?}"),
    }
    stage.check(&[]);
}

#[test]
fn every_hole_is_claimed_beside_an_entry() {
    cases(|shape, range, number| {
        let own = number % stage::ENTRIES;
        shape.act(|stage| claim_beside(stage, own, range, number / stage::ENTRIES % 3));
    });
}

fn claim_beside(stage: &mut Stage<'_>, own: usize, range: (u64, u64), variant: usize) {
    let first = stage.items[own].entry;
    if stage.items[own].kind != Kind::Free {
        return;
    }
    assert_eq!(stage.writer.claim(first.start, first.end, false, true), Ok(()));
    let expected = stage.hole_claim_of(range, kept, &[first.start]);
    let result = stage.writer.claim_hole_beside(range.0, range.1, kept);
    let [before, behind] = match (result, expected) {
        (Ok(()), Ok(sides)) => sides,
        (result, expected) => {
            assert_eq!(result, expected.map(|_| ()), "{range:?} beside {first:?}");
            stage.check(&[first.start]);
            assert_eq!(stage.writer.span(), (first.start, first.end));
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
    // Moves the entry, joins the target to what touches it, or gives both up.
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
    let mut told = None;
    let mut tell = |before: u64, behind: u64| assert_eq!(told.replace((before, behind)), None);
    stage.writer.publish(Some((first.start, &mut tell)));
    assert_eq!(told, stage.hole(first.start), "the hole at {}", first.start);
    stage.check(&[]);
}

#[test]
fn every_reservation_is_removed() {
    for shape in Shape::all() {
        shape.act(|stage| {
            let Some(at) = stage.items.iter().position(Item::is_hole) else { return };
            let Entry { start, end, .. } = stage.items.remove(at).entry;
            let mut told = None;
            let mut tell = |before: u64, behind: u64| assert_eq!(told.replace((before, behind)), None);
            stage.writer.remove_reservation(start, end, Some((start, &mut tell)));
            assert_eq!(told, stage.hole(start));
            stage.check(&[]);
        });
    }
}

#[test]
fn a_refused_claim_is_told_when_what_is_in_the_way_ends() {
    cases(|shape, range, number| {
        shape.act(|stage| {
            let refused = match number % 2 {
                0 => stage.writer.claim(range.0, range.1, true, false),
                _ => stage.writer.claim_hole(range.0, range.1, |_| 0),
            };
            if refused == Ok(()) {
                stage.writer.publish(None);
            }
            stage.other.publish(None);
            let taken = shape.special.is_some_and(|(_, kind)| kind == Kind::Taken);
            let told = taken && refused == Err(Refused::Taken);
            assert_eq!(stage.other.was_wanted(), told, "{range:?}");
        });
    });
}
