//! Memory runs out in the middle of a call (C-10, C-32, C-47, C-64).
//!
//! A munmap that had no memory to split a VMA left it detached and still in the tree, or reported success
//! with half the range gone; a merge that failed went on to split with bounds it had changed already; a move
//! that failed lost pages; a fork that failed left a child that the reverse maps could find.
//!
//! `support/oom.rs` says what is tried and what must hold. VMAs may stay cut.

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

/// Frames and VMAs left in store before the call.
const SPARES: [u64; 3] = [0, 1, 2];

/// Each munmap, and both ways to keep changes apart, sections small enough for a call to have several.
fn designs() -> [Locking; 5] {
    let [mmap_lock, .., ranges, _] = Locking::ALL;
    let whole = Locking { write: Write::Whole, ..ranges };
    [
        mmap_lock,
        Locking { unmap: Unmap::Sectioned { bytes: 2 << 20 }, ..whole },
        Locking { unmap: Unmap::Downgraded, ..ranges },
        whole,
        ranges,
    ]
}

/// C-10, C-32, C-47, C-64.
#[test]
fn every_failure_of_every_call_leaves_things_as_they_were() {
    every_failure_of_each(CALLS, designs(), &SPARES, |spare| Stage::new(Some(spare)), Stage::end);
}

/// C-10 for what is made before there is an address space.
#[test]
fn a_space_that_cannot_be_made_leaves_nothing() {
    for lock_stats in [false, true] {
        for failure in Failure::ALL {
            let points = at_every_allocation(&[failure], |point| {
                let world = World::new();
                let config = SpaceConfig { lock_stats, ..SpaceConfig::default() };
                let made = point.fail(|| Process::new(world.engine(), &config));
                assert_eq!(made.is_err(), point.reached(), "{point}");
                assert_eq!(world.machine.accounting().spaces, usize::from(made.is_ok()));
                drop(made);
                drop(world.process(Locking::default()));
                world.end();
            });
            assert!(points > 0, "{failure:?}: nothing was made to fail");
        }
    }
}

/// C-10 for the engine itself.
#[test]
fn an_engine_that_cannot_be_made_leaves_nothing() {
    for failure in Failure::ALL {
        let points = at_every_allocation(&[failure], |point| {
            let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
            let handle = machine.clone();
            let engine = point.fail(|| Engine::new(handle, Config::default()));
            assert_eq!(engine.is_err(), point.reached(), "{point}");
            drop(engine);
            machine.accounting().assert_clean();
        });
        assert!(points > 0, "{failure:?}: nothing was made to fail");
    }
}

/// C-10 for files: opening one, and filling its cache.
#[test]
fn a_file_that_cannot_be_made_leaves_nothing() {
    let points = at_every_allocation(&Failure::ALL, |point| {
        let world = World::new();
        let (file, filled) = point.fail(|| {
            let file = Mapping::new(world.engine(), Disk, 4 * PAGE, false)
                .and_then(|mapping| File::new(&mapping, FileAccess::READ, "/a/file"));
            let filled = file.as_ref().is_ok_and(|file| file.mapping().fill(PageIndex::new(3)).is_ok());
            (file, filled)
        });
        assert_eq!(!filled, point.reached(), "{point}");
        if let Ok(file) = &file {
            file.mapping().fill(PageIndex::new(3)).unwrap();
            assert!(file.mapping().has_page(PageIndex::new(3)));
        }
        drop(file);
        world.end();
    });
    assert!(points > 0, "nothing was made to fail");
}
