//! Writes findings as text for a terminal, and as Markdown for documents.
//!
//! Input: [`Findings`] of each experiment, or the [`Report`] of a run. Output: strings. `page.rs` makes the
//! page for a browser from the same parts, and `draw.rs` makes the plots. A measured cell shows the median of
//! the turns and their spread. The tests compare stored texts (`text_tests.rs`).

use super::Report;
use super::findings::{Cell, Findings, Table};
use super::measure::Figure;
use super::unit::Unit;
use freehold_replay::table::{Layout, wrapped};
use freehold_replay::units;

/// Returns the text of a cell: the median, and half the distance between the extremes of the turns. If the
/// extremes are far apart, or if the cell is a change, the text contains both extremes instead.
pub fn cell(cell: &Cell) -> String {
    match parts(cell) {
        (value, None) => value,
        (value, Some(spread)) => format!("{value} {spread}"),
    }
}

/// Returns the value of a cell, and its spread.
pub fn parts(cell: &Cell) -> (String, Option<String>) {
    match cell {
        Cell::Nothing => ("-".to_owned(), None),
        Cell::Published { unit, value } => (unit.text(*value), None),
        Cell::Measured { unit, figure } => (unit.text(figure.median), spread(*unit, figure)),
    }
}

/// Returns half the distance between the extremes of a figure, or `None` with a single turn.
fn spread(unit: Unit, figure: &Figure) -> Option<String> {
    let part = figure.spread()?;
    Some(match unit {
        Unit::Change => format!("[{:+.1}, {:+.1}]", figure.low * 100.0, figure.high * 100.0),
        // A large spread is not symmetric around the median.
        _ if part > 1.0 => format!("[{}, {}]", unit.text(figure.low), unit.text(figure.high)),
        _ => format!("±{:.0} %", part * 100.0),
    })
}

/// Headings that have a meaning only together with the previous column.
const BELONGS: [&str; 6] = ["change", "after", "99 %", "longest", "total", "VMA lock"];

/// Returns the findings of an experiment as text for a terminal.
pub fn of(found: &Findings) -> String {
    let mut text = wrapped("", &format!("{}: {}", found.experiment, found.title));
    text.push('\n');
    for sentence in &found.found {
        text.push_str(&wrapped("  ", sentence));
    }
    text.push('\n');
    text.push_str(&wrapped("  ", &found.work));
    for table in found.tables.iter().map(Table::shown) {
        text.push_str(&format!("\n  {}\n", table.title));
        let cells = |table: &Table| -> Vec<Vec<String>> {
            let head = table.columns.clone();
            let rows = table
                .rows
                .iter()
                .map(|row| [row.name.clone()].into_iter().chain(row.cells.iter().map(cell)).collect());
            [head].into_iter().chain(rows).collect()
        };
        let layout = Layout { indent: 4, gap: 2, left: 1 };
        let parts = layout.parts(cells(&table), |heading| BELONGS.contains(&heading));
        let parts: Vec<String> = parts.into_iter().map(|rows| layout.text(rows)).collect();
        text.push_str(&parts.join("\n"));
    }
    text.push('\n');
    for note in &found.notes {
        text.push_str(&wrapped("  ", note));
    }
    text.push_str(&format!("  ({})\n\n", units::duration(std::time::Duration::from_secs_f64(found.seconds))));
    text
}

/// Returns all results of a run as a Markdown document.
pub fn markdown(report: &Report) -> String {
    let mut text = format!(
        "# Results{}\n\nWritten by `{}`; do not edit. Freehold {}, {}.\n\n{}\n",
        if report.virtual_time { " in virtual time" } else { "" },
        report.command,
        report.version,
        report.place(),
        how(report)
    );
    for missing in report.missing() {
        text.push_str(&format!("\n**{missing}.**\n"));
    }
    for found in &report.experiments {
        text.push_str(&format!("\n## {}\n\n", found.experiment));
        for sentence in &found.found {
            text.push_str(&format!("- {sentence}\n"));
        }
        text.push_str(&format!("\n{}: {}\n", found.title, found.work));
        for table in found.tables.iter().map(Table::shown) {
            text.push_str(&format!("\n**{}**\n\n", table.title));
            text.push_str(&line(table.columns.iter().map(String::as_str)));
            text.push_str(&line(table.columns.iter().map(|_| "---")));
            for row in &table.rows {
                let cells: Vec<String> = row.cells.iter().map(cell).collect();
                text.push_str(&line([row.name.as_str()].into_iter().chain(cells.iter().map(String::as_str))));
            }
        }
        text.push('\n');
        for note in &found.notes {
            text.push_str(&format!("- {note}\n"));
        }
    }
    text
}

/// Returns a line of a Markdown table.
fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<&str> = cells.collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Returns a paragraph that explains the figures: sizes, processors, number of turns, meaning of the spread.
pub fn how(report: &Report) -> String {
    if report.virtual_time {
        return "The same seed gives the same figures, so each figure comes from one run and has no spread. Sizes and times are small, because a simulated processor is \
                several hundred times slower than a processor of the host. Columns that begin with a step's number contain figures published with that step, measured on its machine."
            .to_owned();
    }
    let sizes = match (report.quick, report.at_most) {
        (true, _) => "Small sizes".to_owned(),
        (false, None) => "The published sizes".to_owned(),
        (false, Some(bytes)) => format!("The published sizes up to {}", units::bytes(bytes)),
    };
    format!(
        "{sizes}, on {}; {} in total. Each figure is the median of several turns; in each turn every design works once. The value after \u{b1} is half the distance between \
         the smallest and the largest turn; a large spread is given as both values in brackets. A change is computed within each turn, and the median of the changes is given, so it can differ from the change of the medians. \
         Columns that begin with a step's number contain figures published with that step, measured on its machine.",
        units::counted(report.cpus as u64, "processor"),
        units::duration(std::time::Duration::from_secs_f64(report.seconds)),
    )
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
