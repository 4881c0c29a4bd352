//! Assembles the picture: chooses the lanes (`lanes.rs`), places their rows, and lets `panel.rs`, `paint.rs`
//! and `strips.rs` draw the parts. `mod.rs` has the terms.
//!
//! Lengths are in pixels of the document: x grows with time, y downwards. Later parts cover earlier parts, so
//! the order in [`Picture::draw`] matters. If the document becomes too large, the picture is drawn again with
//! larger cells. `mod_tests.rs` checks that two drawings of a recording are equal, that the document is well
//! formed, and that its size is limited.

use super::lanes::{Lanes, lanes};
use super::life::Life;
use super::panel::{Panel, Place};
use super::svg::{Svg, width};
use super::{paint, style};
use crate::units;
use std::fmt::Write;
use std::ops::Range;

const WIDTH: f64 = 1000.0;
/// Left and right ends of the time axis.
pub(super) const LEFT: f64 = 92.0;
pub(super) const RIGHT: f64 = 980.0;
/// Top and height of the strip of fault rates.
const TOP: f64 = 66.0;
pub(super) const RATES: f64 = 34.0;
/// Height of all lanes together, and the height that each lane adds.
const LANES: f64 = 400.0;
const LANES_EACH: f64 = 36.0;
/// Room above a lane for its caption.
pub(super) const CAPTION: f64 = 15.0;
/// Height of the strip of processes without a lane.
pub(super) const OTHERS: f64 = 40.0;
/// Largest number of areas with a rectangle.
const MAX_AREAS: usize = 1200;
/// Size limit of a picture in bytes.
const MAX_BYTES: usize = 900_000;

/// Draws a recording as one SVG document. The result is the same each time for the same recording.
pub fn draw(name: &str, life: &Life) -> String {
    let mut cell = 1.0;
    loop {
        let picture = Picture::new(name, life, cell).draw();
        if picture.len() <= MAX_BYTES || cell > 16.0 {
            return picture;
        }
        cell *= 2.0;
    }
}

/// Draws a recording like [`draw`], with an invisible rectangle over each of the largest `areas`. The
/// attribute
/// `data-area` of a rectangle is the index of its area.
pub fn draw_with(name: &str, life: &Life, areas: &[Area]) -> String {
    let mut picture = draw(name, life);
    let end = picture.rfind("</svg>").unwrap_or(picture.len());
    let hot = Picture::new(name, life, 16.0).areas(areas);
    picture.insert_str(end, &hot);
    picture
}

/// A range of addresses that existed for some time, over which the page of `--report` shows a description.
#[derive(Clone, Debug)]
pub struct Area {
    /// Index of the address space in [`Life`].
    pub space: usize,
    /// The addresses.
    pub range: Range<u64>,
    /// The time in nanoseconds.
    pub time: Range<u64>,
}

/// The picture of a recording: its data, with the places of the lanes and panels.
pub(super) struct Picture<'a> {
    name: &'a str,
    pub(super) life: &'a Life,
    pub(super) lanes: Lanes,
    /// Top and height of each row.
    rows: Vec<(f64, f64)>,
    pub(super) panels: Vec<Panel>,
    /// Bottom edge of the lanes.
    bottom: f64,
}

impl<'a> Picture<'a> {
    fn new(name: &'a str, life: &'a Life, cell: f64) -> Self {
        let lanes = lanes(life);
        let mut picture = Picture { name, life, lanes, rows: Vec::new(), panels: Vec::new(), bottom: TOP };
        if life.faults > 0 {
            picture.bottom += RATES + 8.0;
        }
        picture.place_rows();
        for row in 0..picture.lanes.rows.len() {
            let (top, height) = picture.rows[row];
            for &process in &picture.lanes.rows[row] {
                for &number in &life.processes[process].own {
                    let space = &life.spaces[number];
                    let x = picture.x(space.from);
                    let width = (picture.x(space.to) - x).max(0.6);
                    let place = Place { x, y: top, width, height };
                    picture.panels.push(Panel::new(number, space, place, cell));
                }
            }
        }
        picture
    }

    /// Computes the rows. Rows with more faults are higher.
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

    /// Returns the horizontal position of a time in nanoseconds.
    pub(super) fn x(&self, time: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * time as f64 / self.life.end.max(1) as f64
    }

    fn draw(&self) -> String {
        let others = if self.lanes.left_out.is_empty() { 0.0 } else { CAPTION + OTHERS };
        let axis = self.bottom + others + 12.0;
        let mut svg = Svg::new(WIDTH, axis + 66.0, &style::style());
        svg.rect("page", [0.0, 0.0, WIDTH, axis + 66.0]);
        svg.raw(&style::patterns());
        self.title(&mut svg);
        self.rates(&mut svg, TOP);
        self.time_axis(&mut svg, TOP, axis);
        for panel in &self.panels {
            paint::memory(&mut svg, panel);
        }
        let most = self.panels.iter().flat_map(|panel| panel.faults.cells()).max().unwrap_or(0);
        for panel in &self.panels {
            paint::density(&mut svg, panel, most);
        }
        self.branches(&mut svg);
        self.captions(&mut svg);
        for (row, _) in self.rows.iter().enumerate() {
            self.addresses(&mut svg, row);
        }
        for panel in &self.panels {
            paint::names(&mut svg, panel);
        }
        if others > 0.0 {
            self.others(&mut svg, self.bottom + CAPTION);
        }
        self.legend(&mut svg, axis + 50.0, most);
        svg.finish()
    }

    /// Returns the rectangles of areas, the largest first, so that small ones are on top.
    fn areas(&self, areas: &[Area]) -> String {
        let mut found: Vec<(f64, usize, [f64; 4])> = Vec::new();
        for (index, area) in areas.iter().enumerate() {
            let Some(panel) = self.panels.iter().find(|panel| panel.space == area.space) else { continue };
            let Place { y, height, .. } = panel.place;
            let (left, right) = (self.x(area.time.start), self.x(area.time.end));
            let top = y + height - panel.scale.height(area.range.end);
            let bottom = y + height - panel.scale.height(area.range.start);
            let size = [left, top, (right - left).max(0.8), (bottom - top).max(0.8)];
            found.push((size[2] * size[3], index, size));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        found.truncate(MAX_AREAS);
        let mut text = String::new();
        for (_, index, [x, y, width, height]) in found {
            writeln!(
                text,
                "<rect class=\"area\" data-area=\"{index}\" fill=\"none\" pointer-events=\"all\" x=\"{x:.1}\" \
                 y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            )
            .expect("writing to a String cannot fail");
        }
        text
    }

    fn title(&self, svg: &mut Svg) {
        let life = self.life;
        svg.words("title", LEFT, 28.0, self.name);
        let faults = match life.faults {
            0 => String::new(),
            some => format!(", about {} page faults", units::count(rounded(some))),
        };
        let time = units::nanoseconds(life.end);
        let said = format!("{}{faults} in {time}", processes(life.processes.len()));
        svg.words("small", LEFT, 46.0, &said);
        svg.words(
            "axis end",
            RIGHT,
            46.0,
            "addresses increase upwards; unmapped ranges are omitted, busy ranges enlarged",
        );
    }

    /// Draws lines from each parent to its children.
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
            write!(lines, "M{x:.1} {:.1}V{:.1}", top + height, self.rows[row].0)
                .expect("writing to a String cannot fail");
            write!(dots, "M{x:.1} {:.1}h0", top + height).expect("writing to a String cannot fail");
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
                let name = if process.name.is_empty() { "process" } else { &process.name };
                let words = format!("{name} ({})", process.serial);
                if width(&words, 11.0) + 4.0 < end - x {
                    svg.words("caption", x + 2.0, top - 3.5, &words);
                }
            }
        }
    }

    /// Writes addresses at the left of a row, if the first process of the row begins at the left edge.
    fn addresses(&self, svg: &mut Svg, row: usize) {
        let (top, height) = self.rows[row];
        let panel = self.panels.iter().find(|panel| panel.place.y == top && panel.place.width > 60.0);
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
}

/// Returns `1 process`, `18 processes`.
pub(super) fn processes(number: usize) -> String {
    format!("{} process{}", units::count(number as u64), if number == 1 { "" } else { "es" })
}

/// Rounds to three digits.
pub(super) fn rounded(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 1000 {
        unit *= 10;
    }
    (number + unit / 2) / unit * unit
}
