//! The command that is to be recorded, before it begins.

use crate::Notice;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The exit status that a shell shows where there is no such command, and where there is one that cannot be
/// run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
/// Where commands are looked for, if nothing is said.
const USUAL: &str = "/bin:/usr/bin";

/// Where the command is, looked for as execvp(3) does.
///
/// # Errors
///
/// There is none, or no leave to run it.
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

fn may_run(path: PathBuf) -> io::Result<PathBuf> {
    access(&path, Access::EXEC_OK)?;
    if path.is_dir() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(path) }
}

/// Whether the command's file gives who runs it other credentials, which it does not under a tracer without
/// privileges.
pub fn gains_privileges(command: &OsStr) -> bool {
    const SET_USER_OR_GROUP: u32 = 0o6000;
    let file = find(command).and_then(|path| path.metadata());
    !geteuid().is_root() && file.is_ok_and(|file| file.permissions().mode() & SET_USER_OR_GROUP != 0)
}

/// Tells that the command cannot be run; the exit status for that.
pub fn cannot_run(command: &OsStr, error: &io::Error, tell: &dyn Fn(Notice)) -> u8 {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let why = if missing { "no such command".to_owned() } else { error.to_string() };
    tell(Notice::Said(format!("{} cannot be run: {why}", Path::new(command).display())));
    if missing { NOT_FOUND } else { CANNOT_RUN }
}
