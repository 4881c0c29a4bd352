//! What the jobs of the command print and write, and their exit status.

pub mod manual;
pub mod record;
pub mod replay;
pub mod reproduce;

use anyhow::Context;
use freehold_record::Output;
use std::io::{self, Write};
use std::path::Path;

/// Something differed from Linux.
pub const DIFFERENT: u8 = 1;
/// Something could not be read, or not be written.
pub const UNUSABLE: u8 = 2;

/// Whether an error is that nobody reads standard output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Prints to standard output.
///
/// # Errors
///
/// The system's; a broken pipe, too.
pub fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
