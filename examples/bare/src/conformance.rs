//! The conformance suite of `freehold-kit` on this kernel: CPU 0 runs the checks before the first task starts,
//! and CPU 1 runs the second task of each check. A CPU that has accessed a space of the suite runs it until
//! the suite says that the space ends, or until it accesses another space.
#![expect(unsafe_code, reason = "passes a function to the other CPU, and spaces from one call to the next")]

use crate::lock::Lock;
use crate::start::{CPUS, RCU, print};
use crate::{Board, arch};
use core::mem::transmute;
use core::ptr::{from_ref, null_mut};
use freehold::platform::Host;
use freehold::platform::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold::prelude::*;
use freehold_kit::conformance::{self, Kernel, NotRun};

/// The checks of the platform that need larger blocks, runs, and signals.
const NOT_RUN: [&str; 3] = ["frames::blocks", "frames::runs", "waits::killed"];
/// The check of the engine that needs counts of charges.
const NOT_RUN_ON_ENGINE: [&str; 1] = ["engine::charges"];

/// The space of the suite that each CPU runs, or null.
static RUNS: [AtomicPtr<arch::Mmu>; CPUS] = [const { AtomicPtr::new(null_mut()) }; CPUS];
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

    fn load(&self, _: &Board, mmu: &arch::Mmu, address: u64) -> Result<Option<u64>, NotRun> {
        let new = from_ref(mmu).cast_mut();
        if RUNS[arch::cpu()].load(Relaxed) != new {
            leave();
            arch::enter(mmu);
            RUNS[arch::cpu()].store(new, Relaxed);
        }
        Ok(arch::load(address))
    }

    fn leave_space(&self, _: &arch::Mmu) {
        leave();
    }

    fn is_asleep(&self) -> Option<bool> {
        // A task that waits spins.
        Some(false)
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }
}

/// Makes this CPU run no space of the suite.
fn leave() {
    // Relaxed: only this CPU uses the pointer.
    let old = RUNS[arch::cpu()].swap(null_mut(), Relaxed);
    // SAFETY: the suite keeps a space alive until `leave_space`.
    if let Some(old) = unsafe { old.as_ref() } {
        arch::leave(old);
    }
}

/// Runs jobs on CPU 1 until the suite has ended.
pub fn serve() {
    arch::permit_loads(true);
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
    arch::permit_loads(false);
}

/// Runs the suite on CPU 0.
pub fn run(engine: &Counted<Engine<Board>>) {
    arch::permit_loads(true);
    let format = conformance::format::<arch::Format>();
    let platform = conformance::platform(engine.platform(), &Cpus);
    let engine = conformance::engine(engine, &Cpus);
    Board::rcu_barrier();
    arch::permit_loads(false);
    format.assert_passed(&[]);
    platform.assert_passed(&NOT_RUN);
    engine.assert_passed(&NOT_RUN_ON_ENGINE);
    let checks = [format, platform, engine].map(|report| report.checks().len());
    let not_run = NOT_RUN.len() + NOT_RUN_ON_ENGINE.len();
    let ran = checks.iter().sum::<usize>() - not_run;
    print(format_args!("conformance: {ran} checks passed, {not_run} cannot run here"));
    // Release: pairs with the acquire in `serve`.
    ENDED.store(OVER, Release);
}
