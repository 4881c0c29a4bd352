use super::*;

#[test]
fn a_figure_has_the_middle_and_both_ends_of_its_turns() {
    let odd = Figure::of([5.0, 1.0, 9.0]);
    assert_eq!((odd.median, odd.low, odd.high), (5.0, 1.0, 9.0));
    assert_eq!(odd.turns, [5.0, 1.0, 9.0], "turns stay in order");
    let even = Figure::of([4.0, 1.0, 2.0, 9.0]);
    assert_eq!(even.median, 3.0);
    assert_eq!(odd.spread(), Some(0.8));
    assert_eq!(Figure::of([5.0]).spread(), None, "one turn says nothing of the spread");
    assert_eq!(Figure::of([0.0, 0.0]).spread(), None);
}

#[test]
fn a_change_compares_within_a_turn() {
    // The machine is twice as fast in the second turn; the change is the same in both.
    let (before, after) = (Figure::of([100.0, 200.0]), Figure::of([110.0, 220.0]));
    let change = after.change(&before).expect("not nothing");
    assert!((change.median - 0.1).abs() < 1e-9 && change.spread().expect("two turns") < 1e-9);
    let ratio = after.ratio(&before).expect("not nothing");
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
fn an_error_of_a_side_ends_it() {
    let found = in_turns(3, &mut [1, 2], |side, turn| match (turn, *side) {
        (1, 2) => anyhow::bail!("no memory"),
        _ => Ok(()),
    });
    assert_eq!(found.expect_err("failed").to_string(), "no memory");
}
