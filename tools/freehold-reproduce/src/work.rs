//! The thread that runs the experiments, and its messages to the thread that started it. The starting thread
//! only waits for messages and keeps the findings, so it can end the run at any time.
//!
//! `lib.rs` calls [`Work::begin`] and then [`Work::each`]. After each experiment the working thread waits
//! until the starting thread has printed the findings, so nothing is printed while an experiment measures.
//! After a signal, the starting thread does not wait for the working thread.
//! `freehold-cli/tests/reproduce.rs` tests an interrupted run.

use super::executor;
use super::experiments::Experiment;
use super::findings::Findings;
use super::interrupt;
use super::scale::Scale;
use super::steps::{Line, Steps};
use anyhow::Context;
use freehold_replay::units;
use std::panic;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Stack size of the working thread in bytes: the usual size of a main thread.
const STACK: usize = 8 << 20;

/// A message to the starting thread.
enum News {
    /// Findings of an experiment, or the reason why it failed. The work continues when the receiver has
    /// answered.
    Done(Result<Findings, String>, Sender<()>),
    /// All work is done, or the thread has panicked.
    End,
    /// A signal that ends the run.
    Signal(i32),
}

/// Experiments in progress.
pub struct Work {
    news: Receiver<News>,
    worker: JoinHandle<()>,
    line: Line,
}

/// The way in which the experiments ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All experiments were done, or failed.
    Whole,
    /// A signal ended the experiments.
    Interrupted(i32),
}

impl Work {
    /// Starts the experiments.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be started.
    pub fn begin(chosen: Vec<(&'static dyn Experiment, Scale)>, quiet: bool) -> anyhow::Result<Work> {
        let (tell, news) = mpsc::channel();
        let signals = tell.clone();
        // A failed send means that the receiver is gone, because the run is about to end.
        interrupt::watch(move |signal| _ = signals.send(News::Signal(signal)));
        let steps = Steps::new(&chosen, quiet);
        let line = steps.line();
        let work = move || {
            let tell = Last(tell);
            chosen.iter().for_each(|(experiment, scale)| tell.done(done(*experiment, scale, &steps)));
        };
        let worker = thread::Builder::new().name("experiments".to_owned()).stack_size(STACK).spawn(work);
        Ok(Work { news, worker: worker.context("cannot start the thread of the experiments")?, line })
    }

    /// Waits for the end. Calls `each` with each result as it arrives, while the progress line is hidden.
    ///
    /// # Panics
    ///
    /// Panics if an experiment panics.
    pub fn each(self, mut each: impl FnMut(Result<Findings, String>)) -> End {
        loop {
            match self.news.recv() {
                Ok(News::Done(found, go)) => {
                    self.line.aside(|| each(found));
                    // The worker waits for this answer.
                    let _ = go.send(());
                }
                Ok(News::Signal(signal)) => {
                    self.line.clear();
                    interrupt::stop();
                    return End::Interrupted(signal);
                }
                Ok(News::End) | Err(_) => {
                    interrupt::stop();
                    self.worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
                    return End::Whole;
                }
            }
        }
    }
}

/// Sends the end message when dropped, also after a panic.
struct Last(Sender<News>);

impl Last {
    /// Waits until the receiver has printed the findings, so that nothing is measured at that time.
    fn done(&self, found: Result<Findings, String>) {
        let (go, wait) = mpsc::channel();
        if self.0.send(News::Done(found, go)).is_ok() {
            let _ = wait.recv();
        }
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.0.send(News::End);
    }
}

fn done(experiment: &dyn Experiment, scale: &Scale, steps: &Steps) -> Result<Findings, String> {
    steps.begin(experiment.name(), experiment.seconds(scale));
    scale.place.enter();
    let started = Instant::now();
    let found = experiment.run(scale, steps).with_context(|| experiment.name());
    steps.end(experiment.name(), started.elapsed());
    match found {
        Ok(mut found) => {
            found.seconds = started.elapsed().as_secs_f64();
            if let Some(machine) = scale.place.simulated() {
                found.tables.extend(executor::hottest(&experiment.sides()));
                let cpus = units::counted(scale.cpus as u64, "processor");
                found.notes.insert(0, format!("In virtual time, on {cpus} of: {machine}."));
            }
            Ok(found)
        }
        Err(error) => Err(format!("{error:#}")),
    }
}
