//! The command `freehold`: its arguments, help, manual pages and exit status.
//!
//! The crates `freehold-replay`, `freehold-record` and `freehold-reproduce` do the work. `cli.rs` defines the
//! command line, `help.rs` has the long help, and `command/` has one file per subcommand. `main` parses the
//! arguments, checks their combinations, calls the subcommand, and turns its result into the exit status: an
//! error is printed as one line `error: ...`, and a broken pipe of standard output is no error. `tests/` runs
//! the built command as a user does.
#![deny(unsafe_code)]

mod cli;
mod command;
mod help;
mod progress;

use clap::{CommandFactory, Parser, error::ErrorKind};
use cli::{Cli, Command};
use command::{UNUSABLE, is_broken_pipe, manual, record, replay, reproduce};
use std::process::ExitCode;

/// Exit status if a command could not be recorded. The value differs from `UNUSABLE` (2): `freehold record`
/// returns the status of the recorded command, which may be 2.
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

/// Ends the program with a message and status 2 if the arguments are an invalid combination.
fn sensible(checked: Result<(), String>) {
    if let Err(why) = checked {
        Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
}
