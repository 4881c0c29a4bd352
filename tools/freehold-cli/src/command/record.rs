//! `freehold record`.

use crate::cli::RecordArgs;
use freehold_record::{Notice, Options, Written, record};
use freehold_replay::units;

/// Records what the arguments say. The exit status of the command, as a shell would show it.
///
/// # Errors
///
/// For the user: what is missing to record, or what went wrong.
pub fn run(args: RecordArgs) -> anyhow::Result<u8> {
    let RecordArgs { output, snapshot_every, snapshots, buffer_kb, rename, force, calls_only, command } =
        args;
    let options =
        Options { output, snapshot_every, snapshots, buffer_kb, rename, force, calls_only, command };
    record(&options, &|notice| match notice {
        Notice::Said(words) => eprintln!("freehold: {words}"),
        Notice::Written(written) => show(written),
        Notice::Replayable(file) => eprintln!("freehold: freehold replay {}", file.display()),
    })
}

/// What there is, and what it cost.
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
        "freehold: the command ran for {}, of which {} stopped for snapshots",
        units::nanoseconds(*wall),
        units::nanoseconds(*stopped)
    );
    if let Some((number, why)) = &written.failed {
        eprintln!("freehold: {number} snapshots could not be taken: {why}");
    }
    if let Some(why) = &written.unseen {
        eprintln!(
            "freehold: resource limits, registrations with userfaultfds and ranges of process_madvise are not recorded: {why:#}"
        );
    }
}
