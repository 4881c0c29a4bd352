//! What a reader sees of a replay: text for people, JSON for programs.
//!
//! Text keeps within 100 columns and says in words what others say in colour.

mod compare;
mod differences;
mod json;
mod single;
mod summary;

pub use compare::compare;
pub use json::{Unusable, json};
pub use single::single;
pub use summary::summary;

use crate::outcome::{Outcome, Tally};
use crate::units;

/// `all as Linux`, or what was not.
fn verdict(outcome: &Outcome) -> String {
    let parts = [
        (outcome.calls, "call"),
        (outcome.faults, "fault"),
        (outcome.snapshots, "snapshot"),
        (outcome.placed, "place"),
    ];
    let wrong = |tally: Tally| tally.all.saturating_sub(tally.as_linux);
    let found: Vec<String> = parts
        .iter()
        .filter(|(tally, _)| wrong(*tally) > 0)
        .map(|(tally, noun)| units::counted(wrong(*tally), noun))
        .collect();
    if !found.is_empty() {
        format!("{} not as Linux", found.join(", "))
    } else if outcome.difference_count > 0 {
        units::counted(outcome.difference_count, "difference")
    } else if !outcome.is_whole() {
        "as Linux as far as it could be read".to_owned()
    } else {
        "all as Linux".to_owned()
    }
}

/// `1,846 calls, 57,665 faults, 43 snapshots`.
fn checked(outcome: &Outcome) -> String {
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
