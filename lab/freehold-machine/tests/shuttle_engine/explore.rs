//! Runs a scenario on every design: once on threads, or with many schedules under the checker.
//!
//! All files of scenarios call these functions. The functions have two versions with the same names. Without
//! a checker a scenario runs once per design. Under the checker (`cfg(shuttle)`) it runs with many schedules
//! from two schedulers: random, and PCT with few preemptions. Effort and seed come from the environment
//! (`main.rs`). The schedule and [`seed`] alone must determine what a scenario does; otherwise a failed
//! schedule cannot be replayed. A scenario therefore must not use the time, addresses, or the order of a hash
//! map.

pub(crate) use super::thread;
#[cfg(shuttle)]
pub use checker::{explore, explore_in, explore_until, seed};
#[cfg(not(shuttle))]
use freehold::space::Locking;

/// True if a checker chooses the schedules.
pub const CHECKED: bool = cfg!(shuttle);

/// Runs `scenario` on every design. Under the checker, `share` is the number of schedules in percent of the
/// usual number, and `name` is printed with the number of schedules.
#[cfg(not(shuttle))]
pub fn explore(_name: &str, _share: usize, scenario: impl Fn(Locking) + Send + Sync + 'static) {
    Locking::ALL.into_iter().for_each(scenario);
}

/// Runs `scenario` like [`explore`], but only on the given designs.
#[cfg(not(shuttle))]
pub fn explore_in(
    designs: &[Locking],
    _name: &str,
    _share: usize,
    scenario: impl Fn(Locking) + Send + Sync + 'static,
) {
    designs.iter().copied().for_each(scenario);
}

/// Explores like [`explore_in`]. Under the checker, explores further schedules until `is_met` returns true:
/// the schedules that meet the condition of a scenario differ from build to build.
#[cfg(not(shuttle))]
pub fn explore_until(
    designs: &[Locking],
    name: &str,
    share: usize,
    _is_met: impl Fn() -> bool,
    scenario: impl Fn(Locking) + Send + Sync + 'static,
) {
    explore_in(designs, name, share, scenario);
}

/// Returns a number from which a scenario draws its actions. The number differs in each run of a scenario.
#[cfg(not(shuttle))]
pub fn seed() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

#[cfg(shuttle)]
mod checker {
    use freehold::space::Locking;
    use freehold_machine::Effort;
    use shuttle::{
        Config, Runner,
        rand::RngCore as _,
        scheduler::{PctScheduler, RandomScheduler, Scheduler},
    };
    use std::{env, io::Write, sync::Arc};

    /// Number of schedules for each design and scheduler, in a quick, a full and a long run.
    const SCHEDULES: [usize; 3] = [12, 60, 3000];
    /// Number of times that the second scheduler (PCT) switches away from the thread with the highest
    /// priority.
    const DEPTH: usize = 3;

    /// A scenario. It is boxed so that the checker is compiled once for all scenarios.
    type Scenario = Arc<dyn Fn(Locking) + Send + Sync>;

    /// Runs `scenario` on every design. Half of the schedules switch threads anywhere. The other half
    /// switches threads at few places, so that a thread can run for long between two adjacent steps of
    /// another thread.
    pub fn explore(name: &str, share: usize, scenario: impl Fn(Locking) + Send + Sync + 'static) {
        explore_in(&Locking::ALL, name, share, scenario);
    }

    /// Runs `scenario` like [`explore`], but only on the given designs.
    pub fn explore_in(
        designs: &[Locking],
        name: &str,
        share: usize,
        scenario: impl Fn(Locking) + Send + Sync + 'static,
    ) {
        explore_until(designs, name, share, || true, scenario);
    }

    /// Explores like [`explore_in`], and explores again with the next seed until `is_met` returns true. The
    /// schedules that meet the condition of a scenario differ from build to build.
    pub fn explore_until(
        designs: &[Locking],
        name: &str,
        share: usize,
        is_met: impl Fn() -> bool,
        scenario: impl Fn(Locking) + Send + Sync + 'static,
    ) {
        let scenario: Scenario = Arc::new(scenario);
        let [quick, full, long] = SCHEDULES;
        let usual = Effort::of(quick, full, long);
        let schedules = (usual * share / 100).max(1);
        let first: u64 =
            env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().expect("FREEHOLD_SEED is a number"));
        for seed in first.. {
            let mut total = 0;
            for &locking in designs {
                let random = RandomScheduler::new_from_seed(seed, schedules);
                let pct = PctScheduler::new_from_seed(seed, DEPTH, schedules);
                total += run(random, locking, &scenario) + run(pct, locking, &scenario);
            }
            // Bypasses the capture of test output.
            let _ = writeln!(std::io::stderr(), "{total:6} schedules: {name}");
            if is_met() {
                break;
            }
        }
    }

    /// Returns a number from which a scenario draws its actions. The number differs in each schedule, and the
    /// replay of a failed schedule returns it again.
    pub fn seed() -> u64 {
        shuttle::rand::thread_rng().next_u64()
    }

    /// Runs the scenario on one design with all schedules of `scheduler`. Returns the number of schedules.
    fn run(scheduler: impl Scheduler + 'static, locking: Locking, scenario: &Scenario) -> usize {
        let scenario = scenario.clone();
        let mut config = Config::default();
        // For the creation of an engine, because atomics of the checker are large, and for the messages of
        // failed assertions.
        config.stack_size = 1 << 18;
        Runner::new(scheduler, config).run(move || scenario(locking))
    }
}
