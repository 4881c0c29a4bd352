//! The calls alone, by the program strace: wherever ptrace works.

use super::tracee;
use super::write::replay_command;
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// What a text by strace has to hold to be replayed.
const CALLS: &str = "trace=memory,process,process_vm_readv,process_vm_writev,memfd_create,\
    open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl,ftruncate,fallocate";

/// Runs the command under strace, which writes to `text`, and says how it is replayed. The command's exit status.
///
/// # Errors
///
/// There is no strace, or it was stopped.
pub fn record(command: &[OsString], text: &Path) -> anyhow::Result<u8> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-ttt", "-T", "-y", "-s", "64", "-e", CALLS, "-o"]).arg(text).arg("--").args(command);
    let strace = match strace.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("the program strace is not installed; with it, or as root, a recording can be made")
        }
        other => other.context("strace cannot be run")?,
    };
    let status = wait(strace).context("strace cannot be waited for")?;
    if !text.exists() {
        bail!("strace made no {}", text.display());
    }
    eprintln!("freehold: {}: calls only; a replay compares no page faults and no snapshots", text.display());
    eprintln!("freehold: {}", replay_command(text));
    // strace ends as the command did, also by a signal.
    let killed = status.signal().map(|signal| 128 + signal);
    status.code().or(killed).and_then(|code| u8::try_from(code).ok()).context("strace was killed")
}

/// Waits for the end of strace, which takes no signals itself; who asks for the end has the command told.
fn wait(mut strace: Child) -> io::Result<ExitStatus> {
    // Only now: what is blocked here, a child would begin with.
    tracee::prepare_signals();
    let mut ending = false;
    loop {
        if let Some(status) = strace.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = tracee::pause(Duration::from_secs(1)) {
            let signal = if ending { libc::SIGKILL } else { signal };
            children(strace.id()).into_iter().for_each(|child| tracee::tell(child, signal));
            ending = true;
        }
    }
}

/// The processes that `process` has forked and not waited for.
fn children(process: u32) -> Vec<i32> {
    let listed = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}
