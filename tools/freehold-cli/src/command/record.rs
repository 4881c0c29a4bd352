//! `freehold record`: passes the arguments to the recorder (`freehold-record`), and prints its notices.
//!
//! All output is on standard error, because standard output belongs to the recorded command. The exit status
//! is that of the command; `main.rs` turns an error of the recorder into 125. `tests/record.rs` records
//! programs with the built command. A new kind of [`Notice`] needs an arm in [`run`].

use crate::cli::RecordArgs;
use freehold_record::{Notice, Options, Written, record};
use freehold_replay::units;

/// Records the command that the arguments name. Returns the command's exit status, as a shell would show it.
///
/// # Errors
///
/// Fails if a requirement of the recorder is missing, or if recording fails. The error is a message for the
/// user.
pub fn run(args: RecordArgs) -> anyhow::Result<u8> {
    let RecordArgs { output, snapshot_every, snapshots, buffer_kb, rename, force, calls_only, command } =
        args;
    let options =
        Options { output, snapshot_every, snapshots, buffer_kb, rename, force, calls_only, command };
    record(&options, &|notice| match notice {
        Notice::Said(words) => eprintln!("freehold: {words}"),
        Notice::Failed(words) => eprintln!("error: {words}"),
        Notice::Written(written) => show(written),
        Notice::Replayable(file) => eprintln!("freehold: replay with: freehold replay {}", file.display()),
    })
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
