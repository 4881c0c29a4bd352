//! The steps of a replay in limited memory, as `perform.rs` reports them.

use super::{ShortMemory, heat::HotPage};
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
    let last = task.image.as_ref().filter(|image| ends && Arc::strong_count(image) == 1);
    if !look && last.is_none() {
        return;
    }
    let hot = |image: &Arc<Image>| image.heat.hot(image.process(), step.time);
    let all: Vec<HotPage> = world.live().iter().flat_map(hot).collect();
    let of_last = last.map(hot);
    let looked = if look { &all } else { of_last.as_ref().unwrap_or(&all) };
    short.looked(looked, &all, step.time);
    short.ended(of_last.unwrap_or_default());
}

/// Looks at the hot pages of all processes.
pub(super) fn look_at_all(world: &World, short: &ShortMemory, time: u64) {
    let hot = |image: &Arc<Image>| image.heat.hot(image.process(), time);
    let all: Vec<HotPage> = world.live().iter().flat_map(hot).collect();
    short.looked(&all, &all, time);
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
