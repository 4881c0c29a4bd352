//! Times: every subject at 10 to 65,000 areas, one thread and two; then what only the engine does.
//!
//! `cargo bench --bench engine`. Two threads work in one address space; the figure is the time until both have done their
//! share, divided by the operations of one. Quote ratios within one run: machines are noisy.

use criterion::{BenchmarkId, Criterion, Throughput};
use freehold::fault::Access;
use freehold::space::Locking;
use freehold_bench::{LockedSet, LockedTree, PAGE, SIZES, Space, Subject, area};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    subject::<Space>(&mut criterion, &SIZES);
    subject::<LockedTree>(&mut criterion, &SIZES);
    // Its search for room reads every area: at 65,000 one operation takes milliseconds.
    subject::<LockedSet>(&mut criterion, &SIZES[..2]);
    faults(&mut criterion);
    zap(&mut criterion);
    fork(&mut criterion);
    criterion.final_summary();
}

/// Runs `operation(thread, n)` for `n` below `times` on each thread; the time until all are done.
fn on_threads(threads: u64, times: u64, operation: impl Fn(u64, u64) + Sync) -> Duration {
    if threads == 1 {
        let started = Instant::now();
        (0..times).for_each(|n| operation(0, n));
        return started.elapsed();
    }
    let ready = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let run = |thread| {
            let (ready, operation) = (&ready, &operation);
            move || {
                ready.wait();
                let started = Instant::now();
                (0..times).for_each(|n| operation(thread, n));
                started.elapsed()
            }
        };
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(run(thread))).collect();
        let mine = run(0)();
        others.into_iter().map(|other| other.join().expect("a thread")).fold(mine, Duration::max)
    })
}

fn subject<S: Subject>(criterion: &mut Criterion, sizes: &[u64]) {
    for &areas in sizes {
        let subject = S::with_areas(areas);
        for threads in [1, 2] {
            let mut bench = |name: &str, operation: &(dyn Fn(u64, u64) + Sync)| {
                let mut group = criterion.benchmark_group(format!("{name}/{threads} threads"));
                group.bench_function(BenchmarkId::new(S::NAME, areas), |bencher| {
                    bencher.iter_custom(|times| on_threads(threads, times, operation));
                });
                group.finish();
            };
            bench("lookup", &|_, n| {
                black_box(subject.lookup(area(n, areas) + PAGE));
            });
            bench("mmap+munmap", &|thread, _| subject.map_unmap(thread));
            // Threads keep to areas of their own: no two change the same one.
            bench("split+merge", &|thread, n| {
                subject.split_merge(freehold_bench::BASE + (n * 2 + thread) % areas * freehold_bench::STRIDE);
            });
        }
    }
}

/// Faults on untouched anonymous memory: one VMA for all threads, then one VMA each.
fn faults(criterion: &mut Criterion) {
    const PAGES: u64 = 1 << 16;
    for (name, shared) in [("one VMA", true), ("a VMA each", false)] {
        for threads in [1, 2] {
            let space = Space::new(4 << 30, Locking::default());
            let mut group = criterion.benchmark_group(format!("anonymous fault/{name}"));
            group.throughput(Throughput::Elements(threads));
            group.bench_function(BenchmarkId::new("freehold", format!("{threads} threads")), |bencher| {
                bencher.iter_custom(|times| fault_rounds(&space, threads, times, PAGES, shared));
            });
            group.finish();
        }
    }
}

fn fault_rounds(space: &Space, threads: u64, times: u64, pages: u64, shared: bool) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = times;
    while left > 0 {
        let part = left.min(pages);
        let whole = space.map(pages * PAGE * threads);
        if !shared && threads > 1 {
            // Another right makes it another VMA.
            let upper = whole + pages * PAGE;
            let rights = freehold::space::Prot::all();
            space
                .process()
                .mprotect(upper, pages * PAGE, rights & freehold::space::Prot::from_bits_retain(7))
                .expect("mapped");
        }
        total += on_threads(threads, part, |thread, n| {
            let at = whole + (thread * pages + n) * PAGE;
            space.process().space().handle_fault(at, Access::WRITE).expect("room");
        });
        space.process().munmap(whole, pages * PAGE * threads).expect("mapped");
        left -= part;
    }
    total
}

/// munmap of populated memory, per page.
fn zap(criterion: &mut Criterion) {
    const PAGES: u64 = 1 << 15;
    let space = Space::new(4 << 30, Locking::default());
    let mut group = criterion.benchmark_group("zap, per page");
    group.bench_function("freehold", |bencher| {
        bencher.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for _ in 0..times.div_ceil(PAGES) {
                let at = populated(&space, PAGES);
                let started = Instant::now();
                space.process().munmap(at, PAGES * PAGE).expect("mapped");
                total += started.elapsed();
            }
            total.mul_f64(times as f64 / (times.div_ceil(PAGES) * PAGES) as f64)
        });
    });
    group.finish();
}

/// fork of populated memory, per page, the child's end not counted.
fn fork(criterion: &mut Criterion) {
    const PAGES: u64 = 1 << 15;
    let space = Space::new(4 << 30, Locking::default());
    populated(&space, PAGES);
    let mut group = criterion.benchmark_group("fork, per page");
    group.bench_function("freehold", |bencher| {
        bencher.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for _ in 0..times.div_ceil(PAGES) {
                let started = Instant::now();
                let child = space.process().fork().expect("memory");
                total += started.elapsed();
                drop(child);
            }
            total.mul_f64(times as f64 / (times.div_ceil(PAGES) * PAGES) as f64)
        });
    });
    group.finish();
}

fn populated(space: &Space, pages: u64) -> u64 {
    let at = space.map(pages * PAGE);
    for n in 0..pages {
        space.process().space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
    at
}
