//! The command `freehold`.
#![deny(unsafe_code)]

use anyhow::Context;
use clap::{CommandFactory, Parser, error::ErrorKind};
use freehold::space::Locking;
use freehold_cli::cli::{Cli, Command, ReplayArgs, ReproduceArgs};
use freehold_cli::locking::Design;
use freehold_cli::output::Output;
use freehold_cli::picture;
use freehold_cli::progress::Bar;
use freehold_cli::record::record;
use freehold_cli::replay::outcome::Outcome;
use freehold_cli::replay::{Options, ReplayError, maps_at, replay};
use freehold_cli::report::{self, Unusable};
use freehold_cli::reproduce;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Something differed from Linux.
const DIFFERENT: u8 = 1;
/// Something could not be read, or not be written.
const UNUSABLE: u8 = 2;
/// A command could not be recorded; its own status would be another.
const UNRECORDED: u8 = 125;
/// As many virtual CPUs as a machine in a process can have.
const MOST_CPUS: usize = 64;

fn main() -> ExitCode {
    let mut failure = UNUSABLE;
    let done = match Cli::parse().command {
        Command::Replay(args) => {
            if let Err(why) = args.check() {
                Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
            }
            run(&args)
        }
        Command::Record(args) => {
            failure = UNRECORDED;
            record(&args)
        }
        Command::Reproduce(args) => {
            if let Err(why) = args.check() {
                Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
            }
            reproduced(&args)
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        // Who read the report has seen enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("freehold: {error:#}");
            ExitCode::from(failure)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Does what the arguments say; the exit status.
fn run(args: &ReplayArgs) -> anyhow::Result<u8> {
    let mut options =
        Options { backed: args.backed, seed: args.seed, oracles: args.oracles, ..Options::default() };
    options.cpus = args.cpus.map_or(options.cpus.min(MOST_CPUS), usize::from);
    options.design = args.locking.unwrap_or_default();
    if let Some(time) = args.maps_at {
        let path = &args.recordings[0];
        return match maps_at(path, time, args.task, &options) {
            Ok(maps) => say(&maps).map(|()| 0),
            Err(error) => Err(anyhow::Error::msg(reason(path, &error))),
        };
    }
    let text = args.json.as_deref() != Some(Path::new("-"));
    let json = args.json.as_deref().filter(|_| text).map(output).transpose()?;
    let picture = args.picture.as_deref().map(output).transpose()?;
    let mut all = All { args, options, text, outcomes: Vec::new(), unusable: Vec::new() };
    for path in &args.recordings {
        all.one(path)?;
    }
    if text && !args.compare && all.outcomes.len() > 1 {
        say(&report::summary(&all.outcomes))?;
    }
    let found = args.json.as_ref().map(|_| report::json(&all.outcomes, &all.unusable));
    match (json, &found, &args.json) {
        (Some(file), Some(found), Some(path)) => file.write(found).with_context(|| cannot_write(path))?,
        (None, Some(found), _) => say(found)?,
        _ => {}
    }
    if let (Some(file), Some(path), true) = (picture, &args.picture, all.unusable.is_empty()) {
        let drawn = picture::of_recording(&args.recordings[0])?;
        file.write(&drawn).with_context(|| cannot_write(path))?;
    }
    Ok(all.status())
}

/// Does the experiments that the arguments name; the exit status.
fn reproduced(args: &ReproduceArgs) -> anyhow::Result<u8> {
    let (chosen, scale) = reproduce::plan(args);
    reproduce::check(&chosen, &scale).map_err(anyhow::Error::msg)?;
    let text = args.json.as_deref() != Some(Path::new("-"));
    // Whether files can be written is known before anything takes a quarter of an hour.
    let file = |path: Option<&PathBuf>| path.map(|path| output(path)).transpose();
    let json = file(args.json.as_ref().filter(|_| text))?;
    let (page, markdown) = (file(args.report.as_ref())?, file(args.markdown.as_ref())?);
    // Who reads the text may have seen enough of it; files are written all the same.
    let mut gone = None;
    let mut show = |text: &str| {
        if gone.is_none() {
            gone = say(text).err();
        }
    };
    let found = reproduce::run(&chosen, &scale, args.quiet, command_line(), |found| match found {
        Ok(found) if text => show(&reproduce::text::of(found)),
        Ok(_) => {}
        Err(why) => eprintln!("freehold: {why}"),
    });
    let json_text = serde_json::to_string_pretty(&found)? + "\n";
    if !text {
        show(&json_text);
    }
    let page_text = page.as_ref().map(|_| reproduce::page::html(&found)).transpose()?;
    let markdown_text = markdown.as_ref().map(|_| reproduce::text::markdown(&found));
    // One that cannot be written does not keep the others from it.
    let files = [
        (json, &args.json, Some(json_text)),
        (page, &args.report, page_text),
        (markdown, &args.markdown, markdown_text),
    ];
    let mut status = if found.failed.is_empty() { 0 } else { UNUSABLE };
    for (file, path, text) in files {
        let (Some(file), Some(path), Some(text)) = (file, path, text) else { continue };
        if let Err(error) = file.write(&text).with_context(|| cannot_write(path)) {
            eprintln!("freehold: {error:#}");
            status = UNUSABLE;
        }
    }
    match gone {
        Some(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(status),
    }
}

/// As it was called, words with blanks in quotes.
fn command_line() -> String {
    let quoted = |word: std::ffi::OsString| match word.to_string_lossy() {
        word if word.contains(char::is_whitespace) => format!("'{word}'"),
        word => word.into_owned(),
    };
    std::env::args_os().skip(1).map(quoted).fold("freehold".to_owned(), |line, word| line + " " + &word)
}

/// Everything that was replayed so far.
struct All<'a> {
    args: &'a ReplayArgs,
    options: Options,
    /// Reports are printed.
    text: bool,
    outcomes: Vec<Outcome>,
    unusable: Vec<Unusable>,
}

impl All<'_> {
    /// Replays a recording, and prints what was found. One that cannot be replayed does not keep others from it.
    fn one(&mut self, path: &Path) -> anyhow::Result<()> {
        let designs = match self.args.compare {
            true => Locking::ALL.map(Design::from).to_vec(),
            false => vec![self.options.design],
        };
        let mut outcomes = Vec::with_capacity(designs.len());
        for design in designs {
            let bar = Bar::new(path, self.args.quiet);
            let outcome = replay(path, &Options { design, ..self.options.clone() }, &bar);
            drop(bar);
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => {
                    let reason = reason(path, &error);
                    eprintln!("freehold: {reason}");
                    self.unusable.push(Unusable { recording: path.display().to_string(), reason });
                    return Ok(());
                }
            }
        }
        if self.text {
            match outcomes.as_slice() {
                [outcome] if !self.args.compare => say(&report::single(outcome))?,
                outcomes => say(&report::compare(outcomes))?,
            }
        }
        self.outcomes.append(&mut outcomes);
        Ok(())
    }

    fn status(&self) -> u8 {
        if !self.unusable.is_empty() {
            UNUSABLE
        } else if self.outcomes.iter().any(|outcome| !outcome.is_as_linux()) {
            DIFFERENT
        } else {
            0
        }
    }
}

/// Why a recording cannot be replayed, in one line that begins with its file.
fn reason(path: &Path, error: &ReplayError) -> String {
    match error {
        ReplayError::Read(error) => error.to_string(),
        other => format!("{}: {other}", path.display()),
    }
}

fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Prints to standard output.
fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
