//! Values over time, in at most [`MAX`] bins of equal width.
//!
//! The length of a recording is not known before its end. [`Bins`] therefore begins with narrow bins, and
//! joins pairs of bins whenever there are too many. `memory.rs` and `faults.rs` fill bins in the order of
//! time. The tests are in `bins_tests.rs`.

/// Largest number of bins. At the end of a long recording there are at least half as many.
pub const MAX: usize = 480;
/// Width of the first bins in nanoseconds.
const FIRST: u64 = 1 << 12;

/// A value of a bin.
pub(super) trait Bin: Clone {
    /// Adds the value of the next bin, which this bin then also covers.
    fn join(&mut self, later: &Self);
}

/// Values over time.
#[derive(Clone, Debug)]
pub(super) struct Bins<T> {
    width: u64,
    bins: Vec<T>,
}

impl<T> Default for Bins<T> {
    fn default() -> Self {
        Bins { width: FIRST, bins: Vec::new() }
    }
}

impl<T: Bin> Bins<T> {
    /// Returns the bin of a time. Gives `fill` to all bins that did not exist yet.
    pub(super) fn at(&mut self, time: u64, fill: &T) -> &mut T {
        while time / self.width >= MAX as u64 {
            self.widen();
        }
        let index = (time / self.width) as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, fill.clone());
        }
        &mut self.bins[index]
    }

    /// Doubles the width.
    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let pairs = self.bins.chunks(2).map(|pair| {
            let mut bin = pair[0].clone();
            pair[1..].iter().for_each(|later| bin.join(later));
            bin
        });
        self.bins = pairs.collect();
    }

    /// Returns the width in nanoseconds.
    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// Returns one series of the values.
    pub(super) fn series<U>(&self, value: impl FnMut(&T) -> U) -> Vec<U> {
        self.bins.iter().map(value).collect()
    }
}

#[cfg(test)]
#[path = "bins_tests.rs"]
mod tests;
