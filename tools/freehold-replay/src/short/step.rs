//! The steps of a replay in limited memory, as `perform.rs` reports them.

use super::ShortMemory;
use crate::image::{Image, Task};
use crate::world::World;
use freehold_machine::Cpu;
use freehold_pagetable::X86_4;
use freehold_trace::plan::{Step, StepKind};
use std::sync::Arc;

/// Begins a step of `task` on its CPU, if memory is limited. Takes pages away if few frames are free. Looks
/// at the hot pages after each second of the recording, and at the end of an address space.
pub(in super::super) fn begin_step(world: &World, cpu: &mut Cpu<X86_4>, task: &Task<'_>, step: &Step) {
    let Some(short) = &world.short else { return };
    let look = cpu.call(|| short.begin(&world.engine, task.number, step.time));
    let ends = matches!(step.what, StepKind::Exit | StepKind::Exec(_));
    if look {
        world.live().iter().for_each(|image| short.look(image, step.time));
    } else if ends && let Some(image) = task.image.as_ref().filter(|image| Arc::strong_count(image) == 1) {
        short.look(image, step.time);
    }
}

impl ShortMemory {
    /// Adds the hot pages of an address space at `time`, and the number of those that are in memory.
    pub(super) fn look(&self, image: &Image, time: u64) {
        self.looked(image.heat.look(image.process(), time));
    }
}

/// Returns the time in nanoseconds for which tasks have waited for the device so far. 0 if memory is not
/// limited.
pub(in super::super) fn waited(world: &World) -> u64 {
    world.short.as_ref().map_or(0, |short| short.waited())
}

/// Adds a fault at `address` that took `ns` nanoseconds of the host, and that began when tasks had
/// [`waited`] this long.
pub(in super::super) fn add_fault(world: &World, image: &Image, address: u64, ns: u64, waited: u64) {
    let Some(short) = &world.short else { return };
    short.add_fault(ns, waited);
    image.heat.access(short.recorded(), address);
}
