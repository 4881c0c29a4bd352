//! Memory runs out in the middle of calls on huge pages. Every allocation of every call fails once, alone or
//! together with all later allocations. A failed call has changed nothing that the pool or another process
//! can see, and a second attempt succeeds.
//!
//! `CALLS` has the calls on the mappings of `Scene`. `Scene::end` checks that all pages of the pool are free.
//! The designs rotate with the number of the failing allocation. Unlike `support/oom.rs`, this module does
//! not compare contents. A new call is one more entry of `CALLS`. The test repeats the call after each
//! failure.

use super::{
    support::failure::{Failure, at_every_allocation},
    *,
};
use freehold::{
    call::{RemapFlags, ShmFlags},
    file::Segment,
};
use freehold_machine::{fail_heap_from, stop_failing_heap};

/// A private mapping of three pages, and a span of a file with a page table that another process shares. The
/// second page of the mapping and the first page of the span are allocated.
struct Scene {
    world: World,
    process: Process,
    other: Process,
    /// A process that maps the file, but has not accessed it.
    third: Process,
    file: Counted<File<Machine>>,
    cpu: Vcpu,
}

const PRIVATE_AT: u64 = BASE + 4 * SPAN;
const POOL: u64 = 6;

impl Scene {
    fn new(locking: Locking) -> Self {
        let world = world(POOL);
        let [process, other, third] = std::array::from_fn(|_| world.process(locking));
        let mut cpu = world.machine.cpu(0);
        let file = file(&world, SPAN);
        for process in [&process, &other] {
            map_span(process, &file, BASE);
            process.store(&mut cpu, BASE, 1u64).unwrap();
        }
        map_span(&third, &file, BASE);
        process.mmap(PRIVATE_AT, 3 * HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0).unwrap();
        process.store(&mut cpu, PRIVATE_AT + HUGE, 2u64).unwrap();
        Scene { world, process, other, third, file, cpu }
    }

    fn end(self) {
        let Scene { world, process, other, third, file, cpu } = self;
        process.check();
        other.check();
        drop((process, other, third, file, cpu));
        assert_eq!(counts(&world), all_free(POOL));
        world.end();
    }
}

fn is_mapped(process: &Process, addr: u64) -> bool {
    process.space().read().find(addr).is_some()
}

/// Removes a segment whose reservations are in several runs, so that another run would need memory. The
/// removal frees the memory of the segment, and needs none itself.
#[test]
fn segment_is_destroyed_without_memory() {
    let world = world(4);
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let segment = Segment::of_huge_pages(world.engine(), 7, HugePageSize::Mib2, 8 * HUGE, false).unwrap();
    process.shmat(&segment, BASE, ShmFlags::empty()).unwrap();
    for page in [0, 2, 4, 6] {
        process.store(&mut cpu, BASE + page * HUGE, page).unwrap();
    }
    process.shmdt(BASE).unwrap();
    fail_heap_from(1);
    segment.remove();
    assert_eq!(stop_failing_heap(), 0, "the removal allocates memory");
    assert_eq!(counts(&world), all_free(4));
    drop((segment, process, cpu));
    world.end();
}

/// Splits a mapping of two spans at the border between the spans. Each span has a page table that another
/// process shares. The split creates a VMA that uses the shared table of the second span, and that must be
/// able to unshare it.
#[test]
fn split_between_two_shared_tables_survives_failures() {
    const UPPER: u64 = BASE + SPAN;
    let calls: [Call; 4] = [
        ("mprotect", |scene| outcome(scene.process.mprotect(UPPER, SPAN, R))),
        ("madvise", |scene| outcome(scene.process.madvise(UPPER, SPAN, Advice::DontDump))),
        ("munmap", |scene| match is_mapped(&scene.process, UPPER) {
            true => outcome(scene.process.munmap(UPPER, SPAN)),
            false => Ok(()),
        }),
        ("mremap", |scene| match is_mapped(&scene.process, UPPER) {
            true => outcome(scene.process.mremap(UPPER, SPAN, SPAN, MOVE, BASE + 20 * SPAN)),
            false => Ok(()),
        }),
    ];
    for (name, call) in calls {
        let total = at_every_allocation(&Failure::ALL, |point| {
            let designs: Vec<Locking> = designs().collect();
            let mut scene = Scene::new(designs[point.nth as usize % designs.len()]);
            let two = file(&scene.world, 2 * SPAN);
            for process in [&scene.process, &scene.other] {
                process.munmap(BASE, SPAN).unwrap();
                assert_eq!(process.mmap(BASE, 2 * SPAN, RW, SHARED, Some(&two), 0), Ok(BASE));
                for at in [BASE, UPPER] {
                    process.store(&mut scene.cpu, at, 5u64).unwrap();
                }
            }
            let result = point.fail(|| call(&mut scene));
            scene.process.check();
            if result.is_err() {
                assert!(point.reached(), "{name} failed without an injected failure");
                assert!(is_mapped(&scene.process, UPPER), "{name}, {point}: the call failed but took effect");
                assert_eq!(call(&mut scene), Ok(()), "{name}, {point}: the second attempt failed");
                scene.process.check();
            }
            for at in [BASE, UPPER] {
                scene.other.store(&mut scene.cpu, at, 6u64).unwrap();
            }
            assert_eq!(scene.process.load(&mut scene.cpu, BASE), Ok(6u64));
            if name == "mremap" {
                assert_eq!(scene.process.load(&mut scene.cpu, BASE + 20 * SPAN), Ok(6u64), "{point}");
            }
            drop(two);
            scene.end();
        });
        assert!(total > 0, "{name} needs no memory");
    }
}

/// Name and code of a call on a [`Scene`].
type Call = (&'static str, fn(&mut Scene) -> Result<(), ()>);

/// Returns only whether a call succeeded: drops the value and the error of its result. Allocates nothing.
fn outcome<T, E>(result: Result<T, E>) -> Result<(), ()> {
    result.map(drop).map_err(drop)
}

const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

const CALLS: [Call; 11] = [
    ("mmap private", |scene| {
        outcome(scene.process.mmap(BASE + 9 * SPAN, HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0))
    }),
    ("mmap shared", |scene| {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        outcome(scene.process.mmap(BASE + 9 * SPAN, 2 * HUGE, RW, flags, Some(&scene.file), 0))
    }),
    ("fault private", |scene| outcome(scene.process.store(&mut scene.cpu, PRIVATE_AT, 3u64))),
    ("fault shared", |scene| outcome(scene.process.store(&mut scene.cpu, BASE + HUGE, 3u64))),
    ("fault that shares a table", |scene| {
        let result = outcome(scene.third.store(&mut scene.cpu, BASE, 1u64));
        scene.third.check();
        result
    }),
    ("munmap of a part", |scene| match scene.process.maps(BASE).next() {
        Some(line) if line.end > BASE + HUGE => outcome(scene.process.munmap(BASE + HUGE, HUGE)),
        _ => Ok(()),
    }),
    ("mprotect of a part", |scene| outcome(scene.process.mprotect(PRIVATE_AT + HUGE, HUGE, R))),
    ("mprotect", |scene| outcome(scene.process.mprotect(BASE, SPAN, R))),
    ("mremap", |scene| match scene.process.maps(PRIVATE_AT).next().filter(|line| line.start == PRIVATE_AT) {
        Some(_) => {
            outcome(scene.process.mremap(PRIVATE_AT, 3 * HUGE, 3 * HUGE, MOVE, BASE + 20 * SPAN - HUGE))
        }
        None => Ok(()),
    }),
    ("fork", |scene| {
        let child = Process::of(scene.process.fork().map_err(drop)?);
        child.check();
        outcome(child.store(&mut scene.cpu, PRIVATE_AT + HUGE, 9u64))
    }),
    ("punch", |scene| outcome(scene.file.mapping().punch(0..HUGE))),
];

#[test]
fn failed_allocation_changes_neither_pool_nor_other_processes() {
    let mut total = 0;
    for (name, call) in CALLS {
        total += at_every_allocation(&Failure::ALL, |point| {
            let designs: Vec<Locking> = designs().collect();
            let mut scene = Scene::new(designs[point.nth as usize % designs.len()]);
            let result = point.fail(|| call(&mut scene));
            scene.process.check();
            if result.is_err() {
                assert!(point.reached(), "{name} failed without an injected failure");
                assert!(call(&mut scene).is_ok(), "{name}, {point}: the second attempt failed");
            }
            scene.end();
        });
    }
    // Some calls need no memory in this scene. Together, the calls allocate at many places.
    assert!(total > 50, "{total} allocations failed");
}
