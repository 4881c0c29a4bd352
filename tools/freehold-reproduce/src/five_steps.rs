//! The beginning of the page: the five steps of Linux, each with its published figures, the figures measured
//! on a host, those simulated on the step's own machine, and a verdict.
//!
//! A run has one of the two columns of Freehold's figures. The other column comes from the stored document of
//! `docs/results`. [`STEPS`] names the row of an experiment that stands for a step; a published figure must
//! be as published (`experiments/published.rs` has the others). The verdict compares changes, because
//! absolute values of different machines do not match. `docs/guide/five-steps.md` has more rows for each
//! step.

use super::Report;
use super::experiments::published;
use super::findings::{Axis, Line, Plot, Point};
use super::measure::Figure;
use super::results::{Pair, Results};
use super::text;
use super::unit::Unit;

/// The stored documents of both kinds of run.
const MEASURED: &str = include_str!("../../../docs/results/measured.md");
const SIMULATED: &str = include_str!("../../../docs/results/simulated.md");

/// A change counts as reproduced from this part of the published change on, on a logarithmic scale.
const ENOUGH: f64 = 0.6;

/// A step of Linux, and the figure that stands for it.
struct Step {
    /// The change, in a few words.
    name: &'static str,
    /// The figure.
    figure: &'static str,
    experiment: &'static str,
    /// Returns true for the row of the figure, from the title of its table and the name of the row.
    is_row: fn(&str, &str) -> bool,
    /// Columns of the designs before and after the step.
    columns: [&'static str; 2],
    unit: Unit,
    /// The published figures before and after the step.
    published: [f64; 2],
    /// Reason why a host with few processors does not show the change.
    reason: &'static str,
}

const STEPS: [Step; 5] = [
    Step {
        name: "0: unmap in sections",
        figure: "faults per second, mmap-file",
        experiment: "fault-throughput",
        is_row: |_, row| row == "mmap-file",
        columns: ["Exclusive", "Sectioned"],
        unit: Unit::PerSecond,
        published: [published::FAULTS[3].1, published::FAULTS[3].2],
        reason: "the load here imitates the published one and is not limited by the mmap lock",
    },
    Step {
        name: "1: zap under the downgraded lock",
        figure: "longest hold of the mmap lock for writing by munmap",
        experiment: "munmap-hold",
        is_row: |title, _| title.contains("for writing") && title.contains("longest"),
        columns: ["Exclusive", "Downgraded"],
        unit: Unit::Nanoseconds,
        published: [2_485_692e3, 8e3],
        reason: "the sizes are too small",
    },
    Step {
        name: "2: share the lock over a file's VMAs",
        figure: "jobs per minute, alltests",
        experiment: "i-mmap",
        is_row: |title, _| title.starts_with("alltests-like, jobs"),
        columns: ["Mutex", "Shared"],
        unit: Unit::PerMinute,
        published: [published::JOBS[8].1[0], published::JOBS[8].1[1]],
        reason: "with few processors, few readers hold the lock at the same time",
    },
    Step {
        name: "3: a lock per VMA for shared tables of huge pages",
        figure: "time waited in ten seconds",
        experiment: "hugetlb",
        is_row: |title, row| title.ends_with("processes") && row.contains("waited in ten seconds"),
        columns: ["FileLock", "VmaLock"],
        unit: Unit::Nanoseconds,
        published: published::HUGETLB.waited,
        reason: "with few processors, the holder of the lock is often not running",
    },
    Step {
        name: "4: a reader count in the VMA",
        figure: "faults per second and processor, one VMA",
        experiment: "page-fault",
        is_row: |title, row| title.contains("one VMA") && row.starts_with("faults/cpu-"),
        columns: ["VmaRwsem", "VmaCount"],
        unit: Unit::PerSecond,
        published: [published::PAGE_FAULT[7].1[0], published::PAGE_FAULT[7].1[1]],
        reason: "with few processors, few readers use the lock of one VMA at the same time",
    },
];

/// The conclusion from the figures of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Reproduced,
    Partly,
    Not,
    /// There are no figures.
    Unknown,
}

/// A line of the table.
pub struct StepLine {
    pub name: &'static str,
    pub figure: &'static str,
    pub experiment: &'static str,
    /// The published figures.
    pub published: [String; 2],
    /// The measured figures, and those simulated. `None` if there are none.
    pub measured: Option<Pair>,
    pub simulated: Option<Pair>,
    pub outcome: Outcome,
    /// The outcome in words.
    pub verdict: String,
}

/// Returns a line for each step.
pub fn lines(report: &Report) -> Vec<StepLine> {
    let own = text::markdown(report);
    let (measured, simulated) = match report.virtual_time {
        true => (MEASURED, own.as_str()),
        false => (own.as_str(), SIMULATED),
    };
    let line = |step: &Step| {
        let row = |document| Results::of(document).row(step.experiment, step.is_row, step.columns);
        let (measured, simulated) = (row(measured), row(simulated));
        let (outcome, verdict) = step.verdict(measured.as_ref(), simulated.as_ref());
        StepLine {
            name: step.name,
            figure: step.figure,
            experiment: step.experiment,
            published: step.published.map(|value| step.unit.text(value)),
            outcome,
            verdict,
            measured,
            simulated,
        }
    };
    STEPS.iter().map(line).collect()
}

/// Returns a sentence about all steps, and one that says how many of them this run has figures for.
pub fn found(lines: &[StepLine], virtual_time: bool) -> String {
    let count = |outcome| lines.iter().filter(|line| line.outcome == outcome).count();
    let own =
        |line: &&StepLine| if virtual_time { line.simulated.is_some() } else { line.measured.is_some() };
    format!(
        "Of the five steps of Linux, {} are reproduced, {} partly, {} not, and {} have no figures. This run {} \
         {} of them.",
        count(Outcome::Reproduced),
        count(Outcome::Partly),
        count(Outcome::Not),
        count(Outcome::Unknown),
        if virtual_time { "simulated" } else { "measured" },
        lines.iter().filter(own).count(),
    )
}

/// Returns the plot of the part of each published change that was measured and simulated.
pub fn plot(lines: &[StepLine]) -> Plot {
    let parts = |name: &str, part: &dyn Fn(&StepLine, &Step) -> Option<f64>| {
        let points = lines.iter().zip(&STEPS).enumerate().filter_map(|(index, (line, step))| {
            let y = Figure::of([part(line, step)?]);
            Some(Point { x: index as f64 + 1.0, y })
        });
        Line { name: name.to_owned(), points: points.collect() }
    };
    Plot {
        title: "How much of each published change Freehold shows: 100 % as published, 0 % no change"
            .to_owned(),
        x: Axis::of(["step 0", "step 1", "step 2", "step 3", "step 4"].into_iter()),
        y: Axis::linear("part of the published change", Unit::Share),
        lines: vec![
            parts("published", &|_, _| Some(1.0)),
            parts("measured", &|line, step| Some(step.part(line.measured.as_ref()?))),
            parts("simulated", &|line, step| Some(step.part(line.simulated.as_ref()?))),
        ],
    }
}

impl Step {
    /// Returns the part of the published change that two figures show, on a logarithmic scale: 1 as
    /// published, 0 without a change, negative in the opposite direction.
    fn part(&self, pair: &Pair) -> f64 {
        let [before, after] = self.published;
        (pair.after.1 / pair.before.1).ln() / (after / before).ln()
    }

    fn is_enough(&self, pair: &Pair) -> bool {
        self.part(pair) >= ENOUGH
    }

    /// Returns the outcome, and the outcome in words.
    fn verdict(&self, measured: Option<&Pair>, simulated: Option<&Pair>) -> (Outcome, String) {
        let reason = self.reason;
        match (measured.map(|pair| self.is_enough(pair)), simulated.map(|pair| self.is_enough(pair))) {
            (Some(true), Some(true)) => (Outcome::Reproduced, "reproduced".to_owned()),
            (Some(true), Some(false)) => {
                (Outcome::Partly, "partly: measured, and not in the simulation".to_owned())
            }
            (Some(false), Some(true)) => {
                (Outcome::Partly, format!("partly: only in the simulation, because {reason}"))
            }
            (Some(false), Some(false)) => {
                (Outcome::Not, "not on this machine, and not in the simulation".to_owned())
            }
            (Some(false), None) => (Outcome::Not, format!("not on this machine: {reason}")),
            (Some(true), None) => (Outcome::Reproduced, "reproduced; not simulated in this run".to_owned()),
            (None, Some(true)) => {
                (Outcome::Reproduced, "reproduced in the simulation; not measured in this run".to_owned())
            }
            (None, Some(false)) => {
                (Outcome::Not, "not in the simulation; not measured in this run".to_owned())
            }
            (None, None) => (Outcome::Unknown, "neither measured nor simulated in this run".to_owned()),
        }
    }
}

#[cfg(test)]
#[path = "five_steps_tests.rs"]
mod tests;
