//! Tests the cover of a grid by rectangles (`raster.rs`). A grid is written as lines of digits (`grid`), in
//! which 0 is an empty cell. `assert_covers` checks that the rectangles paint each cell at most once, and
//! together reproduce the grid. One test tries every grid of 3 by 3 cells with two values and empty cells.

use super::*;

/// Builds a grid from lines of digits.
fn grid(lines: &[&str]) -> Grid<u8> {
    let mut grid = Grid::new(lines[0].len(), lines.len());
    for (row, line) in lines.iter().enumerate() {
        for (column, digit) in line.bytes().enumerate() {
            *grid.get_mut(column, row) = digit - b'0';
        }
    }
    grid
}

/// Checks that the rectangles paint each cell at most once, and reproduce the grid.
fn assert_covers(grid: &Grid<u8>, rectangles: &[(u8, [usize; 4])]) {
    let mut painted = Grid::new(grid.columns, grid.rows);
    for (value, [column, row, columns, rows]) in rectangles {
        for row in *row..row + rows {
            for column in *column..column + columns {
                assert_eq!(painted.get(column, row), 0, "painted twice");
                *painted.get_mut(column, row) = *value;
            }
        }
    }
    assert!(painted.cells == grid.cells);
}

#[test]
fn equal_rows_are_one_rectangle() {
    let grid = grid(&["0110", "0110", "0112"]);
    let mut found = grid.rectangles();
    found.sort_unstable();
    assert_eq!(found, [(1, [1, 0, 2, 3]), (2, [3, 2, 1, 1])]);
    assert_covers(&grid, &found);
}

#[test]
fn every_small_grid_is_covered() {
    for cells in 0..3usize.pow(9) {
        let mut grid = Grid::new(3, 3);
        let mut rest = cells;
        for cell in &mut grid.cells {
            *cell = (rest % 3) as u8;
            rest /= 3;
        }
        assert_covers(&grid, &grid.rectangles());
    }
}

#[test]
fn path_data_is_short() {
    let mut path = String::new();
    rectangle(&mut path, 10.0, 2.25, 4.0, 1.0);
    assert_eq!(path, "M10 2.2h4v1h-4z");
}
