//! The report for a browser: one file that needs no other.

use super::draw::{self, Shape};
use super::findings::{Cell, Findings, Plot, Table};
use super::{Report, text};
use askama::Template;

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'r> {
    report: &'r Report,
}

impl Page<'_> {
    fn how(&self) -> String {
        text::how(self.report)
    }

    /// The first table of an experiment, and the others.
    fn first(&self, found: &Findings) -> Vec<Table> {
        found.tables.iter().take(1).map(Table::shown).collect()
    }

    fn others(&self, found: &Findings) -> Vec<Table> {
        found.tables.iter().skip(1).map(Table::shown).collect()
    }

    fn value(&self, cell: &Cell) -> String {
        text::parts(cell).0
    }

    fn spread(&self, cell: &Cell) -> String {
        text::parts(cell).1.unwrap_or_default()
    }

    /// `published` for what is not ours.
    fn class(&self, cell: &Cell) -> &'static str {
        match cell {
            Cell::Nothing => "nothing",
            Cell::Published { .. } => "published",
            Cell::Measured { .. } => "measured",
        }
    }

    /// For large windows, and for small ones; the style shows one of them.
    fn drawn(&self, plot: &Plot) -> String {
        let shapes = [(Shape::Wide, "large"), (Shape::Narrow, "small")];
        shapes
            .map(|(shape, class)| format!("<div class=\"{class}\">{}</div>\n", draw::svg(plot, shape)))
            .concat()
    }

    fn took(&self, found: &Findings) -> String {
        freehold_replay::units::duration(std::time::Duration::from_secs_f64(found.seconds))
    }
}

/// The page.
pub fn html(report: &Report) -> anyhow::Result<String> {
    Ok(Page { report }.render()?)
}
