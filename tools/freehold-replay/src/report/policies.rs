//! The comparison of policies of reclaim on one recording: a table with one row for each size of memory and
//! policy, and a plot of the time lost to waiting.
//!
//! For `freehold replay --memory`. Input: the [`Outcome`] of the replay with all pages in memory, which gives
//! the peak, and of each replay in limited memory. A new column is added in `rows`, with its explanation
//! below the table.

use super::checked;
use super::differences::differences;
use crate::outcome::Outcome;
use crate::short::{Figures, LATENCY, Memory};
use crate::table::{Layout, row, wrapped};
use crate::units;
use std::fmt::Write;

/// Width of the longest bar of the plot, in columns.
const BAR: usize = 40;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Returns the report. `whole` is the replay with all pages in memory.
pub fn policies(whole: &Outcome, limited: &[Outcome]) -> String {
    let different = limited.iter().chain([whole]).filter(|outcome| !outcome.is_as_linux()).count() as u64;
    let verdict = match different {
        0 => "all match Linux".to_owned(),
        _ => format!("{} with differences", units::count(different)),
    };
    let runs: Vec<(&Outcome, &Memory, &Figures)> = limited
        .iter()
        .filter_map(|outcome| outcome.memory.as_ref().map(|(memory, figures)| (outcome, memory, figures)))
        .collect();
    let replays = units::counted(limited.len() as u64, "replay");
    let mut text = format!("{}: {}, {replays} in limited memory: {verdict}\n", whole.name, checked(whole));
    let most_hot = runs.iter().map(|(_, _, figures)| figures.hot.most).max().unwrap_or(0);
    let swap = runs.first().map_or(0, |(_, memory, _)| memory.swap);
    writeln!(
        text,
        "With all pages in memory, at most {} are in use, {} of them hot.\nSwap: {}. A request takes {}.\n",
        units::bytes(whole.peak),
        units::bytes(most_hot * PAGE),
        units::bytes(swap),
        units::nanoseconds(LATENCY),
    )
    .expect("writing to a String cannot fail");
    text.push_str(&Layout { indent: 2, gap: 2, left: 2 }.text(rows(whole.peak, &runs)));
    text.push('\n');
    text.push_str(&plot(whole.peak, &runs));
    for sentence in [
        "Refaults: pages that came back after reclaim had taken them away, from swap or from their files.",
        "Written: pages written to swap and to files. Waited: time for which tasks waited for the device, summed over the tasks.",
        "Hot kept: share of the pages with a recorded access in the last second that were in memory, sampled after each second and at the end of each address space.",
        "Hot fits: share of these pages that would be in memory if memory always held the pages with the latest recorded accesses (exact LRU).",
        "Fault 99 %: 99th percentile of the time of a fault, including its waits.",
        "Without samples (freehold record --accesses), a recording contains faults, not accesses: a page that the program used without a fault counts as unused. The hot set is therefore a lower bound, and refaults of such pages are missing.",
    ] {
        text.push_str(&wrapped("", sentence));
    }
    for (outcome, memory, figures) in &runs {
        if figures.failed > 0 {
            let failed = units::counted(figures.failed, "operation");
            text.push_str(&wrapped(
                "",
                &format!(
                    "{} in {}: {failed} found no memory. The pages that reclaim can take are too few, or swap is full.",
                    memory.policy_name(),
                    units::bytes(memory.bytes)
                ),
            ));
        }
        if !outcome.is_as_linux() {
            writeln!(text, "  {} in {}:", memory.policy_name(), units::bytes(memory.bytes))
                .expect("writing to a String cannot fail");
            text.push_str(&differences(outcome));
        }
    }
    text
}

/// Returns the rows of the table, with a row of headings.
fn rows(peak: u64, runs: &[(&Outcome, &Memory, &Figures)]) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(["", "", "", "swap-", "", "", "hot", "hot", "fault", "differ-"]),
        row(["memory", "policy", "refaults", "ins", "written", "waited", "kept", "fits", "99 %", "ences"]),
    ];
    let mut last = None;
    for (outcome, memory, figures) in runs {
        let size =
            if last.replace(memory.bytes) == Some(memory.bytes) { String::new() } else { size(peak, memory) };
        let mut cells = row([&size, memory.policy_name()]);
        cells.extend([figures.refaults(), figures.swap_ins, figures.written].map(units::count));
        cells.push(units::duration(figures.waited));
        let hot = figures.hot;
        cells.extend([hot.kept, hot.fit].map(|pages| match hot.pages {
            0 => "-".to_owned(),
            all => units::percent(pages, all),
        }));
        cells.push(units::nanoseconds(figures.faults.percentile(9_900)));
        cells.push(match outcome.difference_count {
            0 => "none".to_owned(),
            some => units::count(some),
        });
        rows.push(cells);
    }
    rows
}

/// Returns a plot of the time lost to waiting: a bar for each size and policy.
fn plot(peak: u64, runs: &[(&Outcome, &Memory, &Figures)]) -> String {
    let most = runs.iter().map(|(_, _, figures)| figures.waited).max().unwrap_or_default();
    if most.is_zero() {
        return String::new();
    }
    let mut rows = vec![row(["time lost to waiting", "", ""])];
    let mut last = None;
    for (_, memory, figures) in runs {
        let size =
            if last.replace(memory.bytes) == Some(memory.bytes) { String::new() } else { size(peak, memory) };
        let length = (figures.waited.as_secs_f64() / most.as_secs_f64() * BAR as f64).round() as usize;
        rows.push(row([&size, memory.policy_name(), &"#".repeat(length)]));
    }
    Layout { indent: 2, gap: 2, left: 3 }.text(rows) + "\n"
}

/// Formats a size of memory, with its share of the peak.
fn size(peak: u64, memory: &Memory) -> String {
    format!("{} ({})", units::bytes(memory.bytes), units::percent(memory.bytes, peak))
}
