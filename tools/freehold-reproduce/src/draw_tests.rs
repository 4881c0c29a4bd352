//! Tests the plots as SVG text (`draw.rs`): labels, bands and axes. A *band* is the shade around a line.
//! `plot` makes a plot of three lines, one of which has no point that a logarithmic axis can show. The tests
//! search the text; they do not check the appearance.

use super::*;
use crate::measure::Figure;
use crate::unit::Unit;

fn plot(names: usize) -> Plot {
    let line = |name: &str, at: f64| Line {
        name: name.to_owned(),
        points: (1..=3).map(|x| Point { x: f64::from(x), y: Figure::of([at, at * 1.1, at * 2.0]) }).collect(),
    };
    let x = Axis::linear("tasks & threads", Unit::Count);
    Plot {
        title: "Faults per second".to_owned(),
        x: Axis { names: (0..names).map(|n| format!("load {n}")).collect(), ..x },
        y: Axis::logarithmic("faults", Unit::PerSecond),
        lines: vec![line("Exclusive", 1e3), line("Released", 1e5), line("none", 0.0)],
    }
}

#[test]
fn plot_contains_its_labels_and_bands() {
    for (shape, size) in [(Shape::Wide, "960\" height=\"380"), (Shape::Narrow, "390\" height=\"372")] {
        let svg = svg(&plot(0), shape);
        assert!(svg.contains(size), "{svg}");
        assert_labels_and_bands(&svg);
    }
}

fn assert_labels_and_bands(svg: &str) {
    for words in ["tasks &amp; threads", "faults (1/s)", "Exclusive", "Released", "1 k", "100 k"] {
        assert!(svg.contains(words), "{words} is missing in {svg}");
    }
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert_eq!(
        svg.matches("<polygon").count(),
        3,
        "two bands, and the triangle of the third line in the legend: {svg}"
    );
}

#[test]
fn named_axis_shows_its_names() {
    for shape in [Shape::Wide, Shape::Narrow] {
        let svg = svg(&plot(3), shape);
        for words in ["load 0", "load 2"] {
            assert!(svg.contains(words), "{words} is missing");
        }
    }
}

#[test]
fn empty_plot_can_be_drawn() {
    let empty = Plot { lines: Vec::new(), ..plot(0) };
    assert!(svg(&empty, Shape::Wide).contains("</svg>"));
}
