//! Tests of the shipped VMA lock with readers in slots, in every execution that the C11 memory model allows.
//!
//! A reader that enters a slot and a writer that looks for readers rely on the total order of four `SeqCst`
//! accesses (`vma_lock/mod.rs`, "The slots"). loom cannot check that order; the [checker above](super) can.
//! Each test builds a [`World`], runs a reader and a writer with [`check`], and asserts that at least one
//! execution used a slot. If one of the four accesses is weaker, the accesses to `World::data` are a data
//! race and the test fails. To add a case, write one closure for each thread; three threads are the limit
//! ([`Model`]).

use super::{Model, Plain, check};
use crate::counted::Counted;
use crate::{MmapLock, ReaderPlace, ReaderSlots, VmaCount, VmaLock, VmaSeq};
use core::cell::Cell;

/// A VMA with per-CPU readers in an address space, and a field that it guards.
struct World {
    space: MmapLock<Model>,
    count: VmaCount,
    seq: VmaSeq,
    data: Plain,
    /// True if a reader was in a slot in at least one execution.
    stood: Cell<bool>,
}

impl World {
    fn per_cpu() -> Self {
        let slots = Counted::try_new(ReaderSlots::try_new().unwrap()).unwrap();
        let world = World {
            space: MmapLock::new().with_slots(slots),
            count: VmaCount::new(),
            seq: VmaSeq::new(),
            data: Plain::new(1),
            stood: Cell::new(false),
        };
        world.vma().init_detached();
        let guard = world.space.write();
        world.vma().write(&guard);
        world.vma().attach(&guard);
        world.vma().unlock_write();
        drop(guard);
        world.vma().make_per_cpu();
        world
    }

    fn vma(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }

    fn enter(&self) -> Option<ReaderPlace<'_>> {
        let place = self.vma().try_read(&self.space, || true).ok()?;
        self.stood.set(self.stood.get() | place.in_slot());
        Some(place)
    }

    fn look(&self) {
        if let Some(place) = self.enter() {
            self.data.get();
            self.vma().unlock_read::<Model>(place);
        }
    }

    fn change(&self) {
        let guard = self.space.write();
        self.vma().write(&guard);
        self.data.set(2);
        self.vma().unlock_write();
    }
}

#[test]
fn reader_in_a_slot_and_a_writer_are_ordered() {
    let world = World::per_cpu();
    check(&[&|| world.look(), &|| world.change()]);
    assert!(world.stood.get(), "no reader was in a slot");
}

#[test]
fn reader_in_a_slot_ends_before_detach_returns() {
    let world = World::per_cpu();
    let detach = || {
        let guard = world.space.write();
        world.vma().write(&guard);
        world.vma().detach(&guard);
        drop(guard);
        world.data.set(2);
    };
    check(&[&|| world.look(), &detach]);
    assert!(world.stood.get(), "no reader was in a slot");
}
