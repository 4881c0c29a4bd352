//! The subcommands: what each prints and writes, and its exit status.

pub mod manual;
pub mod record;
pub mod replay;
pub mod reproduce;

use anyhow::Context;
use freehold_record::Output;
use std::io::{self, Write};
use std::path::Path;

/// Exit status if an answer differed from Linux's.
pub const DIFFERENT: u8 = 1;
/// Exit status if a file could not be read or written.
pub const UNUSABLE: u8 = 2;

/// Returns true if the error is a broken pipe: the reader of standard output has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Prints to standard output.
///
/// # Errors
///
/// Fails if standard output cannot be written, also if it is a broken pipe.
pub fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
