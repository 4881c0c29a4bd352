//! Charges of pages by many CPUs.
//!
//! All pages of the machine are charged to one account of `freehold_kit`, as if all processes were one group
//! of tasks. 56 CPUs, those of the machine of step 4, fault in pages, and map, touch and unmap memory. The
//! account has a line that all CPUs share; a CPU changes this line once in a batch of pages. If a charge or
//! the end of a charge changes it more often, these tests fail.

use crate::world::{ANON, GIB, More, PAGE, RW, World, more, ran_alone};
use freehold::fault::Access;
use freehold::space::{Locking, MapFlags};

/// Number of CPUs that work.
const CPUS: usize = 56;

/// Creates a world whose pages are charged to an account.
fn world() -> World {
    World::with(CPUS, |mut config| {
        config.account = Some(64 * GIB / PAGE);
        config
    })
}

/// Checks that no place of the engine transfers a line more often than once in 100 pages, and that all places
/// of the account together do not either. Returns the number of transfers per page of the account.
fn check(more: &More, pages: f64) -> f64 {
    let of_account = |(place, count): &(String, f64)| place.contains("account.rs").then_some(*count);
    let account = more.places.iter().filter_map(of_account).sum::<f64>() / pages;
    assert!(more.most() / pages < 0.01 && account < 0.01, "{account}, {:?}", more.places);
    println!("transfers per page of the account: {account}");
    account
}

#[test]
fn charges_of_faults_share_no_cache_line() {
    if ran_alone(charges_of_faults_share_no_cache_line) {
        return;
    }
    let more = more(300, |pages| {
        let world = world();
        let process = world.process(Locking::default());
        let at = 1 << 40;
        process.mmap(at, 2 * CPUS as u64 * GIB, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            for page in 0..pages {
                let at = at + 2 * number as u64 * GIB + page * PAGE;
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
            }
        });
        (world, report)
    });
    assert!(check(&more, 1.0) > 0.0, "the account is in use");
}

#[test]
fn ends_of_charges_share_no_cache_line() {
    const PAGES: u64 = 32;
    if ran_alone(ends_of_charges_share_no_cache_line) {
        return;
    }
    let more = more(10, |times| {
        let world = world();
        let processes: Vec<_> = (0..CPUS).map(|_| world.process(Locking::default())).collect();
        let report = world.all(|number| {
            let (process, mut cpu) = (&processes[number], world.machine.cpu(number));
            for _ in 0..times {
                let at = process.mmap(0, PAGES * PAGE, RW, ANON, None, 0).expect("a VMA");
                for page in 0..PAGES {
                    process.touch(&mut cpu, at + page * PAGE, Access::WRITE).expect("a page");
                }
                process.munmap(at, PAGES * PAGE).expect("a VMA");
            }
        });
        (world, report)
    });
    check(&more, PAGES as f64);
}
