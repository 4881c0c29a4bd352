//! Two tasks that need memory, on a machine with exactly one frame too few. Each task takes frames from the
//! other one at the safe point.
//!
//! The code under test is `shortage.rs`. Each task reads the two pages of its own file through a
//! mapping, and the machine has three frames for the four pages. At the safe point a task unmaps and drops
//! the pages of the other task's file. Both tasks must read all their pages: a task that loses a frame loses
//! it to a task that makes progress.

use crate::{
    drop_clean::{Store, open_on},
    explore::{explore, thread},
    files::Opened,
    scene::{OLD, PAGE, R, Scene, page},
};
use freehold::{
    PageRange, Pfn,
    call::Advice,
    platform::{FramePurpose, FrameRequest, MemoryShortage, PageOwner, Platform, ShortageAnswer},
    space::MapFlags,
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Machine, Mmu, Process};
use std::sync::Arc;

/// Frames that the machine has for the pages of both files.
const FRAMES: usize = 3;

/// Takes all free frames but [`FRAMES`] from the machine.
fn hold_frames(machine: &Machine) -> Vec<Pfn> {
    let mut held = Vec::new();
    let mut frame = [Pfn::new(0)];
    while machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame) == 1 {
        held.push(frame[0]);
    }
    free(machine, &held[..FRAMES]);
    held.split_off(FRAMES)
}

/// Frees frames that [`hold_frames`] has taken.
fn free(machine: &Machine, frames: &[Pfn]) {
    // SAFETY: the frames were allocated from the machine, and nothing has used them.
    unsafe { machine.free_frames(frames) };
}

/// Maps the two pages of a file of its own into a process, at page 0.
fn map_own(scene: &Scene, process: &Process, word: u64) -> Opened {
    let file = open_on(scene, Store::default());
    file.mapping().write_at(0, &word.to_le_bytes()).unwrap();
    file.mapping().write_at(PAGE, &(word + 1).to_le_bytes()).unwrap();
    file.mapping().write_back(PageRange::ALL).unwrap();
    assert_eq!(file.drop_clean(PageRange::ALL), 2);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    assert_eq!(process.mmap(page(0), 2 * PAGE, R, flags, Some(&file), 0), Ok(page(0)));
    file
}

#[test]
fn tasks_that_take_frames_from_each_other_both_end() {
    explore("two tasks with one frame too few", 50, |locking| {
        let scene = Scene::new(locking);
        let other = scene.another();
        let files = [map_own(&scene, &scene.process, 10), map_own(&scene, &other, 20)];
        let mut old = scene.machine.cpu(OLD);
        // The tables of both processes exist before memory is short.
        assert_eq!(scene.process.load(&mut old, page(0)), Ok(10u64));
        assert_eq!(other.load(&mut old, page(0)), Ok(20u64));
        let spaces = [scene.process.space().clone(), other.space().clone()];
        let mappings = files.clone().map(|file| file.mapping().clone());
        // Takes all pages from the process for which memory is not short.
        let take = move |shortage: &MemoryShortage<'_, Mmu<DefaultFormat>>| {
            let PageOwner::Space(mmu) = shortage.owner else { panic!("memory is short for a space") };
            let victim = usize::from(mmu.root() == spaces[0].mmu().root());
            spaces[victim].madvise(page(0), 2 * PAGE, Advice::DontNeed).unwrap();
            mappings[victim].drop_clean(PageRange::ALL);
            ShortageAnswer::Retry
        };
        let held = hold_frames(&scene.machine);
        scene.machine.set_memory_short(Some(Arc::new(take)));
        thread::scope(|scope| {
            for (cpu, (process, word)) in [(&scene.process, 10u64), (&other, 20)].into_iter().enumerate() {
                let machine = &scene.machine;
                scope.spawn(move || {
                    let mut cpu = machine.cpu(cpu);
                    for _ in 0..2 {
                        assert_eq!(process.load(&mut cpu, page(0)), Ok(word));
                        assert_eq!(process.load(&mut cpu, page(1)), Ok(word + 1));
                    }
                });
            }
        });
        scene.machine.set_memory_short(None);
        free(&scene.machine, &held);
        drop((files, other, old));
        scene.end();
    });
}
