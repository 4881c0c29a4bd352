//! Finds the file of the command to record, checks that it can be run, and tells the user if it cannot.
//!
//! `lib.rs` looks for the command's file before the recorder does anything, so that a wrong name leaves no
//! files and gives the exit status of a shell (127 or 126). `strace.rs` asks if the command would gain
//! privileges. `freehold-cli/tests/record.rs` checks the messages and statuses.

use crate::Notice;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The exit statuses of a shell if a command does not exist, and if a command cannot be run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
/// The search path if PATH is not set.
const USUAL: &str = "/bin:/usr/bin";

/// Returns the path of the command. Searches as execvp(3) does.
///
/// # Errors
///
/// Fails if the command does not exist, or if this process may not run it.
pub fn find(command: &OsStr) -> io::Result<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return may_run(Path::new(command).to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    let mut worst = io::Error::from(io::ErrorKind::NotFound);
    for folder in env::split_paths(&path) {
        match may_run(folder.join(command)) {
            Ok(path) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => worst = error,
            Err(_) => {}
        }
    }
    Err(worst)
}

/// Returns the path if it is a file that this process may execute.
fn may_run(path: PathBuf) -> io::Result<PathBuf> {
    access(&path, Access::EXEC_OK)?;
    if path.is_dir() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(path) }
}

/// Returns true if the command's file is set-user-ID or set-group-ID and this process is not root. Under a
/// tracer that is not root, such a file does not change the credentials of its process.
pub fn gains_privileges(command: &OsStr) -> bool {
    const SET_USER_OR_GROUP: u32 = 0o6000;
    let file = find(command).and_then(|path| path.metadata());
    !geteuid().is_root() && file.is_ok_and(|file| file.permissions().mode() & SET_USER_OR_GROUP != 0)
}

/// Passes to `tell` the message that the command cannot be run. Returns the exit status that a shell gives in
/// that case.
pub fn cannot_run(command: &OsStr, error: &io::Error, tell: &dyn Fn(Notice)) -> u8 {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let why = if missing { "command not found".to_owned() } else { error.to_string() };
    tell(Notice::Failed(format!("cannot run '{}': {why}", Path::new(command).display())));
    if missing { NOT_FOUND } else { CANNOT_RUN }
}
