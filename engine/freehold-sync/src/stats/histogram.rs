//! Histograms of times, a quarter of a power of two wide.

use crate::atomic::{AtomicU64, Ordering};

/// Largest power of two that has buckets of its own: 2^41 ns are 36 minutes. What is longer counts in the
/// last bucket.
const LAST_POWER: usize = 41;
/// Buckets for 0, 1, 2, 3, and then four for each power of two from 2^2.
const BUCKETS: usize = 4 + (LAST_POWER - 1) * 4;

/// The bucket of a value.
#[inline]
fn bucket(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let power = value.ilog2();
    let quarter = (value >> (power - 2)) & 3;
    (((power as usize - 1) * 4) + quarter as usize).min(BUCKETS - 1)
}

/// The largest value that belongs into a bucket.
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

/// A histogram that one CPU writes and anyone reads.
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

    /// Called by one context at a time.
    pub fn record(&self, value: u64) {
        // Relaxed, and no read-modify-write: one writer at a time. Pairs with `add_to`, which is no
        // synchronisation.
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

/// How often which values occurred.
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

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, rounded down; 0 if there is none.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count()).unwrap_or(0)
    }

    /// A value that `hundredths` hundredths of a percent of all values do not exceed (5 000 for the median, 9
    /// 990 for 99.9 %). The true one lies at most a quarter lower. 0 if there are no values.
    ///
    /// # Panics
    /// When asked for more than 100 %.
    pub fn percentile(&self, hundredths: u32) -> u64 {
        assert!(hundredths <= 10_000, "more than all");
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

    /// The buckets in use, in ascending order: the largest value that belongs into it, and how many there
    /// are.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(at, count)| (upper_bound(at), *count))
    }

    /// Adds another histogram's values.
    pub fn merge(&mut self, other: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Takes away the values of an earlier state of this histogram. [`max`](Self::max) stays.
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
            assert!(at >= before, "{value} lies before a smaller one");
            assert!(value <= upper_bound(at), "{value} lies above its bucket");
            assert!(at == 0 || value > upper_bound(at - 1), "{value} belongs into an earlier bucket");
            if at < BUCKETS - 1 {
                assert!(upper_bound(at) - value <= value / 4, "the bucket of {value} is too wide");
            }
            before = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles() {
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
    fn merging_and_removing() {
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
