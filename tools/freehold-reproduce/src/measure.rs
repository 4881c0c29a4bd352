//! From turns to figures: every side of a comparison does its work once in each turn, and a figure says what
//! its turns have in common.

use super::executor;
use serde::Serialize;

/// A quantity, from one value of each turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The value in the middle; between the two in the middle, when the turns are even in number.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// One value a turn, in order.
    pub turns: Vec<f64>,
}

impl Figure {
    /// Of at least one turn.
    ///
    /// # Panics
    ///
    /// Without turns.
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

    /// By how much `self` is more than `before`, as a part of it, turn by turn: what both have in common, the
    /// machine's mood above all, drops out. Nothing where `before` is nothing.
    pub fn change(&self, before: &Figure) -> Option<Figure> {
        self.by_turn(before, |after, before| after / before - 1.0)
    }

    /// How many times as much `self` is as `other`, turn by turn. Nothing where `other` is nothing.
    pub fn ratio(&self, other: &Figure) -> Option<Figure> {
        self.by_turn(other, |one, other| one / other)
    }

    fn by_turn(&self, other: &Figure, f: impl Fn(f64, f64) -> f64) -> Option<Figure> {
        let turns: Vec<f64> = self.turns.iter().zip(&other.turns).map(|(a, b)| f(*a, *b)).collect();
        (!turns.is_empty() && turns.iter().all(|turn| turn.is_finite())).then(|| Figure::of(turns))
    }

    /// Half of the way from the smallest to the largest, as a part of the median: the ± of a table.
    pub fn spread(&self) -> Option<f64> {
        let spread = (self.high - self.low) / 2.0 / self.median.abs();
        (self.turns.len() > 1 && spread.is_finite()).then_some(spread)
    }
}

/// Lets every side work once in each of `turns`; what they found, by side. Each turn begins with another side
/// and every other one goes backwards, so that none is always first, or always after the same one.
///
/// # Errors
///
/// The first of a side's.
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

/// A figure of each side: what `value` sees in each turn.
pub fn figures<R>(found: &[Vec<R>], value: impl Fn(&R) -> f64) -> Vec<Figure> {
    found.iter().map(|turns| Figure::of(turns.iter().map(&value))).collect()
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
