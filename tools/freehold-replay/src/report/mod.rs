//! The reports of a replay: text for people, JSON for programs. `freehold-cli` calls these functions and
//! prints the results.
//!
//! | file | report |
//! | --- | --- |
//! | `single.rs` | one replay, as text |
//! | `summary.rs` | several recordings, one line each |
//! | `compare.rs` | one recording on several lock designs, one line each |
//! | `policies.rs` | one recording in limited memory, by policies of reclaim |
//! | `differences.rs` | the differences from Linux, as a part of other reports |
//! | `json.rs` | all replays, for programs |
//!
//! The text has at most 100 columns and is complete without colour. `mod_tests.rs` compares each report with
//! a stored text, which a change of the report must update. A new figure needs a field in `outcome.rs`, a
//! line in `single.rs` and a key in `json.rs`.

mod compare;
mod differences;
mod json;
mod policies;
mod single;
mod summary;

pub use compare::compare;
pub use json::{Unusable, json};
pub use policies::policies;
pub use single::single;
pub use summary::summary;

use crate::outcome::{Outcome, Tally};
use crate::units;

/// Returns `all match Linux`, or the numbers of mismatches.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    let parts = [
        (outcome.calls, "call"),
        (outcome.faults, "fault"),
        (outcome.snapshots, "snapshot"),
        (outcome.placed, "placement"),
    ];
    let wrong = |tally: Tally| tally.all.saturating_sub(tally.as_linux);
    let found: Vec<String> = parts
        .iter()
        .filter(|(tally, _)| wrong(*tally) > 0)
        .map(|(tally, noun)| units::counted(wrong(*tally), noun))
        .collect();
    if !found.is_empty() {
        format!("{} with differences", found.join(", "))
    } else if outcome.difference_count > 0 {
        units::counted(outcome.difference_count, "difference")
    } else if !outcome.is_whole() {
        "all match Linux, as far as the recording could be read".to_owned()
    } else {
        "all match Linux".to_owned()
    }
}

/// Returns `1,846 calls, 57,665 faults, 43 snapshots`.
pub(crate) fn checked(outcome: &Outcome) -> String {
    if outcome.calls_only {
        return units::counted(outcome.calls.all, "call");
    }
    [(outcome.calls, "call"), (outcome.faults, "fault"), (outcome.snapshots, "snapshot")]
        .map(|(tally, noun)| units::counted(tally.all, noun))
        .join(", ")
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
