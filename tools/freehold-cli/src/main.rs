//! The command `freehold`: its arguments, help, manual and exit status. What it does is in `freehold-replay`,
//! `freehold-record` and `freehold-reproduce`.
#![deny(unsafe_code)]

mod cli;
mod command;
mod help;
mod progress;

use clap::{CommandFactory, Parser, error::ErrorKind};
use cli::{Cli, Command};
use command::{UNUSABLE, is_broken_pipe, manual, record, replay, reproduce};
use std::process::ExitCode;

/// A command could not be recorded; its own status would be another.
const UNRECORDED: u8 = 125;

fn main() -> ExitCode {
    let mut failure = UNUSABLE;
    let done = match Cli::parse().command {
        Command::Replay(args) => {
            sensible(args.check());
            replay::run(&args)
        }
        Command::Record(args) => {
            failure = UNRECORDED;
            record::run(args)
        }
        Command::Reproduce(args) => {
            sensible(args.check());
            reproduce::run(&args)
        }
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        // The reader of the report has seen enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("freehold: {error:#}");
            ExitCode::from(failure)
        }
    }
}

/// Ends the program where arguments make no sense together.
fn sensible(checked: Result<(), String>) {
    if let Err(why) = checked {
        Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
}
