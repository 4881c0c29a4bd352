//! Grace periods in virtual time (`src/host_sim/rcu.rs`).
//!
//! A machine may serve several runs one after the other, each with a clock that begins at 0. The test defers
//! functions and waits for grace periods in five runs, and requires that no later run takes much longer than
//! the first. Grace periods on threads are tested in `tests/host.rs`.

use crate::world::{PAGE, World, ran_alone};
use freehold::file::{Mapping, Zeroes};
use freehold::{PageIndex, PageRange};

/// A function that is still deferred at the end of one run does not delay the next run, although the clock of
/// the next run begins at 0 again.
#[test]
fn grace_periods_do_not_outlast_their_run() {
    if ran_alone(grace_periods_do_not_outlast_their_run) {
        return;
    }
    let world = World::new(1);
    let file = Mapping::new(&world.engine, Zeroes, 4 * PAGE, false).expect("a file");
    let cut = || {
        let report = world.all(|_| {
            file.fill(PageIndex::new(1)).expect("a page");
            // Defers the freeing of nodes.
            file.truncate(0).expect("no user");
            file.truncate(4 * PAGE).expect("a longer file");
            // Waits for a grace period.
            file.revoke(PageRange::ALL, false);
        });
        report.elapsed_ns
    };
    let first = cut();
    for run in 2..6 {
        let took = cut();
        assert!(took < first * 3 / 2, "run {run} took {took} ns, the first {first}");
    }
}
