//! Memory runs out in the middle of a call without an MMU. Every allocation of every call fails once, alone
//! and together with all later allocations. The failed call has no effect, and the same call without failures
//! succeeds.
//!
//! `CALLS` lists the calls, and states for each of three kinds of failure whether the call must fail.
//! `Scene::state` returns the state that a failed call must not change. This module does not use the harness
//! of `support/oom.rs`, which needs an address space with an MMU. A new call is one more entry of `CALLS`.

use super::*;
use freehold::{
    error::Errno,
    platform::{PageOwner, ShortageAnswer},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use support::failure::{Failure, at_every_allocation};

/// Two spaces on one machine, with the files and the memory that the calls use.
struct Scene {
    flat: Flat,
    space: Space,
    other: Space,
    disk: Opened,
    shm: Opened,
    /// Address of ten pages of anonymous memory.
    memory: u64,
}

impl Scene {
    fn new() -> Self {
        let flat = Flat::new();
        let (space, other) = (flat.space(), flat.space());
        let (disk, shm) = (flat.file(6), flat.shm(6 * PAGE));
        let memory = map(&space, 10, RW, PRIVATE);
        (0..10).for_each(|n| flat.store(memory + n * PAGE, n));
        map_file(&other, &disk, 0..2, X, PRIVATE);
        Scene { flat, space, other, disk, shm, memory }
    }

    /// Returns the state that a failed call must not change. Frames that were added to the cache of a file
    /// may stay there.
    fn state(&self) -> State {
        self.flat.regions().check();
        State {
            mappings: [layout(&self.space), layout(&self.other)],
            regions: self.flat.regions().counts(),
            contents: (0..10).map(|n| self.flat.load(self.memory + n * PAGE)).collect(),
        }
    }

    fn end(self) {
        drop((self.space, self.other, self.disk, self.shm));
        self.flat.end();
    }
}

/// Mappings of the two spaces as (address, pages), regions, and the words in anonymous memory.
#[derive(Debug, PartialEq)]
struct State {
    mappings: [Vec<(u64, u64)>; 2],
    regions: RegionCounts,
    contents: Vec<u64>,
}

impl State {
    /// Returns the sizes of the mappings, and the regions. Addresses of new mappings differ between runs.
    fn sizes(&self) -> ([Vec<u64>; 2], RegionCounts) {
        let sizes = |space: &Vec<(u64, u64)>| {
            let mut sizes: Vec<u64> = space.iter().map(|(_, pages)| *pages).collect();
            sizes.sort_unstable();
            sizes
        };
        (self.mappings.each_ref().map(sizes), self.regions)
    }
}

/// A call that is made on a [`Scene`].
struct Call {
    name: &'static str,
    run: fn(&Scene) -> Result<(), Errno>,
    /// Three flags: the call fails if one frame allocation fails, if all frame allocations from some point on
    /// fail, and if there is no memory for a record.
    needs: (bool, bool, bool),
}

/// Maps pages of a file, or anonymous memory, and returns the errno if that fails.
fn map_or(
    scene: &Scene,
    file: Option<&Opened>,
    pages: core::ops::Range<u64>,
    prot: Prot,
    flags: MapFlags,
) -> Result<(), Errno> {
    let len = (pages.end - pages.start) * PAGE;
    let mapped = scene.space.mmap(0, len, prot, flags, file, pages.start * PAGE);
    mapped.map(drop).map_err(|error| error.errno())
}

const CALLS: &[Call] = &[
    Call { name: "memory", run: |s| map_or(s, None, 0..5, RW, ANON), needs: (true, true, true) },
    Call { name: "text", run: |s| map_or(s, Some(&s.disk), 2..6, X, PRIVATE), needs: (true, true, true) },
    Call {
        name: "text that is already mapped",
        run: |s| map_or(s, Some(&s.disk), 0..2, X, PRIVATE),
        needs: (false, false, true),
    },
    Call { name: "data", run: |s| map_or(s, Some(&s.disk), 0..6, RW, PRIVATE), needs: (true, true, true) },
    Call {
        name: "shared memory",
        run: |s| map_or(s, Some(&s.shm), 1..5, RW, SHARED),
        needs: (true, true, true),
    },
    Call {
        name: "shared memory, read-only",
        run: |s| map_or(s, Some(&s.shm), 1..5, R, PRIVATE),
        // Without a contiguous run for the file, a private copy suffices.
        needs: (false, true, true),
    },
    Call {
        name: "a hole in memory",
        run: |s| s.space.munmap(s.memory + 3 * PAGE, PAGE).map_err(|error| error.errno()),
        needs: (false, false, true),
    },
    Call {
        name: "both ends of memory",
        run: |s| {
            s.space.munmap(s.memory, PAGE).map_err(|error| error.errno())?;
            s.space.munmap(s.memory + 9 * PAGE, PAGE).map_err(|error| error.errno())
        },
        needs: (false, false, false),
    },
    Call {
        name: "everything",
        run: |s| {
            s.space.munmap(s.memory, 10 * PAGE).map_err(|error| error.errno())?;
            s.space.clear();
            Ok(())
        },
        needs: (false, false, false),
    },
];

#[test]
fn failed_allocation_in_any_call_changes_nothing() {
    for call in CALLS {
        let scene = Scene::new();
        assert_eq!((call.run)(&scene), Ok(()), "{}: without any failure", call.name);
        let done = scene.state();
        scene.end();
        for failure in Failure::ALL {
            let mut refusals = 0;
            at_every_allocation(&[failure], |point| {
                let what = format!("{}, {point}", call.name);
                assert!(point.nth < 100, "{what}: the failures do not end");
                let scene = Scene::new();
                let before = scene.state();
                let result = point.fail(|| (call.run)(&scene));
                match result {
                    Ok(()) => assert_eq!(scene.state().sizes(), done.sizes(), "{what}"),
                    Err(errno) => {
                        refusals += 1;
                        assert!(point.reached(), "{what}: failed without an injected failure");
                        assert_eq!(errno, Errno::ENOMEM, "{what}");
                        assert_eq!(scene.state(), before, "{what}");
                        assert_eq!((call.run)(&scene), Ok(()), "{what}: the second time");
                        assert_eq!(scene.state().sizes(), done.sizes(), "{what}");
                    }
                }
                scene.end();
            });
            let expected = match failure {
                Failure::Memory => call.needs.0,
                Failure::MemoryFromThere => call.needs.1,
                Failure::Heap | Failure::HeapFromThere => call.needs.2,
            };
            assert_eq!(refusals > 0, expected, "{}, {failure:?}: {refusals} refusals", call.name);
        }
    }
}

/// A call that finds no memory asks the platform, with no lock held, and then ends as if memory had not run
/// out.
#[test]
fn failed_allocation_in_any_call_is_made_good_by_the_platform() {
    for call in CALLS {
        let scene = Scene::new();
        assert_eq!((call.run)(&scene), Ok(()), "{}: without any failure", call.name);
        let done = scene.state();
        scene.end();
        let mut all = 0;
        for failure in [Failure::MemoryFromThere, Failure::HeapFromThere] {
            at_every_allocation(&[failure], |point| {
                let (scene, asked) = (Scene::new(), Arc::new(AtomicU64::new(0)));
                let (counted, other) = (asked.clone(), scene.other.clone());
                scene.flat.world.machine.set_memory_short(Some(Arc::new(move |shortage| {
                    failure.stop();
                    assert!(matches!(shortage.owner, PageOwner::Caller), "{:?}", shortage.owner);
                    // Takes the lock of all regions for writing.
                    let at = map(&other, 1, RW, PRIVATE);
                    other.munmap(at, PAGE).unwrap();
                    counted.fetch_add(1, SeqCst);
                    ShortageAnswer::Retry
                })));
                let result = point.fail(|| (call.run)(&scene));
                scene.flat.world.machine.set_memory_short(None);
                point.note(asked.load(SeqCst));
                assert_eq!(result, Ok(()), "{}, {point}", call.name);
                assert_eq!(scene.state().sizes(), done.sizes(), "{}, {point}", call.name);
                all += asked.load(SeqCst);
                scene.end();
            });
        }
        assert_eq!(all > 0, call.needs.1 || call.needs.2, "{}", call.name);
    }
}

#[test]
fn failed_creation_of_spaces_and_regions_is_reported() {
    let world = World::new();
    let regions = Regions::new(world.engine()).unwrap();
    Failure::Heap.arm(1);
    let space = NoMmuSpace::new(&regions);
    assert_eq!(Failure::Heap.stop(), 1);
    assert!(space.is_err());
    Failure::Heap.arm(1);
    let more = Regions::new(world.engine());
    assert_eq!(Failure::Heap.stop(), 1);
    assert!(more.is_err());
    drop(regions);
    world.end();
}
