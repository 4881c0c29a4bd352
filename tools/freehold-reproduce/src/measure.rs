//! Computes figures from turns. Every side of a comparison works once in each turn, and a figure summarises
//! the values of the turns.
//!
//! Experiments call [`in_turns`], which runs the sides alternately, so that slow changes of the host affect
//! all sides. [`figures`] takes one value out of the results. Ratios and changes are computed within a turn
//! and then summarised. The unit of a figure is in the cell of its table (`unit.rs`). The tests are in
//! `measure_tests.rs`.

use super::executor;
use serde::Serialize;

/// A quantity with one value from each turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The median. With an even number of turns, the mean of the two middle values.
    pub median: f64,
    /// The smallest value.
    pub low: f64,
    /// The largest value.
    pub high: f64,
    /// The values of the turns, in order.
    pub turns: Vec<f64>,
}

impl Figure {
    /// Computes the figure from the values of at least one turn.
    ///
    /// # Panics
    ///
    /// Panics if there are no turns.
    pub fn of(turns: impl IntoIterator<Item = f64>) -> Figure {
        let turns: Vec<f64> = turns.into_iter().collect();
        let mut sorted = turns.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        let half = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            (sorted[half - 1] + sorted[half]) / 2.0
        } else {
            sorted[half]
        };
        Figure { median, low, high, turns }
    }

    /// Returns the relative change from `before` to `self`, turn by turn. Effects on both figures, such as
    /// the speed of the host in a turn, cancel out. Returns `None` if a value of `before` is zero.
    pub fn change(&self, before: &Figure) -> Option<Figure> {
        self.by_turn(before, |after, before| after / before - 1.0)
    }

    /// Returns the ratio of `self` to `other`, turn by turn. Returns `None` if a value of `other` is zero.
    pub fn ratio(&self, other: &Figure) -> Option<Figure> {
        self.by_turn(other, |one, other| one / other)
    }

    fn by_turn(&self, other: &Figure, f: impl Fn(f64, f64) -> f64) -> Option<Figure> {
        let turns: Vec<f64> = self.turns.iter().zip(&other.turns).map(|(a, b)| f(*a, *b)).collect();
        (!turns.is_empty() && turns.iter().all(|turn| turn.is_finite())).then(|| Figure::of(turns))
    }

    /// Returns half the distance from the smallest to the largest value, relative to the median: the ± of a
    /// table.
    pub fn spread(&self) -> Option<f64> {
        let spread = (self.high - self.low) / 2.0 / self.median.abs();
        (self.turns.len() > 1 && spread.is_finite()).then_some(spread)
    }
}

/// Runs every side once in each of `turns` turns. Returns the results by side. Each turn begins with another
/// side, and every second turn runs the sides in reverse order, so that no side is always first or always
/// after the same side.
///
/// # Errors
///
/// Fails with the first error of a side.
pub fn in_turns<S, R>(
    turns: usize,
    sides: &mut [S],
    mut work: impl FnMut(&mut S, usize) -> anyhow::Result<R>,
) -> anyhow::Result<Vec<Vec<R>>> {
    let count = sides.len();
    let mut found: Vec<Vec<R>> = sides.iter().map(|_| Vec::with_capacity(turns)).collect();
    for turn in 0..turns {
        for place in 0..count {
            let place = if turn.is_multiple_of(2) { place } else { count - 1 - place };
            let side = (turn + place) % count;
            executor::side(side);
            found[side].push(work(&mut sides[side], turn)?);
        }
    }
    Ok(found)
}

/// Returns a figure for each side, from the `value` of each turn.
pub fn figures<R>(found: &[Vec<R>], value: impl Fn(&R) -> f64) -> Vec<Figure> {
    found.iter().map(|turns| Figure::of(turns.iter().map(&value))).collect()
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
