//! The findings of an experiment, as data: tables and plots. `text.rs`, `page.rs` and `draw.rs` determine
//! their appearance.
//!
//! Experiments create [`Findings`]. The JSON of `freehold reproduce --json` serialises these types, so
//! renaming a field changes that format. A row has one cell for each column after the first;
//! `experiments/tests.rs` checks this for every table. A measured cell keeps the values of all turns
//! ([`Figure`]); a published cell has one value. A new kind of cell needs an arm in `Cell::figure`, in
//! `text::parts` and in `Page::class`.

use super::measure::Figure;
use super::unit::Unit;
use serde::Serialize;

/// Findings of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Name on the command line.
    pub(crate) experiment: &'static str,
    /// Subject in one line.
    pub(crate) title: &'static str,
    /// The main results, one sentence each. The figures are medians.
    pub(crate) found: Vec<String>,
    /// The work that was measured, with its size.
    pub(crate) work: String,
    /// Figures, in the form of the published tables.
    pub(crate) tables: Vec<Table>,
    /// Plots of the figures.
    pub(crate) plots: Vec<Plot>,
    /// Remarks: differences from the published experiment, and from the host.
    pub(crate) notes: Vec<String>,
    /// Duration in seconds.
    pub(crate) seconds: f64,
}

/// Rows of cells with column headings.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Title that says what the rows show.
    pub title: String,
    /// Headings, including the heading of the row names.
    pub columns: Vec<String>,
    /// Rows in order.
    pub rows: Vec<Row>,
}

impl Table {
    /// Returns the table without the columns that are empty in all rows. Such a column was not measured or
    /// not published.
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
    /// Returns a sentence with the cells of a row under these headings: `WHAT: Exclusive 861 ms, Released 6.1
    /// us.` Returns `None` if there is no such row, or if all these cells are empty.
    pub fn row_says(&self, what: &str, row: &str, columns: &[&str]) -> Option<String> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        let place = |name: &str| self.columns[1..].iter().position(|column| column == name);
        let cells = columns.iter().filter_map(|name| Some((*name, &row.cells[place(name)?])));
        said(what, cells)
    }

    /// Returns a sentence with the cells of a column, row by row. The form is that of
    /// [`row_says`](Self::row_says).
    pub fn column_says(&self, what: &str, column: usize) -> Option<String> {
        said(what, self.rows.iter().map(|row| (row.name.as_str(), &row.cells[column])))
    }

    /// Returns the name of the last row.
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

/// A row name with its cells.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Subject of the row.
    pub name: String,
    /// One cell for each column after the first.
    pub cells: Vec<Cell>,
}

/// Content of a table cell.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Empty: not measured, or not published.
    Nothing,
    /// A measured value.
    Measured {
        /// Unit of the figure.
        unit: Unit,
        /// The figure.
        figure: Figure,
    },
    /// A published value.
    Published {
        /// Unit of the value.
        unit: Unit,
        /// The value.
        value: f64,
    },
}

impl Cell {
    /// Returns the measured value without its spread.
    fn figure(&self) -> Option<String> {
        match self {
            Cell::Measured { unit, figure } => Some(unit.text(figure.median)),
            Cell::Nothing | Cell::Published { .. } => None,
        }
    }

    /// Returns a measured cell, or an empty cell if `figure` is `None`.
    pub fn measured(unit: Unit, figure: impl Into<Option<Figure>>) -> Cell {
        figure.into().map_or(Cell::Nothing, |figure| Cell::Measured { unit, figure })
    }

    /// Returns a published cell, or an empty cell if `value` is `None`.
    pub fn published(unit: Unit, value: impl Into<Option<f64>>) -> Cell {
        value.into().map_or(Cell::Nothing, |value| Cell::Published { unit, value })
    }
}

/// Lines over an axis.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// Title of the plot.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// An axis of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// Meaning of the values.
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// True if the axis is logarithmic.
    pub logarithmic: bool,
    /// Names at positions 1, 2, ... for an axis of names instead of numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Axis {
    /// Creates a linear axis.
    pub fn linear(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, logarithmic: false, names: Vec::new() }
    }

    /// Creates a logarithmic axis.
    pub fn logarithmic(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, logarithmic: true, names: Vec::new() }
    }

    /// Creates an axis of names at positions 1, 2, ...
    pub fn of<'n>(names: impl Iterator<Item = &'n str>) -> Axis {
        Axis { names: names.map(str::to_owned).collect(), ..Axis::linear("", Unit::Count) }
    }

    /// Returns the label of a mark.
    pub fn tick(&self, value: f64) -> String {
        let named = self.names.get((value.round() as usize).wrapping_sub(1));
        named.cloned().unwrap_or_else(|| self.unit.tick(value))
    }
}

/// Points in order, each with the spread of its turns.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// A design, or the host.
    pub name: String,
    /// The points.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Horizontal position.
    pub x: f64,
    /// Vertical position.
    pub y: Figure,
}
