//! The parts above and below the lanes: fault rates, other processes, time axis, legend.
//!
//! `draw.rs` calls these functions for the strips, from top to bottom, with the position of each. They read
//! the data of the picture ([`Picture`]) and append elements to the [`Svg`]. The lanes between the strips are
//! drawn by `paint.rs`. A new strip needs a function here. `Picture::draw` (`draw.rs`) must call the
//! function, and add the strip's height to the document.

use super::draw::{LEFT, OTHERS, Picture, RATES, RIGHT, processes, rounded};
use super::kind::Kind;
use super::style::DARKNESS;
use super::svg::{Svg, width};
use crate::units;
use std::fmt::Write;

impl Picture<'_> {
    /// Draws the faults per second over time.
    pub(super) fn rates(&self, svg: &mut Svg, top: f64) {
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
            write!(path, "V{y:.1}H{:.1}", x + 2.0).expect("writing to a String cannot fail");
        }
        write!(path, "V{:.1}z", top + RATES).expect("writing to a String cannot fail");
        svg.path("rate", &path);
        let second = columns as f64 / (self.life.end.max(1) as f64 / 1e9);
        let peak = most as f64 * second;
        svg.words("axis end", LEFT - 6.0, top + 8.0, &units::count(rounded(peak as u64)));
        svg.words("axis end", LEFT - 6.0, top + 19.0, "faults/s");
        svg.words("axis end", LEFT - 6.0, top + RATES, "0");
    }

    /// Draws the number of living processes without a lane over time.
    pub(super) fn others(&self, svg: &mut Svg, top: f64) {
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
            write!(path, "V{y:.1}H{end}").expect("writing to a String cannot fail");
        }
        write!(path, "V{:.1}z", top + OTHERS).expect("writing to a String cannot fail");
        svg.path("others", &path);
        let words =
            format!("{} without a lane: number alive over time", processes(self.lanes.left_out.len()));
        svg.words("caption", LEFT + 2.0, top - 3.5, &words);
        svg.words("axis end", LEFT - 6.0, top + 8.0, &units::count(most as u64));
        svg.words("axis end", LEFT - 6.0, top + OTHERS, "0");
    }

    /// Draws the seconds, with lines from the strips at `top` down to `y`, and marks the snapshots.
    pub(super) fn time_axis(&self, svg: &mut Svg, top: f64, y: f64) {
        let seconds = self.life.end as f64 / 1e9;
        let step = nice(seconds / 8.0);
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let mut grid = String::new();
        let mut index = 0;
        while index as f64 * step <= seconds * 1.0001 {
            let x = LEFT + (RIGHT - LEFT) * index as f64 * step / seconds.max(1e-9);
            write!(grid, "M{x:.1} {top}V{:.1}", y + 4.0).expect("writing to a String cannot fail");
            let unit = if index == 0 { " s" } else { "" };
            svg.words("axis mid", x, y + 16.0, &format!("{:.digits$}{unit}", index as f64 * step));
            index += 1;
        }
        svg.path("grid", &grid);
        let mut places: Vec<i64> =
            self.life.snapshots.iter().map(|time| self.x(*time).round() as i64).collect();
        places.sort_unstable();
        places.dedup();
        let marks: String = places.iter().map(|x| format!("M{x} {y:.1}v-5")).collect();
        svg.path("mark", &marks);
        if !marks.is_empty() {
            svg.words("address", LEFT - 6.0, y, "snapshots");
        }
        svg.path("line", &format!("M{LEFT} {y:.1}H{RIGHT}"));
    }

    /// Draws the legend of colours.
    pub(super) fn legend(&self, svg: &mut Svg, y: f64, most: u32) {
        let mut x = LEFT;
        let shown = |kind: Kind| {
            self.panels.iter().any(|panel| panel.memory.cells().any(|cell| cell == kind as u8 + 1))
        };
        for kind in Kind::ALL.into_iter().filter(|kind| shown(*kind)) {
            svg.rect(&kind.class().to_string(), [x, y - 10.0, 14.0, 12.0]);
            if kind.hatch().is_some() {
                svg.rect(&format!("x{}", kind.class()), [x, y - 10.0, 14.0, 12.0]);
            }
            svg.words("small", x + 19.0, y, kind.name());
            x += 19.0 + width(kind.name(), 12.0) + 18.0;
        }
        if most == 0 {
            return;
        }
        let x = RIGHT - 14.0 * DARKNESS.len() as f64 - 38.0;
        svg.words("small end", x - 6.0, y, "faults per cell: 1");
        for level in 0..DARKNESS.len() {
            svg.rect(&format!("d{level}"), [x + 14.0 * level as f64, y - 10.0, 14.0, 12.0]);
        }
        svg.words("small", x + 14.0 * DARKNESS.len() as f64 + 5.0, y, &units::count(u64::from(most)));
    }
}

/// Returns 1, 2 or 5 times a power of ten that is at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|nice| *nice >= step)
        .unwrap_or(power * 10.0)
}
