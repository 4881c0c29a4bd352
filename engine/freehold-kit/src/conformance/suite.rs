//! The run of a suite: names, outcomes, and the second task.

use super::kernel::{Kernel, NotRun};
use super::report::{Outcome, Report};
use alloc::string::String;
use core::marker::PhantomData;
use freehold::platform::Platform;
use freehold::platform::atomic::{AtomicU32, Ordering::SeqCst};

/// The reason why a check ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The check found this mistake.
    Mistake(String),
    /// The check cannot run.
    NotRun(NotRun),
}

impl From<String> for Stop {
    fn from(mistake: String) -> Self {
        Stop::Mistake(mistake)
    }
}

impl From<NotRun> for Stop {
    fn from(reason: NotRun) -> Self {
        Stop::NotRun(reason)
    }
}

/// The result of a check of a platform.
pub(super) type Checked = Result<(), Stop>;

/// Returns the stop of a check that cannot run for this reason.
pub(super) fn not_run<T>(reason: &str) -> Result<T, Stop> {
    Err(NotRun::because(reason).into())
}

/// A run of checks on one kernel.
pub(super) struct Suite<'k, P: Platform, K> {
    kernel: &'k K,
    report: Report,
    platform: PhantomData<fn(&P)>,
}

impl<'k, P: Platform, K: Kernel<P>> Suite<'k, P, K> {
    pub fn new(kernel: &'k K) -> Self {
        Suite { kernel, report: Report::default(), platform: PhantomData }
    }

    /// Runs a check.
    pub fn check(&mut self, name: &'static str, check: impl FnOnce() -> Checked) {
        self.kernel.begins(name);
        self.report.add(
            name,
            match check() {
                Ok(()) => Outcome::Passed,
                Err(Stop::Mistake(mistake)) => Outcome::Failed(mistake),
                Err(Stop::NotRun(NotRun(reason))) => Outcome::NotRun(reason),
            },
        );
    }

    pub fn finish(self) -> Report {
        self.report
    }
}

/// A step that two tasks have reached. Numbers only grow.
pub(super) struct Stage(AtomicU32);

impl Stage {
    pub const fn new() -> Self {
        Stage(AtomicU32::new(0))
    }

    /// Announces that a step is reached.
    pub fn reach(&self, step: u32) {
        // SeqCst here and below: the suite checks a platform, and wants no subtleties of its own.
        self.0.fetch_max(step, SeqCst);
    }

    /// Returns true if a step is reached.
    pub fn is_reached(&self, step: u32) -> bool {
        self.0.load(SeqCst) >= step
    }

    /// Waits until the other task has reached a step. The task is in no read section.
    pub fn wait_for<P: Platform, K: Kernel<P>>(&self, kernel: &K, step: u32) {
        while !self.is_reached(step) {
            kernel.pause();
        }
    }

    /// Waits until the other task has reached a step, in a read section.
    pub fn wait_reading<P: Platform>(&self, step: u32) {
        while !self.is_reached(step) {
            P::relax();
        }
    }
}

/// Runs two functions that return results at the same time. The result of the first has priority.
pub(super) fn run_two<P: Platform, K: Kernel<P>>(
    kernel: &K,
    first: impl FnOnce() -> Checked,
    second: impl FnOnce() -> Checked + Send,
) -> Checked {
    let (mut first, mut second) = (Some(first), Some(second));
    let (mut found, mut found_second) = (None, None);
    kernel.run_two(&mut || found = first.take().map(|f| f()), &mut || {
        found_second = second.take().map(|f| f());
    })?;
    let both = "`Kernel::run_two` must run both functions before it returns";
    found.ok_or_else(|| Stop::Mistake(both.into()))??;
    found_second.ok_or_else(|| Stop::Mistake(both.into()))?
}
