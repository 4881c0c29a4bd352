//! MADV_DONTNEED and guard pages concurrent with each other, munmap and faults (C-4, C-61).
//!
//! The code under test is `call/madvise/pages.rs` and `guard.rs` beside it. After a discard has returned, no
//! CPU reads the old page, even if another call has cleared the entry and has not yet flushed the TLBs. Each
//! scenario therefore loads through a CPU that has the old translation (`Scene::acquainted`). Page tables
//! that a discard frees are tested in `reclaim.rs`, huge pages in `huge.rs`.

use crate::{
    explore::{explore, thread},
    scene::{PAGE, Scene, page, unmap, unmapped, value},
};
use freehold::{call::Advice, error::MadviseError};

#[test]
fn c04_overlapping_discards_flush_every_entry() {
    explore("DONTNEED concurrent with DONTNEED and munmap", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..4);
        let [first, second, third] = [0, 1, 2].map(|number| scene.acquainted(number, 0..4));
        thread::scope(|scope| {
            let (scene, mut first, mut second, mut third) = (&scene, first, second, third);
            scope.spawn(move || {
                scene.process.madvise(page(0), 2 * PAGE, Advice::DontNeed).unwrap();
                for number in 0..2 {
                    assert_eq!(scene.process.load(&mut first, page(number)), Ok(0u64));
                }
            });
            scope.spawn(move || {
                let advised = scene.process.madvise(page(0), 3 * PAGE, Advice::DontNeed);
                for number in 0..2 {
                    assert_eq!(scene.process.load(&mut second, page(number)), Ok(0u64));
                }
                // A page that DONTNEED found unmapped may stay readable on other CPUs until the munmap has
                // completed.
                let last = scene.process.load(&mut second, page(2));
                let unmapping = advised == Err(MadviseError::NotMapped) && last == Ok(value(2));
                assert!(
                    last == Ok(0) || last == unmapped(page(2)) || unmapping,
                    "{last:?} after {advised:?}"
                );
            });
            scope.spawn(move || {
                unmap(&scene.process, 2..4);
                for number in 2..4 {
                    assert_eq!(scene.process.load::<u64>(&mut third, page(number)), unmapped(page(number)));
                }
            });
        });
        scene.assert_unmapped(2..4);
        assert_eq!(scene.process.rss().anon, 0);
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c61_dontneed_concurrent_with_stores() {
    explore("DONTNEED concurrent with stores", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let first = scene.acquainted(0, 0..2);
        thread::scope(|scope| {
            let (scene, mut first) = (&scene, first);
            scope.spawn(move || {
                for _ in 0..2 {
                    scene.process.madvise(page(0), 2 * PAGE, Advice::DontNeed).unwrap();
                    let found =
                        [0, 1].map(|number| scene.process.load::<u64>(&mut first, page(number)).unwrap());
                    assert!((found[0] == 0 || found[0] == 7) && found[1] == 0, "{found:?}");
                }
            });
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                for _ in 0..2 {
                    scene.process.store(&mut cpu, page(0), 7u64).unwrap();
                    let found: u64 = scene.process.load(&mut cpu, page(0)).unwrap();
                    assert!(found == 0 || found == 7, "{found}");
                }
            });
        });
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c04_guards_concurrent_with_stores() {
    explore("guards concurrent with stores and DONTNEED", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let first = scene.acquainted(0, 0..2);
        thread::scope(|scope| {
            let (scene, mut first) = (&scene, first);
            scope.spawn(move || {
                scene.process.madvise(page(0), PAGE, Advice::GuardInstall).unwrap();
                assert_eq!(scene.process.load::<u64>(&mut first, page(0)), unmapped(page(0)));
                scene.process.madvise(page(0), PAGE, Advice::GuardRemove).unwrap();
                assert_eq!(scene.process.load(&mut first, page(0)), Ok(0u64));
            });
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                let stored = scene.process.store(&mut cpu, page(0), 0u64);
                assert!(stored == Ok(()) || stored == unmapped(page(0)), "{stored:?}");
                assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(value(1)));
            });
            scope.spawn(move || scene.process.madvise(page(0), PAGE, Advice::DontNeed).unwrap());
        });
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}
