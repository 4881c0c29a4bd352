//! `freehold record`: passes the arguments to the recorder (`freehold-record`), and prints its notices. With
//! `--report`, replays the recording and writes the page about it.
//!
//! All output is on standard error, because standard output belongs to the recorded command. The exit status
//! is that of the command; `main.rs` turns an error of the recorder into 125. `tests/record.rs` records
//! programs with the built command. A new kind of [`Notice`] needs an arm in [`run`].

use super::cannot_write;
use crate::cli::RecordArgs;
use anyhow::Context;
use freehold_record::{Notice, Options, Output, Written, record};
use freehold_replay::{Source, page, replay, units};
use std::cell::RefCell;
use std::path::Path;

/// Records the command that the arguments name. Returns the command's exit status, as a shell would show it.
///
/// # Errors
///
/// Fails if a requirement of the recorder is missing, or if recording fails. The error is a message for the
/// user.
pub fn run(args: RecordArgs) -> anyhow::Result<u8> {
    let RecordArgs {
        output,
        snapshot_every,
        snapshots,
        accesses,
        buffer_kb,
        rename,
        force,
        calls_only,
        report,
        command,
    } = args;
    let page = report.as_deref().map(super::output).transpose()?;
    let options = Options {
        output,
        snapshot_every,
        snapshots,
        accesses,
        buffer_kb,
        rename,
        force,
        calls_only,
        command,
    };
    let recorded = RefCell::new(None);
    let status = record(&options, &|notice| match notice {
        Notice::Said(words) => eprintln!("freehold: {words}"),
        Notice::Failed(words) => eprintln!("error: {words}"),
        Notice::Written(written) => show(written),
        Notice::Replayable(file) => {
            eprintln!("freehold: replay with: freehold replay {}", file.display());
            recorded.replace(Some(file.to_owned()));
        }
    })?;
    if let (Some(page), Some(path)) = (page, report) {
        match recorded.into_inner() {
            Some(file) => write(page, &path, &file)?,
            None => eprintln!("warning: {} is not written: there is no recording to replay", path.display()),
        }
    }
    Ok(status)
}

/// Replays a recording, and writes the page about it.
fn write(page: Output, path: &Path, recording: &Path) -> anyhow::Result<()> {
    let source = Source::from(recording);
    let outcome = replay(&source, &freehold_replay::Options::default(), &())?;
    page.write(&page::html(&source, &[outcome], None)?).with_context(|| cannot_write(path))?;
    eprintln!("freehold: {}: a page about the recording", path.display());
    Ok(())
}

/// Prints the size of the recording, the time for which the command ran, and what could not be recorded.
fn show(written: &Written) {
    let Written { events, calls, faults, tasks, snapshots, wall, stopped, bytes, .. } = written;
    let count = |number: &u64| units::count(*number);
    eprintln!(
        "freehold: {}: {} events ({} calls, {} faults) of {tasks} tasks, {snapshots} snapshots, {}",
        written.file.display(),
        count(events),
        count(calls),
        count(faults),
        units::bytes(*bytes)
    );
    eprintln!(
        "freehold: the command ran for {}, including {} stopped for snapshots",
        units::nanoseconds(*wall),
        units::nanoseconds(*stopped)
    );
    if let Some((number, why)) = &written.failed {
        eprintln!("warning: cannot take {number} snapshots: {why}");
    }
    if let Some(why) = &written.unseen {
        eprintln!(
            "warning: resource limits, userfaultfd registrations and ranges of process_madvise are not recorded: {why:#}"
        );
    }
}
