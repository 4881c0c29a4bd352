//! How far the experiments have come, on a terminal.

use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Thousandths of a second: what the bar counts in.
const SCALE: f64 = 1000.0;

/// A line on standard error that goes away at the end. It is drawn by the thread that coordinates the experiments, between two steps, while
/// nothing is measured.
pub struct Steps {
    bar: ProgressBar,
    begun: Instant,
    /// As expected: in all, and of the steps that are done.
    seconds: f64,
    done: Cell<f64>,
}

impl Steps {
    /// For so many seconds of work, as far as one can tell; shows nothing where standard error is no terminal, and when it is to be `quiet`.
    pub fn new(seconds: f64, quiet: bool) -> Steps {
        let bar = match quiet || !stderr().is_terminal() {
            true => ProgressBar::hidden(),
            false => {
                let length = Some((seconds * SCALE) as u64);
                let style = ProgressStyle::with_template("{prefix:16} {bar:30} {wide_msg}");
                ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr())
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            }
        };
        Steps { bar, begun: Instant::now(), seconds, done: Cell::new(0.0) }
    }

    /// The next experiment.
    pub fn begin(&self, experiment: &'static str) {
        self.bar.set_prefix(experiment);
    }

    /// Does a step that is expected to take so many seconds.
    pub fn step<R>(&self, what: impl Into<String>, seconds: f64, work: impl FnOnce() -> R) -> R {
        let left = units::duration(Duration::from_secs(self.left().as_secs()));
        self.bar.set_message(format!("about {left} left: {}", what.into()));
        self.bar.tick();
        let result = work();
        self.done.set(self.done.get() + seconds);
        self.bar.set_position((self.done.get() * SCALE) as u64);
        result
    }

    /// Does something that writes to the terminal, with the line out of its way.
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.bar.suspend(work)
    }

    /// The time that the rest takes if it is as much slower or faster than expected as what is done was; before much is done, that counts
    /// for little.
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

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
