//! What the suites share: the designs to try, how long to run, and how to complain.
#![allow(dead_code, reason = "each suite uses its part")]

use freehold::space::{FaultLock, Locking, Unmap};
use freehold_machine::Effort;
use freehold_model::compare::{Plan, Report};
use freehold_model::linux::{Linux, Options};
use freehold_model::{PAGE, Subject, text};

/// Every design, and one more whose sections are so small that an arena has many.
pub fn lockings() -> Vec<Locking> {
    let small = Locking {
        unmap: Unmap::Sectioned { bytes: 4 * PAGE },
        fault: FaultLock::VmaPerCpu,
        ..Locking::default()
    };
    Locking::ALL.into_iter().chain([small]).collect()
}

/// Whether there is time for the long versions.
pub fn long() -> bool {
    Effort::asked() == Effort::Long
}

/// Calls of a comparison: so many, a quarter of them, or a million.
pub fn calls(usual: u64) -> u64 {
    Effort::of(usual / 4, usual, 1_000_000)
}

/// The kernel, or a line in the test's output that it cannot be driven here.
pub fn linux(options: Options) -> Option<Linux> {
    match Linux::new(options) {
        Ok(linux) => Some(linux),
        Err(why) => {
            // Seen without --nocapture too: written past the test harness.
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "SKIPPED: the kernel cannot be driven here: {why}");
            None
        }
    }
}

/// Fails with the calls that show a difference, or when too little was compared.
pub fn assert_same(what: &str, plan: &Plan, report: &Report, subject: &dyn Subject) {
    if let Some(d) = &report.difference {
        let ops: String = d.ops.iter().map(|op| text::op(&subject.world(), op) + "\n").collect();
        panic!("{what}: left and right differ in run {}:\n{ops}=> {}", d.seed, d.what);
    }
    assert!(report.calls >= plan.calls);
    // A generator that only draws refusals would compare nothing.
    assert!(report.succeeded * 5 > report.calls, "few calls succeed: {report:?}");
    assert!(report.failed > 0 && report.signals > 0 && report.pages > 0, "nothing of a kind: {report:?}");
}
