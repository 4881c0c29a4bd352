//! Readers that take the external rwsem of the VMA.

use super::world::{self, World, change, check_recycled, spawn};
use freehold_sync::ReadFail;
use freehold_sync::testing::{LoomHost, model_bounded};

const EXTERNAL: [bool; 2] = [true, true];

#[test]
fn a_reader_and_a_writer() {
    model_bounded(3, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_reader_and_a_writer(&world);
    });
}

#[test]
fn two_readers_and_a_writer() {
    model_bounded(1, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::two_readers_and_a_writer(&world);
    });
}

#[test]
fn reading_under_the_space_lock() {
    model_bounded(2, || {
        let world = World::with_external_rwsems(EXTERNAL);
        let writer = spawn(&world, change);
        let guard = world.spaces[0].read();
        let place = world.vma().read_under(&guard).expect("no writer can be there");
        drop(guard);
        world.get();
        world.unlock(place);
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

#[test]
fn a_reader_and_a_detacher() {
    model_bounded(3, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_reader_and_a_detacher(&world);
        assert_eq!(world.try_read(0).err(), Some(ReadFail::Detached));
    });
}

/// Hazards C-19 and C-22: a late reader of the first space comes to a VMA that has a life in the second by
/// then, with a lock beside it, or counted in its word.
#[test]
fn c19_a_late_reader_and_a_vma_of_another_space() {
    for rwsems in [EXTERNAL, [true, false], [false, true]] {
        model_bounded(2, move || {
            let world = World::with_external_rwsems(rwsems);
            world::a_late_reader_of_a_recycled_vma(&world);
        });
    }
}

#[test]
fn c19_a_late_reader_and_a_reader_of_this_life() {
    model_bounded(1, || {
        let world = World::with_external_rwsems(EXTERNAL);
        world::a_late_reader_and_a_reader_of_this_life(&world);
        check_recycled(&world);
    });
}

/// Hazard C-22 (h): a killed writer leaves the VMA as it was.
#[test]
fn c22_a_writer_is_killed() {
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
        let place = world.try_read(0).expect("the lock was left behind");
        world.unlock(place);
    });
}
