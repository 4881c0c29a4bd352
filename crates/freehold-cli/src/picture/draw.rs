//! Puts the picture together.

use super::kind::Kind;
use super::lanes::{Lanes, lanes};
use super::life::Life;
use super::panel::{FAULT_CELL, Panel, Place};
use super::raster::{Grid, rectangle};
use super::svg::{Svg, escaped};
use crate::units;
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
/// Left and right ends of the time axis.
const LEFT: f64 = 92.0;
const RIGHT: f64 = 980.0;
/// Heights: of the strip of fault rates, of all lanes together and what each adds, of a lane's caption, of the strip of other processes.
const RATES: f64 = 34.0;
const LANES: f64 = 400.0;
const LANES_EACH: f64 = 36.0;
const CAPTION: f64 = 15.0;
const OTHERS: f64 = 40.0;
/// Levels of the density of faults, and how dark they are.
const DARKNESS: [f64; 5] = [0.20, 0.36, 0.52, 0.70, 0.90];
/// A picture stays below so many bytes.
const MOST_BYTES: usize = 900_000;

/// The picture of a recording as one SVG document, the same for the same recording.
pub fn draw(name: &str, life: &Life) -> String {
    let mut cell = 1.0;
    loop {
        let picture = Picture::new(name, life, cell).draw();
        if picture.len() <= MOST_BYTES || cell > 16.0 {
            return picture;
        }
        cell *= 2.0;
    }
}

struct Picture<'a> {
    name: &'a str,
    life: &'a Life,
    lanes: Lanes,
    /// Top and height of each row.
    rows: Vec<(f64, f64)>,
    /// Panels with their process and whether they begin it.
    panels: Vec<(usize, Panel)>,
    bottom: f64,
}

impl<'a> Picture<'a> {
    fn new(name: &'a str, life: &'a Life, cell: f64) -> Self {
        let lanes = lanes(life);
        let mut picture =
            Picture { name, life, lanes, rows: Vec::new(), panels: Vec::new(), bottom: 66.0 + RATES + 8.0 };
        picture.place_rows();
        for row in 0..picture.lanes.rows.len() {
            let (top, height) = picture.rows[row];
            for &process in &picture.lanes.rows[row] {
                for &space in &life.processes[process].own {
                    let space = &life.spaces[space];
                    let x = picture.x(space.from);
                    let width = (picture.x(space.to) - x).max(0.6);
                    let place = Place { x, y: top, width, height };
                    picture.panels.push((process, Panel::new(space, place, cell)));
                }
            }
        }
        picture
    }

    /// Busier rows are higher.
    fn place_rows(&mut self) {
        let life = self.life;
        let faults = |process: &usize| -> usize {
            life.processes[*process].own.iter().map(|space| life.spaces[*space].faults.len()).sum()
        };
        let weights: Vec<f64> = (self.lanes.rows.iter())
            .map(|row| {
                0.12 + row.iter().map(faults).max().unwrap_or(0) as f64 / life.faults.max(1) as f64 * 4.0
            })
            .map(f64::sqrt)
            .collect();
        let all: f64 = weights.iter().sum();
        let room = LANES + (LANES_EACH - CAPTION) * weights.len() as f64;
        for weight in weights {
            let height = (room * weight / all).min(400.0).round();
            self.rows.push((self.bottom + CAPTION, height));
            self.bottom += CAPTION + height;
        }
    }

    fn x(&self, time: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * time as f64 / self.life.end.max(1) as f64
    }

    fn draw(&self) -> String {
        let others = if self.lanes.left_out.is_empty() { 0.0 } else { CAPTION + OTHERS };
        let axis = self.bottom + others + 6.0;
        let mut svg = Svg::new(WIDTH, axis + 66.0, &style());
        svg.rect("page", [0.0, 0.0, WIDTH, axis + 66.0]);
        svg.raw(&patterns());
        self.title(&mut svg);
        self.rates(&mut svg, 66.0);
        self.time_axis(&mut svg, axis);
        for (_, panel) in &self.panels {
            memory(&mut svg, panel);
        }
        let most = self.panels.iter().flat_map(|(_, panel)| counts(&panel.faults)).max().unwrap_or(0);
        for (_, panel) in &self.panels {
            density(&mut svg, panel, most);
        }
        self.branches(&mut svg);
        self.captions(&mut svg);
        for (row, _) in self.rows.iter().enumerate() {
            self.addresses(&mut svg, row);
        }
        for (_, panel) in &self.panels {
            names(&mut svg, panel);
        }
        if others > 0.0 {
            self.others(&mut svg, self.bottom + CAPTION);
        }
        self.legend(&mut svg, axis + 50.0, most);
        svg.finish()
    }

    fn title(&self, svg: &mut Svg) {
        let life = self.life;
        svg.words("title", LEFT, 28.0, self.name);
        let said = format!(
            "{}, about {} page faults in {}",
            processes(life.processes.len()),
            units::count(rounded(life.faults)),
            units::nanoseconds(life.end),
        );
        svg.words("small", LEFT, 46.0, &said);
        svg.words(
            "axis end",
            RIGHT,
            46.0,
            "addresses upwards, what was never mapped left out, what is busy stretched",
        );
    }

    /// Faults per second over time.
    fn rates(&self, svg: &mut Svg, top: f64) {
        let columns = ((RIGHT - LEFT) / 2.0) as usize;
        let mut bins = vec![0u64; columns];
        for space in &self.life.spaces {
            for (time, _) in &space.faults {
                let bin = (*time as f64 / self.life.end.max(1) as f64 * columns as f64) as usize;
                bins[bin.min(columns - 1)] += 1;
            }
        }
        let most = bins.iter().copied().max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let mut path = format!("M{LEFT} {:.1}", top + RATES);
        for (index, bin) in bins.iter().enumerate() {
            let y = top + RATES * (1.0 - *bin as f64 / most as f64);
            let x = LEFT + index as f64 * 2.0;
            write!(path, "V{y:.1}H{:.1}", x + 2.0).expect("a string takes all");
        }
        write!(path, "V{:.1}z", top + RATES).expect("a string takes all");
        svg.path("rate", &path);
        let second = columns as f64 / (self.life.end.max(1) as f64 / 1e9);
        let peak = most as f64 * second;
        svg.words("axis end", LEFT - 6.0, top + 8.0, &units::count(peak as u64));
        svg.words("axis end", LEFT - 6.0, top + 19.0, "faults/s");
        svg.words("axis end", LEFT - 6.0, top + RATES, "0");
    }

    fn time_axis(&self, svg: &mut Svg, y: f64) {
        let seconds = self.life.end as f64 / 1e9;
        let step = nice(seconds / 8.0);
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let mut grid = String::new();
        let mut index = 0;
        while index as f64 * step <= seconds * 1.0001 {
            let x = LEFT + (RIGHT - LEFT) * index as f64 * step / seconds.max(1e-9);
            write!(grid, "M{x:.1} 66V{:.1}", y + 4.0).expect("a string takes all");
            let unit = if index == 0 { " s" } else { "" };
            svg.words("axis mid", x, y + 16.0, &format!("{:.digits$}{unit}", index as f64 * step));
            index += 1;
        }
        svg.path("grid", &grid);
        let mut marks = String::new();
        for time in &self.life.snapshots {
            write!(marks, "M{:.1} {y:.1}v-5", self.x(*time)).expect("a string takes all");
        }
        svg.path("mark", &marks);
        if !marks.is_empty() {
            svg.words("address", LEFT - 6.0, y, "snapshots");
        }
        svg.path("line", &format!("M{LEFT} {y:.1}H{RIGHT}"));
    }

    /// Lines from a parent to its children.
    fn branches(&self, svg: &mut Svg) {
        let mut row_of = vec![None; self.life.processes.len()];
        for (row, processes) in self.lanes.rows.iter().enumerate() {
            processes.iter().for_each(|process| row_of[*process] = Some(row));
        }
        let (mut lines, mut dots) = (String::new(), String::new());
        for (index, process) in self.life.processes.iter().enumerate() {
            let parent = process.parent.and_then(|parent| row_of[parent]);
            let (Some(row), Some(parent)) = (row_of[index], parent) else { continue };
            let x = self.x(process.from);
            let (top, height) = self.rows[parent];
            write!(lines, "M{x:.1} {:.1}V{:.1}", top + height, self.rows[row].0).expect("a string takes all");
            write!(dots, "M{x:.1} {:.1}h0", top + height).expect("a string takes all");
        }
        svg.path("halo", &lines);
        svg.path("branch", &lines);
        svg.path("dot", &dots);
    }

    fn captions(&self, svg: &mut Svg) {
        for (row, processes) in self.lanes.rows.iter().enumerate() {
            let (top, _) = self.rows[row];
            for (index, process) in processes.iter().enumerate() {
                let process = &self.life.processes[*process];
                let x = self.x(process.from);
                let end =
                    processes.get(index + 1).map_or(RIGHT, |next| self.x(self.life.processes[*next].from));
                let words = format!("{} ({})", process.name, process.serial);
                if words.chars().count() as f64 * 5.8 < end - x {
                    svg.words("caption", x + 2.0, top - 3.5, &words);
                }
            }
        }
    }

    /// Addresses at the left of a row whose first process begins there.
    fn addresses(&self, svg: &mut Svg, row: usize) {
        let (top, height) = self.rows[row];
        let panel = self
            .panels
            .iter()
            .map(|(_, panel)| panel)
            .find(|panel| panel.place.y == top && panel.place.width > 60.0);
        let Some(panel) = panel.filter(|panel| panel.place.x < LEFT + 40.0) else { return };
        let mut before = f64::INFINITY;
        for (index, run) in panel.scale.runs.iter().enumerate() {
            let y = top + height - run.low;
            if (index == 0 || run.apart) && before - y > 11.0 {
                svg.words("address", LEFT - 6.0, y, &format!("{:x}", run.start));
                before = y;
            }
        }
    }

    /// How many of the processes without a lane there were.
    fn others(&self, svg: &mut Svg, top: f64) {
        let columns = (RIGHT - LEFT) as usize;
        let mut alive = vec![0i64; columns + 1];
        for &index in &self.lanes.left_out {
            let process = &self.life.processes[index];
            let column = |time: u64| ((self.x(time) - LEFT) as usize).min(columns - 1);
            alive[column(process.from)] += 1;
            alive[column(process.to) + 1] -= 1;
        }
        let mut now = 0;
        for column in &mut alive {
            now += *column;
            *column = now;
        }
        let most = alive.iter().copied().max().unwrap_or(0).max(1);
        let mut path = format!("M{LEFT} {:.1}", top + OTHERS);
        for run in alive[..columns].iter().enumerate().collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1) {
            let y = top + OTHERS * (1.0 - *run[0].1 as f64 / most as f64);
            let end = LEFT + run[run.len() - 1].0 as f64 + 1.0;
            write!(path, "V{y:.1}H{end}").expect("a string takes all");
        }
        write!(path, "V{:.1}z", top + OTHERS).expect("a string takes all");
        svg.path("others", &path);
        let words =
            format!("{} without a lane: how many lived at each moment", processes(self.lanes.left_out.len()));
        svg.words("caption", LEFT + 2.0, top - 3.5, &words);
        svg.words("axis end", LEFT - 6.0, top + 8.0, &units::count(most as u64));
        svg.words("axis end", LEFT - 6.0, top + OTHERS, "0");
    }

    fn legend(&self, svg: &mut Svg, y: f64, most: u32) {
        let mut x = LEFT;
        let shown = |kind: Kind| {
            self.panels.iter().any(|(_, panel)| {
                (0..panel.memory.rows).any(|row| {
                    (0..panel.memory.columns).any(|column| panel.memory.get(column, row) == kind as u8 + 1)
                })
            })
        };
        for kind in Kind::ALL.into_iter().filter(|kind| shown(*kind)) {
            svg.rect(&kind.class().to_string(), [x, y - 10.0, 14.0, 12.0]);
            if kind.hatch().is_some() {
                svg.rect(&format!("x{}", kind.class()), [x, y - 10.0, 14.0, 12.0]);
            }
            svg.words("small", x + 19.0, y, kind.name());
            x += 19.0 + 14.0 + kind.name().len() as f64 * 6.4 + 8.0;
        }
        let x = RIGHT - 14.0 * DARKNESS.len() as f64 - 38.0;
        svg.words("small end", x - 6.0, y, "faults in a cell: 1");
        for level in 0..DARKNESS.len() {
            svg.rect(&format!("d{level}"), [x + 14.0 * level as f64, y - 10.0, 14.0, 12.0]);
        }
        svg.words("small", x + 14.0 * DARKNESS.len() as f64 + 5.0, y, &units::count(u64::from(most)));
    }
}

fn processes(number: usize) -> String {
    format!("{} process{}", units::count(number as u64), if number == 1 { "" } else { "es" })
}

/// The first three digits.
fn rounded(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 1000 {
        unit *= 10;
    }
    number / unit * unit
}

fn counts(grid: &Grid<u32>) -> impl Iterator<Item = u32> + '_ {
    (0..grid.rows).flat_map(move |row| (0..grid.columns).map(move |column| grid.get(column, row)))
}

fn memory(svg: &mut Svg, panel: &Panel) {
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

/// The level of darkness that so many faults have.
fn level(faults: u32, most: u32) -> u8 {
    if faults == 0 {
        return 0;
    }
    let share = f64::from(faults).ln() / f64::from(most.max(2)).ln();
    1 + (share * (DARKNESS.len() - 1) as f64).round() as u8
}

fn density(svg: &mut Svg, panel: &Panel, most: u32) {
    let mut levels = Grid::new(panel.faults.columns, panel.faults.rows);
    for row in 0..levels.rows {
        for column in 0..levels.columns {
            *levels.get_mut(column, row) = level(panel.faults.get(column, row), most);
        }
    }
    let Place { x, y, width, height } = panel.place;
    let mut paths = vec![String::new(); DARKNESS.len()];
    for (value, [column, row, columns, rows]) in levels.rectangles() {
        let (left, top) = (column as f64 * FAULT_CELL, row as f64 * FAULT_CELL);
        let wide = (columns as f64 * FAULT_CELL).min(width - left);
        let tall = (rows as f64 * FAULT_CELL).min(height - top);
        rectangle(&mut paths[usize::from(value) - 1], x + left, y + top, wide, tall);
    }
    for (level, path) in paths.iter().enumerate() {
        svg.path(&format!("d{level}"), path);
    }
}

/// Names of the runs, where there is room: in the longest stretch of time in which their middle was mapped.
fn names(svg: &mut Svg, panel: &Panel) {
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
        if words.len() as f64 * 5.6 + 14.0 < longest.len() as f64 * panel.cell {
            svg.words("name", x + longest[0].0 as f64 * panel.cell + 7.0, y + middle + 3.5, &words);
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|nice| *nice >= step)
        .unwrap_or(power * 10.0)
}

fn style() -> String {
    let mut style = "text{fill:#222}.title{font-size:20px;font-weight:bold}.small{font-size:12px}\
        .axis{font-size:11px;fill:#555}.caption{font-size:11px;stroke:#fff;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}.address{font-size:9.5px;fill:#666;text-anchor:end}\
        .end{text-anchor:end}.mid{text-anchor:middle}\
        .name{font-size:10.5px;fill:#111;stroke:#fff;stroke-opacity:.75;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}\
        .page{fill:#fff}.lane{fill:#fff;stroke:#c8c8c8;stroke-width:.6}\
        .grid{stroke:#e4e4e4;fill:none}.line{stroke:#555;fill:none}.mark{stroke:#999;fill:none}\
        .rate,.others{fill:#5a6b7b;shape-rendering:crispEdges}\
        .halo{stroke:#fff;stroke-width:2.4;fill:none;opacity:.55}.branch{stroke:#222;stroke-width:.9;fill:none}\
        .dot{stroke:#111;stroke-width:5;stroke-linecap:round;fill:none}"
        .to_owned();
    for kind in Kind::ALL {
        let (class, colour) = (kind.class(), kind.colour());
        write!(style, ".{class}{{fill:{colour};shape-rendering:crispEdges}}").expect("a string takes all");
        if kind.hatch().is_some() {
            write!(style, ".x{class}{{fill:url(#x{class})}}").expect("a string takes all");
        }
    }
    for (level, opacity) in DARKNESS.iter().enumerate() {
        write!(style, ".d{level}{{fill:#0b1a30;fill-opacity:{opacity};shape-rendering:crispEdges}}")
            .expect("a string takes all");
    }
    style
}

fn patterns() -> String {
    let mut defs = "<defs>".to_owned();
    for kind in Kind::ALL {
        if let Some(lines) = kind.hatch() {
            write!(
                defs,
                "<pattern id=\"x{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path d=\"{}\" \
                 stroke=\"#fff\" stroke-opacity=\".55\" stroke-width=\"1.2\" fill=\"none\"/></pattern>",
                kind.class(),
                escaped(lines)
            )
            .expect("a string takes all");
        }
    }
    defs + "</defs>"
}
