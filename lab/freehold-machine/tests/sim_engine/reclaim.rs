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
const RESIDENT: u64 = 1024;
/// Number of faults between two calls of reclaim, and number of pages that each call frees.
const BATCH: u64 = 32;

/// Makes each CPU fault in and reclaim `rounds` batches of pages.
fn faults_and_reclaim(
    cpus: usize,
    policy: ReclaimPolicy,
    changes: &[String],
    rounds: u64,
) -> (World, Report) {
    let frames = cpus as u64 * (RESIDENT + BATCH + 192) + 512;
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
    let report = world.all_on(changes, |number| {
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

/// The costs of a page that a CPU faults in and of another page that it reclaims.
struct PageCost {
    /// Time in nanoseconds, the mean of all CPUs.
    ns: f64,
    /// Number of transfers at the most frequent place.
    transfers: f64,
}

/// Measures the costs of each page after the first `rounds` batches, and prints them with the fields on which
/// most time is lost.
fn measure(cpus: usize, policy: ReclaimPolicy, changes: &[String], rounds: u64) -> PageCost {
    let busy = Cell::new(Vec::new());
    let more = more(rounds, |times| {
        let (world, report) = faults_and_reclaim(cpus, policy, changes, times);
        let mut all = busy.take();
        all.push((times, report.busy_ns.iter().sum::<u64>() / cpus as u64));
        busy.set(all);
        println!("{cpus} CPUs, {policy:?}, {times} rounds: {} us", report.elapsed_ns / 1000);
        for field in report.fields.iter().take(6) {
            println!("    {}: {} us, {} transfers", field.name, field.lost_ns / 1000, field.transfers);
        }
        (world, report)
    });
    let all = busy.take();
    let [(few, short), (many, long)] = all[..] else { unreachable!("two runs") };
    let ns = (long - short) as f64 / ((many - few) * BATCH) as f64;
    let transfers = more.most() / BATCH as f64;
    println!("{cpus} CPUs, {policy:?}, {changes:?}: {ns:.0} ns per page");
    for (place, count) in more.places.iter().take(4) {
        println!("    {place}: {:.3} transfers per page", count / BATCH as f64);
    }
    PageCost { ns, transfers }
}

#[test]
fn faults_and_reclaim_of_many_cpus_share_few_cache_lines() {
    if ran_alone(faults_and_reclaim_of_many_cpus_share_few_cache_lines) {
        return;
    }
    // Measured: 0.46, at the records of frames that reclaim visits.
    let cost = measure(16, ReclaimPolicy::TwoLists, &[], 6);
    assert!(cost.transfers < 0.7, "{}", cost.transfers);
}

/// Prints the figures in `docs/performance.md`. Run the test program itself, with the variable of
/// `ran_alone` set, because a successful run in another process prints nothing.
#[test]
#[ignore = "takes minutes; measures for a document"]
fn faults_and_reclaim_of_1_to_56_cpus() {
    if ran_alone(faults_and_reclaim_of_1_to_56_cpus) {
        return;
    }
    for changes in [vec!["cost.smt=1".to_owned()], Vec::new()] {
        for policy in [ReclaimPolicy::TwoLists, ReclaimPolicy::Generations] {
            let one = measure(1, policy, &changes, 16).ns;
            for cpus in [16, 56] {
                let share = one / measure(cpus, policy, &changes, 16).ns;
                println!("{cpus} CPUs, {policy:?}, {changes:?}: {share:.2} of the throughput of one each");
            }
        }
    }
}
