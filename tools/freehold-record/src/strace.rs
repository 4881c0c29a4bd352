//! Recording of calls only, with the program strace, which works wherever ptrace works.
//!
//! [`record`] runs `strace COMMAND` and compresses the output of strace into `NAME.strace.zst`, after a first
//! line with the limits and the user of the process. Faults, locks and snapshots are missing in such a
//! recording. `lib.rs` records in this way if the kernel's tracing is not available, or if the user requests
//! it. `freehold-trace/src/strace/` reads the output.
//!
//! A call that the reader supports must also be in [`CALLS`]. A call that old versions of strace do not know
//! gets a question mark there, and an entry in [`NEWER`]. The help and the documents quote the command line;
//! `help_tests.rs` of `freehold-cli` compares them. `freehold-cli/tests/record.rs` and
//! `freehold-cli/tests/random.rs` record with strace.

use super::write::{self, Names};
use super::{Notice, command, proc, tracee};
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The options with which strace writes output that can be replayed.
const OPTIONS: [&str; 8] = ["-f", "-ttt", "-T", "-y", "-s", "64", "-e", CALLS];
/// The calls that strace must record.
const CALLS: &str = "trace=memory,process,process_vm_readv,process_vm_writev,memfd_create,\
    open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl,ftruncate,fallocate,shmget,shmctl,prctl,prlimit64,setrlimit,capset,setns,setuid,setreuid,setresuid,unshare,\
    ioctl,userfaultfd,?mseal";
/// Calls in `CALLS` that older versions of strace do not know.
const NEWER: [&str; 1] = ["mseal"];
/// Compression level of the output.
const LEVEL: i32 = 12;

/// Returns the strace command line whose output can be replayed, without `-o FILE COMMAND`. The help and the
/// documents show this command line.
pub fn command_line() -> String {
    // Shells expand a word with a question mark to file names, so the word is quoted.
    let word = |word: &str| if word.contains('?') { format!("'{word}'") } else { word.to_owned() };
    format!("strace {}", OPTIONS.map(word).join(" "))
}

/// Runs the command under strace, compresses the output, and tells the user what the output lacks. Returns
/// the command's exit status.
///
/// # Errors
///
/// Fails if strace is missing or was killed, or if its output cannot be read or written.
pub fn record(command: &[OsString], names: &Names, tell: &dyn Fn(Notice)) -> anyhow::Result<u8> {
    let text = &names.text;
    let packed_text = write::output(text)?;
    let plain = tempfile::Builder::new().suffix(".strace").tempfile_in(&names.folder);
    let plain = plain.with_context(|| format!("cannot create a file in {}", names.folder.display()))?;
    let mut strace = Command::new("strace");
    strace.args(OPTIONS).arg("-o").arg(plain.path()).arg("--").args(command);
    let strace = match strace.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("the program strace is not installed; install it or run as root")
        }
        other => other.context("cannot run strace")?,
    };
    let status = wait(strace).context("cannot wait for strace")?;
    if plain.as_file().metadata().is_ok_and(|found| found.len() == 0) {
        bail!("strace has recorded nothing (exit status {})", status.code().unwrap_or(-1));
    }
    // The command has the same limits as this process.
    let limits = proc::limits_of(std::process::id() as i32);
    let user = rustix::process::geteuid().as_raw();
    let limits = limits.map_or(String::new(), |limits| format!("# limits{limits} u{user}\n"));
    let packed = File::open(plain.path());
    let packed = packed.and_then(|file| zstd::encode_all(limits.as_bytes().chain(file), LEVEL));
    let packed =
        packed.with_context(|| format!("cannot read the output of strace for {}", text.display()))?;
    packed_text.write(&packed).with_context(|| format!("cannot write {}", text.display()))?;
    tell_limits(command, text, tell);
    // strace ends in the same way as the command, even if a signal killed the command.
    let killed = status.signal().map(|signal| 128 + signal);
    status.code().or(killed).and_then(|code| u8::try_from(code).ok()).context("strace was killed")
}

/// Tells the user the name of the new file, and what it lacks.
fn tell_limits(command: &[OsString], text: &Path, tell: &dyn Fn(Notice)) {
    let said = |text: String| tell(Notice::Said(text));
    said(format!("{}: calls only; a replay compares no page faults and no snapshots", text.display()));
    let unknown: Vec<&str> = NEWER.into_iter().filter(|call| !is_known(call)).collect();
    if !unknown.is_empty() {
        said(format!(
            "the installed strace does not know {}, so its output lacks these calls",
            unknown.join(", ")
        ));
    }
    if command::gains_privileges(&command[0]) {
        said("under strace the command ran without the privileges of its file; run as root".to_owned());
    }
    tell(Notice::Replayable(text));
}

/// Returns true if the installed strace knows the call.
fn is_known(call: &str) -> bool {
    let mut probe = Command::new("strace");
    probe.args(["-o", "/dev/null", "-e", &format!("trace={call}"), "true"]);
    probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Waits for the end of strace, which ignores signals. Forwards a signal that requests the end of the
/// recording to the command. At a second such signal, kills the command.
fn wait(mut strace: Child) -> io::Result<ExitStatus> {
    // Block the signals only after the fork: strace would inherit the blocked signals.
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

/// Returns the children of `process` that it has not waited for.
fn children(process: u32) -> Vec<i32> {
    let listed = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}
