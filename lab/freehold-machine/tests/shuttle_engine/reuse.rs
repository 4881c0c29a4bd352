//! VMAs that are reused, also in another address space, while a task still looks them up at their old place
//! (C-19, C-22).
//!
//! The slab (`vma/slab/`) hands out a freed VMA at once, because its memory is type-stable. A lookup without
//! a lock can therefore reach a VMA that has a new life, and must notice it (`space/vma_lock.rs`). Each
//! scenario maps and unmaps in one thread so that VMAs are reused, and looks up or accesses memory in other
//! threads. A lookup must find a VMA of its own space with the properties of its address, or none.

use crate::{
    explore::{explore, thread},
    scene::{ANON, FIXED, PAGE, R, RW, Scene, map, page, unmap, unmapped},
};
use freehold::vma::flags::VmFlags;
use freehold_machine::Process;

#[test]
fn c19_lookup_never_returns_a_vma_of_another_space() {
    explore("lookups concurrent with VMAs reused between two spaces", 150, |locking| {
        let scene = Scene::new(locking);
        let other = scene.another();
        let spaces = [(&scene.process, 1), (&other, 2)];
        thread::scope(|scope| {
            scope.spawn(|| {
                // Each space gets from the slab the VMA that the other space has just freed.
                let mut cpu = scene.machine.cpu(4);
                for _ in 0..2 {
                    for (space, mark) in spaces {
                        map(space, 0..1, ANON);
                        space.store(&mut cpu, page(0), mark).unwrap();
                        unmap(space, 0..1);
                    }
                }
            });
            for (number, (space, mark)) in spaces.into_iter().enumerate() {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    for _ in 0..2 {
                        let found = space.load::<u64>(&mut cpu, page(0));
                        let own = found == Ok(0) || found == Ok(mark) || found == unmapped(page(0));
                        assert!(own, "space {mark} saw {found:?}");
                        let stored = space.store(&mut cpu, page(0), mark);
                        assert!(stored == Ok(()) || stored == unmapped(page(0)), "{stored:?}");
                    }
                });
            }
        });
        other.check();
        drop(other);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c19_lookup_notices_a_reused_vma() {
    // The VMA is reused in another space at the same address, or in the same space at another address.
    for elsewhere in [false, true] {
        explore("lookups of a VMA that is reused", 100, move |locking| {
            let scene = Scene::new(locking);
            let other = scene.another();
            let (space, there) = if elsewhere { (&scene.process, 2) } else { (&other, 0) };
            assert_eq!(scene.process.mmap(page(0), PAGE, R, FIXED, None, 0), Ok(page(0)));
            thread::scope(|scope| {
                scope.spawn(|| {
                    unmap(&scene.process, 0..1);
                    map(space, there..there + 1, ANON);
                    // A lookup that began before the reuse continues here.
                    thread::yield_now();
                    unmap(space, there..there + 1);
                });
                scope.spawn(|| {
                    for _ in 0..3 {
                        check_place(&scene.process, page(0), false);
                    }
                });
            });
            drop(other);
            scene.assert_empty();
            scene.end();
        });
    }
}

#[test]
fn c22_lookup_finds_a_complete_vma_or_none() {
    explore("lookups concurrent with VMAs reused at another address", 100, |locking| {
        let scene = Scene::new(locking);
        // The page is read-only at one address and writable at the other. A lookup never sees a mixture.
        let place = |number: u64| (page(2 * number), if number == 0 { R } else { RW });
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..4 {
                    let (at, prot) = place(round % 2);
                    let mapped = scene.process.mmap(at, PAGE, prot, FIXED, None, 0);
                    assert_eq!(mapped, Ok(at));
                    scene.process.munmap(at, PAGE).unwrap();
                }
            });
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number as usize);
                    for _ in 0..2 {
                        check_place(&scene.process, place(number).0, number == 1);
                        let stored = scene.process.store(&mut cpu, page(2 * number), 1u64);
                        assert!(stored.is_err() || number == 1, "a store to read-only memory");
                    }
                });
            }
        });
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c22_lookups_survive_freed_vma_memory() {
    explore("lookups concurrent with a trim of the VMA slab", 60, |locking| {
        let scene = Scene::new(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    map(&scene.process, 0..1, ANON);
                    unmap(&scene.process, 0..1);
                    scene.engine.trim();
                }
            });
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    check_place(&scene.process, page(0), true);
                    let stored = scene.process.store(&mut cpu, page(0), 1u64);
                    assert!(stored == Ok(()) || stored == unmapped(page(0)), "{stored:?}");
                    if let Some(info) = scene.process.space().vma_info(page(0)) {
                        assert_eq!(info.range, page(0)..page(1));
                    }
                });
            }
        });
        scene.assert_empty();
        scene.end();
    });
}

/// Looks up the VMA at `at`. Checks that a VMA found there is one page long and has the expected protection.
fn check_place(process: &Process, at: u64, writable: bool) {
    if let Some(vma) = process.find_vma(at) {
        assert_eq!(vma.range(), at..at + PAGE);
        assert_eq!(vma.flags().contains(VmFlags::WRITE), writable);
    }
}
