//! Faults and reclaim of many CPUs at the same time.
//!
//! Each CPU uses the pages of a file of its own, or anonymous memory of its own, page after page, and reclaims
//! 32 pages after each 32 faults. Memory is almost full, so the CPUs visit the pages of all of them: they take
//! pages away from processes on other CPUs, while these processes fault. Anonymous memory goes to a swap
//! device and comes back.

use crate::world::{ANON, PAGE, RW, World, in_turn, more, ran_alone};
use freehold::{
    engine::{Config, Engine},
    fault::Access,
    file::{File, FileAccess, Mapping, Zeroes},
    reclaim::{ReclaimPolicy, ReclaimRequest},
    space::{Locking, MapFlags, Prot},
    swap::{SwapDevice, SwapRead, SwapWrite},
};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_sim::{Machine as Model, Report};
use std::cell::Cell;

const AT: u64 = 1 << 40;
/// Number of pages in memory for each CPU.
const RESIDENT: u64 = 1024;
/// Number of faults between two calls of reclaim, and number of pages that each call frees.
const BATCH: u64 = 32;

/// A swap device without contents and without shared state. Requests are complete at once.
struct Nowhere {
    slots: u64,
}

impl SwapDevice<Machine> for Nowhere {
    fn slots(&self) -> u64 {
        self.slots
    }

    fn read(&self, mut request: SwapRead<Machine>) {
        while let Some((slot, _)) = request.next_page() {
            request.complete(slot, Ok(()));
        }
    }

    fn write(&self, mut request: SwapWrite<Machine>) {
        while let Some((slot, _)) = request.next_page() {
            request.complete(slot, Ok(()));
        }
    }
}

/// A load on a machine.
struct Load {
    model: Model,
    cpus: usize,
    policy: ReclaimPolicy,
    /// True for anonymous memory, false for files.
    swaps: bool,
}

impl Load {
    /// Creates the memory of a process: a file that is large enough for `rounds`, or anonymous memory twice
    /// as large as the memory for each CPU. Returns the process and the number of its pages.
    fn process(&self, world: &World, rounds: u64) -> (Process, u64) {
        let process = world.process(Locking::default());
        if self.swaps {
            process.mmap(AT, 2 * RESIDENT * PAGE, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
            return (process, 2 * RESIDENT);
        }
        let pages = RESIDENT + BATCH * rounds;
        let mapping = Mapping::new(&world.engine, Zeroes, pages * PAGE, false).expect("a file");
        mapping.set_readahead(0);
        let file = File::new(&mapping, FileAccess::READ, "/a/file").expect("a file");
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(AT, pages * PAGE, Prot::READ, flags, Some(&file), 0).expect("a VMA");
        (process, pages)
    }

    /// Makes each CPU fault in and reclaim `rounds` batches of pages.
    fn run(&self, rounds: u64) -> (World, Report) {
        let cpus = self.cpus;
        let frames = cpus as u64 * (RESIDENT + BATCH + 192) + 512;
        let config = MachineConfig::phantom(frames * PAGE).cpus(cpus).fast().fill(1);
        let machine = Machine::new(config).expect("a machine");
        let engine = Engine::new(machine.clone(), Config::new().reclaim(self.policy)).expect("an engine");
        if self.swaps {
            engine.swap_on(Nowhere { slots: 4 * frames }, 0).expect("a device");
        }
        let access = if self.swaps { Access::WRITE } else { Access::READ };
        let world = World { machine, engine, cpus };
        let processes: Vec<_> = (0..cpus).map(|_| self.process(&world, rounds)).collect();
        let report = world.all_on(&self.model, |number| {
            let (mut cpu, (process, pages)) = (world.machine.cpu(number), &processes[number]);
            let mut touch = |page| process.touch(&mut cpu, AT + page % pages * PAGE, access).expect("a page");
            in_turn(number, cpus, || (0..RESIDENT).for_each(&mut touch));
            for round in 0..rounds {
                let first = RESIDENT + round * BATCH;
                (first..first + BATCH).for_each(&mut touch);
                world.engine.reclaim(&ReclaimRequest::pages(BATCH));
            }
        });
        (world, report)
    }

    /// Measures the costs of each page after the first `rounds` batches, and prints them with the fields on
    /// which most time is lost.
    fn measure(&self, rounds: u64) -> PageCost {
        let busy = Cell::new(Vec::new());
        let more = more(rounds, |times| {
            let (world, report) = self.run(times);
            let mut all = busy.take();
            all.push((times, report.busy_ns.iter().sum::<u64>() / self.cpus as u64));
            busy.set(all);
            println!("{times} rounds: {} us", report.elapsed_ns / 1000);
            for field in report.fields.iter().take(6) {
                println!("    {}: {} us, {} transfers", field.name, field.lost_ns / 1000, field.transfers);
            }
            (world, report)
        });
        let all = busy.take();
        let [(few, short), (many, long)] = all[..] else { unreachable!("two runs") };
        let ns = (long - short) as f64 / ((many - few) * BATCH) as f64;
        let transfers = more.most() / BATCH as f64;
        for (place, count) in more.places.iter().take(4) {
            println!("    {place}: {:.3} transfers per page", count / BATCH as f64);
        }
        PageCost { ns, transfers }
    }
}

/// The costs of a page that a CPU faults in and of another page that it reclaims.
struct PageCost {
    /// Time in nanoseconds, the mean of all CPUs.
    ns: f64,
    /// Number of transfers at the most frequent place.
    transfers: f64,
}

#[test]
fn faults_and_reclaim_of_many_cpus_share_few_cache_lines() {
    if ran_alone(faults_and_reclaim_of_many_cpus_share_few_cache_lines) {
        return;
    }
    let model = Model::named("e5-2690v4").expect("a machine");
    let load = Load { model, cpus: 16, policy: ReclaimPolicy::TwoLists, swaps: false };
    // Measured: 0.46, at the records of frames that reclaim visits.
    let cost = load.measure(6);
    assert!(cost.transfers < 0.7, "{}", cost.transfers);
}

/// Prints the figures in `docs/performance.md`. Run the test program itself, with the variable of
/// `ran_alone` set, because a successful run in another process prints nothing.
#[test]
#[ignore = "takes minutes; measures for a document"]
fn faults_and_reclaim_of_1_to_128_cpus() {
    if ran_alone(faults_and_reclaim_of_1_to_128_cpus) {
        return;
    }
    let own_core = ["cost.smt=1".to_owned()];
    let machines = [
        ("e5-2690v4", &own_core[..], &[16, 56][..]),
        ("e5-2690v4", &[], &[56]),
        ("epyc-9654", &[], &[56, 128]),
    ];
    for (name, changes, cpus) in machines {
        for (swaps, policy) in [
            (false, ReclaimPolicy::TwoLists),
            (false, ReclaimPolicy::Generations),
            (true, ReclaimPolicy::TwoLists),
            (true, ReclaimPolicy::Generations),
        ] {
            let load = |cpus| {
                let model = Model::changed(name, changes).expect("a machine");
                println!("{cpus} CPUs of {name}, {changes:?}, {policy:?}, swaps: {swaps}");
                Load { model, cpus, policy, swaps }.measure(16).ns
            };
            let one = load(1);
            println!("one CPU: {one:.0} ns per page");
            for &cpus in cpus {
                let ns = load(cpus);
                println!("{cpus} CPUs: {ns:.0} ns per page, share {:.2}", one / ns);
            }
        }
    }
}
