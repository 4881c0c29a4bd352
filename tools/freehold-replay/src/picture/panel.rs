//! One address space as grids of cells: its mappings and its faults.
//!
//! Time runs from left to right, addresses from bottom to top. [`Panel::new`] rasterises the blocks of a
//! [`Space`] (`life.rs`) into a [`Grid`] of memory kinds and a grid of fault counts; `scale.rs` maps
//! addresses to heights. `paint.rs` draws the grids. A panel is plain data and does not change. A cell of
//! memory shows the kind that covers the largest part of the cell.

use super::kind::Kind;
use super::life::Space;
use super::raster::Grid;
use super::scale::Scale;

/// Position of a panel in the picture.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Left edge, in units of the SVG.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// The drawing of an address space.
pub struct Panel {
    /// Index of the address space.
    pub space: usize,
    /// The position in the picture.
    pub place: Place,
    /// The scale of addresses.
    pub scale: Scale,
    /// Side length of a memory cell.
    pub cell: f64,
    /// 0 for no memory, otherwise the index of the kind plus 1.
    pub memory: Grid<u8>,
    /// Side length of a fault cell.
    pub fault_cell: f64,
    /// Number of faults in each cell.
    pub faults: Grid<u32>,
}

impl Panel {
    /// Rasterises the address space with this number. `cell` is the side length of a memory cell.
    pub fn new(number: usize, space: &Space, place: Place, cell: f64) -> Panel {
        let scale = Scale::new(&space.blocks, &space.faults, place.height);
        let memory = memory(space, &scale, place, cell);
        let fault_cell = 2.0 * cell;
        let faults = faults(space, &scale, place, fault_cell);
        Panel { space: number, place, scale, cell, memory, fault_cell, faults }
    }
}

/// Returns the numbers of columns and rows of cells.
fn cells(place: Place, cell: f64) -> (usize, usize) {
    let many = |length: f64| ((length / cell).ceil() as usize).max(1);
    (many(place.width), many(place.height))
}

/// Converts a time in nanoseconds to a fraction of the lifetime of the address space.
fn moment(space: &Space, time: u64) -> f64 {
    (time - space.from) as f64 / (space.to - space.from).max(1) as f64
}

/// Returns the kind of memory that covers most of each cell.
fn memory(space: &Space, scale: &Scale, place: Place, cell: f64) -> Grid<u8> {
    let (columns, rows) = cells(place, cell);
    let mut shares: Vec<Grid<f32>> = Kind::ALL.iter().map(|_| Grid::new(columns, rows)).collect();
    let across = place.width / cell;
    for block in &space.blocks {
        let grid = &mut shares[block.memory.shown() as usize];
        let (left, right) = (moment(space, block.from) * across, moment(space, block.to) * across);
        let top = (place.height - scale.height(block.end)) / cell;
        let bottom = (place.height - scale.height(block.start)) / cell;
        for (row, tall) in covered(top, bottom, rows) {
            for (column, wide) in covered(left, right, columns) {
                *grid.get_mut(column, row) += (tall * wide) as f32;
            }
        }
    }
    let mut memory = Grid::new(columns, rows);
    for row in 0..rows {
        for column in 0..columns {
            let share = |kind: &Kind| shares[*kind as usize].get(column, row);
            let all: f32 = Kind::ALL.iter().map(share).sum();
            let most = Kind::ALL.iter().rev().max_by(|a, b| share(a).total_cmp(&share(b)));
            if let Some(kind) = most.filter(|_| all > 0.3) {
                *memory.get_mut(column, row) = *kind as u8 + 1;
            }
        }
    }
    memory
}

/// Returns the cells between two positions, with the covered part of each cell.
fn covered(from: f64, to: f64, cells: usize) -> impl Iterator<Item = (usize, f64)> {
    let first = (from.max(0.0) as usize).min(cells);
    let last = (to.ceil().max(0.0) as usize).min(cells);
    (first..last).map(move |cell| {
        let share = to.min(cell as f64 + 1.0) - from.max(cell as f64);
        (cell, share.max(0.0))
    })
}

/// Returns the number of faults in each cell.
fn faults(space: &Space, scale: &Scale, place: Place, cell: f64) -> Grid<u32> {
    let (columns, rows) = cells(place, cell);
    let mut grid = Grid::new(columns, rows);
    for (time, page) in &space.faults {
        let across = moment(space, *time) * place.width / cell;
        let down = (place.height - scale.height(page * 4096 + 2048)) / cell;
        *grid.get_mut((across as usize).min(columns - 1), (down.max(0.0) as usize).min(rows - 1)) += 1;
    }
    grid
}
