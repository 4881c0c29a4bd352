//! The report of one replay as text: one function for each line or table, in the order of the report. The
//! figures come from the [`Outcome`].
//!
//! `freehold replay` prints this report for each recording. `summary.rs` has the table of several recordings,
//! and `json.rs` has the document for programs. A function returns an empty string if its figure is not
//! known, for example for strace output. Numbers are formatted by `units.rs`, tables by `table.rs`. A new
//! line is a function here and an entry in [`single`].

use super::differences::differences;
use super::{checked, verdict};
use crate::outcome::{Beside, KindTime, LinuxTime, Outcome, Spread, Tally};
use crate::table::{Layout, row, wrapped};
use crate::{locking, units};
use std::fmt::Write;
use std::time::Duration;

/// Number of kinds of call that have a line of their own. The other kinds share one line.
const MAX_KINDS: usize = 12;

const WIDE: Layout = Layout { indent: 2, gap: 3, left: 1 };

/// Returns the report of one replay.
pub fn single(outcome: &Outcome) -> String {
    let mut text = format!("{}: {}: {}\n\n", outcome.name, checked(outcome), verdict(outcome));
    for (what, said) in [
        ("ran", ran(outcome)),
        ("planned", planned(outcome)),
        ("design", design(outcome)),
        ("faults served by", rungs(outcome)),
        ("TLB flushes", flushes(outcome)),
        ("pages of files", file_pages(outcome)),
        ("placements", placed(outcome)),
    ] {
        writeln!(text, "  {what:<18}{said}").expect("writing to a String cannot fail");
    }
    text.push('\n');
    text.push_str(&lock_times(outcome));
    text.push_str(&kinds(outcome));
    text.push_str(&set_aside(outcome));
    text.push_str(&unread(outcome));
    text.push_str(&differences(outcome));
    text
}

/// Returns the line about the run: CPUs, memory, time, speed.
fn ran(outcome: &Outcome) -> String {
    let cpus = units::counted(outcome.cpus as u64, "CPU");
    let mut said = format!("{} on {cpus}", units::duration(outcome.wall));
    let recorded = units::duration(outcome.recorded);
    if outcome.calls_only {
        // strace itself takes most of this time.
        write!(said, "; the program took {recorded} under strace").expect("writing to a String cannot fail");
    } else if let Some(ratio) = units::ratio(outcome.recorded, outcome.wall) {
        write!(said, ", {ratio} times as fast as recorded ({recorded})")
            .expect("writing to a String cannot fail");
    }
    if !outcome.checking.is_zero() {
        write!(said, "; snapshot checks {}", units::duration(outcome.checking))
            .expect("writing to a String cannot fail");
    }
    said
}

/// Returns the line about planning.
fn planned(outcome: &Outcome) -> String {
    let (events, time) = outcome.planned;
    let said = format!("{} in {}", units::counted(events, "event"), units::duration(time));
    match units::rate(events, time) {
        Some(rate) => format!("{said}, {rate} per second"),
        None => said,
    }
}

/// Returns the line about the lock design.
fn design(outcome: &Outcome) -> String {
    let memory = if outcome.backed { "memory with contents" } else { "phantom memory" };
    format!("{}; {memory}; seed {}", locking::name(outcome.design), outcome.seed)
}

/// Returns the numbers of faults under each lock.
fn rungs(outcome: &Outcome) -> String {
    if outcome.calls_only {
        return "not recorded by strace".to_owned();
    }
    let rungs = outcome.rungs;
    let parts = [
        ("VMA lock", rungs.vma_lock),
        ("mmap lock", rungs.mmap_lock),
        ("already present", rungs.already_there),
    ];
    let all = parts.iter().map(|(_, faults)| faults).sum();
    if all == 0 {
        return "no faults".to_owned();
    }
    parts
        .map(|(name, faults)| format!("{name} {} ({})", units::count(faults), units::percent(faults, all)))
        .join(", ")
}

/// Returns the numbers of TLB flushes, next to Linux's.
fn flushes(outcome: &Outcome) -> String {
    let flushes = outcome.flushes;
    let remote = if flushes.remote == 0 { "none".to_owned() } else { units::count(flushes.remote) };
    let mut said = format!("{}, of which {remote} to another CPU", units::count(flushes.freehold));
    if let Some(linux) = flushes.linux {
        write!(said, "; Linux sent {}", units::counted(linux, "interrupt"))
            .expect("writing to a String cannot fail");
    }
    said
}

/// Returns the number of VMAs of files that were compared page by page, and how many of these have the same
/// pages as on Linux.
fn file_pages(outcome: &Outcome) -> String {
    if outcome.calls_only {
        return "not recorded by strace".to_owned();
    }
    let Tally { all, as_linux } = outcome.file_vmas;
    if all == 0 {
        return "none compared".to_owned();
    }
    let share = units::percent(as_linux, all);
    format!("same as Linux in {} of {} ({share})", units::count(as_linux), units::counted(all, "VMA"))
}

/// Returns how many of the compared addresses are the same as on Linux.
fn placed(outcome: &Outcome) -> String {
    let Tally { all, as_linux } = outcome.placed;
    match all {
        0 => "none compared".to_owned(),
        _ => format!("same as Linux {} of {}", units::count(as_linux), units::counted(all, "time")),
    }
}

/// Returns the parts of the recording that could not be read.
fn unread(outcome: &Outcome) -> String {
    if outcome.is_whole() {
        return String::new();
    }
    let mut text = String::new();
    if let Some(why) = &outcome.cut_off {
        text.push_str(&wrapped("  ", &format!("reading stopped: {why}")));
    }
    if outcome.unread > 0 {
        let lines = units::counted(outcome.unread, "line");
        let first = if outcome.unread > outcome.unread_lines.len() as u64 { "; the first" } else { "" };
        writeln!(text, "  {lines} could not be read{first}:").expect("writing to a String cannot fail");
        outcome.unread_lines.iter().for_each(|line| text.push_str(&wrapped("    ", line)));
    }
    text.push('\n');
    text
}

/// Returns the hold and wait times of the mmap lock, next to Linux's.
fn lock_times(outcome: &Outcome) -> String {
    let mut rows = vec![row(["mmap lock", "count", "median", "99 %", "longest"])];
    for (what, beside) in
        [("held for writing", outcome.exclusive_hold), ("waited for", outcome.mmap_lock_wait)]
    {
        rows.push(spread(what, beside.freehold));
        if let Some(linux) = beside.linux {
            rows.push(spread("   on Linux", linux));
        }
    }
    let mut text = WIDE.text(rows);
    let silent = |beside: Beside| beside.linux.is_none();
    if silent(outcome.exclusive_hold) && silent(outcome.mmap_lock_wait) {
        text.push_str("  The recording does not contain the lock times of Linux.\n");
    }
    text.push('\n');
    text
}

/// Returns the cells of a row of times.
fn spread(what: &str, spread: Spread) -> Vec<String> {
    let mut cells = row([what, &units::count(spread.count)]);
    cells.extend([spread.p50, spread.p99, spread.max].map(|ns| match spread.count {
        0 => "-".to_owned(),
        _ => units::nanoseconds(ns),
    }));
    cells
}

/// Returns the time by kind of call, next to Linux's.
fn kinds(outcome: &Outcome) -> String {
    if outcome.kinds.is_empty() {
        return String::new();
    }
    let beside = outcome.kinds.iter().any(|kind| kind.linux.is_some());
    let mut rows = vec![row(["time in", "count", "mean", "total"])];
    if beside {
        rows[0].extend(row(["mean, Linux", "total, Linux", "Linux / Freehold"]));
    }
    let (shown, rest) = outcome.kinds.split_at(outcome.kinds.len().min(MAX_KINDS));
    for kind in shown {
        let mut cells = row([&kind.name, &units::count(kind.count), &units::each(kind.freehold, kind.count)]);
        cells.push(units::duration(kind.freehold));
        match kind.linux {
            Some(linux) => cells.extend([
                units::each(linux.all, linux.count),
                units::duration(linux.all),
                times_as_long(kind, linux).unwrap_or_else(|| "-".to_owned()),
            ]),
            None if beside => cells.extend(row(["-", "-", "-"])),
            None => {}
        }
        rows.push(cells);
    }
    let mut text = WIDE.text(rows);
    if beside {
        text.push_str("  Linux's times cover whole calls, including the cost of recording them.\n");
    }
    if !rest.is_empty() {
        let names: Vec<&str> = rest.iter().map(|kind| kind.name.as_str()).collect();
        let calls = rest.iter().map(|kind| kind.count).sum();
        let time = rest.iter().map(|kind| kind.freehold).sum();
        let said = format!("and {} of {}: {}", units::count(calls), names.join(", "), units::duration(time));
        text.push_str(&wrapped("  ", &said));
    }
    text.push('\n');
    text
}

/// Returns how many times longer one call took on Linux.
fn times_as_long(kind: &KindTime, linux: LinuxTime) -> Option<String> {
    let each = |all: Duration, count: u64| Some(all.div_f64(count as f64)).filter(|_| count > 0);
    units::ratio(each(linux.all, linux.count)?, each(kind.freehold, kind.count)?)
}

/// Returns the reasons why something was not checked.
fn set_aside(outcome: &Outcome) -> String {
    if outcome.set_aside.is_empty() {
        return String::new();
    }
    let mut text = format!("  not checked, {} in all:\n", units::count(outcome.not_checked()));
    for (reason, events) in &outcome.set_aside {
        text.push_str(&wrapped("    ", &format!("{}: {reason}", units::count(*events))));
    }
    text.push('\n');
    text
}
