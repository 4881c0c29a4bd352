//! Times of the range map and of a `BTreeMap`, without a lock and behind a reader/writer lock, in one run.
//!
//! `cargo bench --bench range`. The subjects and operations are in `common.rs`; this file only passes them to
//! criterion. Every figure includes the cost of picking a random place; the row `nothing` shows this cost.
//! One thread makes all calls, so the lock is never contended. Compare only figures of one run.

mod common;

use common::{Freehold, Locked, SIZES, Std, Subject, Workload, operations};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Measures one operation with each number of entries.
fn one<S: Subject>(criterion: &mut Criterion, name: &str, step: common::Step<S>) {
    let mut group = criterion.benchmark_group(name);
    for size in SIZES {
        // An unaugmented tree reads every entry in this search, so large sizes would take too long.
        if name.ends_with("far") && size > 1_000 && S::NAME != "freehold" {
            continue;
        }
        let mut workload = Workload::<S>::new(size);
        group.bench_with_input(BenchmarkId::new(S::NAME, size), &size, |bencher, _| {
            bencher.iter(|| step(&mut workload));
        });
    }
    group.finish();
}

/// Measures all operations of a subject.
fn all<S: Subject>(criterion: &mut Criterion) {
    for (name, step) in operations::<S>() {
        one::<S>(criterion, name, step);
    }
}

/// Measures all subjects.
fn range(criterion: &mut Criterion) {
    one::<Freehold<{ freehold_range::FANOUT }>>(criterion, "nothing", Workload::nothing);
    all::<Freehold<{ freehold_range::FANOUT }>>(criterion);
    all::<Std>(criterion);
    all::<Locked>(criterion);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(700));
    targets = range
}
criterion_main!(benches);
