//! `freehold replay`: replays each recording that the arguments name, prints the reports, and writes the
//! JSON, the page and the picture. If a recording cannot be read, the other recordings are still replayed.
//!
//! 1. Options and output files are checked.
//! 2. Each recording is opened and replayed on each requested design; its report is printed.
//! 3. The summary, the JSON, the page and the picture are written.
//!
//! With `--memory`, `policies.rs` replays the recordings instead.
//!
//! Exit status: 0 without differences, 1 with differences, 2 if a recording or an argument was unusable. With
//! `--maps-at` or `--tasks`, only the address space or the list of tasks is printed, and the steps above are
//! left out. The tests are in `tests/command.rs`. A new option of the replay belongs in `options`, and a new
//! option of the output in [`run`] or in `All`.

use super::policies;
use super::{DIFFERENT, UNUSABLE, cannot_write, output, say};
use crate::cli::ReplayArgs;
use crate::progress::Bar;
use anyhow::Context;
use freehold_replay::analysis::{self, Analysis};
use freehold_replay::locking::Design;
use freehold_replay::outcome::Outcome;
use freehold_replay::report::{self, Unusable};
use freehold_replay::{Options, ReplayError, Source, Tasks, maps_at, page, picture, replay};
use freehold_trace::ReadError;
use std::path::Path;

/// Maximum number of virtual CPUs of the machine on which a replay runs.
const MAX_CPUS: usize = 64;

/// Runs `freehold replay`, and returns the exit status.
///
/// # Errors
///
/// Fails if an output cannot be written, or if `--maps-at` cannot read its recording.
pub fn run(args: &ReplayArgs) -> anyhow::Result<u8> {
    if let Some(time) = args.maps_at {
        return print_maps(args, time);
    }
    if args.tasks {
        return list_tasks(args);
    }
    if let Some(sizes) = &args.memory {
        return policies::run(args, sizes, &options(args));
    }
    let text = args.json.as_deref() != Some(Path::new("-"));
    let json = args.json.as_deref().filter(|_| text).map(output).transpose()?;
    let picture = args.picture.as_deref().map(output).transpose()?;
    let page = args.report.as_deref().map(output).transpose()?;
    let (outcomes, analyses, unusable) = (Vec::new(), Vec::new(), Vec::new());
    let mut all = All { args, options: options(args), text, outcomes, analyses, unusable };
    let mut last = None;
    for path in &args.recordings {
        last = all.recording(path)?;
    }
    if text && !args.compare && all.outcomes.len() > 1 {
        say(&report::summary(&all.outcomes))?;
    }
    let found = args.json.as_ref().map(|_| report::json(&all.outcomes, &all.analyses, &all.unusable));
    match (json, &found, &args.json) {
        (Some(file), Some(found), Some(path)) => file.write(found).with_context(|| cannot_write(path))?,
        (None, Some(found), _) => say(found)?,
        _ => {}
    }
    if let (Some(file), Some(path), Some(source)) = (page, &args.report, &last) {
        let page = page::html(source, &all.outcomes, None)?;
        file.write(&page).with_context(|| cannot_write(path))?;
    }
    if let (Some(file), Some(path), Some(source)) = (picture, &args.picture, last) {
        let drawn = picture::of_recording(&source)?;
        file.write(&drawn).with_context(|| cannot_write(path))?;
    }
    Ok(all.status())
}

/// Returns the options of the replays from the arguments.
fn options(args: &ReplayArgs) -> Options {
    let usual = Options::default();
    Options {
        backed: args.backed,
        seed: args.seed,
        oracles: args.oracles,
        cpus: args.cpus.map_or(usual.cpus.min(MAX_CPUS), usize::from),
        design: args.locking.unwrap_or_default(),
        ..usual
    }
}

/// Prints an address space for `--maps-at`.
fn print_maps(args: &ReplayArgs, time: u64) -> anyhow::Result<u8> {
    let source = source(args, &args.recordings[0]).map_err(anyhow::Error::msg)?;
    match maps_at(&source, time, args.task, &options(args)) {
        Ok(maps) => say(&maps).map(|()| 0),
        Err(error) => Err(anyhow::Error::msg(reason(&source, &error))),
    }
}

/// Lists tasks for `--tasks`. If a recording cannot be read, the tasks of the other recordings are still
/// listed.
fn list_tasks(args: &ReplayArgs) -> anyhow::Result<u8> {
    let mut status = 0;
    for (index, path) in args.recordings.iter().enumerate() {
        let listed = source(args, path).and_then(|source| {
            Tasks::of(&source).map_err(|error| reason(&source, &ReplayError::Read(error)))
        });
        match listed {
            Ok(tasks) => say(&format!("{}{}", if index > 0 { "\n" } else { "" }, tasks.text()))?,
            Err(why) => {
                eprintln!("error: {why}");
                status = UNUSABLE;
            }
        }
    }
    Ok(status)
}

/// Opens the recording that an argument names. Returns a message for the user if it cannot be read.
pub(super) fn source(args: &ReplayArgs, path: &Path) -> Result<Source, String> {
    Source::of_argument(path, args.snap.as_deref()).map_err(|error| error.to_string())
}

/// The results of all replays so far.
struct All<'a> {
    /// The arguments.
    args: &'a ReplayArgs,
    /// The options of all replays.
    options: Options,
    /// True if text reports are printed.
    text: bool,
    /// The replays that ran.
    outcomes: Vec<Outcome>,
    /// The analyses of the recordings, for the JSON.
    analyses: Vec<Analysis>,
    /// The recordings that could not be replayed.
    unusable: Vec<Unusable>,
}

impl All<'_> {
    /// Replays one recording, prints the report and returns the recording. Returns `None` if the recording
    /// cannot be replayed; the other recordings are still replayed then.
    fn recording(&mut self, path: &Path) -> anyhow::Result<Option<Source>> {
        let replayed = source(self.args, path)
            .and_then(|source| self.designs(&source).map(|outcomes| (source, outcomes)));
        let (source, mut outcomes) = match replayed {
            Ok(replayed) => replayed,
            Err(reason) => {
                eprintln!("error: {reason}");
                self.unusable.push(Unusable { recording: path.display().to_string(), reason });
                return Ok(None);
            }
        };
        if self.text {
            match outcomes.as_slice() {
                [outcome] if !self.args.compare => say(&report::single(outcome))?,
                outcomes => say(&report::compare(outcomes))?,
            }
        }
        if self.args.json.is_some() {
            self.analyses.push(analysis::of_recording(&source)?);
        }
        self.outcomes.append(&mut outcomes);
        Ok(Some(source))
    }

    /// Replays the recording on each requested design.
    fn designs(&self, source: &Source) -> Result<Vec<Outcome>, String> {
        let designs = match self.args.compare {
            true => Design::compared(),
            false => vec![self.options.design],
        };
        let on = |design| {
            let bar = Bar::new(source, self.args.quiet);
            replay(source, &Options { design, ..self.options.clone() }, &bar)
        };
        designs.into_iter().map(|design| on(design).map_err(|error| reason(source, &error))).collect()
    }

    /// Returns the exit status.
    fn status(&self) -> u8 {
        if !self.unusable.is_empty() || self.outcomes.iter().any(|outcome| !outcome.is_whole()) {
            UNUSABLE
        } else if self.outcomes.iter().any(|outcome| !outcome.is_as_linux()) {
            DIFFERENT
        } else {
            0
        }
    }
}

/// Returns the reason why a recording cannot be replayed: one line that names the recording's file.
pub(super) fn reason(source: &Source, error: &ReplayError) -> String {
    match error {
        ReplayError::Read(error @ ReadError::NoSnapshot { .. }) if source.lacks_snapshots() => {
            format!("{error}; use --snap FILE if the snapshots are in another folder")
        }
        ReplayError::Read(error) => error.to_string(),
        other => format!("{}: {other}", source.name().display()),
    }
}
