//! `freehold reproduce`: what was published with Linux's steps, measured here, every design of a step side by
//! side in one run.
//!
//! An experiment ([`experiments`]) does its work in turns ([`measure`]): each turn every side once, so that
//! whatever mood the machine is in meets all of them. What it has found is data ([`findings`]), which
//! [`text`] writes for terminals and documents, [`page`] for browsers.

pub mod draw;
pub mod experiments;
pub mod findings;
mod host;
mod interrupt;
mod load;
pub mod machine;
pub mod measure;
mod memory;
pub mod page;
pub mod scale;
mod span;
pub mod steps;
pub mod text;
pub mod unit;
mod work;

use crate::cli::ReproduceArgs;
use crate::units;
use experiments::{ALL, Experiment};
use findings::Findings;
use machine::Facts;
use scale::Scale;
use serde::Serialize;
use std::time::Instant;
use work::{End, Work};

/// All that a run has found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// Where it ran.
    pub machine: Facts,
    /// How it was called, for who wants to do the same.
    pub command: String,
    /// At the small sizes.
    pub quick: bool,
    /// No mapping was larger, in bytes; as large as those published without.
    pub at_most: Option<u64>,
    /// Processors that were used, if there were as many.
    pub cpus: usize,
    /// What each experiment has found.
    pub experiments: Vec<Findings>,
    /// What could not be done, and why.
    pub failed: Vec<String>,
    /// What ended it before all was done; none where nothing did.
    pub interrupted: Option<Interrupted>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// An end before all was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupted {
    /// By this signal.
    pub signal: i32,
    /// Experiments that were begun and not finished, or not begun.
    pub unfinished: Vec<&'static str>,
}

impl Report {
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

/// Why an experiment cannot be done here.
///
/// # Errors
///
/// For the user, with what to change.
pub fn check(chosen: &[&dyn Experiment], scale: &Scale) -> Result<(), String> {
    let available = memory::available();
    chosen
        .iter()
        .try_for_each(|experiment| memory::check(experiment.name(), experiment.memory(scale), available))
}

/// What the arguments choose: experiments in the order of the steps, and their sizes.
pub fn plan(args: &ReproduceArgs) -> (Vec<&'static dyn Experiment>, Scale) {
    let wanted = |experiment: &&dyn Experiment| {
        args.experiments.is_empty() || args.experiments.iter().any(|name| name == experiment.name())
    };
    let mut scale = if args.quick { Scale::quick } else { Scale::full }(args.cpus());
    scale.at_most = args.at_most.unwrap_or(scale.at_most);
    scale.turns = args.turns.map(usize::from);
    scale.host = !args.no_host;
    (ALL.into_iter().filter(wanted).collect(), scale)
}

/// Does the experiments one after the other, and shows `each` what one has found as soon as it is done. One
/// that cannot be done does not keep the others from it. A signal that is to end the process ends the run:
/// the report is of what was done until then.
///
/// # Errors
///
/// There is no thread for it.
pub fn run(
    chosen: Vec<&'static dyn Experiment>,
    scale: &Scale,
    quiet: bool,
    command: String,
    mut each: impl FnMut(Result<&Findings, &str>),
) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let mut unfinished: Vec<&str> = chosen.iter().map(|experiment| experiment.name()).collect();
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    let end = Work::begin(chosen, scale.clone(), quiet)?.each(|found| {
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
        quick: scale.quick,
        at_most: Some(scale.at_most).filter(|bytes| *bytes != u64::MAX),
        cpus: scale.cpus,
        experiments: all,
        failed,
        interrupted,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
