//! The comparison of one recording on all designs.
//!
//! For `freehold replay --compare`: one row for each lock design, one column for each figure (differences,
//! time, hold times and waits of the mmap lock), and a list of the differences from Linux below the table.
//! Input: the [`Outcome`] of each replay. `single.rs` has the report of one replay. A new column is added in
//! `rows`.

use super::checked;
use super::differences::differences;
use crate::outcome::{Outcome, Spread};
use crate::table::{Layout, row};
use crate::{locking, units};

/// Returns the replays of one recording, one per design, as one table. Returns an empty string if `outcomes`
/// is empty.
pub fn compare(outcomes: &[Outcome]) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let different = outcomes.iter().filter(|outcome| !outcome.is_as_linux()).count() as u64;
    let verdict = match different {
        0 => "all match Linux".to_owned(),
        _ => format!("{} with differences", units::count(different)),
    };
    let mut text = format!("{}: {}, on {} designs: {verdict}\n", first.name, checked(first), outcomes.len());
    let memory = if first.backed { "memory with contents" } else { "phantom memory" };
    let cpus = units::counted(first.cpus as u64, "CPU");
    text.push_str(&format!(
        "{cpus}, {memory}, seed {}. Lock times are those of the mmap lock.\n\n",
        first.seed
    ));
    text.push_str(&Layout { indent: 2, gap: 2, left: 2 }.text(rows(outcomes)));
    text.push('\n');
    for outcome in outcomes.iter().filter(|outcome| !outcome.is_as_linux()) {
        text.push_str(&format!("  {}:\n", locking::name(outcome.design)));
        text.push_str(&differences(outcome));
    }
    text
}

/// Returns the rows of the table: two rows of headings, and a row for each design.
fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(["design", "", "differ-", "", "held for writing", "waited for", "mmap lock", ""]),
        row([
            "unmap",
            "fault",
            "ences",
            "time",
            "median / 99 % / longest",
            "count / longest",
            "faults",
            "flushes",
        ]),
    ];
    let mut write = None;
    for outcome in outcomes {
        let name = locking::write_name(outcome.design.space.write);
        if write.replace(name) != Some(name) {
            // The write design is a heading, because another column would make the lines too long.
            rows.push(row(["write", name, "", "", "", "", "", ""]));
        }
        // The row of a design with another lock of huge pages or of files shows only that choice: all other
        // choices of the design are the defaults.
        let rest = locking::rest(outcome.design);
        let of_space = locking::unmap_name(outcome.design.space.unmap);
        let fault = locking::fault_name(outcome.design.space.fault);
        let [first, second] = rest.split_once('=').map_or([&of_space, fault], |(what, value)| [what, value]);
        let mut cells = row([
            first,
            second,
            &if outcome.is_as_linux() { "none".to_owned() } else { units::count(outcome.difference_count) },
            &units::duration(outcome.wall),
        ]);
        cells.extend([held(outcome.exclusive_hold.freehold), waited(outcome.mmap_lock_wait.freehold)]);
        cells.extend([outcome.rungs.mmap_lock, outcome.flushes.freehold].map(units::count));
        rows.push(cells);
    }
    if let Some(outcome) = outcomes.iter().find(|outcome| outcome.exclusive_hold.linux.is_some()) {
        let mut cells = row(["Linux", "", "", &units::duration(outcome.recorded)]);
        cells.push(outcome.exclusive_hold.linux.map_or_else(|| "-".to_owned(), held));
        cells.push(outcome.mmap_lock_wait.linux.map_or_else(|| "-".to_owned(), waited));
        cells.push("-".to_owned());
        cells.push(outcome.flushes.linux.map_or_else(|| "-".to_owned(), units::count));
        rows.push(cells);
    }
    rows
}

/// Formats the hold times of the mmap lock.
fn held(spread: Spread) -> String {
    match spread.count {
        0 => "-".to_owned(),
        _ => [spread.p50, spread.p99, spread.max].map(units::nanoseconds).join(" / "),
    }
}

/// Formats the wait times for the mmap lock.
fn waited(spread: Spread) -> String {
    match spread.count {
        0 => "-".to_owned(),
        _ => format!("{} / {}", units::count(spread.count), units::nanoseconds(spread.max)),
    }
}
