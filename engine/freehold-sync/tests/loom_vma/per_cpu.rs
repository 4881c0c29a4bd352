//! Tests with readers in slots. `main.rs` says what loom checks here and what loom does not check.
//!
//! Each thread of a model is its own CPU. So a thread that takes two read locks at once takes the first
//! through its slot and the second through the count. A writer that waits for readers makes the VMA use its
//! count again; a test that needs slots afterwards calls `make_per_cpu` again.

use super::world::{self, START, World, change, check_recycled, look, read_as_late_reader, spawn};
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{Rank, ReaderPlace, rank};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Returns true if the reader is in a slot, and false if it is in the count.
fn is_in_slot(place: ReaderPlace<'_>) -> bool {
    format!("{place:?}").contains("Some")
}

#[test]
fn reader_in_a_slot_and_writer_exclude_each_other() {
    model_bounded(5, || {
        let world = World::per_cpu();
        world::a_reader_and_a_writer(&world);
    });
}

#[test]
fn writer_excludes_two_readers_in_slots() {
    model_bounded(1, || {
        let world = World::per_cpu();
        world::two_readers_and_a_writer(&world);
    });
}

/// The second lock of each reader is in the count, because the slot of the reader is in use.
#[test]
fn writer_waits_for_readers_in_slots_and_in_the_count() {
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

/// Contending readers, not the test, make the VMA per-CPU. The writer finds the readers that entered before
/// and after that change.
#[test]
fn contending_readers_make_the_vma_per_cpu() {
    // Not loom's type, because the value is kept across all schedules.
    static ENTERED_SLOT: AtomicBool = AtomicBool::new(false);
    model_bounded(2, || {
        let world = World::with_slots();
        let reader = |world: &World| {
            for _ in 0..2 {
                if let Ok(place) = world.try_read(0) {
                    ENTERED_SLOT.fetch_or(is_in_slot(place), SeqCst);
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
    assert!(ENTERED_SLOT.load(SeqCst), "no reader contended");
}

/// The reader holds the lock through a slot, so the writer moves the reader to the count, unless the reader
/// unlocks first. The reader wakes the writer when it unlocks.
#[test]
fn reader_moved_to_the_count_wakes_the_writer() {
    model(|| {
        let world = World::per_cpu();
        let place = world.try_read(0).unwrap();
        assert!(is_in_slot(place));
        let writer = spawn(&world, change);
        assert_eq!(world.get(), 1);
        world.unlock(place);
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

/// The writer locks the VMA in two sections. A reader that takes the lock between the sections does not hold
/// it during the second section.
#[test]
fn reader_in_a_slot_is_excluded_from_two_write_sections() {
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
fn detached_vma_has_no_readers_in_slots() {
    model_bounded(5, || {
        let world = World::per_cpu();
        world::a_reader_and_a_detacher(&world);
        assert!(world.vma().is_detached());
    });
}

/// Hazards C-19 and C-22, with slots: a late reader of the first space enters its slot with a VMA that now
/// belongs to the second space and is per-CPU again. The reader rejects the VMA, and the writer of the second
/// space continues when the reader leaves.
#[test]
fn c19_late_reader_in_a_slot_rejects_a_vma_of_another_space() {
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
        read_as_late_reader(&world);
        writer.join().unwrap();
        check_recycled(&world);
    });
}

/// The second space counts its readers and uses no slots. Afterwards the VMA returns to the first space. In
/// every life of the VMA, a late reader of the first space may be in a slot, and the writer waits for that
/// reader.
#[test]
fn c19_space_without_slots_waits_for_a_late_reader_in_a_slot() {
    model_bounded(4, || {
        let world = World::half_per_cpu();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            world.born(1, START, 2);
            // Another late reader of the first space leaves the VMA in this state.
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

/// Adds a reader of the second space that enters through the count.
#[test]
fn c19_late_reader_in_a_slot_does_not_disturb_a_reader_of_the_new_life() {
    model_bounded(1, || {
        let world = World::per_cpu();
        world::a_late_reader_and_a_reader_of_this_life(&world);
        let guard = world.spaces[1].write();
        world.dies(&guard);
        assert!(world.vma().is_detached(), "a reader's count was lost");
    });
}

/// Hazard C-22 (h): a killed writer has counted a reader that entered through a slot. When that reader
/// leaves, another reader of the VMA is in the slot. The two readers are interchanged, and the writer waits
/// for both, in either order.
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
        assert!(is_in_slot(first) && is_in_slot(second), "both readers entered the same slot");
        let writer = spawn(&world, change);
        // SAFETY: the thread that uses the place holds a reference to the world.
        let first = unsafe { core::mem::transmute::<ReaderPlace<'_>, ReaderPlace<'static>>(first) };
        // Another task releases this lock.
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
