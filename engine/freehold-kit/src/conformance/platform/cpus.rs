//! CPU numbers and the clock.

use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stage, run_two};
use alloc::vec::Vec;
use freehold::platform::Platform;
use freehold::platform::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of visits of each task.
const VISITS: u64 = 2000;

/// Two tasks count their visits in a word of their CPU, without atomic additions. If both had one number at
/// the same time, an addition could be lost. The suite never reports a loss of a right platform.
pub fn numbers<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let cpus = P::cpus();
    require!(
        (1..=P::MAX_CPUS).contains(&cpus),
        "cpus() is {cpus}, but must be 1 to MAX_CPUS, {}",
        P::MAX_CPUS
    );
    require!(P::with_cpu(|_| 7) == 7, "with_cpu does not return the result of its function");
    let counts: Vec<AtomicU64> = (0..P::MAX_CPUS).map(|_| AtomicU64::new(0)).collect();
    let visit = || {
        P::with_cpu(|number| {
            let Some(count) = counts.get(number) else { return number };
            // A plain increment: no other task has this number now.
            let seen = count.load(Relaxed);
            core::hint::spin_loop();
            count.store(seen + 1, Relaxed);
            number
        })
    };
    let visits = || {
        for _ in 0..VISITS {
            let number = visit();
            require!(number < cpus, "with_cpu passes the number {number}, but cpus() is {cpus}");
        }
        Ok(())
    };
    visits()?;
    let stage = Stage::new();
    let (first, second) = (
        || {
            stage.wait_for(kernel, 1);
            visits()
        },
        || {
            stage.reach(1);
            visits()
        },
    );
    run_two(kernel, first, second)?;
    let counted: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
    require!(
        counted == 3 * VISITS,
        "two tasks had the same CPU number at once: {} visits of with_cpu, but {counted} were counted",
        3 * VISITS
    );
    Ok(())
}

pub fn clock<P: Platform>() -> Checked {
    let mut last = P::now_ns();
    for _ in 0..1000 {
        let now = P::now_ns();
        require!(now >= last, "now_ns() went from {last} back to {now}");
        last = now;
        P::relax();
    }
    Ok(())
}
