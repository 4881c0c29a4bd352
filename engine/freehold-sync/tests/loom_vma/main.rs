//! Tests of the VMA lock under all schedules and all orders that the memory model allows.
//!
//! The guarded data is in cells that loom checks: loom reports a task that is admitted too early as a race,
//! and a lost wake-up as a deadlock. Under loom, a VMA admits at most two readers (`VMA_COUNT_LIMIT`). The
//! tests with three threads bound the number of preemptions.
//!
//! This file tests readers in the count, `per_cpu.rs` tests readers in slots, and `external_rwsem.rs` tests
//! readers of an external rwsem. Scenarios that the three files share are in `world.rs`. loom does not check
//! the total order of `SeqCst` on which slots rely; the unit tests in `src/axioms/slots.rs` check that order.
#![cfg(loom)]

mod external_rwsem;
mod per_cpu;
mod world;

use freehold_sync::atomic::Ordering::Relaxed;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{ReadFail, VmaSeq};
use world::{Lock, START, World, change, look, spawn};

#[test]
fn reader_and_writer_exclude_each_other() {
    model(|| {
        let world = World::new();
        world::a_reader_and_a_writer(&world);
    });
}

/// The writer becomes a reader of the space, after it has unlocked its VMAs.
#[test]
fn downgraded_writer_and_vma_reader_read_together() {
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
fn writer_excludes_two_readers() {
    model_bounded(2, || {
        let world = World::new();
        world::two_readers_and_a_writer(&world);
    });
}

/// The writer locks the VMA twice in one section, and changes it in two sections.
#[test]
fn reader_is_excluded_from_two_write_sections() {
    model_bounded(3, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            assert!(world.vma().write(&guard));
            assert!(!world.vma().write(&guard), "the VMA is already locked");
            world.set(2);
            world.vma().unlock_write();
            drop(guard);
            change(world);
        });
        look(&world);
        writer.join().unwrap();
    });
}

/// Under the mmap lock of the space a reader is always admitted, no matter what other readers do.
#[test]
fn read_under_the_mmap_lock_always_succeeds() {
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

/// A detached VMA has no readers and admits none.
#[test]
fn detached_vma_has_no_readers() {
    model(|| {
        let world = World::new();
        world::a_reader_and_a_detacher(&world);
        assert!(world.vma().is_detached());
        assert_eq!(world.try_read(0).err(), Some(ReadFail::Detached));
    });
}

/// Hazards C-19 and C-22: a late reader has found the VMA in the tree of the first space. The reader never
/// uses the VMA of the second space, and its transient count does not keep a writer of that space asleep.
#[test]
fn c19_late_reader_rejects_a_vma_of_another_space() {
    model_bounded(4, || {
        let world = World::new();
        world::a_late_reader_of_a_recycled_vma(&world);
    });
}

/// Adds a second thread that belongs to the new space and reads the VMA.
#[test]
fn c19_late_reader_does_not_disturb_a_reader_of_the_new_life() {
    model_bounded(2, || {
        let world = World::new();
        world::a_late_reader_and_a_reader_of_this_life(&world);
        let place = world.try_read(1).expect("no count was lost");
        world.unlock(place);
    });
}

/// Hazard C-22 (f): the VMA is recycled in the same space at another address. Only the bounds of the VMA show
/// that it was recycled, and a reader checks the bounds after it has the lock.
#[test]
fn c22_late_reader_sees_the_new_bounds_of_a_recycled_vma() {
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

/// Hazard C-22 (h): a killed writer clears its draining bit, and the VMA is unchanged.
#[test]
fn c22_killed_writer_leaves_the_vma_unlocked() {
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
        let place = world.try_read(0).expect("the killed writer left the VMA locked or draining");
        world.unlock(place);
    });
}

/// The writer is killed while a reader is inside. Then the writer waits again, unkillably, and the reader
/// wakes the writer when the reader leaves.
#[test]
fn c72_killed_writer_succeeds_with_an_unkillable_wait() {
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

/// A write lock that was held before a killed attempt to take it again is still held afterwards.
#[test]
fn killed_second_attempt_keeps_the_write_lock() {
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

/// Hazard C-20: at the limit the next reader gets an error, and every reader is uncounted when it leaves.
#[test]
fn c20_reader_at_the_limit_fails_and_no_count_is_lost() {
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
fn c20_too_many_readers_is_an_error_not_a_panic() {
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

/// The numbers of the VMA and of the mmap lock wrap from all ones to zero.
#[test]
fn sequence_numbers_wrap() {
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

/// The end of one write lock does not end the writer's right: the writer keeps the mmap lock and locks the
/// VMA again.
#[test]
fn writer_can_unlock_a_vma_and_lock_it_again() {
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
