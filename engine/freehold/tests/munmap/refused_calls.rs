//! A munmap that fails half-way unmaps nothing (C-10, C-30).
//!
//! The reason for the error is at the far end of the range: a VMA that must not be split there, a sealed VMA,
//! or one VMA more than the limit permits. A sectioned munmap must detect the error before it unmaps the
//! first section. `refused` makes such a munmap on every design and with sections of 2 MiB, and compares the
//! mapped pages and their contents with those before the call. A new reason to refuse a munmap needs a test
//! that calls `refused`.

use super::*;
use freehold::{
    error::MunmapError,
    file::{Frames, Special},
    space::Unmap,
    vma::flags::VmFlags,
};
use support::failure::{Failure, at_every_allocation};

const SECTION: u64 = 2 << 20;

/// Returns all designs, and a design that unmaps in sections.
fn designs() -> impl Iterator<Item = Locking> {
    let sectioned = |locking: Locking| locking.unmap(Unmap::Sectioned { bytes: SECTION });
    Locking::ALL.into_iter().chain(Locking::ALL.into_iter().take(1).map(sectioned))
}

/// ```text
///  0    4              1536    1540
///  |-rw-|     ...        |-last-|         unmapped: 2 .. 1538
/// ```
fn refused(locking: Locking, last: impl FnOnce(&Process), expected: MunmapError) {
    let world = World::new();
    let process = world.process(locking);
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 4);
    fill(&process, &mut cpu, BASE, 4, 10);
    last(&process);
    let before = layout(&process);
    assert_eq!(process.munmap(BASE + 2 * PAGE, 1536 * PAGE), Err(expected), "{locking:?}");
    assert_filled(&process, &mut cpu, BASE, 4, 10);
    assert_eq!(process.munmap_atomic(BASE + 2 * PAGE, 1536 * PAGE), Err(expected));
    assert_filled(&process, &mut cpu, BASE, 4, 10);
    process.check();
    let covered = |layout: &[(u64, u64)]| layout.iter().map(|(start, end)| end - start).sum::<u64>();
    assert_eq!(covered(&layout(&process)), covered(&before));
    drop((process, cpu));
    world.end();
}

#[test]
fn c30_munmap_that_would_split_a_special_vma_unmaps_nothing() {
    for locking in designs() {
        let special = |process: &Process| {
            let vdso = Special::new(process.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
            let flags = VmFlags::READ | VmFlags::MAYREAD;
            process.install_special(BASE + 1536 * PAGE, 4 * PAGE, flags, &vdso).unwrap();
        };
        refused(locking, special, MunmapError::NotSplittable);
    }
}

#[test]
fn munmap_of_a_sealed_vma_unmaps_nothing() {
    for locking in designs() {
        let sealed = |process: &Process| {
            anon(process, BASE + 1536 * PAGE, 4);
            process.mseal(BASE + 1536 * PAGE, 4 * PAGE, 0).unwrap();
        };
        refused(locking, sealed, MunmapError::Sealed);
    }
}

/// The sections are full of VMAs, so that each section needs tree nodes. From one allocation on, all
/// allocations of the heap fail.
#[test]
fn c10_munmap_without_memory_unmaps_nothing() {
    const SECTIONS: u64 = 6;
    for locking in designs() {
        let points = at_every_allocation(&[Failure::HeapFromThere], |point| {
            let world = World::new();
            let process = world.process(locking);
            for n in 0..SECTIONS * 256 {
                let prot = if n % 2 == 0 { R } else { RW };
                process.mmap(BASE + n * 2 * PAGE, 2 * PAGE, prot, ANON | MapFlags::FIXED, None, 0).unwrap();
            }
            let whole = layout(&process);
            let result = point.fail(|| process.munmap(BASE + PAGE, (SECTIONS * 512 - 2) * PAGE));
            process.check();
            match result {
                Ok(()) => assert_eq!(layout(&process), [(0, 1), (SECTIONS * 512 - 1, SECTIONS * 512)]),
                Err(error) => {
                    assert_eq!(error, MunmapError::OutOfMemory);
                    let first_and_last_cut = whole.len()..whole.len() + 3;
                    let left = layout(&process);
                    let left = left.len();
                    assert!(first_and_last_cut.contains(&left), "{locking:?} {point}: {left} left");
                }
            }
            drop(process);
            world.end();
        });
        assert!(points > 0, "no failure was injected");
    }
}

/// The end of a section lies inside a VMA that must not be split. A munmap that covers the whole VMA succeeds
/// nevertheless.
#[test]
fn section_borders_do_not_split_vmas() {
    for locking in designs() {
        let world = World::new();
        let process = world.process(locking);
        anon(&process, BASE, 512);
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
        let flags = VmFlags::READ | VmFlags::MAYREAD;
        process.install_special(BASE + 1022 * PAGE, 4 * PAGE, flags, &vdso).unwrap();
        anon(&process, BASE + 1026 * PAGE, 1000);
        process.munmap(BASE + PAGE, 2000 * PAGE).unwrap();
        assert_eq!(layout(&process), [(0, 1), (2001, 2026)]);
        process.check();
        drop((process, vdso));
        world.end();
    }
}
