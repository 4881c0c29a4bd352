//! The cost of one page: finding its table, installing its translation, zapping the translation.
//!
//! `cargo bench --bench pagetable`. The bench uses tables of the crate `freehold-pagetable`, in plain memory
//! that the crate's tests provide (`tests/common/`). There is no engine, no machine and no TLB, so a figure
//! is the cost of the table operations alone. The group `page` gives times per page of 64 full tables; the
//! group `range` gives times of calls for one table. Each operation must leave the tables empty or full, as
//! the next operation requires.

#[path = "../../../engine/freehold-pagetable/tests/common/mod.rs"]
mod common;

use common::{Ledger, Memory, Zap, unmap};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use freehold_pagetable::{
    Flush, Gather, GatherState, PAGE_SIZE, PageTable, Pfn, Pte, PteFlags, Tlb, UnmappedFrame, VaRange,
    VirtAddr, X86_4,
};
use std::hint::black_box;

/// The address of the first page.
const AT: u64 = 0x7f00_0000_0000;
/// Number of pages: 64 tables.
const PAGES: u64 = 512 * 64;

/// A TLB that does nothing, so that only the tables are measured.
struct Nowhere;

impl Tlb for Nowhere {
    fn flush(&self, what: &Flush) {
        black_box(what);
    }
    fn release(&self, frames: &[UnmappedFrame]) {
        black_box(frames);
    }
    unsafe fn free_tables(&self, tables: &[Pfn]) {
        black_box(tables);
    }
}

/// Returns the address of a page.
fn at(page: u64) -> VirtAddr {
    VirtAddr::new(AT + page * PAGE_SIZE)
}

/// Maps a page, to the frame of the same number.
fn install(tables: &PageTable<X86_4, Memory>, memory: &Memory, page: u64) {
    let table = tables.pte_table_alloc(memory, at(page)).unwrap();
    let pte = Pte::page(Pfn::new(page), PteFlags::USER | PteFlags::WRITE | PteFlags::ACCESSED);
    table.lock().install(at(page), pte).unwrap();
}

/// Measures all operations on one set of tables.
fn tables(c: &mut Criterion) {
    let memory = Memory::new(128);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let ledger = Ledger::new(&memory);
    let range = VaRange::new(at(0), at(PAGES));
    let state = GatherState::new();
    let mut group = c.benchmark_group("page");
    group.throughput(Throughput::Elements(PAGES));
    let zap = |range: VaRange| {
        let mut gather = Gather::new(&Nowhere, &state);
        let walked = tables.walk(&memory, &Nowhere, range, &mut Zap(&mut gather));
        gather.finish();
        walked
    };
    (0..PAGES).for_each(|page| install(&tables, &memory, page));
    group.bench_function("find table", |b| {
        b.iter(|| {
            (0..PAGES).for_each(|page| {
                black_box(tables.pte_table(&memory, at(page))).unwrap();
            })
        });
    });
    group.bench_function("install, table there", |b| {
        b.iter_batched(
            || zap(range),
            |_| (0..PAGES).for_each(|page| install(&tables, &memory, page)),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("zap", |b| {
        b.iter_batched(
            || (zap(range), (0..PAGES).for_each(|page| install(&tables, &memory, page))),
            |_| zap(range),
            BatchSize::PerIteration,
        );
    });
    group.finish();
    let mut group = c.benchmark_group("range");
    assert!(zap(range).is_ok());
    group.bench_function("one page: install, zap, finish", |b| {
        b.iter(|| {
            install(&tables, &memory, 300);
            zap(VaRange::new(at(300), at(301)))
        });
    });
    group.bench_function("zap an empty table", |b| b.iter(|| zap(VaRange::new(at(0), at(512)))));
    group.bench_function("zap one page in a table", |b| {
        b.iter(|| {
            install(&tables, &memory, 300);
            zap(VaRange::new(at(0), at(512)))
        });
    });
    group.bench_function("check that a range is empty", |b| {
        b.iter(|| {
            tables.is_empty_range(&memory, black_box(VaRange::of(AT + (1 << 30), AT + (1 << 30) + PAGE_SIZE)))
        });
    });
    group.finish();
    unmap(&tables, &memory, &ledger, VaRange::of(0, 1 << 47));
    // SAFETY: the space is not used again.
    unsafe { tables.destroy(&memory) };
}

criterion_group!(benches, tables);
criterion_main!(benches);
