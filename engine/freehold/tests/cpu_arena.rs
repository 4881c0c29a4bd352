//! Arenas and their boundaries (`src/space/cpu_arena.rs`): where range writers place mappings, and how a
//! boundary makes way for a mapping that needs its addresses.
//!
//! Every scenario runs in a process whose changes are made only by range writers, each of which places
//! mappings in the arena of its CPU. A scenario runs twice: with wide and with narrow nodes of the VMA tree.
//! The tests compare the addresses of mappings. `range_writers.rs` tests claims. In its last test, a claim
//! delays a mapping that needs the space of boundaries. A new scenario runs in [`placing`]. A new call that
//! maps at a given address needs a scenario that maps over a boundary.

use crate::support::*;
use freehold::{
    call::RemapFlags,
    error::{MmapError, MremapError},
    space::{Placement, Write},
};
use std::{sync::Barrier, thread};

const LOCKING: Locking = DEFAULT.write(Write::RangesOnly);
const DEFAULT: Locking = Locking::ALL[Locking::ALL.len() - 1];
const GIB: u64 = 1 << 30;
const ARENA_BYTES: u64 = 64 * GIB;
const FIXED: MapFlags = ANON.union(MapFlags::FIXED);

/// Returns the end of the arena in which this thread places mappings, and the start of its boundary.
fn boundary(process: &Process, cpu: &Vcpu) -> (u64, u64) {
    let at = map(process, cpu, 0, 1, ANON);
    cpu.call(|| process.munmap(at, PAGE)).unwrap();
    let end = at.next_multiple_of(ARENA_BYTES);
    (end, end - GIB)
}

/// Runs `scenario` in a process that places mappings in the arenas of CPUs.
fn placing(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for vma_nodes in [NodeWidth::Wide, NodeWidth::Narrow] {
        let world = World::with(16 << 20, Config::new().vma_nodes(vma_nodes));
        let config = SpaceConfig::new().locking(LOCKING).placement(Placement::PerCpu);
        let process = Process::new(world.engine(), &config).unwrap();
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

/// Maps anonymous memory by a call on `cpu`, with the hint `at`. Returns the address.
fn map(process: &Process, cpu: &Vcpu, at: u64, pages: u64, flags: MapFlags) -> u64 {
    cpu.call(|| process.mmap(at, pages * PAGE, RW, flags, None, 0)).unwrap()
}

#[test]
fn mappings_are_placed_below_the_boundary_of_an_arena() {
    placing(|_, process, cpu| {
        let (_, boundary) = boundary(process, cpu);
        assert_eq!(map(process, cpu, 0, 4, ANON), boundary - 4 * PAGE);
        assert_eq!(map(process, cpu, 0, 4, ANON), boundary - 8 * PAGE);
        assert_eq!(process.maps(0).count(), 1);
    });
}

/// A mapping at a given address replaces the boundary. The boundary is inserted again after the mapping is
/// unmapped.
#[test]
fn mapping_at_a_given_address_removes_the_boundary() {
    placing(|_, process, cpu| {
        let (end, boundary) = boundary(process, cpu);
        let first = map(process, cpu, 0, 1, ANON);
        for (flags, at) in [
            (FIXED, boundary),
            (FIXED, end - PAGE),
            (FIXED, boundary - 8 * PAGE),
            (ANON | MapFlags::FIXED_NOREPLACE, boundary + GIB / 2),
            (ANON, boundary + PAGE),
        ] {
            assert_eq!(map(process, cpu, at, 8, flags), at, "{flags:?}");
            process.store(cpu, at, 1u64).unwrap();
            cpu.call(|| process.munmap(at, 8 * PAGE)).unwrap();
            if at < boundary {
                map(process, cpu, first, 1, FIXED);
            }
            assert_eq!(map(process, cpu, 0, 1, ANON), first - PAGE, "after {flags:?} at {at:#x}");
            cpu.call(|| process.munmap(first - PAGE, PAGE)).unwrap();
        }
    });
}

/// mremap grows a mapping into the boundary above it, and moves a mapping onto the boundary.
#[test]
fn mremap_removes_a_boundary() {
    placing(|_, process, cpu| {
        let (_, boundary) = boundary(process, cpu);
        let at = map(process, cpu, 0, 1, ANON);
        let remap =
            |at, old, new, flags, to| cpu.call(|| process.mremap(at, old * PAGE, new * PAGE, flags, to));
        assert_eq!(remap(at, 1, 3, RemapFlags::empty(), 0), Ok(at));
        let to = boundary + GIB / 2;
        assert_eq!(remap(at, 3, 2, RemapFlags::MAYMOVE | RemapFlags::FIXED, to), Ok(to));
        cpu.call(|| process.munmap(to, 2 * PAGE)).unwrap();
        assert_eq!(map(process, cpu, 0, 1, ANON), at);
    });
}

/// Page tables are freed together with the mappings of an arena. A boundary keeps only the tables of 1 GiB
/// entries and above, which several arenas share.
#[test]
fn tables_of_an_arena_are_freed() {
    placing(|world, process, cpu| {
        let tables = || world.machine.accounting().tables;
        boundary(process, cpu);
        let before = tables();
        assert_eq!(before, 1, "there is no table except the root");
        for _ in 0..3 {
            let at = map(process, cpu, 0, 4, ANON);
            process.store(cpu, at, 1u64).unwrap();
            assert_eq!(tables(), before + LEVELS - 1);
            cpu.call(|| process.munmap(at, 4 * PAGE)).unwrap();
            assert_eq!(tables(), before + LEVELS - 3);
        }
    });
}

/// A mapping that lies at the boundary of a CPU's arena does not prevent the CPU from placing mappings there.
/// Soon after the mapping has gone, the boundary is inserted.
#[test]
fn an_occupied_boundary_is_avoided() {
    placing(|_, process, cpu| {
        let (end, boundary) = boundary(process, cpu);
        map(process, cpu, boundary + GIB / 2, 8, FIXED);
        let at = map(process, cpu, 0, 4, ANON);
        assert!(at < end && end - ARENA_BYTES <= at);
        assert_eq!(map(process, cpu, 0, 4, ANON), at - 4 * PAGE);
        cpu.call(|| process.munmap(boundary, GIB)).unwrap();
        let placed = || {
            let at = map(process, cpu, 0, 4, ANON);
            cpu.call(|| process.munmap(at, 4 * PAGE)).unwrap();
            at
        };
        assert!((0..65).any(|_| placed() == boundary - 4 * PAGE));
        assert_eq!(placed(), boundary - 4 * PAGE);
    });
}

/// A child has no boundaries until one of its range writers places a mapping.
#[test]
fn child_starts_without_boundaries() {
    placing(|_, process, cpu| {
        let at = map(process, cpu, 0, 1, ANON);
        let child = Process::of(cpu.call(|| process.fork()).unwrap());
        assert_eq!(map(&child, cpu, 0, 1, ANON), at - PAGE);
        child.check();
    });
}

/// Maps and unmaps a page on several threads, most of them on different CPUs, so that each CPU inserts its
/// boundary.
fn insert_boundaries(process: &Process) {
    let all = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let at = process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
                process.munmap(at, PAGE).unwrap();
                // Keeps this thread's CPU, so that no other thread gets it.
                all.wait();
            });
        }
    });
}

/// A mapping that fits nowhere else uses the space of the boundaries. The boundaries are inserted again after
/// the mapping is unmapped.
#[test]
fn mapping_that_needs_the_space_removes_all_boundaries() {
    placing(|_, process, cpu| {
        let (low, high) = (Config::default().mmap_min_addr, <Process>::DEFAULT_MMAP_BASE);
        let room = |len| cpu.call(|| process.mmap(0, len, RW, ANON | MapFlags::NORESERVE, None, 0));
        insert_boundaries(process);
        assert_eq!(room(high - low + PAGE), Err(MmapError::NoSpace));
        insert_boundaries(process);
        assert_eq!(room(high - low), Ok(low));
        cpu.call(|| process.munmap(low, high - low)).unwrap();
        insert_boundaries(process);
        // Mapped VMAs stay, and the search finds the largest gap between them.
        let taken = high - 100 * GIB;
        map(process, cpu, taken, 1, FIXED);
        insert_boundaries(process);
        assert_eq!(room(taken - low + PAGE), Err(MmapError::NoSpace));
        assert_eq!(room(taken - low), Ok(low));
    });
}

/// A moving mremap that fits nowhere else uses the space of the boundaries.
#[test]
fn moving_mremap_that_needs_the_space_removes_all_boundaries() {
    placing(|_, process, cpu| {
        let (low, high) = (Config::default().mmap_min_addr, <Process>::DEFAULT_MMAP_BASE);
        map(process, cpu, low, 1, FIXED);
        cpu.call(|| process.mmap(low + PAGE, PAGE, R, FIXED, None, 0)).unwrap();
        insert_boundaries(process);
        let room = high - (low + 2 * PAGE);
        let moved = |len| cpu.call(|| process.mremap(low, PAGE, len, RemapFlags::MAYMOVE, 0));
        assert_eq!(moved(room + PAGE), Err(MremapError::NoSpace));
        insert_boundaries(process);
        assert_eq!(moved(room), Ok(low + 2 * PAGE));
    });
}
