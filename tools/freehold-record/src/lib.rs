//! Runs a command, and records what the command and all its descendants do to their memory.
//!
//! The recorder combines several sources:
//!
//! - The trace buffers of the kernel (`tracefs`, `format`, `ring`) report calls, faults and locks.
//! - Rings of perf events (`perf`) report ends of faults and names of files.
//! - BPF programs (`pointed`, `credentials`, `bpf`) report registrations with userfaultfds and changes of
//!   limits.
//! - `follow` stops processes with ptrace when they exec and exit, and takes snapshots (`proc`), with the
//!   mounts at that time (`mounts`).
//!
//! `collect` runs while the command runs, and stores the reports; `assemble` then combines all reports by
//! time, and `write` writes the files. If the kernel denies access, the program strace records only the calls
//! (`strace`).
//!
//! [`record`] is the entry, which `freehold-cli` calls. The recorder must not change what the command does,
//! and must never lose an event silently: a lost event is recorded as a loss (`Kind::Lost`), after which a
//! replay checks nothing until the next execve. The crate prints nothing; it passes [`Notice`]s to the
//! caller. Parsers and the assembly have tests next to them; `freehold-cli/tests/record.rs` records real
//! programs, as far as the machine permits it.
//!
//! A new kind of report is decoded in the file of its source (the list above), has a variant of `RawKind`
//! (`raw.rs`), and is handled in `assemble.rs`.
#![deny(unsafe_code)]

mod assemble;
mod bpf;
mod collect;
mod command;
mod credentials;
mod follow;
mod format;
mod machine;
mod mounts;
mod op;
mod output;
mod perf;
mod pointed;
mod proc;
mod raw;
mod ring;
mod strace;
mod tracee;
mod tracefs;
mod write;

pub use output::Output;
pub use strace::command_line as strace_command_line;
pub use write::Written;

use anyhow::bail;
use collect::Collector;
use follow::Freezes;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracee::Waiting;
use write::Names;

/// The command to record, and the settings of the recorder.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the recording, with its folder. Without a name, the recording has the name of the command and
    /// is in the current folder.
    pub output: Option<PathBuf>,
    /// Interval between stops of all processes for snapshots.
    pub snapshot_every: Duration,
    /// Maximum number of these stops.
    pub snapshots: u32,
    /// Interval between samples of the accessed pages, instead of these snapshots. `None` to take no samples.
    pub accesses: Option<Duration>,
    /// Size of the kernel buffer of each processor, in KiB.
    pub buffer_kb: u32,
    /// Prefixes of paths, each with its replacement in the recording.
    pub rename: Vec<(String, String)>,
    /// True if the files of an older recording may be replaced.
    pub force: bool,
    /// True if only calls are recorded, with strace: no faults and no snapshots.
    pub calls_only: bool,
    /// The command and its arguments. Not empty.
    pub command: Vec<OsString>,
}

/// A message to the user during a recording.
#[derive(Debug)]
pub enum Notice<'n> {
    /// A message in words.
    Said(String),
    /// The reason why the command could not be started.
    Failed(String),
    /// A recording by the kernel's tracing is written.
    Written(&'n Written),
    /// This file can be replayed.
    Replayable(&'n Path),
}

/// Makes the recording that `options` describe, and passes messages to `tell`. Returns the exit status of the
/// command, as a shell would show it.
///
/// # Errors
///
/// Fails with a message for the user if a requirement is missing, or if the recording fails.
pub fn record(options: &Options, tell: &dyn Fn(Notice)) -> anyhow::Result<u8> {
    let command = &options.command;
    let names = Names::new(options.output.as_deref(), command, options.force)?;
    if let Err(error) = command::find(&command[0]) {
        return Ok(command::cannot_run(&command[0], &error, tell));
    }
    if !options.calls_only {
        match by_kernel(options, &names, tell) {
            Err(Failure::Cannot(why)) => {
                tell(Notice::Said(format!("cannot record page faults and snapshots: {why:#}")));
                tell(Notice::Said("recording only the calls, with strace".to_owned()));
            }
            Err(Failure::Broken(error)) => return Err(error),
            Ok(status) => return Ok(status),
        }
    }
    strace::record(command, &names, tell)
}

/// The reason why the kernel's tracing gave no recording.
enum Failure {
    /// A requirement is missing. The command has not started.
    Cannot(anyhow::Error),
    /// The command ran, but the recording failed.
    Broken(anyhow::Error),
}

/// Records by the kernel's tracing. Checks all requirements before the command starts.
fn by_kernel(options: &Options, names: &Names, tell: &dyn Fn(Notice)) -> Result<u8, Failure> {
    names.check().map_err(Failure::Broken)?;
    // The fork comes first, because the child must be a copy of a process with one thread.
    let waiting = Waiting::new(&options.command).map_err(Failure::Broken)?;
    let process = waiting.process;
    let collector = Collector::new(process, options.buffer_kb, &names.folder)
        .and_then(|collector| options.accesses.map_or(Ok(()), |_| proc::can_sample()).map(|()| collector));
    match collector.and_then(|collector| tracee::seize(process).map(|()| collector)) {
        Ok(collector) => run(options, names, (waiting, collector), tell).map_err(Failure::Broken),
        Err(why) => {
            waiting.cancel();
            Err(Failure::Cannot(why))
        }
    }
}

/// Runs the command, follows it to its end, and writes the recording. If events were lost, writes the
/// recording and then fails.
fn run(
    options: &Options,
    names: &Names,
    (waiting, collector): (Waiting, Collector),
    tell: &dyn Fn(Notice),
) -> anyhow::Result<u8> {
    let process = waiting.process;
    tracee::prepare_signals();
    let again = collector.again.clone();
    let (watch, settings) = (machine::Watch::new(), machine::settings());
    let running = collector.start()?;
    let begun = tracee::now();
    let started = waiting.go()?;
    let freezes = match options.accesses {
        Some(every) => Freezes { every, most: u32::MAX, samples: true },
        None => Freezes { every: options.snapshot_every, most: options.snapshots, samples: false },
    };
    let followed = follow::follow(process, freezes, again)?;
    let wall = tracee::now() - begun;
    let collected = running.stop()?;
    if let Some(error) = started.failure() {
        return Ok(command::cannot_run(&options.command[0], &error, tell));
    }
    let status = followed.status;
    let lost = collected.lost;
    let written = watch.map_or_else(Vec::new, machine::Watch::written);
    let mut settings = machine::unchanged(settings, &machine::settings(), &written);
    settings.extend(options.accesses.map(|every| ("accesses".to_owned(), every.as_nanos().to_string())));
    let written = write::write(names, process, collected, (followed, wall), &settings, &options.rename)?;
    tell(Notice::Written(&written));
    tell(Notice::Replayable(&written.file));
    if lost != 0 {
        bail!(
            "lost {lost} events because the buffers were full, and a replay does not check what follows; try --buffer-kb {}",
            options.buffer_kb.saturating_mul(4)
        );
    }
    Ok(status)
}
