//! The lock of a VMA under all schedules and all orders that the memory model allows.
//!
//! What the lock guards lies in cells that loom watches: a task that is let in too early is reported as a
//! race, and a lost wake-up as a deadlock. The limit of readers is two here. Tests of three threads are
//! bounded, as they say.
#![cfg(loom)]

mod external_rwsem;
mod per_cpu;
mod world;

use freehold_sync::atomic::Ordering::Relaxed;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{ReadFail, VmaSeq};
use world::{Lock, START, World, change, look, spawn};

#[test]
fn a_reader_and_a_writer() {
    model(|| {
        let world = World::new();
        world::a_reader_and_a_writer(&world);
    });
}

/// The writer goes on as a reader of the space: its VMAs are unlocked by then.
#[test]
fn a_reader_and_a_downgrade() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.vma().write(&guard);
            world.set(2);
            world.vma().unlock_write();
            let guard = guard.downgrade();
            world.get();
            drop(guard);
        });
        look(&world);
        writer.join().unwrap();
    });
}

#[test]
fn two_readers_and_a_writer() {
    model_bounded(2, || {
        let world = World::new();
        world::two_readers_and_a_writer(&world);
    });
}

/// To lock it twice, and to change it in two sections.
#[test]
fn a_reader_and_two_sections() {
    model_bounded(3, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            assert!(world.vma().write(&guard));
            assert!(!world.vma().write(&guard), "it is locked already");
            world.set(2);
            world.vma().unlock_write();
            drop(guard);
            change(world);
        });
        look(&world);
        writer.join().unwrap();
    });
}

/// Under the space's lock a reader gets in always, whatever other readers do.
#[test]
fn reading_under_the_space_lock() {
    model_bounded(3, || {
        let world = World::new();
        let reader = spawn(&world, |world| {
            let guard = world.spaces[0].read();
            let place = world.vma().read_under(&guard).unwrap();
            drop(guard);
            world.get();
            world.unlock(place);
        });
        let writer = spawn(&world, change);
        look(&world);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

/// Detached means that nobody reads it any more, and nobody gets in.
#[test]
fn a_reader_and_a_detacher() {
    model(|| {
        let world = World::new();
        world::a_reader_and_a_detacher(&world);
        assert!(world.vma().is_detached());
        assert_eq!(world.try_read(0).err(), Some(ReadFail::Detached));
    });
}

/// Hazards C-19 and C-22: a reader comes from the tree of the first space, as late as it likes. It never
/// takes the VMA of the second space for its own, and its passing by keeps no writer of that space asleep.
#[test]
fn c19_a_late_reader_and_a_vma_of_another_space() {
    model_bounded(4, || {
        let world = World::new();
        world::a_late_reader_of_a_recycled_vma(&world);
    });
}

/// The same, with a second thread of the new space that reads the VMA by right.
#[test]
fn c19_a_late_reader_and_a_reader_of_this_life() {
    model_bounded(2, || {
        let world = World::new();
        world::a_late_reader_and_a_reader_of_this_life(&world);
        let place = world.try_read(1).expect("no count was lost");
        world.unlock(place);
    });
}

/// Hazard C-22 (f): recycled in the same space, elsewhere. Only the bounds tell, and they are believed after
/// the lock.
#[test]
fn c22_a_late_reader_and_a_vma_that_lies_elsewhere() {
    model_bounded(4, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            world.born(0, 2 * START, 2);
        });
        if let Ok(place) = world.try_read(0) {
            let first_life = world.start.load(Relaxed) == START;
            assert_eq!(world.get(), if first_life { 1 } else { 2 });
            world.unlock(place);
        }
        writer.join().unwrap();
        let place = world.try_read(0).unwrap();
        world.unlock(place);
    });
}

/// Hazard C-22 (h): a killed writer takes its bar away, and nothing has changed.
#[test]
fn c22_a_writer_is_killed() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            match world.vma().write_killable(&guard) {
                Ok(_) => {
                    world.set(2);
                    world.vma().unlock_write();
                }
                Err(_) => assert!(!world.vma().is_write_locked(&guard)),
            }
        });
        let seen = world.try_read(0).map(|place| {
            let seen = world.get();
            assert_eq!(world.get(), seen);
            world.unlock(place);
        });
        assert!(matches!(seen, Ok(()) | Err(ReadFail::Locked)), "{seen:?}");
        writer.join().unwrap();
        let place = world.try_read(0).expect("the bar was left behind");
        world.unlock(place);
    });
}

/// Killed while a reader is inside for certain; then it tries again, unkillably, and the reader's leaving
/// wakes it.
#[test]
fn c72_a_writer_is_killed_and_tries_again() {
    model(|| {
        let world = World::new();
        let place = world.try_read(0).unwrap();
        let writer = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            if world.vma().write_killable(&guard).is_err() {
                world.vma().write(&guard);
            }
            world.set(2);
            world.vma().unlock_write();
        });
        assert_eq!(world.get(), 1);
        world.unlock(place);
        writer.join().unwrap();
        let place = world.try_read(0).unwrap();
        world.unlock(place);
    });
}

/// A write lock that was held before a killed attempt to take it again is still held.
#[test]
fn a_killed_second_attempt_leaves_the_lock() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.vma().write(&guard);
            LoomHost::current_task().kill();
            assert_eq!(world.vma().write_killable(&guard), Ok(false));
            assert!(world.vma().is_write_locked(&guard));
            world.set(2);
            world.vma().unlock_write();
        });
        look(&world);
        writer.join().unwrap();
    });
}

/// Hazard C-20: at the limit the next reader is told so, and every count is given back.
#[test]
fn c20_too_many_readers() {
    model_bounded(3, || {
        let world = World::new();
        let visit = |world: &World| match world.try_read(0) {
            Ok(place) => {
                assert_eq!(world.get(), 1);
                world.unlock(place);
            }
            Err(fail) => assert_eq!(fail, ReadFail::TooMany),
        };
        let others = [spawn(&world, visit), spawn(&world, visit)];
        visit(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        let guard = world.spaces[0].write();
        world.dies(&guard);
        assert!(world.vma().is_detached());
    });
}

#[test]
fn c20_too_many_readers_is_an_error_and_no_panic() {
    model(|| {
        let world = World::new();
        let _last = world.try_read(0).unwrap();
        let place = world.try_read(0).unwrap();
        assert_eq!(world.try_read(0).err(), Some(ReadFail::TooMany));
        let guard = world.spaces[0].try_read().unwrap();
        assert_eq!(world.vma().read_under(&guard).err(), Some(ReadFail::TooMany));
        world.unlock(place);
        let place = world.vma().read_under(&guard).unwrap();
        drop(guard);
        world.unlock(place);
        world.unlock(place);
        let guard = world.spaces[0].write();
        world.dies(&guard);
        assert!(world.vma().is_detached());
    });
}

/// The numbers, the VMA's and the mmap lock's, pass all ones and zero.
#[test]
fn the_sequence_wraps() {
    model_bounded(3, || {
        let world =
            World::with_seq([Lock::with_seq(u32::MAX - 3), Lock::new()], VmaSeq::with_seq(u32::MAX - 3));
        let writer = spawn(&world, |world| {
            change(world);
            change(world);
        });
        look(&world);
        writer.join().unwrap();
        assert_eq!(world.spaces[0].seq(), 2);
        let place = world.try_read(0).unwrap();
        assert_eq!(world.get(), 3);
        world.unlock(place);
    });
}

/// The end of one VMA's write lock is nobody else's: the writer goes on with the mmap lock held, and locks it
/// once more.
#[test]
fn a_reader_and_a_writer_that_unlocks_and_locks() {
    model_bounded(3, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            for value in 2..4 {
                assert!(world.vma().write(&guard));
                world.set(value);
                world.vma().unlock_write();
            }
        });
        look(&world);
        writer.join().unwrap();
        let place = world.try_read(0).unwrap();
        assert_eq!(world.get(), 3);
        world.unlock(place);
    });
}
