//! MADV_COLLAPSE concurrent with stores, reverse map walks and pins of the small pages.
//!
//! The code under test is `fault/collapse.rs` and `collapse.rs` of `freehold-vmspace`. A collapse replaces
//! 512 small pages by a huge page. A collapse must not lose a store, a pinned page or an entry that a reverse
//! map walk looks for. A collapse that fails leaves the small pages as they were.
//!
//! Each scenario sets up `small`, runs the collapse on CPU 0 and the concurrent work on a second thread, and
//! ends with `values` and `end`. `values` compares pages 0, 1, 2, 300 and 511 with their expected contents.
//! Page 2 was never stored to, so it must be zero. A scenario that permits the collapse to fail lists the
//! permitted errors. The scene and its helpers `put`, `look` and `end` come from `scene.rs` and `huge.rs`.
//! `main.rs` explains how the checker runs a scenario. The number of schedules is 10 or 20 percent of the
//! usual number (`explore.rs`), because a collapse takes many steps. `tests/huge/collapse.rs` of `freehold`
//! tests collapses without concurrency.

use crate::{
    explore::{explore, thread},
    huge::{HUGE, end, look, put},
    scene::{ANON, OLD, PAGE, Scene, TABLE, map, page},
};
use freehold::{
    call::Advice,
    error::MadviseError,
    remote::PinFlags,
    space::{Locking, ThpDisable},
};
use freehold_machine::Process;

/// Returns a scene with four small pages in the range of one huge page. Page `n` contains 1000 + `n`.
fn small(locking: Locking) -> Scene {
    let scene = Scene::huge(locking);
    scene.process.set_thp_disable(ThpDisable::UnlessAdvised);
    map(&scene.process, HUGE, ANON);
    let mut cpu = scene.machine.cpu(OLD);
    for number in [0, 1, 300, 511] {
        put(&scene.process, &mut cpu, number, 1000 + number);
    }
    scene
}

/// Collapses the pages under the first page table.
fn collapse(process: &Process) -> Result<(), MadviseError> {
    process.madvise(page(0), TABLE * PAGE, Advice::Collapse)
}

/// Checks that no store is lost, whether or not the pages became a huge page. Page 0 contains `first`.
fn values(scene: &Scene, first: u64) {
    let mut cpu = scene.machine.cpu(3);
    let found = [0, 1, 300, 511, 2].map(|number| look(&scene.process, &mut cpu, number));
    assert_eq!(found, [first, 1001, 1300, 1511, 0]);
}

#[test]
fn collapse_loses_no_concurrent_store() {
    explore("collapse concurrent with a store", 10, |locking| {
        let scene = small(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.machine.cpu(0).call(|| collapse(&scene.process)).unwrap();
            });
            scope.spawn(|| {
                // This CPU has a writable translation of the page.
                let mut cpu = scene.machine.cpu(OLD);
                assert_eq!(look(&scene.process, &mut cpu, 0), 1000);
                put(&scene.process, &mut cpu, 0, 7);
                assert_eq!(look(&scene.process, &mut cpu, 0), 7);
            });
        });
        values(&scene, 7);
        assert_eq!(scene.process.rss().anon, 512);
        end(scene);
    });
}

/// Two pages migrate. The walk over the entries of a page runs before, during or after the collapse.
#[test]
fn collapse_concurrent_with_migration_keeps_contents() {
    explore("collapse concurrent with a migration", 20, |locking| {
        let scene = small(locking);
        // The frame numbers are read before the collapse, because a lookup during the collapse waits until it
        // ends.
        let frames = [511, 300].map(|number| scene.process.frame_at(page(number)).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                // The migration holds a reference to the page, or has replaced its entry by a marker.
                let said = scene.machine.cpu(0).call(|| collapse(&scene.process));
                let allowed = [Ok(()), Err(MadviseError::InUse), Err(MadviseError::Invalid)];
                assert!(allowed.contains(&said), "{said:?}");
            });
            scope.spawn(|| frames.map(|pfn| scene.engine.migrate(pfn)));
        });
        values(&scene, 1000);
        end(scene);
    });
}

/// Reverse map walks begin after the collapse has closed the entries, and before it has copied all pages. If
/// a migration put its marker into an entry that the collapse is about to copy, the collapse would treat the
/// page as a hole and fill it with zeroes.
#[test]
fn rmap_walks_during_collapse_lose_no_page() {
    explore("collapse concurrent with reverse map walks", 20, |locking| {
        let scene = small(locking);
        let mut cpu = scene.machine.cpu(OLD);
        // Many pages, so that the walks begin before the last page is copied.
        let pages = (16..TABLE).step_by(16);
        pages.clone().for_each(|number| put(&scene.process, &mut cpu, number, 1000 + number));
        let last = [496, 480, 464, 448].map(|number| scene.process.frame_at(page(number)).unwrap());
        let flushes = scene.machine.flushes();
        thread::scope(|scope| {
            scope.spawn(|| scene.machine.cpu(0).call(|| collapse(&scene.process)).unwrap());
            scope.spawn(|| {
                while scene.machine.flushes() == flushes {
                    thread::yield_now();
                }
                last.map(|pfn| scene.engine.migrate(pfn))
            });
        });
        values(&scene, 1000);
        for number in pages {
            assert_eq!(look(&scene.process, &mut cpu, number), 1000 + number);
        }
        drop(cpu);
        end(scene);
    });
}

#[test]
fn collapse_keeps_concurrently_pinned_pages() {
    explore("collapse concurrent with a fast pin", 10, |locking| {
        let scene = small(locking);
        let pins = thread::scope(|scope| {
            scope.spawn(|| {
                let said = scene.machine.cpu(0).call(|| collapse(&scene.process));
                assert!(matches!(said, Ok(()) | Err(MadviseError::InUse)), "{said:?}");
            });
            let pin = scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                cpu.run(scene.process.mmu());
                cpu.call(|| scene.process.pin_user_pages_fast(page(0), 1, PinFlags::WRITE)).unwrap()
            });
            pin.join().unwrap()
        });
        // A store through the pin reaches the page.
        pins.write(0, &9u64.to_le_bytes()).unwrap();
        values(&scene, 9);
        drop(pins);
        end(scene);
    });
}
