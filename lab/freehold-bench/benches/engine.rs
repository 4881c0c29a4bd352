//! Times of all subjects with 10 to 65,000 areas, on one and on two threads, and times of operations that
//! only the engine has.
//!
//! `cargo bench --bench engine`. The subjects and their operations are in `src/`; this file repeats and times
//! them. Two threads work in one address space. The figure is the time until both threads have finished,
//! divided by the number of operations of one thread. Quote only ratios within one run, because machines are
//! noisy. To add an operation of all subjects, add a function to [`Subject`] and a line to [`subject`]. An
//! operation that only the engine has is a function that `main` calls. `docs/performance.md` has the recorded
//! figures; `instructions.rs` counts instructions, which vary less.

use criterion::{BenchmarkId, Criterion, Throughput};
use freehold::fault::Access;
use freehold::space::{Locking, Prot};
use freehold_bench::{LockedSet, LockedTree, PAGE, PagedSet, SIZES, Space, Subject, area};
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
    // These two sets read every area to find free space, so one operation with 65,000 areas takes
    // milliseconds.
    subject::<LockedSet>(&mut criterion, &SIZES[..2]);
    subject::<PagedSet>(&mut criterion, &SIZES[..2]);
    faults(&mut criterion);
    zap(&mut criterion);
    fork(&mut criterion);
    criterion.final_summary();
}

/// Runs `operation(thread, n)` for `n` below `times` on each thread. Returns the time until all have
/// finished.
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

/// Measures the operations that all subjects have, with each number of areas and of threads.
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
            // The threads use different areas, so that no two threads change the same area.
            bench("split+merge", &|thread, n| {
                subject.split_merge(freehold_bench::BASE + (n * 2 + thread) % areas * freehold_bench::STRIDE);
            });
        }
    }
}

/// Measures faults on untouched anonymous memory: in one VMA for all threads, then in one VMA per thread.
fn faults(criterion: &mut Criterion) {
    const PAGES: u64 = 1 << 16;
    for (name, shared) in [("one VMA", true), ("a VMA each", false)] {
        for threads in [1, 2] {
            let mut group = criterion.benchmark_group(format!("anonymous fault/{name}"));
            group.throughput(Throughput::Elements(threads));
            let space = Space::new(4 << 30, Locking::default());
            let whole = || mapped(&space, threads, PAGES, shared);
            let fault = |at| {
                space.process().space().handle_fault(at, Access::WRITE).expect("room");
            };
            let unmap = |at| space.process().munmap(at, PAGES * PAGE * threads).expect("mapped");
            group.bench_function(BenchmarkId::new(Space::NAME, format!("{threads} threads")), |bencher| {
                bencher.iter_custom(|times| fault_rounds((whole, fault, unmap), threads, times, PAGES));
            });
            if shared {
                let set = PagedSet::with_areas(0);
                let whole = || set.map(PAGES * PAGE * threads);
                let (fault, unmap) = (|at| set.fault(at), |at| set.unmap(at, PAGES * PAGE * threads));
                group.bench_function(
                    BenchmarkId::new(PagedSet::NAME, format!("{threads} threads")),
                    |bencher| {
                        bencher
                            .iter_custom(|times| fault_rounds((whole, fault, unmap), threads, times, PAGES));
                    },
                );
            }
            group.finish();
        }
    }
}

/// Maps `pages` pages for each thread: in one VMA for all threads if `shared` is true, otherwise in one VMA
/// per thread.
fn mapped(space: &Space, threads: u64, pages: u64, shared: bool) -> u64 {
    let whole = space.map(pages * PAGE * threads);
    if !shared && threads > 1 {
        // A different protection keeps these pages a separate VMA.
        let upper = whole + pages * PAGE;
        let rights = Prot::READ | Prot::WRITE | Prot::EXEC;
        space.process().mprotect(upper, pages * PAGE, rights).expect("mapped");
    }
    whole
}

/// Makes each thread fault `times` times, on `pages` pages of its own. After `pages` faults, unmaps the
/// memory and maps it again. Only the faults are timed.
fn fault_rounds(
    (map, fault, unmap): (impl Fn() -> u64, impl Fn(u64) + Sync, impl Fn(u64)),
    threads: u64,
    times: u64,
    pages: u64,
) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = times;
    while left > 0 {
        let part = left.min(pages);
        let whole = map();
        total += on_threads(threads, part, |thread, n| fault(whole + (thread * pages + n) * PAGE));
        unmap(whole);
        left -= part;
    }
    total
}

/// Measures munmap of populated memory, per page, with consecutive frames and with frames in random order.
fn zap(criterion: &mut Criterion) {
    const PAGES: u64 = 1 << 15;
    for name in ["consecutive", "random"] {
        let space = Space::new(4 << 30, Locking::default());
        let mut group = criterion.benchmark_group("zap, per page");
        group.bench_function(BenchmarkId::new(Space::NAME, name), |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times.div_ceil(PAGES) {
                    let at = space.map(PAGES * PAGE);
                    for n in 0..PAGES {
                        let page = if name == "random" { shuffled(n, PAGES) } else { n };
                        let at = at + page * PAGE;
                        space.process().space().handle_fault(at, Access::WRITE).expect("room");
                    }
                    let started = Instant::now();
                    space.process().munmap(at, PAGES * PAGE).expect("mapped");
                    total += started.elapsed();
                }
                total.mul_f64(times as f64 / (times.div_ceil(PAGES) * PAGES) as f64)
            });
        });
        group.finish();
    }
}

/// Returns the `n`th of `pages` pages in an order in which neighbours are far apart. `pages` is a power of
/// two. Frames are allocated in ascending order, so the pages are shuffled instead of the frames.
fn shuffled(n: u64, pages: u64) -> u64 {
    // Each step is a bijection on the numbers below a power of two: a multiplication by an odd number, or an
    // exclusive-or with a right shift of the number.
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pages;
    (mixed ^ mixed >> 7).wrapping_mul(0x2545_f491) % pages
}

/// Measures fork of populated memory, per page. The destruction of the child is not measured.
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

/// Maps `pages` pages, touches each, and returns the address.
fn populated(space: &Space, pages: u64) -> u64 {
    let at = space.map(pages * PAGE);
    for n in 0..pages {
        space.process().space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
    at
}
