//! The report for a browser: one self-contained file.
//!
//! Input: the [`Report`] of a run. Output: an HTML text with style sheet and plots (SVG) inside, which needs
//! no network. The page begins with the five steps of Linux (`five_steps.rs`); the experiments follow,
//! folded. The template `templates/report.html` calls the functions of [`Page`]; `text.rs` formats the cells
//! and `draw.rs` the plots. `text_tests.rs` renders a page, and `freehold-cli/tests/browser.rs` opens one in
//! a browser.

use super::draw::{self, Shape};
use super::findings::{Cell, Findings, Plot, Table};
use super::five_steps::{self, StepLine};
use super::results::Pair;
use super::{Report, text};
use askama::Template;

/// The data of the template.
#[derive(Template)]
#[template(path = "report.html")]
struct Page<'r> {
    report: &'r Report,
    steps: Vec<StepLine>,
}

impl Page<'_> {
    /// Explains the figures.
    fn how(&self) -> String {
        text::how(self.report)
    }

    /// Returns the plot of the five steps.
    fn steps_plot(&self) -> Plot {
        five_steps::plot(&self.steps)
    }

    /// Says what the five steps showed.
    fn found(&self) -> String {
        five_steps::found(&self.steps, self.report.virtual_time)
    }

    /// Returns the figures before and after a step.
    fn pair(&self, pair: &Option<Pair>) -> String {
        pair.as_ref().map_or_else(|| "-".to_owned(), |pair| format!("{} to {}", pair.before.0, pair.after.0))
    }

    /// Returns the name of the row that the figures come from.
    fn row(&self, pair: &Option<Pair>) -> String {
        pair.as_ref().map_or_else(String::new, |pair| pair.row.clone())
    }

    /// Returns the first table of an experiment.
    fn first(&self, found: &Findings) -> Vec<Table> {
        found.tables.iter().take(1).map(Table::shown).collect()
    }

    /// Returns the other tables.
    fn others(&self, found: &Findings) -> Vec<Table> {
        found.tables.iter().skip(1).map(Table::shown).collect()
    }

    /// Returns the value of a cell.
    fn value(&self, cell: &Cell) -> String {
        text::parts(cell).0
    }

    /// Returns the spread of a cell, or nothing.
    fn spread(&self, cell: &Cell) -> String {
        text::parts(cell).1.unwrap_or_default()
    }

    /// Returns the CSS class of a cell.
    fn class(&self, cell: &Cell) -> &'static str {
        match cell {
            Cell::Nothing => "nothing",
            Cell::Published { .. } => "published",
            Cell::Measured { .. } => "measured",
        }
    }

    /// Draws a plot for large windows and for small windows. The style sheet shows one of the two drawings.
    fn drawn(&self, plot: &Plot) -> String {
        let shapes = [(Shape::Wide, "large"), (Shape::Narrow, "small")];
        shapes
            .map(|(shape, class)| format!("<div class=\"{class}\">{}</div>\n", draw::svg(plot, shape)))
            .concat()
    }

    /// Returns the duration of an experiment.
    fn took(&self, found: &Findings) -> String {
        freehold_replay::units::duration(std::time::Duration::from_secs_f64(found.seconds))
    }
}

/// Returns the page.
pub fn html(report: &Report) -> anyhow::Result<String> {
    Ok(Page { report, steps: five_steps::lines(report) }.render()?)
}
