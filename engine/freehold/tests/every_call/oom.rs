//! Memory runs out in the middle of a call (C-10, C-32, C-47, C-64).
//!
//! A munmap that had no memory to split a VMA left it detached and still in the tree, or reported success
//! with half the range gone; a merge that failed went on to split with bounds it had changed already; a move
//! that failed lost pages; a fork that failed left a child that the reverse maps could find.
//!
//! So every allocation of every call fails once here: the first, the second, .., alone and together with all
//! that follow. Afterwards everything must be as it was, but for VMAs that may stay cut, and the same call
//! without failures must end like one that never met any. Caches are run down before: frames and VMAs are
//! allocated in batches, and what lies in store cannot fail.

pub mod calls;
pub mod scene;

use super::*;
use calls::{CALLS, Call, Extent};
use freehold::{
    PageIndex,
    error::Errno,
    space::{Unmap, Write},
};
use scene::{Scene, State};
use support::failure::{Failure, Point, at_every_allocation, try_at_every_allocation};

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

/// What the call does when nothing fails.
fn undisturbed(call: &Call, locking: Locking) -> State {
    let mut scene = Scene::new(locking, call.forked, 0);
    let result = (call.run)(&mut scene);
    assert_eq!(result, Ok(()), "{}: without any failure", call.name);
    let state = scene.state();
    scene.end();
    state
}

/// Makes the call with one failure.
///
/// # Errors
///
/// What is not as it should be.
fn with_failure(
    call: &Call,
    locking: Locking,
    spare: u64,
    point: &Point,
    (untouched, done): (&State, &State),
) -> Result<(), String> {
    let what = |how: &str, detail: &str| {
        Err(format!("{}, {locking:?}, {spare} spare, {point}: {how}{detail}", call.name))
    };
    let mut scene = Scene::new(locking, call.forked, spare);
    let result = point.fail(|| (call.run)(&mut scene));
    scene.check();
    if let Err(errno) = result {
        if !point.reached() || !call.allocates || !call.errnos.contains(&errno) {
            return what("ended with ", &format!("{errno:?}"));
        }
        let state = scene.state();
        let same = match call.extent {
            Extent::Nothing => state == *untouched,
            Extent::Layout => state.contents == untouched.contents,
            Extent::Anything => true,
            Extent::Done => {
                let lost = scene.lost_by_a_move();
                scene.end();
                return if lost.is_empty() { Ok(()) } else { what("lost pages", &format!("{lost:?}")) };
            }
        };
        if !same {
            return what("something changed", &state.differences(untouched));
        }
        scene.check();
        if let Err(errno) = (call.run)(&mut scene) {
            return what("again, ended with ", &format!("{errno:?}"));
        }
    }
    // Succeeded at the second attempt, or at the first, because what failed could be done without.
    let state = scene.state();
    scene.end();
    if state == *done { Ok(()) } else { what("does not end as it should", &state.differences(done)) }
}

/// Every failure of one call, under one design.
fn every_failure_of(call: &Call, locking: Locking) -> Result<(), String> {
    let mut scene = Scene::new(locking, call.forked, 0);
    let untouched = scene.state();
    scene.end();
    let done = undisturbed(call, locking);
    let mut failures = 0;
    for spare in SPARES {
        failures += try_at_every_allocation(&Failure::ALL, |point| {
            with_failure(call, locking, spare, point, (&untouched, &done))
        })?;
    }
    // A change of a part looks for memory for its claim, and does without.
    let as_it_should = match (call.allocates, locking.write) {
        (false, Write::RangesOnly) => true,
        (allocates, _) => (failures > 0) == allocates,
    };
    match as_it_should {
        true => Ok(()),
        false => Err(format!("{}, {locking:?}: {failures} failures", call.name)),
    }
}

/// C-10, C-32, C-47, C-64.
#[test]
fn every_failure_of_every_call_leaves_things_as_they_were() {
    let mut wrong = Vec::new();
    for (number, call) in CALLS.iter().enumerate() {
        // In a quick run each call has one design, by turns.
        let turn = [designs()[number % designs().len()]];
        for &locking in Effort::of(&turn[..], &designs(), &designs()) {
            wrong.extend(every_failure_of(call, locking).err());
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
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
