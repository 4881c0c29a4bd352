//! Tests of accounts. Each test has two CPUs, and a count of the pages that the test itself holds. A batch
//! has one page under loom (`CHECKED`), so that few steps reach every branch.

use freehold_kit::account::{Account, Stock};
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;

/// An account, and the number of pages that the CPUs hold.
struct World {
    account: Account<2>,
    held: AtomicU64,
}

fn world(limit: u64) -> Arc<World> {
    Arc::new(World { account: Account::new(limit, [Stock::new(), Stock::new()]), held: AtomicU64::new(0) })
}

impl World {
    /// Charges a page, and checks the limit.
    fn charge(&self, cpu: usize) -> bool {
        let charged = self.account.charge(cpu, 1);
        if charged {
            let held = self.held.fetch_add(1, SeqCst) + 1;
            assert!(held <= self.account.limit(), "{held} pages are charged");
        }
        charged
    }

    fn uncharge(&self, cpu: usize) {
        self.held.fetch_sub(1, SeqCst);
        self.account.uncharge(cpu, 1);
    }
}

/// Runs steps on two CPUs, and compares the counts afterwards.
fn on_two_cpus(limit: u64, first: fn(&World), second: fn(&World)) {
    model(move || {
        let world = world(limit);
        let other = world.clone();
        let other = thread::spawn(move || second(&other));
        first(&world);
        other.join().unwrap();
        assert_eq!(world.account.pages(), world.held.load(SeqCst));
        // Every page that is not held can be charged, whichever stock it is in, and no further one.
        while world.held.load(SeqCst) < limit {
            assert!(world.charge(0), "a page is lost");
        }
        assert!(!world.charge(1));
    });
}

#[test]
fn limit_holds_while_two_cpus_charge() {
    on_two_cpus(
        2,
        |world| {
            world.charge(0);
            world.charge(0);
        },
        |world| {
            world.charge(1);
        },
    );
}

#[test]
fn pages_in_stocks_are_found_and_none_is_lost() {
    on_two_cpus(
        2,
        |world| {
            if world.charge(0) {
                world.uncharge(0);
            }
        },
        |world| {
            if world.charge(1) {
                world.uncharge(1);
                world.charge(1);
            }
        },
    );
}

#[test]
fn surplus_of_a_stock_returns_while_another_cpu_empties_it() {
    on_two_cpus(
        4,
        |world| {
            if world.account.charge(0, 3) {
                world.account.uncharge(0, 3);
            }
        },
        |world| {
            world.charge(1);
        },
    );
}

#[test]
fn lower_limit_refuses_pages_of_stocks() {
    model(|| {
        let world = world(4);
        assert!(world.charge(0) && world.charge(1));
        world.account.set_limit(2);
        assert!(!world.charge(0) && !world.charge(1));
        world.uncharge(0);
        assert!(world.charge(1) && !world.charge(1));
    });
}
