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
    /// Not at the seeds' sizes.
    pub quick: bool,
    /// How often each side did its work, at most.
    pub turns: usize,
    /// What each experiment has found.
    pub experiments: Vec<Findings>,
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
    scale.turns = args.turns.map_or(scale.turns, usize::from);
    scale.host = !args.no_host;
    (ALL.into_iter().filter(wanted).collect(), scale)
}

/// Does the experiments one after the other, and shows `each` what one has found as soon as it is done.
///
/// # Errors
///
/// What an experiment could not do, and what `each` returns.
pub fn run(
    chosen: &[&dyn Experiment],
    scale: &Scale,
    quiet: bool,
    command: String,
    mut each: impl FnMut(&Findings) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let steps = Steps::new(chosen.iter().map(|experiment| experiment.seconds(scale)).sum(), quiet);
    let mut all = Vec::new();
    for experiment in chosen {
        steps.begin(experiment.name());
        let started = Instant::now();
        let mut found = experiment.run(scale, &steps).with_context(|| experiment.name())?;
        found.seconds = started.elapsed().as_secs_f64();
        steps.aside(|| each(&found))?;
        all.push(found);
    }
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        machine: Facts::here(),
        command,
        quick: scale.quick,
        turns: scale.turns,
        experiments: all,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
