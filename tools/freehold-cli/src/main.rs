//! The command `freehold`: its arguments, help, manual pages and exit status. The crates `freehold-replay`,
//! `freehold-record` and `freehold-reproduce` do the work.
#![deny(unsafe_code)]

mod cli;
mod command;
mod help;
mod progress;

use clap::{CommandFactory, Parser, error::ErrorKind};
use cli::{Cli, Command};
use command::{UNUSABLE, is_broken_pipe, manual, record, replay, reproduce};
use std::process::ExitCode;

/// Exit status if a command could not be recorded; distinguishes the recorder's failure from the command's.
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
        // A broken pipe is a success: the reader has closed standard output.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(failure)
        }
    }
}

/// Ends the program if the arguments are an invalid combination.
fn sensible(checked: Result<(), String>) {
    if let Err(why) = checked {
        Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
}
