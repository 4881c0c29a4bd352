//! The range of an axis, and the positions of its marks.
//!
//! `draw.rs` passes a [`Span`] to the crate plotters as the coordinate of an axis. [`Span::over`] chooses the
//! range from the values; the marks are round numbers on a linear axis, and powers on a logarithmic axis. The
//! tests are in `span_tests.rs`.

use super::findings::Axis;
use super::unit::Unit;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Approximate largest number of marks on an axis.
const MAX_MARKS: f64 = 8.0;

/// The range of values of an axis, and the marked values.
#[derive(Clone, Debug)]
pub struct Span {
    /// The lowest and the highest value.
    range: Range<f64>,
    /// True if positions are proportional to logarithms.
    logarithmic: bool,
    /// The marked values, ascending.
    marks: Vec<f64>,
}

impl Span {
    /// Creates a range that is wide enough for all values, or a default range if there are no values.
    pub fn over(axis: &Axis, values: impl Iterator<Item = f64>) -> Span {
        let usable = values.filter(|value| value.is_finite() && (!axis.logarithmic || *value > 0.0));
        let (low, high) =
            usable.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        match (axis.names.len(), axis.logarithmic) {
            (0, true) => Span::logarithmic(low, high, if axis.unit == Unit::Bytes { 2.0 } else { 10.0 }),
            (0, false) => Span::linear(low, high, if axis.unit == Unit::Count { 1.0 } else { 0.0 }),
            (names, _) => Span {
                range: 0.5..names as f64 + 0.5,
                logarithmic: false,
                marks: (1..=names).map(|name| name as f64).collect(),
            },
        }
    }

    /// Creates a range that includes zero, with marks at multiples of 1, 2 or 5 times a power of ten, at
    /// least `least` apart.
    fn linear(low: f64, high: f64, least: f64) -> Span {
        let (low, high) = (low.min(0.0), if high > 0.0 { high } else { 1.0 });
        let rough = (high - low) / MAX_MARKS;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power).max(least);
        let end = (high / step).ceil();
        let marks = ((low / step).floor() as i64..=end as i64).map(|mark| mark as f64 * step).collect();
        Span { range: (low / step).floor() * step..end * step, logarithmic: false, marks }
    }

    /// Creates a range with marks at powers of `base`, limited to a readable number.
    fn logarithmic(low: f64, high: f64, base: f64) -> Span {
        let power = |value: f64| value.ln() / base.ln();
        // Without the tolerance, rounding could move a value that is a power of `base` to the next power.
        let (first, last) = ((power(low) + 1e-9).floor(), (power(high) - 1e-9).ceil());
        let last = last.max(first + 1.0);
        let step = ((last - first) / MAX_MARKS).ceil().max(1.0);
        let count = ((last - first) / step).floor() as i32;
        let marks = (0..=count).map(|mark| base.powf(first + f64::from(mark) * step)).collect();
        Span { range: base.powf(first)..base.powf(last), logarithmic: true, marks }
    }

    /// Returns the position of a value, from 0 at the lowest to 1 at the highest.
    fn part(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        let part = match self.logarithmic {
            true => (value.max(start).ln() - start.ln()) / (end.ln() - start.ln()),
            false => (value - start) / (end - start),
        };
        part.clamp(0.0, 1.0)
    }
}

impl Ranged for Span {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (f64::from(limit.1 - limit.0) * self.part(*value)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Span {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
#[path = "span_tests.rs"]
mod tests;
