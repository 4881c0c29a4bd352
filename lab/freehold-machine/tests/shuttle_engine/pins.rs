//! Pages pinned without a lock, beside everything that takes pages away, shares them or moves them (C-56,
//! C-57). A program and the holder of a pin see one memory, as long as the page is mapped; and a pin keeps
//! its frame, whatever becomes of the mapping.

use crate::{
    explore::{CHECKED, explore, thread},
    files::{file, map_file},
    scene::{ANON, PAGE, R, Scene, TABLE, Vcpu, map, page, unmap, value},
};
use freehold::{
    call::{Advice, RemapFlags},
    error::PinError,
    remote::{PinFlags, Pins},
    space::MapFlags,
};
use freehold_machine::{Machine, Process};

const WRITE: PinFlags = PinFlags::WRITE;
const READ: PinFlags = PinFlags::empty();

/// Pins a page as a task that runs the process, without waiting or with.
fn fast_only(process: &Process, cpu: &mut Vcpu, number: u64, flags: PinFlags) -> Option<Pins<Machine>> {
    cpu.run(process.mmu());
    let pins = cpu.call(|| process.pin_user_pages_fast_only(page(number), 1, flags)).unwrap();
    (!pins.is_empty()).then_some(pins)
}

fn fast(process: &Process, cpu: &mut Vcpu, number: u64, flags: PinFlags) -> Result<Pins<Machine>, PinError> {
    cpu.run(process.mmu());
    cpu.call(|| process.pin_user_pages_fast(page(number), 1, flags))
}

fn word(pins: &Pins<Machine>) -> u64 {
    let mut bytes = [0; 8];
    pins.read(0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// The page behind the pin is the program's: what either stores the other sees, and the child sees neither.
fn assert_one(scene: &Scene, pins: &Pins<Machine>, number: u64, child: &Process, childs: &[u64]) {
    let mut cpu = scene.machine.cpu(3);
    assert_eq!(scene.process.frame_at(page(number)), Some(pins.frames()[0]));
    scene.process.store(&mut cpu, page(number), 70u64).unwrap();
    assert_eq!(word(pins), 70, "the program and the pin have parted");
    if pins.write(0, &71u64.to_le_bytes()).is_ok() {
        assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(71u64));
    }
    let theirs = child.load::<u64>(&mut cpu, page(number)).unwrap();
    assert!(childs.contains(&theirs), "the child has {theirs}");
}

#[test]
fn c57_a_pin_beside_fork() {
    for flags in [READ, WRITE] {
        explore("a lock-free pin beside fork and a store", 80, move |locking| {
            let scene = Scene::new(locking);
            scene.fill(0..2);
            let (mut child, mut pins) = (None, None);
            thread::scope(|scope| {
                scope.spawn(|| child = Some(Process::of(scene.process.fork().unwrap())));
                scope.spawn(|| {
                    pins = Some(fast(&scene.process, &mut scene.machine.cpu(0), 0, flags).unwrap())
                });
                scope.spawn(|| {
                    let mut cpu = scene.acquainted(1, 1..2);
                    scene.process.store(&mut cpu, page(0), 5u64).unwrap();
                    scene.process.store(&mut cpu, page(1), 6u64).unwrap();
                });
            });
            let (child, pins) = (child.unwrap(), pins.unwrap());
            {
                // C-21: the child's memory is that of one moment, the copied page included.
                let mut cpu = scene.machine.cpu(2);
                let [first, second] = [0, 1].map(|n| child.load::<u64>(&mut cpu, page(n)).unwrap());
                assert!(second != 6 || first == 5, "the child has the second store and not the first");
            }
            assert_one(&scene, &pins, 0, &child, &[value(0), 5]);
            child.check();
            drop((child, pins));
            scene.end();
        });
    }
}

/// A marker of a page that moves must not carry a pinned page into the child.
#[test]
fn c57_a_pin_beside_fork_and_migration() {
    explore("a pin, fork, and a move of the page", 120, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let (mut child, mut pins) = (None, None);
        thread::scope(|scope| {
            scope.spawn(|| child = Some(Process::of(scene.process.fork().unwrap())));
            scope.spawn(|| pins = Some(fast(&scene.process, &mut scene.machine.cpu(0), 0, WRITE).unwrap()));
            scope.spawn(|| {
                let pfn = scene.process.frame_at(page(0));
                let _ = pfn.map(|pfn| scene.engine.migrate(pfn));
            });
        });
        let (child, pins) = (child.unwrap(), pins.unwrap());
        assert_one(&scene, &pins, 0, &child, &[value(0)]);
        child.check();
        drop((child, pins));
        scene.end();
    });
}

/// The last other side of a shared page stores or ends while the page is pinned to be read: it is either
/// copied or ours alone.
#[test]
fn c56_a_pin_of_a_shared_page() {
    explore("a pin of a shared page beside stores and an end", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let child = Process::of(scene.process.fork().unwrap());
        let grandchild = Process::of(child.fork().unwrap());
        let mut pins = None;
        thread::scope(|scope| {
            scope.spawn(|| pins = Some(fast(&scene.process, &mut scene.machine.cpu(0), 0, READ).unwrap()));
            scope.spawn(|| child.store(&mut scene.machine.cpu(1), page(0), 9u64).unwrap());
            scope.spawn(|| drop(grandchild));
        });
        let pins = pins.unwrap();
        assert_eq!(word(&pins), value(0));
        assert_one(&scene, &pins, 0, &child, &[9]);
        child.check();
        drop((child, pins));
        scene.end();
    });
}

/// Two pins of one page to read, beside a store: all have one page in the end.
#[test]
fn two_pins_and_a_store() {
    explore("two pins of a page that is shared, and a store", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let child = Process::of(scene.process.fork().unwrap());
        let (mut first, mut second) = (None, None);
        thread::scope(|scope| {
            scope.spawn(|| first = Some(fast(&scene.process, &mut scene.machine.cpu(0), 0, READ).unwrap()));
            scope.spawn(|| {
                second = Some(scene.process.pin_user_pages(page(0), 1, PinFlags::LONGTERM).unwrap())
            });
            scope.spawn(|| scene.process.store(&mut scene.machine.cpu(1), page(0), 5u64).unwrap());
        });
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.frames(), second.frames());
        assert_one(&scene, &first, 0, &child, &[value(0)]);
        drop((first, second, child));
        scene.end();
    });
}

/// The tables that are walked without a lock go meanwhile, with all that they map, and others come.
#[test]
fn a_pin_beside_munmap_of_whole_tables() {
    explore("a lock-free pin beside munmap and another mapping", 120, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..TABLE, ANON);
        scene.process.store(&mut scene.machine.cpu(0), page(3), value(3)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 0..TABLE);
                map(&scene.process, 0..TABLE, ANON);
                scene.process.store(&mut scene.machine.cpu(0), page(3), 5u64).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                let pins = [
                    fast_only(&scene.process, &mut cpu, 3, WRITE),
                    fast_only(&scene.process, &mut cpu, 3, READ),
                ];
                for pins in pins.into_iter().flatten() {
                    assert!([value(3), 0, 5].contains(&word(&pins)), "{}", word(&pins));
                }
            });
        });
        unmap(&scene.process, 0..TABLE);
        scene.assert_empty();
        scene.end();
    });
}

/// Tables move to another address: what is pinned is what was there at that address.
#[test]
fn a_pin_beside_tables_that_move() {
    explore("a lock-free pin beside mremap of whole tables", 80, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..TABLE, ANON);
        scene.process.store(&mut scene.machine.cpu(0), page(3), value(3)).unwrap();
        let target = 4 * TABLE;
        thread::scope(|scope| {
            scope.spawn(|| {
                let (bytes, flags) = (TABLE * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED);
                scene.process.mremap(page(0), bytes, bytes, flags, page(target)).unwrap();
                map(&scene.process, 0..TABLE, ANON);
                scene.process.store(&mut scene.machine.cpu(0), page(target + 3), 8u64).unwrap();
                scene.process.store(&mut scene.machine.cpu(0), page(3), 7u64).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                if let Some(pins) = fast_only(&scene.process, &mut cpu, target + 3, WRITE) {
                    assert!([value(3), 8].contains(&word(&pins)));
                    if let Some(old) = fast_only(&scene.process, &mut cpu, 3, WRITE) {
                        assert_ne!(old.frames(), pins.frames(), "one page at two addresses");
                    }
                }
            });
        });
        unmap(&scene.process, 0..TABLE);
        unmap(&scene.process, target..target + TABLE);
        scene.assert_empty();
        scene.end();
    });
}

/// DONTNEED and rights that go: a pin is of what was there, and a pin to store is of what could be stored to.
#[test]
fn a_pin_beside_dontneed_and_mprotect() {
    explore("a pin beside DONTNEED and mprotect", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let mut pins = None;
        thread::scope(|scope| {
            scope.spawn(|| scene.process.madvise(page(0), PAGE, Advice::DontNeed).unwrap());
            scope.spawn(|| scene.process.mprotect(page(0), PAGE, R).unwrap());
            scope.spawn(|| pins = fast(&scene.process, &mut scene.machine.cpu(0), 0, WRITE).ok());
        });
        if let Some(pins) = pins {
            assert!([value(0), 0].contains(&word(&pins)));
            pins.write(0, &3u64.to_le_bytes()).unwrap();
            let now = scene.process.load(&mut scene.machine.cpu(0), page(0));
            let ours = scene.process.frame_at(page(0)) == Some(pins.frames()[0]);
            assert_eq!(now, Ok(if ours { 3u64 } else { 0 }));
        }
        scene.end();
    });
}

/// A page of a file is pinned while it is cut off; what comes back there is another page.
#[test]
fn a_pin_beside_truncation() {
    explore("a pin of a file's page beside truncation", 100, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (file(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        other.store(&mut scene.machine.cpu(2), page(1), 3u64).unwrap();
        scene.process.load::<u64>(&mut scene.machine.cpu(2), page(1)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                file.mapping().truncate(2 * PAGE).unwrap();
            });
            scope.spawn(|| match fast(&scene.process, &mut scene.machine.cpu(0), 1, WRITE) {
                Ok(pins) => {
                    assert!([3, 0].contains(&word(&pins)));
                    pins.write(0, &8u64.to_le_bytes()).unwrap();
                    pins.unpin_dirty();
                }
                Err(error) => assert_eq!(error, PinError::BadAddress),
            });
        });
        let now = other.load::<u64>(&mut scene.machine.cpu(0), page(1));
        assert!([Ok(0), Ok(8)].contains(&now), "{now:?}");
        drop((file, other));
        scene.end();
    });
}

/// A move of a file's page, and memory that fails, beside a pin.
#[test]
fn pins_beside_moves_and_failures() {
    explore("a pin beside a move and a failure", 80, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let (mut pins, mut moved) = (None, None);
        thread::scope(|scope| {
            scope.spawn(|| pins = fast(&scene.process, &mut scene.machine.cpu(0), 0, WRITE).ok());
            scope.spawn(|| {
                let pfn = scene.process.frame_at(page(0)).unwrap();
                moved = Some(scene.engine.soft_offline(pfn));
            });
        });
        let pins = pins.unwrap();
        assert_eq!(scene.process.frame_at(page(0)), Some(pins.frames()[0]), "{moved:?}");
        assert_eq!(word(&pins), value(0));
        drop(pins);
        let Scene { process, engine, machine, .. } = scene;
        process.check();
        let failed = engine.failed_frames() as usize;
        assert_eq!(failed, usize::from(moved == Some(Ok(()))));
        drop((process, engine));
        assert_eq!(machine.accounting().frames, failed);
    });
}

/// Pins that cannot be counted are refused, and the count is right afterwards.
#[test]
fn pins_run_out() {
    if !CHECKED {
        return;
    }
    explore("more pins than can be counted", 2, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let mut pins: Vec<_> = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let pin = || fast_only(&scene.process, &mut scene.machine.cpu(0), 0, WRITE);
                drop((pin(), pin()));
            });
            scope.spawn(|| {
                for pin in (0..8).map_while(|_| scene.process.pin_user_pages(page(0), 1, WRITE).ok()) {
                    pins.push(pin);
                }
            });
        });
        let error = loop {
            match scene.process.pin_user_pages(page(0), 1, WRITE) {
                Ok(pin) => pins.push(pin),
                Err(error) => break error,
            }
        };
        assert_eq!((error, pins.len()), (PinError::TooMany, 8));
        assert!(fast_only(&scene.process, &mut scene.machine.cpu(0), 0, WRITE).is_none());
        drop(pins.pop());
        assert!(fast_only(&scene.process, &mut scene.machine.cpu(0), 0, WRITE).is_some());
        drop(pins);
        map(&scene.process, 0..1, ANON | MapFlags::FIXED);
        unmap(&scene.process, 0..1);
        scene.assert_empty();
        scene.end();
    });
}
