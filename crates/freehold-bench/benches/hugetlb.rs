//! Seed 003's experiment at the seed's own size: processes that map a hugetlb file of 250 GB, fault in every page and unmap it, again
//! and again; with faults held together by a lock of the file, and by one of each VMA.
//!
//! `cargo bench --bench hugetlb`; `-- PROCESSES GIGABYTES SECONDS` for other sizes than 48, 250 and 10; with `apart` behind them each process
//! maps the file at addresses where it can share no table, so that each has all faults and entries itself. Phantom memory: page tables, frame
//! records, pools and locks are real, contents are not, so nothing is zeroed. The two designs take turns in one run.
//!
//! A page that another process has faulted into a shared table needs no fault, as on real hardware.

use freehold::{
    counted::Counted,
    engine::{Config, Engine},
    fault::Access,
    hugetlb::HugePageSize,
    object::{File, FileAccess, Mapping},
    space::{HugetlbLock, Locking, MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_sync::stats::LockSnapshot;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const GIB: u64 = 1 << 30;
const HUGE: u64 = HugePageSize::Mib2.bytes();
/// Turns of each design.
const TURNS: usize = 3;

struct Sizes {
    processes: usize,
    bytes: u64,
    turn: Duration,
    /// No process can share tables with another.
    apart: bool,
}

impl Sizes {
    fn from_args() -> Option<Sizes> {
        let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
        let number = |n: usize, default: u64| args.get(n).map_or(Some(default), |arg| arg.parse().ok());
        let (processes, gib, seconds) = (number(0, 48)?, number(1, 250)?, number(2, 10)?);
        let fits = (1..=MachineConfig::MAX_CPUS as u64).contains(&processes) && gib > 0 && seconds > 0;
        let apart = args.get(3).is_some_and(|arg| arg == "apart");
        let turn = Duration::from_secs(seconds);
        let sizes = Sizes { processes: processes as usize, bytes: gib * GIB, turn, apart };
        (fits && args.len() <= 3 + usize::from(apart)).then_some(sizes)
    }
}

/// A design with its file.
struct Side {
    machine: Machine,
    engine: Counted<Engine<Machine>>,
    file: Counted<File<Machine>>,
    locking: Locking,
    /// Per turn.
    faults: Vec<f64>,
    touched: Vec<f64>,
    waits: Vec<Waits>,
}

/// Of one turn.
struct Waits {
    number: u64,
    total: Duration,
    longest: Duration,
}

impl Side {
    fn new(sizes: &Sizes, hugetlb: HugetlbLock) -> Side {
        let machine = Machine::new(MachineConfig::phantom(sizes.bytes + GIB).cpus(sizes.processes).fast())
            .expect("memory");
        let engine =
            Engine::new(machine.clone(), Config { lock_stats: true, ..Config::default() }).expect("memory");
        let pages = sizes.bytes / HUGE;
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
        let mapping =
            Mapping::of_huge_pages(&engine, HugePageSize::Mib2, sizes.bytes, false).expect("memory");
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/hugetlb").expect("memory");
        let locking = Locking { hugetlb, ..Locking::default() };
        Side { machine, engine, file, locking, faults: Vec::new(), touched: Vec::new(), waits: Vec::new() }
    }

    fn process(&self) -> Process {
        Process::new(&self.engine, &SpaceConfig { locking: self.locking, ..SpaceConfig::default() })
            .expect("memory")
    }

    /// Maps the file; returns where.
    fn map(&self, process: &Process, number: usize, sizes: &Sizes) -> u64 {
        // Where tables can be shared, as a program does that knows of them, or each process at another place within a table.
        let at = 64 * GIB + if sizes.apart { number as u64 * HUGE } else { 0 };
        process
            .mmap(at, sizes.bytes, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&self.file), 0)
            .expect("room")
    }

    /// All processes for a while.
    fn turn(&mut self, sizes: &Sizes) {
        let before = self.lock_stats();
        let (stop, faults, touched) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for number in 0..sizes.processes {
                let (side, stop, faults, touched) = (&*self, &stop, &faults, &touched);
                scope.spawn(move || {
                    let mut cpu = side.machine.cpu(number);
                    let process = side.process();
                    while !stop.load(Relaxed) {
                        let at = side.map(&process, number, sizes);
                        let mut done = 0;
                        while done < sizes.bytes && !stop.load(Relaxed) {
                            process.touch(&mut cpu, at + done, Access::WRITE).expect("a page");
                            done += HUGE;
                        }
                        process.munmap(at, sizes.bytes).expect("mapped");
                        touched.fetch_add(done / HUGE, Relaxed);
                    }
                    let count = process.faults();
                    faults.fetch_add(count.vma_lock + count.mmap_lock, Relaxed);
                });
            }
            std::thread::sleep(sizes.turn);
            stop.store(true, Relaxed);
        });
        let seconds = started.elapsed().as_secs_f64();
        self.faults.push(faults.load(Relaxed) as f64 / seconds);
        self.touched.push(touched.load(Relaxed) as f64 / seconds);
        let waits = self.lock_stats().into_iter().zip(before).map(|(mut after, before)| {
            after.remove(&before);
            let mut waited = after.read.waited.clone();
            waited.merge(&after.write.waited);
            waited
        });
        let waited = waits.reduce(|mut sum, next| {
            sum.merge(&next);
            sum
        });
        let waited = waited.expect("two locks");
        self.waits.push(Waits {
            number: waited.count(),
            total: Duration::from_nanos(waited.sum()),
            longest: Duration::from_nanos(waited.max()),
        });
    }

    /// Of the i_mmap locks and of the hugetlb VMA locks.
    fn lock_stats(&self) -> [LockSnapshot; 2] {
        [self.engine.file_lock_stats(), self.engine.hugetlb_lock_stats()]
            .map(|stats| stats.expect("asked for"))
    }

    /// Page tables of so many processes that have all of the file mapped.
    fn tables(&self, sizes: &Sizes, processes: usize) -> usize {
        let mut cpu = self.machine.cpu(0);
        let before = self.machine.accounting().tables;
        let all: Vec<Process> = (0..processes).map(|_| self.process()).collect();
        for (number, process) in all.iter().enumerate() {
            let at = self.map(process, number, sizes);
            for done in (0..sizes.bytes).step_by(HUGE as usize) {
                process.touch(&mut cpu, at + done, Access::READ).expect("a page");
            }
        }
        self.machine.accounting().tables - before
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let Some(sizes) = Sizes::from_args() else {
        eprintln!("hugetlb [PROCESSES (1 to {}) [GIB [SECONDS A TURN [apart]]]]", MachineConfig::MAX_CPUS);
        std::process::exit(2);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{} processes that map {} GiB, touch every page and unmap, on {threads} real processors; turns of {} s, {TURNS} each",
        sizes.processes,
        sizes.bytes / GIB,
        sizes.turn.as_secs()
    );
    let mut sides = [HugetlbLock::FileLock, HugetlbLock::VmaLock].map(|design| Side::new(&sizes, design));
    for side in &sides {
        // Every page is in the file before anything is measured.
        side.tables(&sizes, 1);
    }
    for _ in 0..TURNS {
        sides.iter_mut().for_each(|side| side.turn(&sizes));
    }
    println!("\n{:<34}{:>16}{:>16}", "", "FileLock", "VmaLock");
    let row = |name: &str, value: &dyn Fn(&Side) -> String| {
        println!("{name:<34}{:>16}{:>16}", value(&sides[0]), value(&sides[1]));
    };
    let waits = |side: &Side, value: &dyn Fn(&Waits) -> f64| {
        median(&side.waits.iter().map(value).collect::<Vec<_>>())
    };
    row("faults a second", &|side| format!("{:.0}", median(&side.faults)));
    row("pages touched a second", &|side| format!("{:.0}", median(&side.touched)));
    row("waits a turn", &|side| format!("{:.0}", waits(side, &|waits| waits.number as f64)));
    row("waited a turn, ms", &|side| format!("{:.0}", waits(side, &|waits| waits.total.as_secs_f64() * 1e3)));
    row("longest wait, us, median of turns", &|side| {
        format!("{:.0}", waits(side, &|waits| waits.longest.as_secs_f64() * 1e6))
    });
    row("longest wait, us, of all turns", &|side| {
        format!("{:.0}", side.waits.iter().map(|waits| waits.longest.as_secs_f64() * 1e6).fold(0.0, f64::max))
    });
    row("page tables of one process", &|side| side.tables(&sizes, 1).to_string());
    row("page tables of all", &|side| side.tables(&sizes, sizes.processes).to_string());
}
