//! Tests the names of the engine's records in a report, and that only one thread can use a machine.
//!
//! A report of the simulation names the fields on which time was lost (`freehold_sim::names`). The engine and
//! the machine announce their records; `lab/freehold-sim/tests/names.rs` tests the names themselves. If a
//! record is not announced or has a wrong layout, the hottest field has another name, or too few transfers
//! have a name, and a test here fails. The last test checks that a machine refuses to be used on another
//! thread than its own.

use crate::world::{ANON, GIB, PAGE, RW, World, ran_alone};
use freehold::fault::Access;
use freehold::space::{FaultLock, Locking};
use freehold_machine::Process;
use freehold_sim::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Makes eight CPUs fault in one VMA.
fn faults(fault: FaultLock) -> Report {
    let world = World::new(8);
    let process = world.process(Locking::default().fault(fault));
    let at = process.mmap(0, 8 * GIB, RW, ANON, None, 0).expect("a VMA");
    world.all(|number| {
        let mut cpu = world.machine.cpu(number);
        for page in 0..100 {
            let at = at + number as u64 * GIB + page * PAGE;
            process.touch(&mut cpu, at, Access::WRITE).expect("a page");
        }
    })
}

#[test]
fn hottest_field_of_faults_is_named() {
    if ran_alone(hottest_field_of_faults_is_named) {
        return;
    }
    for (fault, name) in [
        (FaultLock::MmapLock, "AddressSpace.mmap_lock"),
        (FaultLock::VmaRwsem, "VmaRwsem"),
        (FaultLock::VmaCount, "Vma.count"),
    ] {
        let report = faults(fault);
        let hottest = &report.fields[0];
        assert_eq!(hottest.name, name, "{}", report.hottest(5));
        assert!(2 * hottest.transfers > report.transfers, "{}", report.hottest(5));
    }
}

/// The links of trees are not atomics but are reported. Their lines move with the lock of the tree.
#[test]
fn links_of_a_shared_tree_are_reported() {
    if ran_alone(links_of_a_shared_tree_are_reported) {
        return;
    }
    let world = World::new(4);
    let parent = world.process(Locking::default());
    let at = parent.mmap(0, 64 * PAGE, RW, ANON, None, 0).expect("a VMA");
    parent.touch(&mut world.machine.cpu(0), at, Access::WRITE).expect("a page, and a tree for it");
    let children: Vec<Process> =
        (0..world.cpus).map(|_| Process::of(parent.fork().expect("a child"))).collect();
    let report = world.all(|number| {
        for page in 0..20 {
            children[number].munmap(at + (2 * page + 1) * PAGE, PAGE).expect("a VMA in two");
        }
    });
    let links = report.fields.iter().find(|field| field.name == "Vma.anon_link");
    assert!(links.is_some_and(|links| 4 * links.transfers > report.transfers), "{}", report.hottest(5));
}

#[test]
fn most_transfers_have_a_name() {
    if ran_alone(most_transfers_have_a_name) {
        return;
    }
    let report = faults(FaultLock::default());
    let named: u64 = report.fields.iter().filter(|field| field.announced).map(|field| field.transfers).sum();
    assert!(10 * named > 9 * report.transfers, "{}", report.hottest(9));
}

#[test]
fn machine_refuses_use_on_another_thread() {
    if ran_alone(machine_refuses_use_on_another_thread) {
        return;
    }
    let world = World::new(1);
    let elsewhere = || {
        let touch = || drop(world.process(Locking::default()));
        let why = catch_unwind(AssertUnwindSafe(touch)).expect_err("no memory there");
        why.downcast_ref::<String>().cloned()
    };
    let why = thread::scope(|scope| scope.spawn(elsewhere).join().expect("caught"));
    assert!(why.is_some_and(|why| why.contains("must stay on the thread that built it")));
}
