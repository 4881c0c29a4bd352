//! Huge pages: filled, shared, split, reported, and done without. On the machine with TLBs that remember:
//! every scenario under every design of the locks.

mod access;
mod blocks;
mod collapse;
mod fill;
mod fork;
mod late;
mod oom;
mod random;
mod reclaim;
mod shared;
mod split;
mod storm;

use crate::support::{
    self, ANON, BASE, Config, Dice, Effort, HUGE, Locking, MapFlags, PAGE, Process, Prot, R, RW, Vcpu, World,
    anon, assert_filled, layout,
};
use freehold::{
    call::Advice,
    engine::HugePages,
    report::pagemap::{PageKind, Present},
    space::ThpDisable,
};

/// Small pages in one.
const PAGES: u64 = HUGE / PAGE;

/// A machine with room for a dozen huge pages.
fn world(huge_pages: HugePages) -> World {
    World::with(24 << 20, Config { huge_pages, ..Config::default() })
}

/// Runs a scenario under every design, in a process that gets huge pages wherever they fit, or none by
/// itself.
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

/// Maps huge pages exactly there.
fn map(process: &Process, at: u64, huge: u64) -> u64 {
    anon(process, at, huge * PAGES)
}

/// Small pages of a huge one whose contents are looked at: its edges, both sides of where tests cut, and what
/// lies between.
const SAMPLE: [u64; 12] = [0, 1, 99, 100, 101, 255, 256, 257, 410, 411, 510, 511];

/// What [`write_sample`] stores in a page.
fn value(mark: u64, page: u64) -> u64 {
    mark << 32 | (page + 1)
}

/// Writes to each of the pages looked at, with `mark`.
fn write_sample(process: &Process, cpu: &mut Vcpu, at: u64, mark: u64) {
    for page in SAMPLE {
        process.store(cpu, at + page * PAGE, value(mark, page)).unwrap();
    }
}

/// Whether the pages looked at, those that `which` names, hold what was written with `mark`.
#[track_caller]
fn assert_sample(process: &Process, cpu: &mut Vcpu, at: u64, mark: u64, which: impl Fn(u64) -> bool) {
    for page in SAMPLE.into_iter().filter(|page| which(*page)) {
        let found = process.load::<u64>(cpu, at + page * PAGE);
        assert_eq!(found, Ok(value(mark, page)), "page {page} at {at:#x}");
    }
}

/// Everything.
fn all(_: u64) -> bool {
    true
}

/// What is present from `at` on: first page, pages, kind, and whether it is a huge page.
fn present(process: &Process, at: u64, huge: u64) -> Vec<(u64, u64, PageKind, bool)> {
    // Room for all: it is filled under the locks of page tables.
    let mut found = Vec::with_capacity(1024);
    process.pagemap(at..at + huge * HUGE, |Present { range, kind, huge }| {
        found.push(((range.start() - at) / PAGE, (range.end() - range.start()) / PAGE, kind, huge));
    });
    found
}

/// Bytes in huge pages, by smaps.
fn huge_bytes(process: &Process) -> u64 {
    process.smaps(0).map(|smap| smap.usage.anonymous_huge).sum()
}

/// Nothing but one huge page.
const ONE: [(u64, u64, PageKind, bool); 1] = [(0, PAGES, PageKind::Anon, true)];
