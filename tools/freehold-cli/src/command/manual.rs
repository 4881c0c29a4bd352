//! `freehold completions` and `freehold man`: shell completions and manual pages.
//!
//! The scripts and the pages are generated from the definition of the command line (`cli.rs`, `help.rs`), so
//! nothing is written by hand here. `completions_cover_subcommands_and_options` and
//! `manual_pages_are_generated_for_all_subcommands` (`tests/command.rs`) check the output. A new subcommand
//! or option needs no change here.

use super::{cannot_write, say};
use crate::cli::{Cli, CompletionsArgs, ManArgs};
use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;
use freehold_record::Output;
use std::fs;
use std::path::Path;

/// Prints the completion script for a shell.
///
/// # Errors
///
/// Fails if standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "freehold", &mut text);
    say(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// Prints the manual page of `freehold`, or writes the pages of all subcommands to a folder.
///
/// # Errors
///
/// Fails if a page cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<u8> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(folder) = &args.dir else {
        say(&page(command)?)?;
        return Ok(0);
    };
    fs::create_dir_all(folder).with_context(|| cannot_write(folder))?;
    for job in command.get_subcommands() {
        write(folder, &format!("freehold-{}", job.get_name()), job.clone())?;
    }
    write(folder, "freehold", command)?;
    Ok(0)
}

/// Writes the manual page of a command to the file `NAME.1` in a folder.
fn write(folder: &Path, name: &str, command: clap::Command) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.1"));
    let text = page(command)?;
    Output::new(&path).and_then(|file| file.write(text)).with_context(|| cannot_write(&path))
}

/// Returns the manual page of a command.
fn page(command: clap::Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let source = concat!("freehold ", env!("CARGO_PKG_VERSION"));
    Man::new(command.version(env!("CARGO_PKG_VERSION"))).source(source).render(&mut text)?;
    // Turn off hyphenation and justification: the page contains lines to be typed.
    Ok(String::from_utf8(text)?.replacen(".SH NAME", ".ad l\n.nh\n.SH NAME", 1))
}
