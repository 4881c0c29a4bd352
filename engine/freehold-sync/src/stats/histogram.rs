//! Histograms of times in nanoseconds, with buckets of a quarter of a power of two.
//!
//! A [`LiveHistogram`] belongs to one CPU, which records into it while any thread reads; `mod.rs` has several
//! for each lock and CPU. A [`Histogram`] is a sum at one moment, for percentiles, merging and comparing;
//! benchmarks and tools use it directly. Recording takes no lock and allocates nothing. The width of a bucket
//! is the error of a percentile: at most a quarter. The tests below check the bounds of the buckets.

use crate::atomic::{AtomicU64, Ordering};

/// Largest power of two with its own buckets: 2^41 ns are 36 minutes. Longer times count in the last bucket.
const LAST_POWER: usize = 41;
/// Number of buckets: one each for 0, 1, 2 and 3, then four for each power of two from 2^2.
const BUCKETS: usize = 4 + (LAST_POWER - 1) * 4;

/// Returns the bucket of a value.
#[inline]
fn bucket(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let power = value.ilog2();
    let quarter = (value >> (power - 2)) & 3;
    (((power as usize - 1) * 4) + quarter as usize).min(BUCKETS - 1)
}

/// Returns the largest value that belongs in a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let (power, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    ((4 + quarter + 1) << (power - 2)) - 1
}

/// A histogram that one CPU writes and any thread reads.
pub(super) struct LiveHistogram {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl LiveHistogram {
    pub fn new() -> Self {
        LiveHistogram {
            counts: core::array::from_fn(|_| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Adds a value. Must not be called by two contexts at the same time.
    pub fn record(&self, value: u64) {
        // Relaxed, without read-modify-writes: only one context writes at a time. Pairs with the loads in
        // `add_to`; orders nothing.
        let bump = |word: &AtomicU64, by: u64| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        };
        bump(&self.counts[bucket(value)], 1);
        bump(&self.sum, value);
        if value > self.max.load(Ordering::Relaxed) {
            self.max.store(value, Ordering::Relaxed);
        }
    }

    pub fn add_to(&self, sum: &mut Histogram) {
        // Relaxed: counts only.
        for (sum, count) in sum.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        sum.sum = sum.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
        sum.max = sum.max.max(self.max.load(Ordering::Relaxed));
    }
}

/// Counts how often values occur, by bucket.
///
/// ```
/// use freehold_sync::stats::Histogram;
///
/// let mut times = Histogram::default();
/// (1..=100).for_each(|ns| times.record(ns));
/// assert_eq!(times.count(), 100);
/// assert_eq!(times.mean(), 50);
/// assert!((50..=63).contains(&times.percentile(5_000)));
/// assert_eq!(times.percentile(10_000), 100);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Adds a value.
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.sum = self.sum.wrapping_add(value);
        self.max = self.max.max(value);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the largest value, or 0 if there are no values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean, rounded down, or 0 if there are no values.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count()).unwrap_or(0)
    }

    /// Returns a value that `hundredths` hundredths of a percent of all values do not exceed (5 000 for the
    /// median, 9 990 for 99.9 %). The exact percentile is at most a quarter lower. Returns 0 if there are no
    /// values.
    ///
    /// # Panics
    /// Panics if `hundredths` is more than 10 000 (100 %).
    pub fn percentile(&self, hundredths: u32) -> u64 {
        assert!(hundredths <= 10_000, "the percentile is more than 100 %");
        let total = u128::from(self.count());
        let wanted = (total * u128::from(hundredths)).div_ceil(10_000);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted && seen > 0 {
                return upper_bound(bucket).min(self.max);
            }
        }
        0
    }

    /// Returns the buckets in use, in ascending order: the largest value that belongs in the bucket, and the
    /// number of values in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(at, count)| (upper_bound(at), *count))
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Subtracts the values of an earlier state of this histogram. Does not change [`max`](Self::max).
    pub fn remove(&mut self, earlier: &Histogram) {
        for (left, count) in self.counts.iter_mut().zip(&earlier.counts) {
            *left = left.saturating_sub(*count);
        }
        self.sum = self.sum.wrapping_sub(earlier.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_bound_their_values() {
        let mut before = 0;
        for value in (0..5000).chain((13..64).flat_map(|power| {
            let base = 1u64 << power;
            [base - 1, base, base + base / 4 - 1, base + base / 4, base + base / 2, base + (base - 1)]
        })) {
            let at = bucket(value);
            assert!(at >= before, "{value} is in a bucket before that of a smaller value");
            assert!(value <= upper_bound(at), "{value} is above the bound of its bucket");
            assert!(at == 0 || value > upper_bound(at - 1), "{value} belongs in an earlier bucket");
            if at < BUCKETS - 1 {
                assert!(upper_bound(at) - value <= value / 4, "the bucket of {value} is too wide");
            }
            before = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_bucket_bounds_up_to_the_maximum() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(5_000), 0);
        assert_eq!(histogram.mean(), 0);
        (0..99).for_each(|_| histogram.record(10));
        histogram.record(100_000);
        assert_eq!(histogram.percentile(0), 11);
        assert_eq!(histogram.percentile(9_900), 11);
        assert_eq!(histogram.percentile(9_901), 100_000);
        assert_eq!(histogram.max(), 100_000);
        assert_eq!(histogram.buckets().count(), 2);
    }

    #[test]
    fn merged_and_removed_values_add_up() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        a.record(5);
        let earlier = a.clone();
        b.record(7);
        b.record(7);
        a.merge(&b);
        assert_eq!((a.count(), a.sum(), a.max()), (3, 19, 7));
        a.remove(&earlier);
        assert_eq!((a.count(), a.sum()), (2, 14));
    }
}
