//! How far a replay has come, on a terminal.

use freehold_replay::{Progress, Source};
use freehold_trace::Recording;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, BufReader, IsTerminal, Read, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Events that tell how many there are in all.
const SAMPLE: u64 = 20_000;

/// A line on standard error that goes away at the end. It is drawn by the thread that coordinates a replay,
/// between two segments, while no time is taken.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// For the replay of a recording; shows nothing where standard error is no terminal, and when it is to be
    /// `quiet`.
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
        // The length is an estimate.
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

/// About how many events a recording has: as many as its first ones say, by what they take of its file. None
/// for what can be read but once, and for what cannot be read.
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

/// An input that counts what is read from it.
struct Counted {
    input: Box<dyn Read + Send>,
    taken: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        // Only the reader's own thread looks at it.
        self.taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
