//! Repeats the experiments published with Linux's locking steps, with all designs of a step in one run.
//!
//! A [`Plan`] contains some of the [`experiments()`]. Running it returns a [`Report`]. The findings are data
//! ([`Findings`]), which `text.rs` writes for terminals and documents, and `page.rs` for browsers.
//!
//! | files | work |
//! | --- | --- |
//! | `experiments/` | the experiments, one per file |
//! | `load.rs`, `host.rs`, `scale.rs` | parts of the experiments' loads: the machine and engine, the host's system calls, sizes and times |
//! | `executor/` | runs loads on threads of the host, or in virtual time with `cfg(sim)` |
//! | `measure.rs`, `steps.rs`, `work.rs`, `interrupt.rs` | turns and figures, progress, the thread of the experiments, signals |
//! | `findings.rs`, `unit.rs`, `text.rs`, `page.rs`, `draw.rs`, `span.rs` | the results as data, and their forms |
//! | `five_steps.rs`, `results.rs` | the five steps of Linux with all figures and verdicts, for the page; figures of stored documents |
//! | `machine.rs`, `memory.rs` | facts about the host |
//!
//! A *side* is one of the compared lock designs, or the host. An experiment works in *turns*: in each turn
//! every side runs once, so that changes in the speed of the host affect all sides. A *figure* is a value
//! with one measurement for each turn.
#![deny(unsafe_code)]

mod draw;
mod executor;
mod experiments;
mod findings;
mod five_steps;
mod host;
mod hot_set_on_host;
mod interrupt;
mod load;
mod machine;
mod measure;
mod memory;
mod page;
mod results;
mod scale;
mod span;
mod steps;
mod text;
mod unit;
mod work;
mod zipf;

pub use executor::Place;
pub use findings::Findings;
pub use hot_set_on_host::{HostHotSet, hot_set_on_host};
pub use scale::Scale;

use experiments::{ALL, Experiment};
use freehold_replay::units;
use machine::Facts;
use serde::Serialize;
use std::time::Instant;
use work::{End, Work};

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the program.
    pub(crate) version: &'static str,
    /// The machine of the run.
    pub(crate) machine: Facts,
    /// The command line, so that a reader can repeat the run.
    pub(crate) command: String,
    /// True if the run was on simulated machines.
    pub(crate) virtual_time: bool,
    /// True if the run used the small sizes.
    pub(crate) quick: bool,
    /// Largest mapping in bytes. `None` means the published sizes.
    pub(crate) at_most: Option<u64>,
    /// Number of processors that were used.
    pub(crate) cpus: usize,
    /// Findings of each experiment.
    pub(crate) experiments: Vec<Findings>,
    /// Experiments that failed, with the reason.
    pub failed: Vec<String>,
    /// The interruption of the run, if it was interrupted.
    pub interrupted: Option<Interrupted>,
    /// Duration in seconds.
    pub(crate) seconds: f64,
}

/// The end of a run before all experiments were done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupted {
    /// The signal that ended the run.
    pub signal: i32,
    /// Experiments that were not finished or not started.
    pub(crate) unfinished: Vec<&'static str>,
}

impl Report {
    /// Describes the machine of the run in one line.
    pub(crate) fn place(&self) -> String {
        if self.virtual_time { "on simulated machines".to_owned() } else { self.machine.text() }
    }

    /// Returns the report as a self-contained page for a browser.
    ///
    /// # Errors
    ///
    /// Fails if the template cannot be rendered. No report causes this failure.
    pub fn html(&self) -> anyhow::Result<String> {
        page::html(self)
    }

    /// Returns the tables as a Markdown document.
    pub fn markdown(&self) -> String {
        text::markdown(self)
    }

    /// Returns one line for each reason why experiments are missing from the report.
    pub fn missing(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.failed.iter().map(|why| format!("Failed: {why}")).collect();
        let Some(Interrupted { signal, unfinished }) = &self.interrupted else { return lines };
        let signal = match *signal {
            libc::SIGINT => "SIGINT".to_owned(),
            libc::SIGTERM => "SIGTERM".to_owned(),
            other => format!("signal {other}"),
        };
        let done = self.experiments.len();
        let all = units::counted((done + self.failed.len() + unfinished.len()) as u64, "experiment");
        let names = unfinished.join(", ");
        lines.push(format!("Partial, interrupted by {signal}: {done} of {all} finished, without {names}"));
        lines
    }
}

/// Returns the name and the title of each experiment, in the order of the steps.
pub fn experiments() -> [(&'static str, &'static str); ALL.len()] {
    ALL.map(|experiment| (experiment.name(), experiment.title()))
}

/// The chosen experiments, in the order of the steps, with their sizes.
pub struct Plan {
    chosen: Vec<(&'static dyn Experiment, Scale)>,
}

impl Findings {
    /// Returns the findings as text for a terminal.
    pub fn text(&self) -> String {
        text::of(self)
    }
}

impl Plan {
    /// Creates a plan of the experiments with these names, or of all experiments if `names` is empty.
    pub fn new(names: &[String], scale: Scale) -> Plan {
        Plan::each(names, |_| scale.clone())
    }

    /// Creates a plan like [`new`](Self::new), with a scale for each experiment.
    pub fn each(names: &[String], scale: impl Fn(&str) -> Scale) -> Plan {
        let wanted = |experiment: &&dyn Experiment| {
            names.is_empty() || names.iter().any(|name| name == experiment.name())
        };
        let chosen = ALL.into_iter().filter(wanted);
        Plan { chosen: chosen.map(|experiment| (experiment, scale(experiment.name()))).collect() }
    }

    /// Checks that the host has enough memory for each experiment.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user that says what to change.
    pub fn check(&self) -> Result<(), String> {
        let available = memory::available();
        self.chosen.iter().try_for_each(|(experiment, scale)| {
            memory::check(experiment.name(), experiment.memory(scale), available)
        })
    }

    /// Runs the experiments one after the other, and calls `each` with the findings of each experiment as
    /// soon as the experiment is done. An experiment that fails does not stop the other experiments. SIGINT
    /// and SIGTERM end the run, not the process, and the report contains the experiments that are done.
    /// `command` is the command line. `quiet` suppresses the progress display.
    ///
    /// # Errors
    ///
    /// Fails if the thread of the experiments cannot be started.
    pub fn run(
        self,
        quiet: bool,
        command: String,
        mut each: impl FnMut(Result<&Findings, &str>),
    ) -> anyhow::Result<Report> {
        let Plan { chosen } = self;
        let begun = Instant::now();
        let mut unfinished: Vec<&str> = chosen.iter().map(|(experiment, _)| experiment.name()).collect();
        let Some(scale) = chosen.iter().map(|(_, scale)| scale.clone()).max_by_key(|scale| scale.cpus) else {
            anyhow::bail!("no experiment chosen");
        };
        let (mut all, mut failed) = (Vec::new(), Vec::new());
        let end = Work::begin(chosen, quiet)?.each(|found| {
            // Experiments are done in order.
            unfinished.remove(0);
            each(found.as_ref().map_err(String::as_str));
            match found {
                Ok(found) => all.push(found),
                Err(why) => failed.push(why),
            }
        });
        let interrupted = match end {
            End::Interrupted(signal) => Some(Interrupted { signal, unfinished }),
            End::Whole => None,
        };
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            machine: Facts::here(),
            command,
            virtual_time: scale.place.simulated().is_some(),
            quick: scale.quick,
            at_most: Some(scale.at_most).filter(|bytes| *bytes != u64::MAX),
            cpus: scale.cpus,
            experiments: all,
            failed,
            interrupted,
            seconds: begun.elapsed().as_secs_f64(),
        })
    }
}
