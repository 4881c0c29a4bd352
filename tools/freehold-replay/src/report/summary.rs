//! The summary of several recordings, one line each.
//!
//! `freehold replay` prints this table when it replays more than one recording: name, numbers of calls,
//! faults and snapshots, differences, what was not checked, hold times, time and speedup. `single.rs` has
//! the report of one replay. Input: the [`Outcome`] of each replay; output: a text of at most 100 columns.

use crate::outcome::{Outcome, Spread};
use crate::table::{Layout, row};
use crate::units;

/// Returns one line per replay, followed by a sentence.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut rows = vec![
        row(["", "", "", "snap-", "differ-", "not", "held for", "on", "", ""]),
        row([
            "recording",
            "calls",
            "faults",
            "shots",
            "ences",
            "checked",
            "writing",
            "Linux",
            "time",
            "speedup",
        ]),
    ];
    for outcome in outcomes {
        let known = |number: String| if outcome.calls_only { "-".to_owned() } else { number };
        let faults = known(units::count(outcome.faults.all));
        let snapshots = known(units::count(outcome.snapshots.all));
        let mut cells = row([&outcome.name, &units::count(outcome.calls.all), &faults, &snapshots]);
        cells.push(match outcome.difference_count {
            0 => "none".to_owned(),
            some => units::count(some),
        });
        cells.push(units::count(outcome.not_checked()));
        cells.push(hold(outcome.exclusive_hold.freehold));
        cells.push(outcome.exclusive_hold.linux.map_or_else(|| "-".to_owned(), hold));
        cells.push(units::duration(outcome.wall));
        let ratio = units::ratio(outcome.recorded, outcome.wall).filter(|_| !outcome.calls_only);
        cells.push(ratio.unwrap_or_else(|| "-".to_owned()));
        rows.push(cells);
    }
    let layout = Layout { indent: 0, gap: 2, left: 1 };
    let room = layout.room(&rows);
    rows.iter_mut().for_each(|cells| cells[0] = cut(&cells[0], room));
    let mut text = layout.text(rows);
    text.push_str("Held for writing: 99th percentile of the hold times of the mmap lock.\n\n");
    text.push_str(&sentence(outcomes));
    text
}

/// Formats the hold times of the mmap lock.
fn hold(spread: Spread) -> String {
    match spread.count {
        0 => "-".to_owned(),
        _ => units::nanoseconds(spread.p99),
    }
}

/// Shortens a name to `room` characters: keeps the beginning and the end.
fn cut(name: &str, room: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= room {
        return name.to_owned();
    }
    let half = room.saturating_sub(3) / 2;
    let part = |letters: &[char]| letters.iter().collect::<String>();
    format!("{}...{}", part(&letters[..half]), part(&letters[letters.len() - half..]))
}

/// Returns the sentence below the table: how many replays match Linux.
fn sentence(outcomes: &[Outcome]) -> String {
    let recordings = units::counted(outcomes.len() as u64, "recording");
    let different = outcomes.iter().filter(|outcome| !outcome.is_as_linux()).count() as u64;
    let aside: u64 = outcomes.iter().map(Outcome::not_checked).sum();
    let found = match different {
        0 => "all match Linux".to_owned(),
        _ => format!("{} with differences", units::count(different)),
    };
    format!("{recordings}: {found}; {} not checked\n", units::counted(aside, "event"))
}
