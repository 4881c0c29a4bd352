//! The calls alone, by the program strace: wherever ptrace works.

use anyhow::{Context, bail};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

/// What a text by strace has to hold to be replayed.
const CALLS: &str = "trace=memory,process,process_vm_readv,process_vm_writev,ftruncate,memfd_create";

/// Runs the command under strace, which writes to `text`. The command's exit status.
///
/// # Errors
///
/// There is no strace, or it was stopped.
pub fn record(command: &[OsString], text: &Path) -> anyhow::Result<u8> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-ttt", "-s", "64", "-e", CALLS, "-o"]).arg(text).arg("--").args(command);
    let status = match strace.status() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("the program strace is not installed; with it, or as root, a recording can be made")
        }
        other => other.context("strace cannot be run")?,
    };
    if !text.exists() {
        bail!("strace made no {}", text.display());
    }
    eprintln!("freehold: {}: calls only; a replay compares no page faults and no snapshots", text.display());
    status.code().and_then(|code| u8::try_from(code).ok()).context("strace was killed")
}
