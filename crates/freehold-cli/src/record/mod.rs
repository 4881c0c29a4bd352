//! `freehold record`: runs a command and makes a recording of it.
//!
//! The kernel reports calls, faults and locks in its trace buffers (`tracefs`, `format`, `ring`), ends of
//! faults and names of files in rings of perf events (`perf`), and what is registered with userfaultfds and
//! which limits are set through programs that it runs for us (`pointed`, `credentials`, `bpf`). `follow`
//! stops processes with ptrace where they exec and exit, and takes snapshots (`proc`), with what is mounted
//! then (`mounts`). `assemble` puts all of it together by time. Where the kernel gives no leave, the program strace records the calls alone
//! (`strace`).

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
mod perf;
mod pointed;
mod proc;
mod raw;
mod ring;
pub(crate) mod strace;
mod tracee;
mod tracefs;
mod write;

use crate::cli::RecordArgs;
use anyhow::bail;
use collect::Collector;
use follow::Freezes;
use tracee::Waiting;
use write::Names;

/// Records what the arguments say. The exit status of the command, as a shell would show it.
///
/// # Errors
///
/// For the user: what is missing to record, or what went wrong.
pub fn record(args: &RecordArgs) -> anyhow::Result<u8> {
    let names = Names::new(args.output.as_deref(), &args.command, args.force)?;
    if let Err(error) = command::find(&args.command[0]) {
        return Ok(command::cannot_run(&args.command[0], &error));
    }
    if !args.calls_only {
        match by_kernel(args, &names) {
            Err(Failure::Cannot(why)) => {
                eprintln!("freehold: page faults and snapshots cannot be recorded: {why:#}");
                eprintln!("freehold: recording the calls alone, with strace");
            }
            Err(Failure::Broken(error)) => return Err(error),
            Ok(status) => return Ok(status),
        }
    }
    strace::record(&args.command, &names)
}

/// Why there is no recording by the kernel's tracing.
enum Failure {
    /// Something is missing; the command has not begun.
    Cannot(anyhow::Error),
    /// The command ran, but something went wrong.
    Broken(anyhow::Error),
}

fn by_kernel(args: &RecordArgs, names: &Names) -> Result<u8, Failure> {
    names.check().map_err(Failure::Broken)?;
    // First of all: the child is to be a copy of a process with one thread.
    let waiting = Waiting::new(&args.command).map_err(Failure::Broken)?;
    let process = waiting.process;
    let collector = Collector::new(process, args.buffer_kb, &names.folder);
    match collector.and_then(|collector| tracee::seize(process).map(|()| collector)) {
        Ok(collector) => run(args, names, waiting, collector).map_err(Failure::Broken),
        Err(why) => {
            waiting.cancel();
            Err(Failure::Cannot(why))
        }
    }
}

fn run(args: &RecordArgs, names: &Names, waiting: Waiting, collector: Collector) -> anyhow::Result<u8> {
    let process = waiting.process;
    tracee::prepare_signals();
    let again = collector.again.clone();
    let settings = machine::settings();
    let running = collector.start()?;
    let begun = tracee::now();
    let started = waiting.go()?;
    let freezes = Freezes { every: args.snapshot_every, most: args.snapshots };
    let followed = follow::follow(process, freezes, again)?;
    let wall = tracee::now() - begun;
    let collected = running.stop()?;
    if let Some(error) = started.failure() {
        return Ok(command::cannot_run(&args.command[0], &error));
    }
    let status = followed.status;
    let lost = collected.lost;
    let settings = machine::unchanged(settings, &machine::settings());
    let written = write::write(names, process, collected, followed, &settings, &args.rename)?;
    written.report(names, wall);
    if lost != 0 {
        bail!(
            "{lost} events found no room and are lost: what follows them is not checked by a replay; try --buffer-kb {}",
            args.buffer_kb.saturating_mul(4)
        );
    }
    Ok(status)
}
