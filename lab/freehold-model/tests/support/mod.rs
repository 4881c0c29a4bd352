//! Code that the suites share: the designs, the length of runs, the kernel as a subject, and reports of
//! differences.
//!
//! [`assert_same`] decides whether a comparison passes: it panics with the shortest calls that show a
//! difference. The function also fails if too few calls succeed or nothing was compared, so that a broken
//! generator does not pass. A test against the kernel gets the kernel from [`linux`], which prints SKIPPED if
//! the kernel cannot be driven.
#![allow(dead_code, reason = "each suite uses its part")]

use freehold::space::{FaultLock, Locking, Unmap};
use freehold_machine::Effort;
use freehold_model::compare::{Plan, Report};
use freehold_model::linux::{Linux, Options};
use freehold_model::{PAGE, Subject, text};

/// Returns every design, and one more design whose sections are so small that an arena has many sections.
pub fn lockings() -> Vec<Locking> {
    let small = Locking::default().unmap(Unmap::Sectioned { bytes: 4 * PAGE }).fault(FaultLock::VmaPerCpu);
    Locking::ALL.into_iter().chain([small]).collect()
}

/// Returns true if the long versions of tests run.
pub fn long() -> bool {
    Effort::asked() == Effort::Long
}

/// Number of calls of a comparison. In a quick, full and long run, this is a quarter of `usual`, `usual`, and
/// a million.
pub fn calls(usual: u64) -> u64 {
    Effort::of(usual / 4, usual, 1_000_000)
}

/// Returns the kernel, or `None` if this environment cannot drive the kernel. Prints a line in that case.
pub fn linux(options: Options) -> Option<Linux> {
    match Linux::new(options) {
        Ok(linux) => Some(linux),
        Err(why) => {
            // Written to stderr directly, so that the line is visible without --nocapture.
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "SKIPPED: the kernel cannot be driven here: {why}");
            None
        }
    }
}

/// Panics with the calls that show a difference, or if too little was compared.
pub fn assert_same(what: &str, plan: &Plan, report: &Report, subject: &dyn Subject) {
    if let Some(d) = &report.difference {
        let ops: String = d.ops.iter().map(|op| text::op(&subject.world(), op) + "\n").collect();
        panic!("{what}: left and right differ in run {}:\n{ops}=> {}", d.seed, d.what);
    }
    assert!(report.calls >= plan.calls);
    // A generator whose calls mostly fail would compare little.
    assert!(report.succeeded * 5 > report.calls, "too few calls succeed: {report:?}");
    assert!(report.failed > 0 && report.signals > 0 && report.pages > 0, "a count is zero: {report:?}");
}
