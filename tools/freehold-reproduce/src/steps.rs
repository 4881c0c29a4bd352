//! Progress of the experiments. On a terminal, one line is redrawn; without a terminal, each start and end of
//! an experiment writes a line.
//!
//! An experiment wraps each measured piece of work in [`Steps::step`] with its expected seconds. The line is
//! redrawn between steps and never during a step, so that drawing does not disturb a measurement. The
//! estimate of the remaining time depends on how long the finished steps took. `experiments/tests.rs`
//! compares the expected seconds of the steps with those of the experiment.

use super::executor;
use super::experiments::Experiment;
use super::scale::Scale;
use freehold_replay::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Number of units of the progress bar that stand for one second.
const SCALE: f64 = 1000.0;

/// Progress on standard error. The thread of the experiments writes the progress between two steps, when
/// nothing is measured.
pub struct Steps {
    /// The progress bar. Removed at the end, and hidden without a terminal.
    bar: ProgressBar,
    /// True if starts and ends of experiments are written as separate lines.
    lines: bool,
    /// Number of experiments.
    all: usize,
    /// Number of experiments that have started.
    begun_of_all: Cell<usize>,
    /// Start of the run.
    begun: Instant,
    /// Expected seconds in total.
    seconds: f64,
    /// Expected seconds of the finished steps.
    done: Cell<f64>,
}

impl Steps {
    /// Creates the progress of these experiments, with the times that they estimate. Shows nothing if `quiet`
    /// is set.
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

    /// Returns the handle of the progress line for other threads.
    pub fn line(&self) -> Line {
        Line(self.bar.clone())
    }

    /// Begins the next experiment, which takes about `seconds` seconds.
    pub fn begin(&self, experiment: &'static str, seconds: f64) {
        self.bar.set_prefix(experiment);
        self.begun_of_all.set(self.begun_of_all.get() + 1);
        let about = match seconds.round() {
            seconds @ ..100.0 => format!("{:.0} s", seconds.max(1.0)),
            more => format!("{:.0} min", more / 60.0),
        };
        self.say(experiment, &format!("begins, about {about}"));
    }

    /// Ends the experiment.
    pub fn end(&self, experiment: &'static str, took: Duration) {
        self.say(experiment, &format!("took {}", units::duration(took)));
    }

    /// Writes a line about an experiment, if lines are written.
    fn say(&self, experiment: &str, what: &str) {
        if self.lines {
            eprintln!("freehold: {experiment} ({} of {}) {what}", self.begun_of_all.get(), self.all);
        }
    }

    /// Runs a step that is expected to take this number of seconds.
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

    /// Returns the remaining time, scaled by the speed of the finished steps. The scaling has little weight
    /// until the finished steps have taken some time.
    fn left(&self) -> Duration {
        const TRUST: f64 = 10.0;
        let pace = (self.begun.elapsed().as_secs_f64() + TRUST) / (self.done.get() + TRUST);
        Duration::from_secs_f64((self.seconds - self.done.get()).max(0.0) * pace)
    }

    /// Returns the expected seconds of the finished steps.
    #[cfg(test)]
    pub fn done(&self) -> f64 {
        self.done.get()
    }
}

/// Handle of the progress line for a thread that does not measure.
pub struct Line(ProgressBar);

impl Line {
    /// Runs code that writes to the terminal while the line is hidden.
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.suspend(work)
    }

    /// Removes the line permanently.
    pub fn clear(&self) {
        self.0.finish_and_clear();
        // The drawing thread may be about to draw the line, so hide it for that thread.
        self.0.set_draw_target(ProgressDrawTarget::hidden());
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
