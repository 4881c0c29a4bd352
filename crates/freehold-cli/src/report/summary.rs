//! Several recordings, a line each.

use super::table::{Layout, row};
use crate::replay::outcome::{Outcome, Spread};
use crate::units;

/// One line per replay and a sentence at the end.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut rows = vec![
        row(["", "", "", "", "not as", "held for writing", "the same", "", "times"]),
        row([
            "recording",
            "calls",
            "faults",
            "snapshots",
            "Linux",
            "99 % / longest",
            "on Linux",
            "time",
            "as fast",
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
        cells.push(hold(outcome.exclusive_hold.freehold));
        cells.push(outcome.exclusive_hold.linux.map_or_else(|| "-".to_owned(), hold));
        cells.push(units::duration(outcome.wall));
        let ratio = units::ratio(outcome.recorded, outcome.wall).filter(|_| !outcome.calls_only);
        cells.push(ratio.unwrap_or_else(|| "-".to_owned()));
        rows.push(cells);
    }
    let mut text = Layout { indent: 0, gap: 2, left: 1 }.text(rows);
    text.push('\n');
    text.push_str(&sentence(outcomes));
    text
}

fn hold(spread: Spread) -> String {
    match spread.count {
        0 => "-".to_owned(),
        _ => format!("{} / {}", units::nanoseconds(spread.p99), units::nanoseconds(spread.max)),
    }
}

fn sentence(outcomes: &[Outcome]) -> String {
    let recordings = units::counted(outcomes.len() as u64, "recording");
    let different = outcomes.iter().filter(|outcome| !outcome.is_as_linux()).count() as u64;
    let aside: u64 = outcomes.iter().map(Outcome::not_checked).sum();
    let found = match different {
        0 => "all as Linux".to_owned(),
        _ => format!("{} not as Linux", units::count(different)),
    };
    format!("{recordings}: {found}; {} not checked\n", units::counted(aside, "event"))
}
