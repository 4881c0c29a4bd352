//! Readers that stand in slots.
//!
//! Each thread of a model is a CPU of its own, so a thread that reads twice at once does so by its slot, then
//! by the count.

use super::world::{self, START, World, change, check_recycled, late_look, look, spawn};
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{Rank, ReaderPlace, rank};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn stands(place: ReaderPlace<'_>) -> bool {
    format!("{place:?}").contains("Some")
}

#[test]
fn a_standing_reader_and_a_writer() {
    model_bounded(5, || {
        let world = World::per_cpu();
        world::a_reader_and_a_writer(&world);
    });
}

#[test]
fn two_standing_readers_and_a_writer() {
    model_bounded(1, || {
        let world = World::per_cpu();
        world::two_readers_and_a_writer(&world);
    });
}

/// The second lock of each reader is counted, because its slot is taken.
#[test]
fn standing_and_counted_readers_and_a_writer() {
    let twice = |world: &World| {
        let places = [world.try_read(0), world.try_read(0)];
        if places.iter().any(Result::is_ok) {
            world.get();
        }
        places.into_iter().flatten().for_each(|place| world.unlock(place));
    };
    model_bounded(2, move || {
        let world = World::per_cpu();
        let writer = spawn(&world, change);
        twice(&world);
        writer.join().unwrap();
    });
}

/// Nobody has told the VMA to go per-CPU: readers that contend do, and a writer finds those before and after.
#[test]
fn contending_readers_and_a_writer() {
    // Not loom's: tells of all schedules together.
    static STOOD: AtomicBool = AtomicBool::new(false);
    model_bounded(2, || {
        let world = World::with_slots();
        let reader = |world: &World| {
            for _ in 0..2 {
                if let Ok(place) = world.try_read(0) {
                    STOOD.fetch_or(stands(place), SeqCst);
                    world.get();
                    world.unlock(place);
                }
            }
        };
        let others = [spawn(&world, reader), spawn(&world, reader)];
        change(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        let guard = world.spaces[0].write();
        world.dies(&guard);
        assert!(world.vma().is_detached());
    });
    assert!(STOOD.load(SeqCst), "nobody ever met");
}

/// The reader is inside for certain, so it is collected; its leaving wakes the writer, unless it was faster.
#[test]
fn a_collected_reader_leaves() {
    model(|| {
        let world = World::per_cpu();
        let place = world.try_read(0).unwrap();
        assert!(stands(place));
        let writer = spawn(&world, change);
        assert_eq!(world.get(), 1);
        world.unlock(place);
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

/// Two sections: a reader that is late for the first does not get into the second.
#[test]
fn a_standing_reader_and_two_sections() {
    model_bounded(3, || {
        let world = World::per_cpu();
        let writer = spawn(&world, |world| {
            change(world);
            world.vma().make_per_cpu();
            change(world);
        });
        look(&world);
        writer.join().unwrap();
    });
}

#[test]
fn a_standing_reader_and_a_detacher() {
    model_bounded(5, || {
        let world = World::per_cpu();
        world::a_reader_and_a_detacher(&world);
        assert!(world.vma().is_detached());
    });
}

/// Hazards C-19 and C-22, by slots: a late reader of the first space stands in its slot with a VMA of the
/// second, which has per-CPU readers again. It does not believe in it, and its leaving lets that space's
/// writer go on.
#[test]
fn c19_a_late_standing_reader_and_a_vma_of_another_space() {
    model_bounded(3, || {
        let world = World::per_cpu();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            world.born(1, START, 2);
            world.vma().make_per_cpu();
            let guard = world.spaces[1].write();
            world.vma().write(&guard);
            world.set(3);
            world.vma().unlock_write();
        });
        late_look(&world);
        writer.join().unwrap();
        check_recycled(&world);
    });
}

/// The second space counts its readers alone, and the VMA goes back to the first after it: a late reader of
/// the first that stands in a slot is waited for in every life.
#[test]
fn c19_a_late_standing_reader_and_a_space_that_counts() {
    model_bounded(4, || {
        let world = World::half_per_cpu();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            world.born(1, START, 2);
            // As another late reader of the first space leaves it.
            world.vma().make_per_cpu();
            let guard = world.spaces[1].write();
            world.dies(&guard);
            drop(guard);
            world.born(0, START, 1);
            let guard = world.spaces[0].write();
            world.dies(&guard);
            world.set(9);
        });
        if let Ok(place) = world.try_read(0) {
            assert_eq!(world.get(), 1);
            world.unlock(place);
        }
        writer.join().unwrap();
        assert!(world.vma().is_detached());
    });
}

/// The same beside a reader of the second space that comes by the count.
#[test]
fn c19_a_late_standing_reader_and_a_reader_of_this_life() {
    model_bounded(1, || {
        let world = World::per_cpu();
        world::a_late_reader_and_a_reader_of_this_life(&world);
        let guard = world.spaces[1].write();
        world.dies(&guard);
        assert!(world.vma().is_detached(), "no count was lost");
    });
}

/// Hazard C-22 (h): a killed writer has counted a reader that came by a slot. When that reader leaves,
/// another of the same VMA stands there. They change places, and the writer waits for both, in either order.
#[test]
fn c22_readers_leave_from_other_slots_after_a_killed_writer() {
    model_bounded(2, || {
        let world = World::per_cpu();
        let first = world.try_read(0).unwrap();
        let killed = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            assert!(world.vma().write_killable(&guard).is_err());
        });
        killed.join().unwrap();
        world.vma().make_per_cpu();
        let second = world.try_read(0).unwrap();
        assert!(stands(first) && stands(second), "both came by the same slot");
        let writer = spawn(&world, change);
        // SAFETY: the thread has a reference to the world.
        let first = unsafe { core::mem::transmute::<ReaderPlace<'_>, ReaderPlace<'static>>(first) };
        // The lock passes to another task.
        rank::released::<LoomHost>(Rank::Vma);
        let elsewhere = spawn(&world, move |world| {
            rank::acquired::<LoomHost>(Rank::Vma);
            assert_eq!(world.get(), 1);
            world.unlock(first);
        });
        assert_eq!(world.get(), 1);
        world.unlock(second);
        writer.join().unwrap();
        elsewhere.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}
