//! What was published with Linux's steps, measured here, every design of a step side by side in one run.
//!
//! A [`Plan`] has some of the [`experiments()`]; running it gives a [`Report`]. An experiment does its work
//! in turns (`measure`): each turn every side once, so that whatever mood the machine is in meets all of
//! them. What it has found is data ([`Findings`]), which `text` writes for terminals and documents, `page`
//! for browsers.
#![deny(unsafe_code)]

mod draw;
mod executor;
mod experiments;
mod findings;
mod host;
mod interrupt;
mod load;
mod machine;
mod measure;
mod memory;
mod page;
mod scale;
mod span;
mod steps;
mod text;
mod unit;
mod work;

pub use executor::Place;
pub use findings::Findings;
pub use scale::Scale;

use experiments::{ALL, Experiment};
use freehold_replay::units;
use machine::Facts;
use serde::Serialize;
use std::time::Instant;
use work::{End, Work};

/// All that a run has found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of the program.
    pub(crate) version: &'static str,
    /// Where it ran.
    pub(crate) machine: Facts,
    /// How it was called, for a reader that wants to do the same.
    pub(crate) command: String,
    /// On simulated machines.
    pub(crate) virtual_time: bool,
    /// At the small sizes.
    pub(crate) quick: bool,
    /// No mapping was larger, in bytes; as large as those published without.
    pub(crate) at_most: Option<u64>,
    /// Processors that were used, if there were as many.
    pub(crate) cpus: usize,
    /// What each experiment has found.
    pub(crate) experiments: Vec<Findings>,
    /// What could not be done, and why.
    pub failed: Vec<String>,
    /// What ended it before all was done; none where nothing did.
    pub interrupted: Option<Interrupted>,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
}

/// An end before all was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupted {
    /// By this signal.
    pub signal: i32,
    /// Experiments that were begun and not finished, or not begun.
    pub(crate) unfinished: Vec<&'static str>,
}

impl Report {
    /// Where it was, in a line.
    pub(crate) fn place(&self) -> String {
        if self.virtual_time { "on simulated machines".to_owned() } else { self.machine.text() }
    }

    /// As a page for a browser, which needs no other file.
    ///
    /// # Errors
    ///
    /// None that a report can cause.
    pub fn html(&self) -> anyhow::Result<String> {
        page::html(self)
    }

    /// The tables as a document.
    pub fn markdown(&self) -> String {
        text::markdown(self)
    }

    /// What became of the experiments that are not in it, a line each; none where all are.
    pub fn missing(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.failed.iter().map(|why| format!("Not done: {why}")).collect();
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

/// The name and the title of each experiment, in the order of the steps.
pub fn experiments() -> [(&'static str, &'static str); ALL.len()] {
    ALL.map(|experiment| (experiment.name(), experiment.title()))
}

/// Experiments that were chosen, in the order of the steps, and their sizes.
pub struct Plan {
    chosen: Vec<(&'static dyn Experiment, Scale)>,
}

impl Findings {
    /// For a terminal.
    pub fn text(&self) -> String {
        text::of(self)
    }
}

impl Plan {
    /// The experiments of these names, or all where none is named.
    pub fn new(names: &[String], scale: Scale) -> Plan {
        Plan::each(names, |_| scale.clone())
    }

    /// The same, each by its name at a scale of its own.
    pub fn each(names: &[String], scale: impl Fn(&str) -> Scale) -> Plan {
        let wanted = |experiment: &&dyn Experiment| {
            names.is_empty() || names.iter().any(|name| name == experiment.name())
        };
        let chosen = ALL.into_iter().filter(wanted);
        Plan { chosen: chosen.map(|experiment| (experiment, scale(experiment.name()))).collect() }
    }

    /// Why an experiment cannot be done here.
    ///
    /// # Errors
    ///
    /// For the user, with what to change.
    pub fn check(&self) -> Result<(), String> {
        let available = memory::available();
        self.chosen.iter().try_for_each(|(experiment, scale)| {
            memory::check(experiment.name(), experiment.memory(scale), available)
        })
    }

    /// Does the experiments one after the other, and shows `each` what one has found as soon as it is done.
    /// One that cannot be done does not keep the others from it. A signal that is to end the process ends the
    /// run: the report is of what was done until then. `command`: how it was called. `quiet`: shows no
    /// progress.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
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
            anyhow::bail!("no experiment");
        };
        let (mut all, mut failed) = (Vec::new(), Vec::new());
        let end = Work::begin(chosen, quiet)?.each(|found| {
            // They are done in order.
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
