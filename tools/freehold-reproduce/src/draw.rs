//! Draws plots as SVG. Lines differ in dashes and marks, not only in colour. The shade around a line extends
//! from the smallest to the largest value of the turns.
//!
//! Input: a [`Plot`] of the findings. Output: an SVG element, drawn by the crate plotters, which `page.rs`
//! puts into its page. The range of each axis is a [`Span`] (`span.rs`). A plot is drawn twice, for large
//! windows and for small ones ([`Shape`]). If a plot has more lines than [`LOOKS`] has entries, several lines
//! have the same look. The tests (`draw_tests.rs`) search the text of the element.

use super::findings::{Axis, Line, Plot, Point};
use super::span::Span;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{DashedPathElement, DynElement};
use plotters::prelude::*;

/// The window for which a plot is drawn. Letters must be readable in both shapes, so each shape is drawn
/// separately instead of being scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A large window. The legend is beside the plot.
    Wide,
    /// The window of a phone. The legend is below the plot.
    Narrow,
}

/// Dimensions of a shape in pixels.
struct Measures {
    /// Width of the plot.
    width: u32,
    /// Height of the plot.
    height: u32,
    /// Space to the left of the plot and below it, for the marks of the axes.
    marks: (u32, u32),
    /// Size of letters.
    words: u32,
    /// Approximate number of marks on a numeric axis.
    labels: usize,
}

impl Shape {
    /// Returns the dimensions.
    fn measures(self) -> Measures {
        match self {
            Shape::Wide => {
                Measures { width: 960 - LEGEND, height: 380, marks: (84, 44), words: 13, labels: 10 }
            }
            Shape::Narrow => Measures { width: 390, height: 300, marks: (70, 40), words: 12, labels: 5 },
        }
    }

    /// Returns the size of the whole drawing, with a legend of this number of lines.
    fn size(self, lines: usize) -> (u32, u32) {
        let Measures { width, height, .. } = self.measures();
        match self {
            Shape::Wide => (width + LEGEND, height),
            Shape::Narrow => (width, height + LINE * (lines.div_ceil(2) as u32 + 1)),
        }
    }
}

/// Width of the legend of a wide plot, and height of a line of the legend, in pixels.
const LEGEND: u32 = 190;
const LINE: u32 = 24;
/// Half the size of a marker.
const MARK: i32 = 4;
const GREY: RGBColor = RGBColor(90, 90, 90);
const FAINT: RGBColor = RGBColor(225, 225, 225);

/// Styles of lines, in order: a colour, the dash and gap, and a mark. The colours also differ in brightness,
/// so that colour-blind readers can distinguish them. A solid line has no dash.
const LOOKS: [Look; 7] = [
    Look { colour: RGBColor(0, 0, 0), dash: None, mark: Mark::Disc },
    Look { colour: RGBColor(213, 94, 0), dash: Some((10, 5)), mark: Mark::Square },
    Look { colour: RGBColor(0, 114, 178), dash: Some((3, 3)), mark: Mark::Triangle },
    Look { colour: RGBColor(0, 140, 100), dash: None, mark: Mark::Cross },
    Look { colour: RGBColor(170, 80, 140), dash: Some((16, 4)), mark: Mark::Ring },
    Look { colour: RGBColor(70, 150, 210), dash: Some((6, 2)), mark: Mark::Box },
    Look { colour: RGBColor(130, 130, 130), dash: Some((2, 6)), mark: Mark::Disc },
];

/// The look of a line.
#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    /// Dash and gap in pixels; `None` for a solid line.
    dash: Option<(u32, u32)>,
    mark: Mark,
}

/// The mark at each point.
#[derive(Clone, Copy)]
enum Mark {
    Disc,
    Ring,
    Square,
    Box,
    Triangle,
    Cross,
}

type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
type Chart<'c, 's> = ChartContext<'c, SVGBackend<'s>, Cartesian2d<Span, Span>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns a plot as an SVG element without its title.
pub fn svg(plot: &Plot, shape: Shape) -> String {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, shape.size(plot.lines.len())).into_drawing_area();
        let Measures { width, height, .. } = shape.measures();
        let (chart, rest) = match shape {
            Shape::Wide => root.split_horizontally(width),
            Shape::Narrow => root.split_vertically(height),
        };
        // Drawing to a string cannot fail: no font is read and no file is written.
        draw(plot, shape, &chart).expect("writing to a String cannot fail");
        legend(plot, shape, &rest).expect("writing to a String cannot fail");
        root.present().expect("writing to a String cannot fail");
    }
    text
}

/// Returns the style of letters.
fn words(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&RGBColor(40, 40, 40))
}

/// Draws axes, lines and legend.
fn draw(plot: &Plot, shape: Shape, area: &Area) -> Drawn {
    let Measures { marks, words: letters, labels, .. } = shape.measures();
    let (x, y) = spans(plot);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(marks.1)
        .y_label_area_size(marks.0)
        .build_cartesian_2d(x, y)?;
    let name = |axis: &Axis| format!("{}{}", axis.name, axis.unit.of_axis());
    chart
        .configure_mesh()
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .label_style(words(letters))
        .axis_desc_style(words(letters + 1))
        .x_labels(if plot.x.names.is_empty() { labels } else { plot.x.names.len().max(2) })
        .x_desc(if plot.x.names.is_empty() { name(&plot.x) } else { String::new() })
        .y_desc(name(&plot.y))
        .x_label_formatter(&|x| plot.x.tick(*x))
        .y_label_formatter(&|y| plot.y.tick(*y))
        .draw()?;
    // With many lines, darker shades would hide each other.
    let shade = if plot.lines.len() > 5 { 0.05 } else { 0.14 };
    for (number, (line, look)) in plot.lines.iter().zip(LOOKS.iter().cycle()).enumerate() {
        let shown = shown(plot, line);
        match plot.x.names.is_empty() {
            true => draw_line(&mut chart, &shown, *look, shade)?,
            // The marks of different lines are next to each other, so that no mark hides another mark.
            false => draw_places(&mut chart, &shown, *look, offset(number, plot.lines.len()))?,
        }
    }
    Ok(())
}

/// Returns the horizontal offset of a line's marks from the position of their value.
fn offset(number: usize, lines: usize) -> f64 {
    (number as f64 - (lines as f64 - 1.0) / 2.0) * 0.5 / lines as f64
}

/// Returns the points that can be drawn. A logarithmic axis shows only positive values.
fn shown(plot: &Plot, line: &Line) -> Vec<Point> {
    let some = |point: &&Point| {
        (!plot.y.logarithmic || point.y.median > 0.0) && (!plot.x.logarithmic || point.x > 0.0)
    };
    line.points.iter().filter(some).cloned().collect()
}

/// Returns the ranges of the axes, which include the values of all turns.
fn spans(plot: &Plot) -> (Span, Span) {
    let points: Vec<Point> = plot.lines.iter().flat_map(|line| shown(plot, line)).collect();
    let x = Span::over(&plot.x, points.iter().map(|point| point.x));
    let y = Span::over(&plot.y, points.iter().flat_map(|point| [point.y.low, point.y.high, point.y.median]));
    (x, y)
}

/// Draws a line with its marks and its shade.
fn draw_line(chart: &mut Chart, points: &[Point], look: Look, shade: f64) -> Drawn {
    let upper = points.iter().map(|point| (point.x, point.y.high));
    let lower = points.iter().rev().map(|point| (point.x, point.y.low));
    if points.len() > 1 {
        chart.draw_series([Polygon::new(upper.chain(lower).collect::<Vec<_>>(), look.colour.mix(shade))])?;
    }
    let middle: Vec<(f64, f64)> = points.iter().map(|point| (point.x, point.y.median)).collect();
    let style = look.colour.stroke_width(2);
    match look.dash {
        None => {
            chart.draw_series([PathElement::new(middle.clone(), style)])?;
        }
        Some((dash, gap)) => {
            chart.draw_series([DashedPathElement::new(middle.clone(), dash, gap, style)])?;
        }
    }
    // On a dense curve, a mark at every point would hide the curve.
    let every = middle.len().div_ceil(12).max(1);
    middle
        .into_iter()
        .step_by(every)
        .try_for_each(|place| Ok(chart.plotting_area().draw(&mark(place, look))?))
}

/// Draws the marks of a line without the line, for an axis with names.
fn draw_places(chart: &mut Chart, points: &[Point], look: Look, offset: f64) -> Drawn {
    for point in points {
        let x = point.x + offset;
        let bar = vec![(x, point.y.low), (x, point.y.high)];
        chart.draw_series([PathElement::new(bar, look.colour.stroke_width(2))])?;
        chart.plotting_area().draw(&mark((x, point.y.median), look))?;
    }
    Ok(())
}

/// Returns a mark at a position of a chart or of the drawing.
fn mark<'s, C: Clone + 's>(at: C, look: Look) -> DynElement<'s, SVGBackend<'s>, C> {
    let at = EmptyElement::at(at);
    let (filled, line) = (look.colour.filled(), look.colour.stroke_width(2));
    let square = [(-MARK, -MARK), (MARK, MARK)];
    match look.mark {
        Mark::Disc => (at + Circle::new((0, 0), MARK, filled)).into_dyn(),
        Mark::Ring => (at + Circle::new((0, 0), MARK, line)).into_dyn(),
        Mark::Square => (at + Rectangle::new(square, filled)).into_dyn(),
        Mark::Box => (at + Rectangle::new(square, line)).into_dyn(),
        Mark::Triangle => (at + TriangleMarker::new((0, 0), MARK + 2, filled)).into_dyn(),
        Mark::Cross => (at + Cross::new((0, 0), MARK, line)).into_dyn(),
    }
}

/// Draws the legend.
fn legend(plot: &Plot, shape: Shape, area: &Area) -> Drawn {
    let drawn = plot.lines.iter().zip(LOOKS.iter().cycle()).filter(|(line, _)| !line.points.is_empty());
    for (number, (line, look)) in drawn.enumerate() {
        let (left, place) = match shape {
            Shape::Wide => (0, number + 1),
            Shape::Narrow => (8 + (number % 2 * 192) as i32, number / 2 + 1),
        };
        let y = place as i32 * LINE as i32;
        let ends = vec![(left, y), (left + 34, y)];
        let style = look.colour.stroke_width(2);
        match (plot.x.names.is_empty(), look.dash) {
            (false, _) => {}
            (_, None) => area.draw(&PathElement::new(ends, style))?,
            (_, Some((dash, gap))) => area.draw(&DashedPathElement::new(ends, dash, gap, style))?,
        }
        area.draw(&mark((left + 17, y), *look))?;
        area.draw(&Text::new(line.name.clone(), (left + 42, y - 7), words(shape.measures().words + 1)))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
