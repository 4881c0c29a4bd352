//! Faults and reclaim of many CPUs at the same time.
//!
//! Each CPU reads a file of its own through a mapping, page after page, and reclaims 32 pages after each 32
//! faults. Memory is almost full, so the CPUs visit the pages of all of them: they take pages away from
//! processes on other CPUs, while these processes fault.

use crate::world::{PAGE, World, in_turn, more, ran_alone};
use freehold::{
    engine::{Config, Engine},
    fault::Access,
    file::{File, FileAccess, Mapping, Zeroes},
    reclaim::{ReclaimPolicy, ReclaimRequest},
    space::{Locking, MapFlags, Prot},
};
use freehold_machine::{Machine, MachineConfig};
use freehold_sim::Report;
use std::cell::Cell;

const AT: u64 = 1 << 40;
/// Number of pages in memory for each CPU.
const RESIDENT: u64 = 256;
/// Number of faults between two calls of reclaim, and number of pages that each call frees.
const BATCH: u64 = 32;

/// Makes each CPU fault in and reclaim `rounds` batches of pages.
fn faults_and_reclaim(cpus: usize, policy: ReclaimPolicy, rounds: u64) -> (World, Report) {
    let frames = cpus as u64 * (RESIDENT + BATCH + 256 + 64) + 512;
    let config = MachineConfig::phantom(frames * PAGE).cpus(cpus).fast();
    let machine = Machine::new(config).expect("a machine");
    let engine = Engine::new(machine.clone(), Config::new().reclaim(policy)).expect("an engine");
    let world = World { machine, engine, cpus };
    let pages = RESIDENT + BATCH * rounds;
    let processes: Vec<_> = (0..cpus)
        .map(|_| {
            let mapping = Mapping::new(&world.engine, Zeroes, pages * PAGE, false).expect("a file");
            mapping.set_readahead(0);
            let file = File::new(&mapping, FileAccess::READ, "/a/file").expect("a file");
            let process = world.process(Locking::default());
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            process.mmap(AT, pages * PAGE, Prot::READ, flags, Some(&file), 0).expect("a VMA");
            process
        })
        .collect();
    let report = world.all(|number| {
        let mut cpu = world.machine.cpu(number);
        let mut touch =
            |page| processes[number].touch(&mut cpu, AT + page * PAGE, Access::READ).expect("a page");
        in_turn(number, cpus, || (0..RESIDENT).for_each(&mut touch));
        for round in 0..rounds {
            let first = RESIDENT + round * BATCH;
            (first..first + BATCH).for_each(&mut touch);
            world.engine.reclaim(&ReclaimRequest::pages(BATCH));
        }
    });
    (world, report)
}

/// Prints the time of a page and the hottest fields. Returns the time in nanoseconds that each CPU needs for
/// one more page, and the number of transfers at the most frequent place for one more page.
fn measure(cpus: usize, policy: ReclaimPolicy) -> (f64, f64) {
    let elapsed = Cell::new(Vec::new());
    let more = more(2, |times| {
        let (world, report) = faults_and_reclaim(cpus, policy, times);
        let mut all = elapsed.take();
        all.push((times, report.elapsed_ns));
        elapsed.set(all);
        println!("{cpus} CPUs, {policy:?}, {times} rounds: {} us", report.elapsed_ns / 1000);
        for field in report.fields.iter().take(4) {
            println!("    {field:?}");
        }
        (world, report)
    });
    let all = elapsed.take();
    let [(few, short), (many, long)] = all[..] else { unreachable!("two runs") };
    let time = (long - short) as f64 / ((many - few) * BATCH) as f64;
    let transfers = more.most() / BATCH as f64;
    println!("{cpus} CPUs, {policy:?}: {time:.0} ns per page and CPU; {transfers:.3} transfers per page");
    for (place, count) in more.places.iter().take(4) {
        println!("    {place}: {:.3}", count / BATCH as f64);
    }
    (time, transfers)
}

#[test]
fn faults_and_reclaim_of_many_cpus_share_few_cache_lines() {
    if ran_alone(faults_and_reclaim_of_many_cpus_share_few_cache_lines) {
        return;
    }
    // Measured: 1.98, at the records of the frames of other CPUs, which reclaim visits.
    let (_, transfers) = measure(16, ReclaimPolicy::TwoLists);
    assert!(transfers < 2.5, "{transfers}");
}

/// Prints the figures in `docs/performance.md`. Run the test program itself, with the variable of
/// `ran_alone` set, because a successful run in another process prints nothing.
#[test]
#[ignore = "takes minutes; measures for a document"]
fn faults_and_reclaim_of_1_to_56_cpus() {
    if ran_alone(faults_and_reclaim_of_1_to_56_cpus) {
        return;
    }
    for policy in [ReclaimPolicy::TwoLists, ReclaimPolicy::Generations] {
        for cpus in [1, 16, 56] {
            measure(cpus, policy);
        }
    }
}
