//! How much more two threads do than one: `cargo run --release -p freehold-bench --example scaling`.
//!
//! Rounds of all cases take turns, so that a slow moment of the machine meets them all. A round counts only
//! if every thread had a processor from beginning to end; the figures are medians of those. Each thread
//! unmaps what it has faulted in, as programs do. "Two engines" share nothing but the machine, and so show
//! what the machine can do.

use freehold::fault::Access;
use freehold::space::{Locking, Prot};
use freehold_bench::{PAGE, Space};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Rounds of each case that have to count, and how many are tried at most.
const WANTED: usize = 61;
const MOST: usize = 1500;
const PAGES: u64 = 1 << 13;
const LOOKUPS: u64 = 1 << 15;

/// A round of lookups, or of faults.
type Case<'a> = &'a dyn Fn(bool) -> Option<Duration>;

/// What one thread does.
struct Share<'a> {
    space: &'a Space,
    at: u64,
    lookups: bool,
}

/// When a thread worked, and how long it had a processor.
struct Worked {
    from: Instant,
    to: Instant,
    ran: Duration,
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Share<'_> {
    fn work(&self) -> Worked {
        let (from, before) = (Instant::now(), processor_time());
        let process = self.space.process();
        if self.lookups {
            (0..LOOKUPS).for_each(|n| drop(black_box(process.find_vma(self.at + n % PAGES * PAGE))));
        } else {
            for n in 0..PAGES {
                process.space().handle_fault(self.at + n * PAGE, Access::WRITE).expect("room");
            }
        }
        Worked { from, to: Instant::now(), ran: processor_time() - before }
    }
}

/// Waits until so many threads are here, all of them running.
fn meet(here: &AtomicUsize, threads: usize) {
    here.fetch_add(1, SeqCst);
    while here.load(SeqCst) < threads {
        std::hint::spin_loop();
    }
}

/// The time that the work took, if nobody was kept from it.
fn round(shares: &[Share<'_>]) -> Option<Duration> {
    let gates = [const { AtomicUsize::new(0) }; 2];
    let worked: Vec<Worked> = std::thread::scope(|scope| {
        let run = |share: &Share<'_>| {
            meet(&gates[0], shares.len());
            let worked = share.work();
            meet(&gates[1], shares.len());
            share.space.process().munmap(share.at, PAGES * PAGE).expect("mapped");
            worked
        };
        let threads: Vec<_> = shares.iter().map(|share| scope.spawn(move || run(share))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let (from, to) = (worked.iter().map(|one| one.from).min()?, worked.iter().map(|one| one.to).max()?);
    let whole = to - from;
    worked.iter().all(|one| one.ran > whole.mul_f64(0.95)).then_some(whole)
}

fn two_in(space: &Space, one_vma: bool, lookups: bool) -> Option<Duration> {
    let at = space.map(2 * PAGES * PAGE);
    if !one_vma {
        let rights = Prot::READ | Prot::WRITE | Prot::EXEC;
        space.process().mprotect(at + PAGES * PAGE, PAGES * PAGE, rights).expect("mapped");
    }
    round(&[0, 1].map(|n| Share { space, at: at + n * PAGES * PAGE, lookups }))
}

fn main() {
    let [a, b] = [0; 2].map(|_| Space::new(1 << 30, Locking::default()));
    let alone = |lookups| round(&[Share { space: &a, at: a.map(PAGES * PAGE), lookups }]);
    let apart = |lookups| round(&[&a, &b].map(|space| Share { space, at: space.map(PAGES * PAGE), lookups }));
    let cases: [(&str, Case<'_>); 4] = [
        ("one thread", &alone),
        ("two, two engines", &apart),
        ("two, a VMA each", &|lookups| two_in(&a, false, lookups)),
        ("two, one VMA", &|lookups| two_in(&a, true, lookups)),
    ];
    for (what, lookups, operations) in [("fault", false, PAGES), ("lookup", true, LOOKUPS)] {
        let mut times = cases.map(|_| Vec::new());
        for _ in 0..MOST {
            for (case, times) in cases.iter().zip(&mut times) {
                times.extend(case.1(lookups).map(|whole| whole.as_secs_f64() * 1e9 / operations as f64));
            }
            if times.iter().all(|times| times.len() >= WANTED) {
                break;
            }
        }
        report(what, cases.map(|case| case.0), times);
    }
}

fn report<const N: usize>(what: &str, names: [&str; N], times: [Vec<f64>; N]) {
    println!("{what:<20} {:>8} {:>10} {:>10} {:>10}", "rounds", "median ns", "quartile", "times one");
    let mut one = 0.0;
    for (n, (name, mut times)) in names.into_iter().zip(times).enumerate() {
        times.sort_by(f64::total_cmp);
        let Some(median) = times.get(times.len() / 2).copied() else { continue };
        let threads = if n == 0 { 1.0 } else { 2.0 };
        one = if n == 0 { median } else { one };
        let (rounds, quartile, ratio) = (times.len(), times[times.len() / 4], threads * one / median);
        println!("  {name:<18} {rounds:>8} {median:>10.1} {quartile:>10.1} {ratio:>10.2}");
    }
}
