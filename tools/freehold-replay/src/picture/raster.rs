//! Grids of cells, and a small number of rectangles that cover all cells of equal value.
//!
//! `panel.rs` fills a [`Grid`] with memory kinds and with fault counts; `paint.rs` draws one rectangle for
//! many cells of equal value ([`Grid::rectangles`]), which keeps the SVG small. [`rectangle`] writes one
//! rectangle as path data. Columns count from the left and rows from the top, both from 0. The tests are in
//! `raster_tests.rs`.

use std::fmt::Write;

/// A value for each cell. `T::default()` means empty.
pub struct Grid<T> {
    /// Number of columns.
    pub columns: usize,
    /// Number of rows.
    pub rows: usize,
    /// The values, row by row.
    cells: Vec<T>,
}

impl<T: Copy + Default + PartialEq> Grid<T> {
    /// Creates an empty grid.
    pub fn new(columns: usize, rows: usize) -> Self {
        Grid { columns, rows, cells: vec![T::default(); columns * rows] }
    }

    /// Returns the value of a cell.
    pub fn get(&self, column: usize, row: usize) -> T {
        self.cells[row * self.columns + column]
    }

    /// Returns all values.
    pub fn cells(&self) -> impl Iterator<Item = T> + '_ {
        self.cells.iter().copied()
    }

    /// Returns a mutable reference to the value of a cell.
    pub fn get_mut(&mut self, column: usize, row: usize) -> &mut T {
        &mut self.cells[row * self.columns + column]
    }

    /// Returns rectangles of equal value that cover all non-empty cells: first column, first row, columns,
    /// rows.
    pub fn rectangles(&self) -> Vec<(T, [usize; 4])> {
        let mut done: Vec<(T, [usize; 4])> = Vec::new();
        // Rectangles whose last row is the previous row, ordered by first column.
        let mut open: Vec<(T, [usize; 4])> = Vec::new();
        for row in 0..self.rows {
            let mut still = Vec::with_capacity(open.len());
            let mut before = open.into_iter().peekable();
            for (value, column, columns) in self.runs(row) {
                while let Some(over) = before.next_if(|(_, [start, ..])| *start < column) {
                    done.push(over);
                }
                match before.next_if(|(old, [start, _, long, _])| {
                    *old == value && *start == column && *long == columns
                }) {
                    Some((_, [_, top, _, rows])) => still.push((value, [column, top, columns, rows + 1])),
                    None => still.push((value, [column, row, columns, 1])),
                }
            }
            done.extend(before);
            open = still;
        }
        done.extend(open);
        done
    }

    /// Returns runs of equal, non-empty cells in a row: value, first column, number of columns.
    fn runs(&self, row: usize) -> Vec<(T, usize, usize)> {
        let cells = &self.cells[row * self.columns..][..self.columns];
        let mut column = 0;
        let mut found = Vec::new();
        for run in cells.chunk_by(|left, right| left == right) {
            if run[0] != T::default() {
                found.push((run[0], column, run.len()));
            }
            column += run.len();
        }
        found
    }
}

/// Appends the path data of a rectangle.
pub fn rectangle(path: &mut String, x: f64, y: f64, width: f64, height: f64) {
    let number = |value: f64| {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    };
    write!(path, "M{} {}h{}v{}h-{}z", number(x), number(y), number(width), number(height), number(width))
        .expect("writing to a String cannot fail");
}

#[cfg(test)]
#[path = "raster_tests.rs"]
mod tests;
