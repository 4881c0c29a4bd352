//! MADV_COLLAPSE beside whatever comes to the small pages meanwhile: stores, walkers of the reverse map,
//! pins.

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

/// Small pages with 1000 and more, among them the first and the last.
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

fn collapse(process: &Process) -> Result<(), MadviseError> {
    process.madvise(page(0), TABLE * PAGE, Advice::Collapse)
}

/// Nothing that was stored is lost, whether it became a huge page or not.
fn values(scene: &Scene, first: u64) {
    let mut cpu = scene.machine.cpu(3);
    let found = [0, 1, 300, 511, 2].map(|number| look(&scene.process, &mut cpu, number));
    assert_eq!(found, [first, 1001, 1300, 1511, 0]);
}

#[test]
fn stores_beside_it() {
    explore("a store to a page that becomes part of a huge one", 10, |locking| {
        let scene = small(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.machine.cpu(0).call(|| collapse(&scene.process)).unwrap();
            });
            scope.spawn(|| {
                // One that remembers the page, and may write to it.
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

/// A page moves, wherever a walk over its entries finds it: among the small pages, or not any more.
#[test]
fn moves_beside_it() {
    explore("a page that moves beside its becoming part of a huge one", 20, |locking| {
        let scene = small(locking);
        // By number, known before: a question to the process waits until the collapse is over.
        let frames = [511, 300].map(|number| scene.process.frame_at(page(number)).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                // The migration has a reference to the page, or a marker in its place.
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

/// Walks of the reverse map that begin when entries are closed already, and not all pages copied: a page that
/// has a marker for its entry just when its turn to be copied comes would be taken for none, and zeroes would
/// come in its place.
#[test]
fn walks_in_the_midst_of_it() {
    explore("walks to pages that are just being copied into a huge one", 20, |locking| {
        let scene = small(locking);
        let mut cpu = scene.machine.cpu(OLD);
        // Many, so that the walks begin before the last is copied.
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
fn pins_beside_it() {
    explore("a pin, got quickly, beside a page's becoming part of a huge one", 10, |locking| {
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
        // What is stored by it is stored to the page.
        pins.write(0, &9u64.to_le_bytes()).unwrap();
        values(&scene, 9);
        drop(pins);
        end(scene);
    });
}
