//! `freehold reproduce`.

use super::{UNUSABLE, cannot_write, is_broken_pipe, output, say};
use crate::cli::ReproduceArgs;
use anyhow::Context;
use freehold_reproduce::{Plan, Scale};
use std::path::{Path, PathBuf};

/// Begins the part of a document that stays.
const KERNELS_PART: &str = "\n## The kernel\n";

/// What a shell adds to the number of a signal that ended a command.
const SIGNALLED: u8 = 128;

/// Does the experiments that the arguments name; the exit status.
///
/// # Errors
///
/// Not enough memory for an experiment, an output that cannot be written.
pub fn run(args: &ReproduceArgs) -> anyhow::Result<u8> {
    let plan = Plan::new(&args.experiments, scale(args));
    plan.check().map_err(anyhow::Error::msg)?;
    let text = args.json.as_deref() != Some(Path::new("-"));
    // Whether files can be written is known before anything takes a quarter of an hour.
    let kept = args.markdown.as_deref().and_then(kernels_part).unwrap_or_default();
    let file = |path: Option<&PathBuf>| path.map(|path| output(path)).transpose();
    let json = file(args.json.as_ref().filter(|_| text))?;
    let (page, markdown) = (file(args.report.as_ref())?, file(args.markdown.as_ref())?);
    // A reader may have seen enough of the text; files are written all the same.
    let mut gone = None;
    let mut show = |text: &str| {
        if gone.is_none() {
            gone = say(text).err();
        }
    };
    let found = plan.run(args.quiet, command_line(), |found| match found {
        Ok(found) if text => show(&found.text()),
        Ok(_) => {}
        Err(why) => eprintln!("freehold: {why}"),
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
    // One that cannot be written does not keep the others from it.
    let files = [
        (json, &args.json, Some(json_text)),
        (page, &args.report, page_text),
        (markdown, &args.markdown, markdown_text),
    ];
    let mut status = if found.failed.is_empty() { 0 } else { UNUSABLE };
    for (file, path, text) in files {
        let (Some(file), Some(path), Some(text)) = (file, path, text) else { continue };
        if let Err(error) = file.write(&text).with_context(|| cannot_write(path)) {
            eprintln!("freehold: {error:#}");
            status = UNUSABLE;
        }
    }
    match gone {
        Some(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(found.interrupted.map_or(status, |interrupted| SIGNALLED + interrupted.signal as u8)),
    }
}

/// What a document has of the kernel's figures, which another command writes to its end
/// (`cargo xtask boot --bench`).
fn kernels_part(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().and_then(|document| from_kernels_part(&document).map(str::to_owned))
}

fn from_kernels_part(document: &str) -> Option<&str> {
    document.find(KERNELS_PART).map(|at| &document[at..])
}

/// The sizes that the arguments ask for.
fn scale(args: &ReproduceArgs) -> Scale {
    let usual = if args.quick { Scale::quick } else { Scale::full }(args.cpus());
    Scale {
        at_most: args.at_most.unwrap_or(usual.at_most),
        turns: args.turns.map(usize::from),
        host: !args.no_host,
        ..usual
    }
}

/// As it was called, words with blanks in quotes.
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
    fn the_kernels_part_stays() {
        assert_eq!(
            from_kernels_part("# Results\n\n## munmap\n\n## The kernel\n\ntables\n"),
            Some("\n## The kernel\n\ntables\n")
        );
        assert_eq!(from_kernels_part("# Results\n\nof the kernel\n"), None);
    }
}
