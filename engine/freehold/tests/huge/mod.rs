//! Transparent huge pages (`src/fault/huge.rs`, `src/fault/collapse.rs`) and blocks (`src/fault/mthp.rs`,
//! `src/fault/shmem_mthp.rs`): allocation, sharing, splitting, reports and fallbacks. A block is a group of
//! small pages that one access allocates together. Huge pages of pools are tested in `hugetlb/`.
//!
//! Most scenarios run on every design ([`each_way`]). [`present`] shows which entries of a range map small
//! pages and which map a huge page. The tests write words to some pages ([`write_sample`]) and check them
//! after each change ([`assert_sample`]); [`SAMPLE`] contains the pages next to the borders at which the
//! tests cut. The TLBs of the machine keep stale translations until they are flushed.
//!
//! The subjects of the files: faults (`fill.rs`), splitting (`split.rs`), fork (`fork.rs`), collapsing
//! (`collapse.rs`), blocks of anonymous and of shared memory (`blocks.rs`, `shared.rs`), remote access
//! (`access.rs`), page tables that a discard frees (`reclaim.rs`, `freed_tables.rs`), failed allocations
//! (`oom.rs`), random calls (`random.rs`), and several threads (`storm.rs`).
//! `lab/freehold-machine/tests/shuttle_engine/huge.rs` explores interleavings.

mod access;
mod blocks;
mod break_before_make;
mod collapse;
mod fill;
mod fork;
mod freed_tables;
mod oom;
mod random;
mod reclaim;
mod shared;
mod split;
mod storm;

use crate::support::{
    self, ANON, BASE, Config, Dice, Effort, HUGE, LEVELS, Locking, MapFlags, PAGE, Process, Prot, R, RW,
    Vcpu, World, anon, assert_filled, layout,
};
use freehold::{
    call::Advice,
    engine::HugePages,
    report::pagemap::{PageKind, Present},
    space::ThpDisable,
};

/// Number of small pages in a huge page.
const PAGES: u64 = HUGE / PAGE;

/// Returns a machine with memory for a dozen huge pages.
fn world(huge_pages: HugePages) -> World {
    World::with(24 << 20, Config::new().huge_pages(huge_pages))
}

/// Runs `scenario` on every design, in a process whose faults allocate huge pages by the setting
/// `huge_pages`.
fn each_way(huge_pages: HugePages, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        let world = world(huge_pages);
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

/// Maps memory for `huge` huge pages exactly at `at`.
fn map(process: &Process, at: u64, huge: u64) -> u64 {
    anon(process, at, huge * PAGES)
}

/// Small pages of a huge page whose contents the tests check: its edges, both sides of the borders at which
/// the tests cut, and some pages between them.
const SAMPLE: [u64; 12] = [0, 1, 99, 100, 101, 255, 256, 257, 410, 411, 510, 511];

/// Returns the word that [`write_sample`] stores in a page.
fn value(mark: u64, page: u64) -> u64 {
    mark << 32 | (page + 1)
}

/// Stores words with the given mark to the sample pages of a huge page.
fn write_sample(process: &Process, cpu: &mut Vcpu, at: u64, mark: u64) {
    for page in SAMPLE {
        process.store(cpu, at + page * PAGE, value(mark, page)).unwrap();
    }
}

/// Checks that the sample pages that `which` selects hold the words with the given mark.
#[track_caller]
fn assert_sample(process: &Process, cpu: &mut Vcpu, at: u64, mark: u64, which: impl Fn(u64) -> bool) {
    for page in SAMPLE.into_iter().filter(|page| which(*page)) {
        let found = process.load::<u64>(cpu, at + page * PAGE);
        assert_eq!(found, Ok(value(mark, page)), "page {page} at {at:#x}");
    }
}

/// Selects every page.
fn all(_: u64) -> bool {
    true
}

/// Returns the runs of present pages from `at` on: first page, number of pages, kind, and true if the run is
/// a huge page.
fn present(process: &Process, at: u64, huge: u64) -> Vec<(u64, u64, PageKind, bool)> {
    // The capacity is reserved for all runs, because the closure runs under page table locks and must not
    // allocate.
    let mut found = Vec::with_capacity(1024);
    process.pagemap(at..at + huge * HUGE, |Present { range, kind, huge }| {
        found.push(((range.start() - at) / PAGE, (range.end() - range.start()) / PAGE, kind, huge));
    });
    found
}

/// Returns the bytes in huge pages according to smaps.
fn huge_bytes(process: &Process) -> u64 {
    process.smaps(0).map(|smap| smap.usage.anonymous_huge).sum()
}

/// The runs of one written huge page.
const ONE: [(u64, u64, PageKind, bool); 1] = [(0, PAGES, PageKind::Anon, true)];
