//! How far the experiments have come: a line that is drawn again and again on a terminal, elsewhere a line
//! for each beginning and end.

use super::executor;
use super::experiments::Experiment;
use super::scale::Scale;
use freehold_replay::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Thousandths of a second: what the bar counts in.
const SCALE: f64 = 1000.0;

/// On standard error. All is written by the thread that coordinates the experiments, between two steps, while
/// nothing is measured.
pub struct Steps {
    /// Goes away at the end; hidden where there is no terminal.
    bar: ProgressBar,
    /// Beginnings and ends are said in lines of their own.
    lines: bool,
    /// Experiments in all, and those that have begun.
    all: usize,
    begun_of_all: Cell<usize>,
    begun: Instant,
    /// As expected: in all, and of the steps that are done.
    seconds: f64,
    done: Cell<f64>,
}

impl Steps {
    /// For these experiments, which take about as many seconds as they say; shows nothing when it is to be
    /// `quiet`.
    pub fn new(chosen: &[(&dyn Experiment, Scale)], quiet: bool) -> Steps {
        let seconds: f64 = chosen.iter().map(|(experiment, scale)| experiment.seconds(scale)).sum();
        let terminal = stderr().is_terminal();
        let bar = match quiet || !terminal {
            true => ProgressBar::hidden(),
            false => {
                let length = Some((seconds * SCALE) as u64);
                let style = ProgressStyle::with_template("{prefix:16} {bar:30} {wide_msg}");
                ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr())
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            }
        };
        Steps {
            bar,
            lines: !quiet && !terminal,
            all: chosen.len(),
            begun_of_all: Cell::new(0),
            begun: Instant::now(),
            seconds,
            done: Cell::new(0.0),
        }
    }

    /// What other threads may do to the line.
    pub fn line(&self) -> Line {
        Line(self.bar.clone())
    }

    /// The next experiment, and how many seconds it takes, as far as one can tell.
    pub fn begin(&self, experiment: &'static str, seconds: f64) {
        self.bar.set_prefix(experiment);
        self.begun_of_all.set(self.begun_of_all.get() + 1);
        let about = match seconds.round() {
            seconds @ ..100.0 => format!("{:.0} s", seconds.max(1.0)),
            more => format!("{:.0} min", more / 60.0),
        };
        self.say(experiment, &format!("begins, about {about}"));
    }

    /// It is over.
    pub fn end(&self, experiment: &'static str, took: Duration) {
        self.say(experiment, &format!("took {}", units::duration(took)));
    }

    fn say(&self, experiment: &str, what: &str) {
        if self.lines {
            eprintln!("freehold: {experiment} ({} of {}) {what}", self.begun_of_all.get(), self.all);
        }
    }

    /// Does a step that is expected to take so many seconds.
    pub fn step<R>(&self, what: impl Into<String>, seconds: f64, work: impl FnOnce() -> R) -> R {
        let left = units::duration(Duration::from_secs(self.left().as_secs()));
        let what = what.into();
        executor::step(&what);
        self.bar.set_message(format!("about {left} left: {what}"));
        self.bar.tick();
        let result = work();
        self.done.set(self.done.get() + seconds);
        self.bar.set_position((self.done.get() * SCALE) as u64);
        result
    }

    /// The time that the rest takes if it is as much slower or faster than expected as what is done was;
    /// before much is done, that counts for little.
    fn left(&self) -> Duration {
        const TRUST: f64 = 10.0;
        let pace = (self.begun.elapsed().as_secs_f64() + TRUST) / (self.done.get() + TRUST);
        Duration::from_secs_f64((self.seconds - self.done.get()).max(0.0) * pace)
    }

    /// Seconds of the steps that are done, as they were expected.
    #[cfg(test)]
    pub fn done(&self) -> f64 {
        self.done.get()
    }
}

/// The line of progress, in the hands of a thread that does not measure.
pub struct Line(ProgressBar);

impl Line {
    /// Does something that writes to the terminal, with the line out of its way.
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.suspend(work)
    }

    /// Takes it away for good.
    pub fn clear(&self) {
        self.0.finish_and_clear();
        // The thread that draws it may be about to.
        self.0.set_draw_target(ProgressDrawTarget::hidden());
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
