//! The subcommands: the output, the files and the exit status of each.
//!
//! Each file has a function that `main.rs` calls with the parsed arguments. The function returns the exit
//! status, or an error that `main.rs` prints. Reports go to standard output through [`say`], so that a broken
//! pipe is recognised; notices, warnings and errors go to standard error. Output files are checked with
//! [`output`] before any work, so that an unwritable file is reported at once. Output files are written at
//! the end, completely or not at all. Of the crates behind the subcommands, only `freehold-reproduce` prints
//! anything itself: its progress.
//!
//! A new subcommand needs a file here, an arm in `main`, a variant of `Command` (`cli.rs`), its texts in
//! `help.rs`, the new number of subcommands in `help_tests.rs`, and a test of the built command in `tests/`.

pub mod manual;
mod policies;
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

/// Returns true if the error is a broken pipe: the reader has closed standard output.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Checks that a file can be written. The file is written later, completely or not at all.
fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

/// Returns the message for a file that cannot be written, without the reason.
fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Prints to standard output.
///
/// # Errors
///
/// Fails if standard output cannot be written. A broken pipe is an error, too; see [`is_broken_pipe`].
pub fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
