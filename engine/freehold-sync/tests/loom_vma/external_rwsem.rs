//! Tests with readers that take the external rwsem of the VMA (`vma_lock/external_rwsem.rs`).
//!
//! The tests run the scenarios of `world.rs`, like `main.rs`, but on a `World` whose spaces use external
//! rwsems. An array of two flags selects these spaces. To run another scenario here, pass such a world to the
//! function of the scenario in `world.rs`.

use super::world::{self, World, change, check_recycled, spawn};
use freehold_sync::ReadFail;
use freehold_sync::testing::{LoomHost, model_bounded};

const EXTERNAL: [bool; 2] = [true, true];

#[test]
fn reader_and_writer_exclude_each_other() {
    model_bounded(3, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_reader_and_a_writer(&world);
    });
}

#[test]
fn writer_excludes_two_readers() {
    model_bounded(1, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::two_readers_and_a_writer(&world);
    });
}

#[test]
fn read_under_the_mmap_lock_always_succeeds() {
    model_bounded(2, || {
        let world = World::with_external_rwsems(EXTERNAL);
        let writer = spawn(&world, change);
        let guard = world.spaces[0].read();
        let place = world.vma().read_under(&guard).expect("no writer holds the VMA");
        drop(guard);
        world.get();
        world.unlock(place);
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

#[test]
fn detached_vma_has_no_readers() {
    model_bounded(3, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_reader_and_a_detacher(&world);
        assert_eq!(world.try_read(0).err(), Some(ReadFail::Detached));
    });
}

/// Hazards C-19 and C-22: a late reader of the first space reaches a VMA that now lives in the second space,
/// with an external rwsem or with readers in its count.
#[test]
fn c19_late_reader_rejects_a_vma_of_another_space() {
    for rwsems in [EXTERNAL, [true, false], [false, true]] {
        model_bounded(2, move || {
            let world = World::with_external_rwsems(rwsems);
            world::a_late_reader_of_a_recycled_vma(&world);
        });
    }
}

#[test]
fn c19_late_reader_does_not_disturb_a_reader_of_the_new_life() {
    model_bounded(1, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_late_reader_and_a_reader_of_this_life(&world);
        check_recycled(&world);
    });
}

/// Hazard C-22 (h): a killed writer leaves the VMA unlocked.
#[test]
fn c22_killed_writer_leaves_the_vma_unlocked() {
    model_bounded(3, || {
        let world = World::with_external_rwsems(EXTERNAL);
        let place = world.try_read(0).unwrap();
        let writer = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            if world.vma().write_killable(&guard).is_err() {
                assert!(!world.vma().is_write_locked(&guard));
                world.vma().write(&guard);
            }
            world.set(2);
            world.vma().unlock_write();
        });
        assert_eq!(world.get(), 1);
        world.unlock(place);
        writer.join().unwrap();
        let place = world.try_read(0).expect("the killed writer left the VMA locked");
        world.unlock(place);
    });
}
