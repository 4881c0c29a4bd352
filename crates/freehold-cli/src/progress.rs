//! How far a replay has come, on a terminal.

use crate::replay::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// A line on standard error that goes away at the end. It is drawn by the thread that coordinates a replay, between two
/// segments, while no time is taken.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// For the replay of `name`; shows nothing where standard error is no terminal, and when it is to be `quiet`.
    pub fn new(name: &str, quiet: bool) -> Bar {
        let shown = !quiet && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target).with_prefix(name.to_owned());
        let style = ProgressStyle::with_template(
            "{spinner} {prefix}: {human_pos} events replayed, {per_sec} ({elapsed})",
        );
        Bar { bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())) }
    }
}

impl Progress for Bar {
    fn planned(&self, _: u64) {
        self.bar.tick();
    }

    fn ran(&self, events: u64) {
        self.bar.set_position(events);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
