//! `freehold reproduce`: what the seeds have measured, measured here, every design of a seed side by side in one run.
//!
//! An experiment ([`experiments`]) does its work in turns ([`measure`]): each turn every side once, so that whatever mood the machine is in meets
//! all of them. What it has found is data ([`findings`]), which [`text`] writes for terminals and documents, [`page`] for browsers.

pub mod draw;
pub mod experiments;
pub mod findings;
mod host;
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

use crate::cli::ReproduceArgs;
use anyhow::Context;
use experiments::{ALL, Experiment};
use findings::Findings;
use machine::Facts;
use scale::Scale;
use serde::Serialize;
use std::time::Instant;
use steps::Steps;

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
    /// No mapping was larger, in bytes; as large as the seeds' without.
    pub at_most: Option<u64>,
    /// Processors that were used, if there were as many.
    pub cpus: usize,
    /// What each experiment has found.
    pub experiments: Vec<Findings>,
    /// What could not be done, and why.
    pub failed: Vec<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
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

/// What the arguments choose: experiments in the seeds' order, and their sizes.
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

/// Does the experiments one after the other, and shows `each` what one has found as soon as it is done. One that cannot be done does not keep
/// the others from it.
pub fn run(
    chosen: &[&dyn Experiment],
    scale: &Scale,
    quiet: bool,
    command: String,
    mut each: impl FnMut(Result<&Findings, &str>),
) -> Report {
    let begun = Instant::now();
    let steps = Steps::new(chosen.iter().map(|experiment| experiment.seconds(scale)).sum(), quiet);
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    for experiment in chosen {
        steps.begin(experiment.name());
        let started = Instant::now();
        match experiment.run(scale, &steps).with_context(|| experiment.name()) {
            Ok(mut found) => {
                found.seconds = started.elapsed().as_secs_f64();
                steps.aside(|| each(Ok(&found)));
                all.push(found);
            }
            Err(error) => {
                let why = format!("{error:#}");
                steps.aside(|| each(Err(&why)));
                failed.push(why);
            }
        }
    }
    Report {
        version: env!("CARGO_PKG_VERSION"),
        machine: Facts::here(),
        command,
        quick: scale.quick,
        at_most: Some(scale.at_most).filter(|bytes| *bytes != u64::MAX),
        cpus: scale.cpus,
        experiments: all,
        failed,
        seconds: begun.elapsed().as_secs_f64(),
    }
}
