//! `freehold reproduce`: runs the chosen experiments and writes their findings.
//!
//! 1. Checks that all output files can be written, before anything runs.
//! 2. Runs the experiments of `freehold-reproduce` with the scale that the arguments select. SIGINT and
//!    SIGTERM end the run; the output then contains only the finished experiments.
//! 3. Writes the text, the JSON, the Markdown document and the page, as requested.
//!
//! With `--markdown`, an existing document keeps the part about the kernel that `cargo xtask boot --bench`
//! has written. The tests are in `tests/reproduce.rs`. For a new output format, [`run`] must open the file
//! before the experiments run, and add it to `files`.

use super::{UNUSABLE, cannot_write, is_broken_pipe, output, say};
use crate::cli::ReproduceArgs;
use anyhow::Context;
use freehold_reproduce::{Plan, Scale};
use std::path::{Path, PathBuf};

/// Heading of the part of a document that `--markdown` keeps.
const KERNELS_PART: &str = "\n## The kernel\n";

/// The exit status of an interrupted run is this value plus the number of the signal.
const SIGNALLED: u8 = 128;

/// Runs the experiments that the arguments name, and returns the exit status.
///
/// # Errors
///
/// Fails if an experiment needs more memory than is available, or if an output cannot be written.
pub fn run(args: &ReproduceArgs) -> anyhow::Result<u8> {
    let plan = Plan::new(&args.experiments, scale(args));
    plan.check().map_err(anyhow::Error::msg)?;
    let text = args.json.as_deref() != Some(Path::new("-"));
    // Open the files first, so that an unwritable file is reported before the experiments run.
    let kept = args.markdown.as_deref().and_then(kernels_part).unwrap_or_default();
    let file = |path: Option<&PathBuf>| path.map(|path| output(path)).transpose();
    let json = file(args.json.as_ref().filter(|_| text))?;
    let (page, markdown) = (file(args.report.as_ref())?, file(args.markdown.as_ref())?);
    // If the reader closes standard output, the files are still written.
    let mut gone = None;
    let mut show = |text: &str| {
        if gone.is_none() {
            gone = say(text).err();
        }
    };
    let found = plan.run(args.quiet, command_line(), |found| match found {
        Ok(found) if text => show(&found.text()),
        Ok(_) => {}
        Err(why) => eprintln!("error: {why}"),
    })?;
    if let (Some(_), Some(said)) = (&found.interrupted, found.missing().last()) {
        eprintln!("freehold: {said}");
    }
    let json_text = serde_json::to_string_pretty(&found)? + "\n";
    if !text {
        show(&json_text);
    }
    let page_text = page.as_ref().map(|_| found.html()).transpose()?;
    let markdown_text = markdown.as_ref().map(|_| found.markdown() + &kept);
    // Write the remaining files even if one cannot be written.
    let files = [
        (json, &args.json, Some(json_text)),
        (page, &args.report, page_text),
        (markdown, &args.markdown, markdown_text),
    ];
    let mut status = if found.failed.is_empty() { 0 } else { UNUSABLE };
    for (file, path, text) in files {
        let (Some(file), Some(path), Some(text)) = (file, path, text) else { continue };
        if let Err(error) = file.write(&text).with_context(|| cannot_write(path)) {
            eprintln!("error: {error:#}");
            status = UNUSABLE;
        }
    }
    match gone {
        Some(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(found.interrupted.map_or(status, |interrupted| SIGNALLED + interrupted.signal as u8)),
    }
}

/// Returns the part that `cargo xtask boot --bench` has appended to a document: the kernel's figures.
fn kernels_part(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().and_then(|document| from_kernels_part(&document).map(str::to_owned))
}

/// Returns the text from the heading of the kernel's part to the end of the document.
fn from_kernels_part(document: &str) -> Option<&str> {
    document.find(KERNELS_PART).map(|at| &document[at..])
}

/// Returns the experiment sizes that the arguments select.
fn scale(args: &ReproduceArgs) -> Scale {
    let usual = if args.quick { Scale::quick } else { Scale::full }(args.cpus());
    Scale {
        at_most: args.at_most.unwrap_or(usual.at_most),
        turns: args.turns.map(usize::from),
        host: !args.no_host,
        ..usual
    }
}

/// Returns the command line, with quotes around words that contain whitespace.
fn command_line() -> String {
    let quoted = |word: std::ffi::OsString| match word.to_string_lossy() {
        word if word.contains(char::is_whitespace) => format!("'{word}'"),
        word => word.into_owned(),
    };
    std::env::args_os().skip(1).map(quoted).fold("freehold".to_owned(), |line, word| line + " " + &word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_part_of_the_document_is_kept() {
        assert_eq!(
            from_kernels_part("# Results\n\n## munmap\n\n## The kernel\n\ntables\n"),
            Some("\n## The kernel\n\ntables\n")
        );
        assert_eq!(from_kernels_part("# Results\n\nof the kernel\n"), None);
    }
}
