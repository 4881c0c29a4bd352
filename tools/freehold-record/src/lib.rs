//! Runs a command and makes a recording of what it and all that it forks do to their memory.
//!
//! The kernel reports calls, faults and locks in its trace buffers (`tracefs`, `format`, `ring`), ends of
//! faults and names of files in rings of perf events (`perf`), and what is registered with userfaultfds and
//! which limits are set through programs that it runs for us (`pointed`, `credentials`, `bpf`). `follow`
//! stops processes with ptrace where they exec and exit, and takes snapshots (`proc`), with what is mounted
//! then (`mounts`). `assemble` puts all of it together by time. Where the kernel gives no leave, the program
//! strace records the calls alone (`strace`).
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

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the recording, with its folder; without one, the command's name here.
    pub output: Option<PathBuf>,
    /// Everything is stopped this often for snapshots.
    pub snapshot_every: Duration,
    /// At most this many times.
    pub snapshots: u32,
    /// Kernel buffer for each processor.
    pub buffer_kb: u32,
    /// Beginnings of paths, and what stands in their place in the recording.
    pub rename: Vec<(String, String)>,
    /// Files of an older recording may be replaced.
    pub force: bool,
    /// Only calls, by strace: no faults, no snapshots.
    pub calls_only: bool,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
}

/// What there is to be told on the way.
#[derive(Debug)]
pub enum Notice<'n> {
    /// This, in words.
    Said(String),
    /// The files by the kernel's tracing are there.
    Written(&'n Written),
    /// This file can be replayed.
    Replayable(&'n Path),
}

/// Records what the options say, and `tell`s what happens. The exit status of the command, as a shell would
/// show it.
///
/// # Errors
///
/// For the user: what is missing to record, or what went wrong.
pub fn record(options: &Options, tell: &dyn Fn(Notice)) -> anyhow::Result<u8> {
    let command = &options.command;
    let names = Names::new(options.output.as_deref(), command, options.force)?;
    if let Err(error) = command::find(&command[0]) {
        return Ok(command::cannot_run(&command[0], &error, tell));
    }
    if !options.calls_only {
        match by_kernel(options, &names, tell) {
            Err(Failure::Cannot(why)) => {
                tell(Notice::Said(format!("page faults and snapshots cannot be recorded: {why:#}")));
                tell(Notice::Said("recording the calls alone, with strace".to_owned()));
            }
            Err(Failure::Broken(error)) => return Err(error),
            Ok(status) => return Ok(status),
        }
    }
    strace::record(command, &names, tell)
}

/// Why there is no recording by the kernel's tracing.
enum Failure {
    /// Something is missing; the command has not begun.
    Cannot(anyhow::Error),
    /// The command ran, but something went wrong.
    Broken(anyhow::Error),
}

fn by_kernel(options: &Options, names: &Names, tell: &dyn Fn(Notice)) -> Result<u8, Failure> {
    names.check().map_err(Failure::Broken)?;
    // First of all: the child is to be a copy of a process with one thread.
    let waiting = Waiting::new(&options.command).map_err(Failure::Broken)?;
    let process = waiting.process;
    let collector = Collector::new(process, options.buffer_kb, &names.folder);
    match collector.and_then(|collector| tracee::seize(process).map(|()| collector)) {
        Ok(collector) => run(options, names, (waiting, collector), tell).map_err(Failure::Broken),
        Err(why) => {
            waiting.cancel();
            Err(Failure::Cannot(why))
        }
    }
}

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
    let freezes = Freezes { every: options.snapshot_every, most: options.snapshots };
    let followed = follow::follow(process, freezes, again)?;
    let wall = tracee::now() - begun;
    let collected = running.stop()?;
    if let Some(error) = started.failure() {
        return Ok(command::cannot_run(&options.command[0], &error, tell));
    }
    let status = followed.status;
    let lost = collected.lost;
    let written = watch.map_or_else(Vec::new, machine::Watch::written);
    let settings = machine::unchanged(settings, &machine::settings(), &written);
    let written = write::write(names, process, collected, (followed, wall), &settings, &options.rename)?;
    tell(Notice::Written(&written));
    tell(Notice::Replayable(&written.file));
    if lost != 0 {
        bail!(
            "{lost} events found no room and are lost: what follows them is not checked by a replay; try --buffer-kb {}",
            options.buffer_kb.saturating_mul(4)
        );
    }
    Ok(status)
}
