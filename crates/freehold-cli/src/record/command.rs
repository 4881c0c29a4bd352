//! The command that is to be recorded, before it begins.

use rustix::fs::{Access, access};
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The exit status that a shell shows where there is no such command, and where there is one that cannot be run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
/// Where commands are looked for, if nothing is said.
const USUAL: &str = "/bin:/usr/bin";

/// Looks for the command as execvp(3) does.
///
/// # Errors
///
/// There is none, or no leave to run it.
pub fn find(command: &OsStr) -> io::Result<()> {
    if command.as_bytes().contains(&b'/') {
        return may_run(Path::new(command));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    let mut worst = io::Error::from(io::ErrorKind::NotFound);
    for folder in env::split_paths(&path) {
        match may_run(&folder.join(command)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => worst = error,
            Err(_) => {}
        }
    }
    Err(worst)
}

fn may_run(path: &Path) -> io::Result<()> {
    access(path, Access::EXEC_OK)?;
    if path.is_dir() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

/// Says that the command cannot be run; the exit status for that.
pub fn cannot_run(command: &OsStr, error: &io::Error) -> u8 {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let why = if missing { "no such command".to_owned() } else { error.to_string() };
    eprintln!("freehold: {} cannot be run: {why}", Path::new(command).display());
    if missing { NOT_FOUND } else { CANNOT_RUN }
}
