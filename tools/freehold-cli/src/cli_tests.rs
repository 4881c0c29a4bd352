//! Tests the definition of the command line (`cli.rs`): arguments, times, and refused combinations.
//!
//! A test parses a command line given as a string, without running it. A new argument of `freehold replay`
//! belongs in `all_replay_arguments_are_parsed`, and its invalid values in `invalid_arguments_are_refused`.
//! The output of the built command is tested in `tests/command.rs`.

use super::*;
use clap::CommandFactory;
use clap::error::ErrorKind;

/// Returns the arguments of a command line `freehold replay ...`.
fn parse(line: &str) -> Result<ReplayArgs, clap::Error> {
    let Cli { command } = Cli::try_parse_from(line.split_whitespace())?;
    let Command::Replay(args) = command else { panic!("{command:?}") };
    Ok(args)
}

#[test]
fn command_line_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn times_are_parsed_with_their_unit() {
    for (text, ns) in [
        ("1.5s", 1_500_000_000),
        ("200ms", 200_000_000),
        ("30us", 30_000),
        ("7ns", 7),
        ("2", 2_000_000_000),
        ("0.25", 250_000_000),
        ("0", 0),
        (".5s", 500_000_000),
    ] {
        assert_eq!(parse_time(text), Ok(ns), "{text}");
    }
    for text in ["", "s", "-1s", "1e3s", "inf", "nan", "1m", "1.5 s", "99999999999999s", "1.2.3", "+1"] {
        assert!(parse_time(text).is_err(), "{text}");
    }
}

#[test]
fn all_replay_arguments_are_parsed() {
    let args = parse(
        "freehold replay a.trace b.trace --cpus 4 --backed --locking unmap=downgraded --seed 7 --json x -q",
    );
    let args = args.expect("a valid command line");
    assert_eq!(args.recordings, [PathBuf::from("a.trace"), PathBuf::from("b.trace")]);
    assert_eq!((args.cpus, args.backed, args.seed, args.quiet), (Some(4), true, 7, true));
    assert_eq!(
        args.locking.map(locking::name).as_deref(),
        Some("unmap=downgraded,fault=per-cpu,write=ranges")
    );
    assert_eq!(args.check(), Ok(()));
}

#[test]
fn sizes_of_memory_are_bytes_or_shares_of_the_peak() {
    let parse = |text| parse_memory(text).map(|sizes| sizes.of_peak(400 << 20));
    assert_eq!(parse("64M"), Ok(vec![64 << 20]));
    assert_eq!(parse("50%"), Ok(vec![200 << 20]));
    assert_eq!(parse("25%..100%"), Ok(vec![100 << 20, 200 << 20, 300 << 20, 400 << 20]));
    assert_eq!(parse_memory("1%").map(|sizes| sizes.of_peak(4096)), Ok(vec![LEAST_MEMORY]));
    for text in ["", "0%", "1001%", "64Q", "1K", "100%..25%", "25%..", "25..100%", "-5%"] {
        assert!(parse_memory(text).is_err(), "{text}");
    }
    assert_eq!((parse_swap("0"), parse_swap("256M")), (Ok(0), Ok(256 << 20)));
    assert!(parse_swap("2000G").is_err() && parse_swap("some").is_err());
}

#[test]
fn invalid_arguments_are_refused() {
    for (line, kind) in [
        ("freehold replay", ErrorKind::MissingRequiredArgument),
        ("freehold replay a --cpus 0", ErrorKind::ValueValidation),
        ("freehold replay a --cpus 65", ErrorKind::ValueValidation),
        ("freehold replay a --locking fault=none", ErrorKind::ValueValidation),
        ("freehold replay a --compare --locking fault=per-cpu", ErrorKind::ArgumentConflict),
        ("freehold replay a --task 3", ErrorKind::MissingRequiredArgument),
        ("freehold replay a --maps-at 1s --json x", ErrorKind::ArgumentConflict),
        ("freehold replay a --maps-at soon", ErrorKind::ValueValidation),
        ("freehold replay a --policy clock", ErrorKind::MissingRequiredArgument),
        ("freehold replay a --swap 1M", ErrorKind::MissingRequiredArgument),
        ("freehold replay a --memory 64M --policy lru", ErrorKind::InvalidValue),
        ("freehold replay a --memory some", ErrorKind::ValueValidation),
        ("freehold replay a --memory 64M --compare", ErrorKind::ArgumentConflict),
        ("freehold replay a --seed -1", ErrorKind::UnknownArgument),
        ("freehold play a", ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(parse(line).expect_err(line).kind(), kind, "{line}");
    }
    let two = parse("freehold replay a b --picture x.svg").expect("each argument is valid on its own");
    assert_eq!(two.check(), Err("--picture takes one recording, but 2 are given".to_owned()));
    let two = parse("freehold replay a b --report x.html").expect("each argument is valid on its own");
    assert_eq!(two.check(), Err("--report takes one recording, but 2 are given".to_owned()));
    let two = parse("freehold replay a b --maps-at 1s").expect("each argument is valid on its own");
    assert_eq!(two.check(), Err("--maps-at takes one recording, but 2 are given".to_owned()));
}
