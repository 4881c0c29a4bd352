//! What an experiment has found: tables and plots, as data. How they look is for [`text`](super::text),
//! [`page`](super::page) and [`draw`](super::draw) to say.

use super::measure::Figure;
use super::unit::Unit;
use serde::Serialize;

/// All of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// As it is named on the command line.
    pub(crate) experiment: &'static str,
    /// What it is about, in a line.
    pub(crate) title: &'static str,
    /// What was found, in a sentence each; the figures are medians.
    pub(crate) found: Vec<String>,
    /// What was done, and at which size.
    pub(crate) work: String,
    /// Figures, in the shape of what was published.
    pub(crate) tables: Vec<Table>,
    /// The same, drawn.
    pub(crate) plots: Vec<Plot>,
    /// What to keep in mind: where it differs from what was published, and from the host.
    pub(crate) notes: Vec<String>,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
}

/// Rows of cells under a heading each.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What the rows are.
    pub title: String,
    /// Headings, that of the rows' names included.
    pub columns: Vec<String>,
    /// In order.
    pub rows: Vec<Row>,
}

impl Table {
    /// Without the columns that have nothing in any row: what the host was not asked for, or a publication
    /// does not say.
    pub fn shown(&self) -> Table {
        let some = |column: usize| {
            column == 0 || self.rows.iter().any(|row| !matches!(row.cells[column - 1], Cell::Nothing))
        };
        let columns: Vec<usize> = (0..self.columns.len()).filter(|column| some(*column)).collect();
        let row = |row: &Row| Row {
            name: row.name.clone(),
            cells: columns[1..].iter().map(|column| row.cells[column - 1].clone()).collect(),
        };
        Table {
            title: self.title.clone(),
            columns: columns.iter().map(|column| self.columns[*column].clone()).collect(),
            rows: self.rows.iter().map(row).collect(),
        }
    }
}

impl Table {
    /// What stands in a row under these headings: `WHAT: Exclusive 861 ms, Released 6.1 us.` Nothing where
    /// there is no such row, or nothing in it.
    pub fn row_says(&self, what: &str, row: &str, columns: &[&str]) -> Option<String> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        let place = |name: &str| self.columns[1..].iter().position(|column| column == name);
        let cells = columns.iter().filter_map(|name| Some((*name, &row.cells[place(name)?])));
        said(what, cells)
    }

    /// What stands in a column, row by row, in the same form.
    pub fn column_says(&self, what: &str, column: usize) -> Option<String> {
        said(what, self.rows.iter().map(|row| (row.name.as_str(), &row.cells[column])))
    }

    /// The name of the last row.
    pub fn last_row(&self) -> &str {
        self.rows.last().map_or("", |row| &row.name)
    }
}

fn said<'c>(what: &str, cells: impl Iterator<Item = (&'c str, &'c Cell)>) -> Option<String> {
    let figures: Vec<String> =
        cells.filter_map(|(name, cell)| Some(format!("{name} {}", cell.figure()?))).collect();
    let between = if figures.iter().any(|figure| figure.contains(", ")) { "; " } else { ", " };
    (!figures.is_empty()).then(|| format!("{what}: {}.", figures.join(between)))
}

/// A name and its cells.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the row is of.
    pub name: String,
    /// As many as there are columns after the first.
    pub cells: Vec<Cell>,
}

/// What stands in a place of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Nothing: not measured, or not published.
    Nothing,
    /// Measured here.
    Measured {
        /// What it counts.
        unit: Unit,
        /// The figure.
        figure: Figure,
    },
    /// As published.
    Published {
        /// What it counts.
        unit: Unit,
        /// The value.
        value: f64,
    },
}

impl Cell {
    /// What was measured, without its spread.
    fn figure(&self) -> Option<String> {
        match self {
            Cell::Measured { unit, figure } => Some(unit.text(figure.median)),
            Cell::Nothing | Cell::Published { .. } => None,
        }
    }

    /// A figure, where there is one.
    pub fn measured(unit: Unit, figure: impl Into<Option<Figure>>) -> Cell {
        figure.into().map_or(Cell::Nothing, |figure| Cell::Measured { unit, figure })
    }

    /// What was published, where something was something.
    pub fn published(unit: Unit, value: impl Into<Option<f64>>) -> Cell {
        value.into().map_or(Cell::Nothing, |value| Cell::Published { unit, value })
    }
}

/// Lines over an axis.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// What is drawn.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// Each with a line of its own.
    pub lines: Vec<Line>,
}

/// A direction of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// What it means.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// Whether equal ratios are equal lengths.
    pub logarithmic: bool,
    /// Of an axis of things rather than of numbers: what stands at 1, 2, ...
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Axis {
    /// Equal differences are equal lengths.
    pub fn linear(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, logarithmic: false, names: Vec::new() }
    }

    /// Equal ratios are equal lengths.
    pub fn logarithmic(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, logarithmic: true, names: Vec::new() }
    }

    /// Things, at 1, 2, ...
    pub fn of<'n>(names: impl Iterator<Item = &'n str>) -> Axis {
        Axis { names: names.map(str::to_owned).collect(), ..Axis::linear("", Unit::Count) }
    }

    /// What stands at a mark.
    pub fn tick(&self, value: f64) -> String {
        let named = self.names.get((value.round() as usize).wrapping_sub(1));
        named.cloned().unwrap_or_else(|| self.unit.tick(value))
    }
}

/// Points in order, with what the turns spread around each.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// A design, or the host.
    pub name: String,
    /// Where and how much.
    pub points: Vec<Point>,
}

/// A place of a line.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: Figure,
}
