//! The page of `freehold replay --report`: one self-contained HTML file about one recording.
//!
//! Input: the [`Outcome`] of each replay, and the `Study` of the recording. Output: a text with style
//! sheet, script, charts (SVG) and the analysis as JSON inside. The page needs no network and no other file,
//! and shows everything but the descriptions under the pointer without a script.
//!
//! | file | work |
//! | --- | --- |
//! | `templates/replay.html` | the sections; calls the functions of `Page` |
//! | `templates/replay.css`, `templates/replay.js` | appearance; zoom, descriptions and filters |
//! | `words.rs` | the sentence at the beginning of each section, and names of tasks and mappings |
//! | `chart.rs`, `timeline.rs` | charts over time, and the waits of each task over time |
//! | `areas.rs` | the descriptions of mappings in the picture |
//! | `what_if.rs` | replays on simulated machines |
//!
//! All figures come from the analysis and the outcomes, which `--json` writes; nothing is computed here but
//! formats and shares. Names from a recording are escaped: by askama in the template, by `picture/svg.rs` in
//! drawings, and by `script_json` in data. `mod_tests.rs` compares the page with the JSON document, and
//! `freehold-cli/tests/browser.rs` opens a page in a browser.

mod areas;
mod chart;
mod timeline;
mod what_if;
mod words;

pub use what_if::{Curve, HotLine, Point, WhatIf};

use crate::analysis::waits::Wait;
use crate::analysis::{Analysis, Study, study};
use crate::locking::Design;
use crate::outcome::{KindTime, Outcome};
use crate::source::Source;
use crate::{locking, picture, units};
use askama::Template;
use freehold_trace::ReadError;
use std::borrow::Borrow;
use std::fmt;
use std::time::Duration;

/// Number of lines in a table. The other lines are in `--json`.
const MAX_LINES: usize = 15;

/// Reason why a page could not be made.
#[derive(Debug)]
pub enum PageError {
    /// The recording cannot be read.
    Read(ReadError),
    /// The template failed.
    Template(askama::Error),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Read(error) => error.fmt(f),
            PageError::Template(error) => write!(f, "cannot make the page: {error}"),
        }
    }
}

impl std::error::Error for PageError {}

/// Returns the page about a recording. `outcomes` has a replay for each design, and must not be empty. If the
/// replays are simulated, `what_if` has the results for section 6.
///
/// # Errors
///
/// Fails if the recording cannot be read.
pub fn html(source: &Source, outcomes: &[Outcome], what_if: Option<&WhatIf>) -> Result<String, PageError> {
    let study = study(source).map_err(PageError::Read)?;
    let file = source.name().display().to_string();
    let page = Page { outcomes, study: &study, what_if, file };
    page.render().map_err(PageError::Template)
}

/// The data of the template.
#[derive(Template)]
#[template(path = "replay.html")]
struct Page<'a> {
    outcomes: &'a [Outcome],
    study: &'a Study,
    what_if: Option<&'a WhatIf>,
    /// Name of the recording on the command line.
    file: String,
}

impl Page<'_> {
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn analysis(&self) -> &Analysis {
        &self.study.analysis
    }

    /// Returns the replay that the page is about: of several designs, that on the default design.
    fn outcome(&self) -> &Outcome {
        let usual = self.outcomes.iter().find(|outcome| outcome.design == Design::default());
        usual.unwrap_or(&self.outcomes[0])
    }

    /// Returns the kinds of call with the most time.
    fn kinds(&self) -> &[KindTime] {
        let kinds = &self.outcome().kinds;
        &kinds[..kinds.len().min(MAX_LINES)]
    }

    /// Returns the longest waits for the summary.
    fn three_longest(&self) -> &[Wait] {
        let longest = self.analysis().waits.as_ref().map_or(&[][..], |waits| &waits.longest);
        &longest[..longest.len().min(3)]
    }

    /// Returns the first lines of a table.
    fn first<'t, T>(&self, lines: &'t [T]) -> &'t [T] {
        &lines[..lines.len().min(MAX_LINES)]
    }

    /// Says how many lines a table omits. Empty if there are none.
    fn omitted<T>(&self, lines: &[T]) -> String {
        match lines.len().saturating_sub(MAX_LINES) {
            0 => String::new(),
            more => format!("{} more in --json", units::count(more as u64)),
        }
    }

    fn ns(&self, ns: impl Borrow<u64>) -> String {
        units::nanoseconds(*ns.borrow())
    }

    fn time(&self, time: &Duration) -> String {
        units::duration(*time)
    }

    fn linux_time(&self, kind: &KindTime) -> String {
        kind.linux.map_or_else(|| "-".to_owned(), |linux| units::duration(linux.all))
    }

    fn count(&self, count: impl Borrow<u64>) -> String {
        units::count(*count.borrow())
    }

    fn bytes(&self, bytes: impl Borrow<u64>) -> String {
        units::bytes(*bytes.borrow())
    }

    fn design(&self, outcome: &Outcome) -> String {
        locking::name(outcome.design)
    }

    /// Returns the picture of the address spaces, with areas that have descriptions.
    fn picture(&self) -> String {
        let areas = areas::areas(self.study);
        picture::draw_with(&self.analysis().name, &self.study.life, &areas)
    }

    /// Returns the descriptions of the areas.
    fn area_json(&self) -> String {
        script_json(&areas::descriptions(self.study))
    }

    /// Returns the analysis, as `--json` has it.
    fn analysis_json(&self) -> String {
        script_json(self.analysis())
    }
}

/// Returns JSON that cannot end the element of a script.
fn script_json(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).expect("strings and numbers always serialise");
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
