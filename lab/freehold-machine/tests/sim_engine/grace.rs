//! Grace periods in virtual time.

use crate::world::{PAGE, World, ran_alone};
use freehold::file::{Mapping, Zeroes};
use freehold::{PageIndex, PageRange};

/// Each run has a clock of its own: what still waits when one ends delays nothing in the next.
#[test]
fn a_grace_period_ends_with_its_run() {
    if ran_alone(a_grace_period_ends_with_its_run) {
        return;
    }
    let world = World::new(1);
    let file = Mapping::new(&world.engine, Zeroes, 4 * PAGE, false).expect("a file");
    let cut = || {
        let report = world.all(|_| {
            file.fill(PageIndex::new(1)).expect("a page");
            // Leaves nodes for a grace period.
            file.truncate(0).expect("no user");
            file.truncate(4 * PAGE).expect("a longer file");
            // Waits for one.
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
