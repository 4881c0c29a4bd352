//! The conformance suite of `freehold-kit` on this kernel: CPU 0 runs the checks before the first task starts,
//! and CPU 1 runs the second task of each check. The kernel has no way to catch a fault of its own, so the
//! checks that access memory as a program are not run; the program checks flushes (`bin/program.rs`).
#![expect(unsafe_code, reason = "passes a function to the other CPU")]

use crate::lock::Lock;
use crate::start::{RCU, print};
use crate::{Board, arch};
use core::mem::transmute;
use freehold::platform::Host;
use freehold::platform::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use freehold::prelude::*;
use freehold_kit::conformance::{self, Kernel, NotRun};

/// The checks that need larger blocks, runs, signals, accesses of programs, and counts of charges.
const NOT_RUN: [&str; 11] = [
    "frames::blocks",
    "frames::runs",
    "waits::killed",
    "spaces::flush_here",
    "spaces::flush_elsewhere",
    "spaces::tables",
    "spaces::contexts",
    "spaces::reused",
    "spaces::walks",
    "engine::accesses",
    "engine::charges",
];

/// The function that CPU 1 runs next.
static JOB: Lock<Option<Job>> = Lock::new(None);
/// Number of jobs that CPU 1 has run, or `OVER`.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The suite has ended.
const OVER: u64 = u64::MAX;

struct Job(*mut (dyn FnMut() + Send));

// SAFETY: the function may be sent to another CPU, and only the CPU that takes the job uses the pointer.
unsafe impl Send for Job {}

/// This kernel.
struct Cpus;

impl Kernel<Board> for Cpus {
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        // SAFETY: changes only the lifetime. This function returns after the job has ended.
        let job =
            unsafe { transmute::<&mut (dyn FnMut() + Send), &'static mut (dyn FnMut() + Send)>(second) };
        // Acquire: pairs with the release in `serve`.
        let before = ENDED.load(Acquire);
        JOB.with(|next| *next = Some(Job(job)));
        first();
        while ENDED.load(Acquire) == before {
            self.pause();
        }
        Ok(())
    }

    fn pause(&self) {
        RCU.quiescent(arch::cpu());
        arch::relax();
    }

    fn is_asleep(&self) -> Option<bool> {
        // A task that waits spins.
        Some(false)
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }
}

/// Runs jobs on CPU 1 until the suite has ended.
pub fn serve() {
    // Acquire: pairs with the release in `run`.
    while ENDED.load(Acquire) != OVER {
        if let Some(Job(job)) = JOB.with(Option::take) {
            // SAFETY: `run_two` waits for the end of the job, and no other CPU has the pointer.
            unsafe { (*job)() };
            // Release: pairs with the acquire in `run_two`, which then sees the results of the job.
            ENDED.fetch_add(1, Release);
        }
        Cpus.pause();
    }
}

/// Runs the suite on CPU 0.
pub fn run(engine: &Counted<Engine<Board>>) {
    let format = conformance::format::<arch::Format>();
    let platform = conformance::platform(engine.platform(), &Cpus);
    let engine = conformance::engine(engine, &Cpus);
    Board::rcu_barrier();
    format.assert_passed(&[]);
    platform.assert_passed(&NOT_RUN[..9]);
    engine.assert_passed(&NOT_RUN[9..]);
    let checks = [format, platform, engine].map(|report| report.checks().len());
    let ran = checks.iter().sum::<usize>() - NOT_RUN.len();
    print(format_args!("conformance: {ran} checks passed, {} cannot run here", NOT_RUN.len()));
    // Release: pairs with the acquire in `serve`.
    ENDED.store(OVER, Release);
}
