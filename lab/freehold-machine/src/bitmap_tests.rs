//! Tests the bitmap of free numbers (`bitmap.rs`).
//!
//! Two tests draw random calls and compare the results with a `BTreeSet` and with a linear search; the other
//! tests check one rule each on small sets. A new operation needs both: a case with known numbers, and a
//! branch in a random test.

use super::*;
use std::collections::BTreeSet;

fn take(map: &mut Bitmap, want: usize) -> Vec<usize> {
    let mut out = Vec::new();
    let got = map.take(want, |n| out.push(n));
    assert_eq!(got, out.len());
    out
}

#[test]
fn lowest_numbers_are_taken_first_and_freed_runs_are_reused() {
    let mut map = Bitmap::new(1000);
    assert_eq!(take(&mut map, 300), (0..300).collect::<Vec<_>>());
    map.give((64..200).rev()).unwrap();
    assert_eq!(take(&mut map, 100), (64..164).collect::<Vec<_>>());
    assert_eq!(map.taken(), 264);
}

#[test]
fn bitmap_ends_exactly_at_its_length() {
    for len in [1, 63, 64, 65, 4095, 4096, 4097, 300_000] {
        let mut map = Bitmap::new(len);
        assert_eq!(take(&mut map, len + 7), (0..len).collect::<Vec<_>>(), "length {len}");
        assert_eq!(take(&mut map, 1), [], "length {len}");
        map.give([len - 1].into_iter()).unwrap();
        assert_eq!(take(&mut map, 2), [len - 1], "length {len}");
    }
}

#[test]
fn freeing_twice_or_outside_is_an_error() {
    let mut map = Bitmap::new(100);
    take(&mut map, 10);
    map.give([3].into_iter()).unwrap();
    assert_eq!(map.give([3].into_iter()), Err(NotTaken(3)));
    assert_eq!(map.give([10].into_iter()), Err(NotTaken(10)));
    assert_eq!(map.give([100].into_iter()), Err(NotTaken(100)));
}

#[test]
fn random_calls_agree_with_a_set() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let len = 5000;
    let mut map = Bitmap::new(len);
    let mut model: BTreeSet<usize> = (0..len).collect();
    for _ in 0..20_000 {
        if random() % 2 == 0 {
            let want = random() % 90;
            let expected: Vec<_> = model.iter().copied().take(want).collect();
            assert_eq!(take(&mut map, want), expected);
            expected.iter().for_each(|n| assert!(model.remove(n)));
        } else {
            let start = random() % len;
            let run: Vec<_> = (start..len.min(start + 100)).filter(|n| !model.contains(n)).collect();
            map.give(run.iter().copied()).unwrap();
            model.extend(run);
        }
        assert_eq!(map.taken(), len - model.len());
    }
    assert!(map.iter_taken().all(|n| !model.contains(&n)));
    assert_eq!(map.iter_taken().count(), map.taken());
}

#[test]
fn runs_are_taken_from_above_and_single_numbers_from_below() {
    let mut map = Bitmap::new(1000);
    // Runs of 128 begin at 0, 128, 256, ... The last whole run begins at 768.
    assert_eq!(map.take_run(128, 0), Some(768));
    assert_eq!(map.take_run(128, 0), Some(640));
    assert_eq!(take(&mut map, 1), [0]);
    map.give(core::iter::once(700)).unwrap();
    assert_eq!(map.take_run(128, 0), Some(512), "a run with one free number is not free");
    map.give((640..768).filter(|n| *n != 700)).unwrap();
    assert_eq!(map.take_run(128, 0), Some(640));
    assert_eq!(
        [map.take_run(128, 0), map.take_run(128, 0), map.take_run(128, 0)],
        [Some(384), Some(256), Some(128)]
    );
    assert_eq!(map.take_run(128, 0), None, "a number of the lowest run is taken");
    assert_eq!(map.taken(), 6 * 128 + 1);
    assert_eq!(take(&mut map, 1000).len(), 1000 - 6 * 128 - 1);
    map.give(0..1000).unwrap();
    assert_eq!(map.take_run(128, 64), Some(832), "runs begin at multiples after `first`");
}

#[test]
fn runs_of_any_length_are_the_highest_that_fit() {
    let mut map = Bitmap::new(1000);
    assert_eq!(map.take_run_anywhere(0), None);
    assert_eq!(map.take_run_anywhere(1001), None);
    assert_eq!(map.take_run_anywhere(7), Some(993));
    assert_eq!(map.take_run_anywhere(1), Some(992));
    assert_eq!(map.take_run_anywhere(200), Some(792));
    assert_eq!(take(&mut map, 3), [0, 1, 2]);
    // The free numbers are 3..792 and 850..900. A run that fits into 850..900 is taken there, and a longer
    // run below 792.
    map.give(850..900).unwrap();
    assert_eq!(map.take_run_anywhere(51), Some(741));
    assert_eq!(map.take_run_anywhere(50), Some(850));
    assert_eq!(map.take_run_anywhere(739), None);
    assert_eq!(map.take_run_anywhere(738), Some(3));
    assert_eq!((map.taken(), map.take_run_anywhere(1)), (1000, None));
    map.give(0..1000).unwrap();
    assert_eq!(map.take_run_anywhere(1000), Some(0));
}

#[test]
fn runs_of_any_length_agree_with_a_search() {
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let len = 700;
    let (mut map, mut free) = (Bitmap::new(len), vec![true; len]);
    for _ in 0..5000 {
        let run = 1 + random() % 150;
        if random() % 2 == 0 {
            let found = (0..=len - run).rev().find(|&at| free[at..at + run].iter().all(|free| *free));
            assert_eq!(map.take_run_anywhere(run), found);
            found.into_iter().for_each(|at| free[at..at + run].fill(false));
        } else {
            let start = random() % len;
            let taken: Vec<_> = (start..len.min(start + run)).filter(|&n| !free[n]).collect();
            map.give(taken.iter().copied()).unwrap();
            taken.into_iter().for_each(|n| free[n] = true);
        }
    }
}
