//! The thread that does the experiments, and what it says to the one that has begun it. That one has nothing
//! else to do than to listen, so that it can end the run at any moment: what was found lies with it.

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

/// Of the thread that works: as much as the first one has.
const STACK: usize = 8 << 20;

/// What there is to be said.
enum News {
    /// What an experiment found, or why it could not be done. The work goes on when somebody has sent an
    /// answer.
    Done(Result<Findings, String>, Sender<()>),
    /// There is nothing more to do, or the thread has panicked.
    End,
    /// A signal is to end it all.
    Signal(i32),
}

/// Experiments under way.
pub struct Work {
    news: Receiver<News>,
    worker: JoinHandle<()>,
    line: Line,
}

/// How experiments came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All were done, or tried.
    Whole,
    /// By this signal.
    Interrupted(i32),
}

impl Work {
    /// Begins.
    ///
    /// # Errors
    ///
    /// There is no thread to be had.
    pub fn begin(chosen: Vec<(&'static dyn Experiment, Scale)>, quiet: bool) -> anyhow::Result<Work> {
        let (tell, news) = mpsc::channel();
        let signals = tell.clone();
        // A receiver that does not listen any more is about to end.
        interrupt::watch(move |signal| _ = signals.send(News::Signal(signal)));
        let steps = Steps::new(&chosen, quiet);
        let line = steps.line();
        let work = move || {
            let tell = Last(tell);
            chosen.iter().for_each(|(experiment, scale)| tell.done(done(*experiment, scale, &steps)));
        };
        let worker = thread::Builder::new().name("experiments".to_owned()).stack_size(STACK).spawn(work);
        Ok(Work { news, worker: worker.context("no thread for the experiments")?, line })
    }

    /// Waits for the end, and hands out what is found as it is found, with the line of progress out of the
    /// way.
    ///
    /// # Panics
    ///
    /// As the experiments do.
    pub fn each(self, mut each: impl FnMut(Result<Findings, String>)) -> End {
        loop {
            match self.news.recv() {
                Ok(News::Done(found, go)) => {
                    self.line.aside(|| each(found));
                    // It waits for this.
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

/// Says that it is over when it goes, in whatever way.
struct Last(Sender<News>);

impl Last {
    /// Nothing is measured while somebody prints.
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
