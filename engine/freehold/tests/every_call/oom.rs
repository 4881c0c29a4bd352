//! Memory runs out in the middle of a call (C-10, C-32, C-47, C-64).
//!
//! The bugs in Linux: a munmap that could not allocate to split a VMA left the VMA detached but still in the
//! tree, or reported success after half the range. A merge that failed continued with a split, on bounds that
//! the merge had already changed. A move that failed lost pages. A fork that failed left a child that the
//! reverse maps could find.
//!
//! The first test makes the calls of `oom/calls.rs` on the process of `oom/scene.rs`, with the harness of
//! `support/oom.rs`, which lists the injected failures and the required state afterwards. VMAs may stay
//! split. In the other tests, memory runs out while an address space, an engine or a file is created. Because
//! of these tests, `EXEMPT` in `sweep/complete.rs` contains `AddressSpace::new` and `Engine::new`.

pub mod calls;
pub mod scene;

use super::*;
use calls::CALLS;
use freehold::{
    PageIndex,
    error::Errno,
    space::{Unmap, Write},
};
use scene::Stage;
use support::{
    failure::{Failure, at_every_allocation},
    oom::every_failure_of_each,
};

/// Number of frames and of VMAs in the engine's caches before the call.
const SPARES: [u64; 3] = [0, 1, 2];

/// Designs to test: each kind of munmap, and both values of `write`. Sections are so small that a call has
/// several sections.
fn designs() -> [Locking; 5] {
    let [mmap_lock, .., ranges, _] = Locking::ALL;
    let whole = ranges.write(Write::Whole);
    [
        mmap_lock,
        whole.unmap(Unmap::Sectioned { bytes: 2 << 20 }),
        ranges.unmap(Unmap::Downgraded),
        whole,
        ranges,
    ]
}

/// C-10, C-32, C-47, C-64: makes every call of `oom/calls.rs` with every failure.
#[test]
fn c10_failed_allocation_in_any_call_changes_nothing() {
    every_failure_of_each(CALLS, designs(), &SPARES, |spare| Stage::new(Some(spare)), Stage::end);
}

/// C-10: memory runs out during exec or exit, neither of which needs any.
#[test]
fn c10_exec_and_exit_succeed_without_memory() {
    for locking in designs() {
        let points = at_every_allocation(&Failure::ALL, |point| {
            let world = World::new();
            let process = world.process(locking);
            let mut cpu = world.machine.cpu(0);
            // Mappings that do not merge fill several nodes of the tree.
            for n in 0..40 {
                anon(&process, BASE + 2 * n * PAGE, 1);
                process.store(&mut cpu, BASE + 2 * n * PAGE, n).unwrap();
            }
            process.space().trim();
            point.fail(|| process.clear());
            assert_eq!((process.counts().map_count, process.rss()), (0, Default::default()));
            process.check();
            anon(&process, BASE, 1);
            drop((process, cpu));
            world.end();
        });
        assert_eq!(points > 0, locking.unmap == Unmap::Released, "{locking:?}: {points} failures");
    }
}

/// C-10: memory runs out while an address space is created. The failed call leaves nothing allocated.
#[test]
fn c10_failed_space_creation_leaks_nothing() {
    for lock_stats in [false, true] {
        for failure in Failure::ALL {
            let points = at_every_allocation(&[failure], |point| {
                let world = World::new();
                let config = SpaceConfig::new().lock_stats(lock_stats);
                let made = point.fail(|| Process::new(world.engine(), &config));
                assert_eq!(made.is_err(), point.reached(), "{point}");
                assert_eq!(world.machine.accounting().spaces, usize::from(made.is_ok()));
                drop(made);
                drop(world.process(Locking::default()));
                world.end();
            });
            assert!(points > 0, "{failure:?}: no failure was injected");
        }
    }
}

/// C-10: memory runs out while an engine is created. The failed call leaves nothing allocated.
#[test]
fn c10_failed_engine_creation_leaks_nothing() {
    for failure in Failure::ALL {
        let points = at_every_allocation(&[failure], |point| {
            let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
            let handle = machine.clone();
            let engine = point.fail(|| Engine::new(handle, Config::default()));
            assert_eq!(engine.is_err(), point.reached(), "{point}");
            drop(engine);
            machine.accounting().assert_clean();
        });
        assert!(points > 0, "{failure:?}: no failure was injected");
    }
}

/// C-10: memory runs out while a file is opened and a page of its cache is filled.
#[test]
fn c10_failed_file_creation_leaks_nothing() {
    let points = at_every_allocation(&Failure::ALL, |point| {
        let world = World::new();
        let (file, filled) = point.fail(|| {
            let file = Mapping::new(world.engine(), Disk, 4 * PAGE, false)
                .and_then(|mapping| File::new(&mapping, FileAccess::READ, "/a/file"));
            let filled = file.as_ref().is_ok_and(|file| file.mapping().fill(PageIndex::new(3)).is_ok());
            (file, filled)
        });
        // A fill that finds no memory is tried again after the caches were emptied, so one failure may be
        // harmless.
        let again = matches!(point.failure, Failure::Memory | Failure::Heap) && file.is_ok() && filled;
        assert_eq!(!filled, point.reached() && !again, "{point}");
        if let Ok(file) = &file {
            file.mapping().fill(PageIndex::new(3)).unwrap();
            assert!(file.mapping().has_page(PageIndex::new(3)));
        }
        drop(file);
        world.end();
    });
    assert!(points > 0, "no failure was injected");
}
