//! `freehold replay --memory`: replays each recording in limited memory, by each policy of reclaim, and
//! prints a table for each recording.
//!
//! 1. The recording is replayed with all pages in memory, which gives its peak.
//! 2. It is replayed once for each size and policy.
//! 3. After the last recording, the JSON is written. It has all replays, those of step 1 too.
//!
//! Exit status: as of `replay.rs`. The tests are in `tests/policies.rs`.

use super::replay::{reason, source};
use super::{DIFFERENT, UNUSABLE, cannot_write, output, say};
use crate::cli::{MemorySizes, ReplayArgs};
use crate::progress::Bar;
use anyhow::Context;
use freehold_replay::outcome::Outcome;
use freehold_replay::report::Unusable;
use freehold_replay::short::Memory;
use freehold_replay::{Options, Source, replay, report};
use std::path::Path;

/// Replays the recordings, and returns the exit status.
///
/// # Errors
///
/// Fails if standard output cannot be written.
pub fn run(args: &ReplayArgs, sizes: &MemorySizes, options: &Options) -> anyhow::Result<u8> {
    let text = args.json.as_deref() != Some(Path::new("-"));
    let file = args.json.as_deref().filter(|_| text).map(output).transpose()?;
    let (mut status, mut outcomes, mut unusable) = (0, Vec::new(), Vec::new());
    for path in &args.recordings {
        let replayed = source(args, path).and_then(|source| each(args, sizes, options, &source));
        match replayed {
            Ok((whole, limited)) => {
                if text {
                    say(&report::policies(&whole, &limited))?;
                }
                let worst = limited.iter().chain([&whole]).map(of_outcome).max();
                status = status.max(worst.unwrap_or(0));
                outcomes.extend([whole].into_iter().chain(limited));
            }
            Err(why) => {
                eprintln!("error: {why}");
                status = UNUSABLE;
                unusable.push(Unusable { recording: path.to_string_lossy().into_owned(), reason: why });
            }
        }
    }
    if let Some(path) = &args.json {
        let found = report::json(&outcomes, &[], &unusable);
        match file {
            Some(file) => file.write(&found).with_context(|| cannot_write(path))?,
            None => say(&found)?,
        }
    }
    Ok(status)
}

/// Replays a recording with all pages in memory, and then by each size and policy.
fn each(
    args: &ReplayArgs,
    sizes: &MemorySizes,
    options: &Options,
    source: &Source,
) -> Result<(Outcome, Vec<Outcome>), String> {
    let on = |memory| {
        let bar = Bar::new(source, args.quiet);
        replay(source, &Options { memory, cpus: 1, ..options.clone() }, &bar)
            .map_err(|error| reason(source, &error))
    };
    let whole = on(None)?;
    let chosen = |name: &str| args.policy.is_empty() || args.policy.iter().any(|policy| policy == name);
    let mut limited = Vec::new();
    for bytes in sizes.of_peak(whole.peak) {
        for (_, policy) in Memory::POLICIES.into_iter().filter(|(name, _)| chosen(name)) {
            limited.push(on(Some(Memory { bytes, swap: args.swap, policy }))?);
        }
    }
    Ok((whole, limited))
}

/// Returns the exit status for one replay.
fn of_outcome(outcome: &Outcome) -> u8 {
    match (outcome.is_whole(), outcome.is_as_linux()) {
        (false, _) => UNUSABLE,
        (true, false) => DIFFERENT,
        (true, true) => 0,
    }
}
