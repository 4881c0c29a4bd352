//! Tests of [`Bins`]: sums are kept when bins are joined, and gaps take the value that was given.

use super::*;

#[derive(Clone, Debug, PartialEq)]
struct Count(u64);

impl Bin for Count {
    fn join(&mut self, later: &Count) {
        self.0 += later.0;
    }
}

#[test]
fn joined_bins_keep_the_sum() {
    let mut bins = Bins::default();
    for time in 0..10_000 {
        bins.at(time * 1_000, &Count(0)).0 += 1;
    }
    let series = bins.series(|count| count.0);
    assert_eq!(series.iter().sum::<u64>(), 10_000);
    assert!(series.len() <= MAX && series.len() > MAX / 4, "{}", series.len());
}

#[test]
fn gaps_take_the_fill() {
    let mut bins = Bins::default();
    bins.at(0, &Count(0)).0 = 1;
    let width = bins.width();
    bins.at(3 * width, &Count(7)).0 = 2;
    assert_eq!(bins.series(|count| count.0), [1, 7, 7, 2]);
}

#[test]
fn extreme_times_fit() {
    let mut bins = Bins::default();
    bins.at(u64::MAX, &Count(1));
    assert!(bins.series(|_| ()).len() <= MAX);
}
