//! Tests the axes of plots (`span.rs`): the range, the marked values and the positions of values, for linear
//! and logarithmic axes. A case is an axis with the values on it.

use super::*;

fn marks(axis: &Axis, values: &[f64]) -> Vec<f64> {
    Span::over(axis, values.iter().copied()).marks
}

#[test]
fn marks_are_round_numbers() {
    let linear = Axis::linear("x", Unit::Count);
    assert_eq!(marks(&linear, &[1.0, 2.0]), [0.0, 1.0, 2.0], "counts have fractional marks");
    assert_eq!(marks(&Axis::linear("x", Unit::Share), &[1.0]), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    assert_eq!(marks(&linear, &[100.0, 2000.0]), [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
    let times = Axis::logarithmic("x", Unit::Nanoseconds);
    let near = |found: &[f64], wanted: &[f64]| {
        found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a / b - 1.0).abs() < 1e-6)
    };
    assert!(near(&marks(&times, &[120.0, 90_000.0]), &[1e2, 1e3, 1e4, 1e5]));
    let sizes = Axis::logarithmic("x", Unit::Bytes);
    let found = marks(&sizes, &[4096.0, (320u64 << 30) as f64]);
    assert!(near(&found[..2], &[4096.0, 65536.0]), "{found:?}");
    assert!(found.len() <= 9, "{found:?}");
}

#[test]
fn values_are_placed_in_proportion() {
    let span = Span::over(&Axis::logarithmic("x", Unit::Count), [1.0, 100.0].into_iter());
    assert_eq!([1.0, 10.0, 100.0].map(|value| span.map(&value, (0, 200))), [0, 100, 200]);
    assert_eq!(span.map(&0.0, (0, 200)), 0, "zero is not at the start");
    let span = Span::over(&Axis::linear("x", Unit::Count), [4.0].into_iter());
    assert_eq!([0.0, 2.0, 4.0].map(|value| span.map(&value, (100, 0))), [100, 50, 0]);
}

#[test]
fn axis_without_values_has_a_range() {
    for axis in [Axis::linear("x", Unit::Count), Axis::logarithmic("x", Unit::Share)] {
        let span = Span::over(&axis, [f64::NAN].into_iter());
        assert!(span.range.start < span.range.end && !span.marks.is_empty());
    }
}
