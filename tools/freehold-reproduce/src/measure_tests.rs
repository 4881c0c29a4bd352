//! Tests figures, and the measurement of several sides in turns (`measure.rs`): medians and spreads, changes
//! within each turn, and the order in which the sides run.

use super::*;

#[test]
fn figure_has_median_and_extremes_of_its_turns() {
    let odd = Figure::of([5.0, 1.0, 9.0]);
    assert_eq!((odd.median, odd.low, odd.high), (5.0, 1.0, 9.0));
    assert_eq!(odd.turns, [5.0, 1.0, 9.0], "turns are not in order");
    let even = Figure::of([4.0, 1.0, 2.0, 9.0]);
    assert_eq!(even.median, 3.0);
    assert_eq!(odd.spread(), Some(0.8));
    assert_eq!(Figure::of([5.0]).spread(), None, "one turn has a spread");
    assert_eq!(Figure::of([0.0, 0.0]).spread(), None);
}

#[test]
fn change_is_computed_within_each_turn() {
    // The machine is twice as fast in the second turn. The change is the same in both turns.
    let (before, after) = (Figure::of([100.0, 200.0]), Figure::of([110.0, 220.0]));
    let change = after.change(&before).expect("a change");
    assert!((change.median - 0.1).abs() < 1e-9 && change.spread().expect("two turns") < 1e-9);
    let ratio = after.ratio(&before).expect("a ratio");
    assert!((ratio.median - 1.1).abs() < 1e-9);
    assert_eq!(after.change(&Figure::of([0.0, 1.0])), None);
}

#[test]
fn every_side_works_once_a_turn_and_none_is_always_first() {
    let mut log = Vec::new();
    let found = in_turns(3, &mut ['a', 'b', 'c'], |side, turn| {
        log.push(*side);
        Ok(turn)
    });
    assert_eq!(found.expect("no errors"), vec![vec![0, 1, 2]; 3]);
    assert_eq!(log.iter().collect::<String>(), "abcacbcab");
}

#[test]
fn error_of_a_side_ends_the_measurement() {
    let found = in_turns(3, &mut [1, 2], |side, turn| match (turn, *side) {
        (1, 2) => anyhow::bail!("no memory"),
        _ => Ok(()),
    });
    assert_eq!(found.expect_err("failed").to_string(), "no memory");
}
