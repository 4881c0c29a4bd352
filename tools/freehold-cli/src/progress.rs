//! The progress of a replay on a terminal.
//!
//! `command/replay.rs` passes a [`Bar`] to the replay, which reports the number of events after each segment.
//! A recording does not contain its length, so `estimate` extrapolates from the first 20,000 events and the
//! size of the file. The bar is shown only if standard error is a terminal, and is never drawn while the
//! replay measures. The tests are in `progress_tests.rs`.

use freehold_replay::{Progress, Source};
use freehold_trace::Recording;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, BufReader, IsTerminal, Read, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of events that are read to estimate the length of a recording.
const SAMPLE: u64 = 20_000;

/// A progress bar on standard error, removed when dropped.
///
/// The thread that coordinates a replay draws the bar between two segments, when no time is measured.
pub struct Bar {
    /// The bar, hidden if nothing is to be shown.
    bar: ProgressBar,
}

impl Bar {
    /// Creates the bar for the replay of a recording. Shows nothing if `quiet` is true or standard error is
    /// not a terminal.
    pub fn new(source: &Source, quiet: bool) -> Bar {
        if quiet || !stderr().is_terminal() {
            return Bar { bar: ProgressBar::hidden() };
        }
        let events = estimate(source);
        let bar = ProgressBar::with_draw_target(events, ProgressDrawTarget::stderr());
        let path = source.name();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let template = match events {
            Some(_) => "{prefix} {bar:30} {human_pos} events, {eta} left",
            None => "{prefix} {spinner} {human_pos} events",
        };
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_prefix(name);
        bar.tick();
        Bar { bar }
    }
}

impl Progress for Bar {
    fn planned(&self, _: u64) {}

    fn ran(&self, events: u64) {
        // The length is an estimate, which the replay may exceed.
        if self.bar.length().is_some_and(|length| length < events) {
            self.bar.set_length(events);
        }
        self.bar.set_position(events);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Estimates the number of events of a recording from the file size and the bytes that its first events take.
/// Returns `None` if the recording cannot be read, or can be read only once.
fn estimate(source: &Source) -> Option<u64> {
    let (input, size) = source.raw().ok()?;
    let size = size?;
    let taken = Arc::new(AtomicU64::new(0));
    let counted = BufReader::with_capacity(4096, Counted { input, taken: taken.clone() });
    let mut recording = Recording::read(source.name(), Box::new(counted), None).ok()?;
    let mut events = 0;
    while events < SAMPLE {
        if recording.next_event().ok()?.is_none() {
            return Some(events);
        }
        events += 1;
    }
    let taken = taken.load(Ordering::Relaxed).max(1);
    u64::try_from(u128::from(events) * u128::from(size) / u128::from(taken)).ok()
}

/// An input that counts the bytes read from it.
struct Counted {
    /// The input.
    input: Box<dyn Read + Send>,
    /// Number of bytes read so far.
    taken: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        // Relaxed: the value is only an estimate, and no other memory depends on it.
        self.taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
