//! Paints a panel: kinds of memory, faults on top, and names.
//!
//! `draw.rs` calls [`memory`], [`density`] and [`names`] in this order for each panel; each appends elements
//! to the [`Svg`]. Colours are CSS classes of `style.rs`. A panel is not changed. `Picture::draw` determines
//! the order of the layers.

use super::kind::Kind;
use super::panel::{Panel, Place};
use super::raster::{Grid, rectangle};
use super::style::DARKNESS;
use super::svg::{Svg, width};
use crate::units;

/// Paints memory by kind.
pub fn memory(svg: &mut Svg, panel: &Panel) {
    let Place { x, y, width, height } = panel.place;
    svg.rect("lane", [x, y, width, height]);
    let mut paths = vec![String::new(); Kind::ALL.len()];
    for (value, [column, row, columns, rows]) in panel.memory.rectangles() {
        let cell = panel.cell;
        let (left, top) = (column as f64 * cell, row as f64 * cell);
        let wide = (columns as f64 * cell).min(width - left);
        let tall = (rows as f64 * cell).min(height - top);
        rectangle(&mut paths[usize::from(value) - 1], x + left, y + top, wide, tall);
    }
    for (kind, path) in Kind::ALL.into_iter().zip(&paths) {
        svg.path(&kind.class().to_string(), path);
        if kind.hatch().is_some() {
            svg.path(&format!("x{}", kind.class()), path);
        }
    }
}

/// Returns the level of darkness for a number of faults.
fn level(faults: u32, most: u32) -> u8 {
    if faults == 0 {
        return 0;
    }
    let share = f64::from(faults).ln() / f64::from(most.max(2)).ln();
    1 + (share * (DARKNESS.len() - 1) as f64).round() as u8
}

/// Paints faults: a cell with more faults is darker. `most` is the largest number in any cell of the picture.
pub fn density(svg: &mut Svg, panel: &Panel, most: u32) {
    let mut levels = Grid::new(panel.faults.columns, panel.faults.rows);
    for row in 0..levels.rows {
        for column in 0..levels.columns {
            *levels.get_mut(column, row) = level(panel.faults.get(column, row), most);
        }
    }
    let Place { x, y, width, height } = panel.place;
    let mut paths = vec![String::new(); DARKNESS.len()];
    for (value, [column, row, columns, rows]) in levels.rectangles() {
        let (left, top) = (column as f64 * panel.fault_cell, row as f64 * panel.fault_cell);
        let wide = (columns as f64 * panel.fault_cell).min(width - left);
        let tall = (rows as f64 * panel.fault_cell).min(height - top);
        rectangle(&mut paths[usize::from(value) - 1], x + left, y + top, wide, tall);
    }
    for (level, path) in paths.iter().enumerate() {
        svg.path(&format!("d{level}"), path);
    }
}

/// Writes the name of each run into the longest period in which the middle of the run was mapped. Omits a
/// name that does not fit.
pub fn names(svg: &mut Svg, panel: &Panel) {
    let Place { x, y, height, .. } = panel.place;
    for run in panel.scale.runs.iter().filter(|run| run.high - run.low >= 14.0) {
        let words = format!("{}, {}", run.kind.name(), units::bytes(run.bytes));
        let middle = height - (run.low + run.high) / 2.0;
        let row = ((middle / panel.cell) as usize).min(panel.memory.rows - 1);
        let cells: Vec<(usize, bool)> = (0..panel.memory.columns)
            .map(|column| (column, panel.memory.get(column, row) == run.kind as u8 + 1))
            .collect();
        let stretches = cells.chunk_by(|left, right| left.1 == right.1).filter(|stretch| stretch[0].1);
        let Some(longest) = stretches.max_by_key(|stretch| stretch.len()) else { continue };
        if width(&words, 10.5) + 14.0 < longest.len() as f64 * panel.cell {
            svg.words("name", x + longest[0].0 as f64 * panel.cell + 7.0, y + middle + 3.5, &words);
        }
    }
}
