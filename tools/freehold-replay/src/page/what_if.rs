//! Section 6 of the page: replays on simulated machines with other numbers of CPUs and other designs.
//!
//! Only a build with `cfg(sim)` can run such replays, so `examples/simulate_replay.rs` passes their results
//! as [`WhatIf`]. An ordinary build shows the command instead. The chart is an SVG with labels inside, whose
//! x is the logarithm of the number of CPUs. `mod_tests.rs` compares the section with the data.

use super::Page;
use crate::locking::{self, Design};
use crate::outcome::Outcome;
use crate::units;
use freehold::space::{FaultLock, Locking, Unmap, Write as Writers};
use serde::Serialize;
use std::fmt::Write;

/// Replays of one recording in virtual time.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The simulated machine.
    pub machine: String,
    /// A curve for each design.
    pub curves: Vec<Curve>,
    /// The fields whose cache lines cost most time, in the last replay of the last curve.
    pub hottest: Vec<HotLine>,
}

/// The replays on one design, with ascending numbers of CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The design.
    pub locking: Design,
    /// The replays.
    pub points: Vec<Point>,
}

/// A replay on a simulated machine.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of calls and faults.
    pub operations: u64,
    /// Virtual time of the replay.
    pub ns: u64,
    /// Number of waits for mmap locks.
    pub waits: u64,
    /// Sum of these waits.
    pub waited_ns: u64,
    /// Cache lines that moved between CPUs.
    pub transfers: u64,
}

impl Point {
    /// Returns the calls and faults per second of virtual time.
    pub fn per_second(&self) -> u64 {
        let per_second = u128::from(self.operations) * 1_000_000_000 / u128::from(self.ns.max(1));
        u64::try_from(per_second).unwrap_or(u64::MAX)
    }
}

/// A field of the engine whose cache lines moved between CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct HotLine {
    /// Type and field, or the place in the program.
    pub field: String,
    /// Number of times that a line came from another CPU.
    pub transfers: u64,
    /// Time that CPUs waited for these transfers.
    pub lost_ns: u64,
}

impl WhatIf {
    /// Returns the designs that are compared: three of Linux, and the default.
    pub fn designs() -> [Design; 4] {
        let linux = |unmap, fault| Locking::default().unmap(unmap).fault(fault).write(Writers::Whole);
        [
            linux(Unmap::Exclusive, FaultLock::MmapLock).into(),
            linux(Unmap::Downgraded, FaultLock::MmapLock).into(),
            linux(Unmap::Downgraded, FaultLock::VmaCount).into(),
            Design::default(),
        ]
    }

    /// Returns the last point of each curve.
    fn last(&self) -> impl Iterator<Item = (&Curve, &Point)> {
        self.curves.iter().filter_map(|curve| Some((curve, curve.points.last()?)))
    }
}

/// Returns the name of a design in the section: the version of Linux that locks in this way, if one does.
fn name(design: Design) -> String {
    let [first, second, third, usual] = WhatIf::designs();
    match design {
        design if design == usual => "Freehold's default".to_owned(),
        design if design == first => "locking of Linux before 4.20".to_owned(),
        design if design == second => "locking of Linux 4.20 to 6.3".to_owned(),
        design if design == third => "locking of Linux since 6.15".to_owned(),
        design => locking::name(design),
    }
}

/// Returns the distance of the marks of an axis with four marks that reaches this value: 1, 1.5, 2, 2.5, 3,
/// 4, 5, 7 or 10 times a power of ten.
fn step(most: u64) -> u64 {
    let least = most.div_ceil(4).max(1);
    let power = 10u64.pow(least.ilog10());
    let halves = [2, 3, 4, 5, 6, 8, 10, 14, 20].into_iter();
    halves.map(|halves| (power / 2).max(1) * halves).find(|step| *step >= least).unwrap_or(least)
}

/// Size of the chart in its own units, and the room for labels on the left and below.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 92.0;
const BELOW: f64 = 40.0;
/// Room above the highest value, and behind the last one.
const TOP: f64 = 12.0;
const RIGHT: f64 = 16.0;

impl Page<'_> {
    /// Returns the sentence of the section.
    pub(super) fn found_what_if(&self, what_if: &WhatIf) -> String {
        let best = what_if.last().max_by_key(|(_, point)| point.per_second());
        let worst = what_if.last().min_by_key(|(_, point)| point.per_second());
        let (Some((best, most)), Some((worst, least))) = (best, worst) else {
            return "The recording has no steps.".to_owned();
        };
        let times = most.per_second() as f64 / least.per_second().max(1) as f64;
        if times < 1.05 {
            return format!(
                "On {} of a simulated machine ({}), all designs did about {} calls and faults per second.",
                units::counted(most.cpus as u64, "CPU"),
                what_if.machine,
                units::count(most.per_second())
            );
        }
        format!(
            "On {} of a simulated machine ({}), {} did {} calls and faults per second, {times:.1} times as many as {}.",
            units::counted(most.cpus as u64, "CPU"),
            what_if.machine,
            name(best.locking),
            units::count(most.per_second()),
            name(worst.locking)
        )
    }

    pub(super) fn curve_name(&self, curve: &Curve) -> String {
        name(curve.locking)
    }

    pub(super) fn curve_design(&self, curve: &Curve) -> String {
        locking::name(curve.locking)
    }

    /// Says where the replays of the page ran.
    pub(super) fn ran(&self) -> String {
        let Outcome { wall, cpus, .. } = self.outcome();
        let wall = units::duration(*wall);
        match self.what_if {
            Some(what_if) => format!(
                "The replay took {wall} of virtual time on {cpus} CPUs of a simulated machine ({}). All times of Freehold on this page are virtual.",
                what_if.machine
            ),
            None => format!("The replay took {wall} on {cpus} virtual CPUs."),
        }
    }

    /// Draws the throughput of each design.
    pub(super) fn throughput(&self, what_if: &WhatIf) -> String {
        let points = || what_if.curves.iter().flat_map(|curve| &curve.points);
        let step = step(points().map(Point::per_second).max().unwrap_or(0));
        let most = (step * 4) as f64;
        let log = |cpus: usize| (cpus.max(1) as f64).log2();
        let (low, high) = points()
            .fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(log(at.cpus)), high.max(log(at.cpus))));
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - BELOW - TOP);
        let x = |cpus: usize| LEFT + width * (log(cpus) - low) / (high - low).max(1.0);
        let y = |value: f64| TOP + height - height * value / most;
        let mut text = format!(
            "<svg class=\"curves\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"calls and faults per second by the number of CPUs\">\n"
        );
        for value in (0..=4).map(|part| part * step) {
            let (y, label) = (y(value as f64), units::count(value));
            let end = WIDTH - RIGHT;
            writeln!(
                text,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{end}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 3.5
            )
            .expect("writing to a String cannot fail");
        }
        for Point { cpus, .. } in what_if.curves.first().map_or(&[][..], |curve| &curve.points) {
            let (x, y) = (x(*cpus), HEIGHT - BELOW + 17.0);
            writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{cpus}</text>")
                .expect("writing to a String cannot fail");
        }
        writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">CPUs</text>",
            LEFT + width / 2.0,
            HEIGHT - 4.0
        )
        .expect("writing to a String cannot fail");
        for (index, curve) in what_if.curves.iter().enumerate() {
            let places: Vec<String> = curve
                .points
                .iter()
                .map(|at| format!("{:.1} {:.1}", x(at.cpus), y(at.per_second() as f64)))
                .collect();
            writeln!(text, "<path class=\"curve c{index}\" d=\"M{}\"/>", places.join("L"))
                .expect("writing to a String cannot fail");
        }
        text += "</svg><ul class=\"legend\">";
        for (index, curve) in what_if.curves.iter().enumerate() {
            write!(text, "<li><i class=\"c{index}\"></i>{}</li>", name(curve.locking))
                .expect("writing to a String cannot fail");
        }
        text + "</ul>"
    }
}
