//! The command behind `cargo xtask boot` and `cargo xtask kernel-tests`: `xtask` starts this program with
//! their arguments. The exit status is that of the subcommand. A new subcommand needs an arm here and in
//! `xtask/src/main.rs`.
#![deny(unsafe_code)]

use std::{env, process::ExitCode};

use kernel_xtask::{boot, kernel_tests};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["boot", rest @ ..] => ExitCode::from(boot::command(rest)),
        ["kernel-tests", rest @ ..] => ExitCode::from(kernel_tests::command(rest)),
        _ => {
            eprintln!("usage: cargo xtask boot --help | kernel-tests --help");
            ExitCode::from(2)
        }
    }
}
