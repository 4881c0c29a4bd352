//! Pages that are pinned without a lock, concurrent with calls that unmap, share or move them (C-56, C-57).
//!
//! The code under test is `remote/pin.rs` in `freehold`. The scenarios check two rules. A program and the
//! holder of a pin see the same memory as long as the page is mapped; `assert_one` checks this rule after a
//! scenario. A pin keeps its frame allocated, whatever happens to the mapping. A scenario pins page 0 in one
//! thread (`fast`, or `fast_only` for the path that takes no lock) and makes the other calls in other
//! threads. `pinned.rs` tests references that are no pins.

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

/// Pins a page with the path that takes no lock, on a CPU that runs the process. Returns `None` if this path
/// cannot pin the page.
fn fast_only(process: &Process, cpu: &mut Vcpu, number: u64, flags: PinFlags) -> Option<Pins<Machine>> {
    cpu.run(process.mmu());
    let pins = cpu.call(|| process.pin_user_pages_fast_only(page(number), 1, flags)).unwrap();
    (!pins.is_empty()).then_some(pins)
}

/// Pins a page on a CPU that runs the process. If the path without a lock fails, the call takes locks and
/// faults the page in.
fn fast(process: &Process, cpu: &mut Vcpu, number: u64, flags: PinFlags) -> Result<Pins<Machine>, PinError> {
    cpu.run(process.mmu());
    cpu.call(|| process.pin_user_pages_fast(page(number), 1, flags))
}

/// Returns the first word of the pinned page.
fn word(pins: &Pins<Machine>) -> u64 {
    let mut bytes = [0; 8];
    pins.read(0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Checks that the program and the pin use the same page: each sees the stores of the other. Checks that the
/// child does not see these stores: it finds one of the values `childs`.
fn assert_one(scene: &Scene, pins: &Pins<Machine>, number: u64, child: &Process, childs: &[u64]) {
    let mut cpu = scene.machine.cpu(3);
    assert_eq!(scene.process.frame_at(page(number)), Some(pins.frames()[0]));
    scene.process.store(&mut cpu, page(number), 70u64).unwrap();
    assert_eq!(word(pins), 70, "the program and the pin use different pages");
    if pins.write(0, &71u64.to_le_bytes()).is_ok() {
        assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(71u64));
    }
    let theirs = child.load::<u64>(&mut cpu, page(number)).unwrap();
    assert!(childs.contains(&theirs), "unexpected value {theirs} in the child");
}

#[test]
fn c57_fast_pin_concurrent_with_fork() {
    for flags in [READ, WRITE] {
        explore("a fast pin concurrent with fork and a store", 80, move |locking| {
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
                // C-21: the child has the contents of all pages, including the copied page, at one moment.
                let mut cpu = scene.machine.cpu(2);
                let [first, second] = [0, 1].map(|n| child.load::<u64>(&mut cpu, page(n)).unwrap());
                assert!(second != 6 || first == 5, "the child has the second store but not the first");
            }
            assert_one(&scene, &pins, 0, &child, &[value(0), 5]);
            child.check();
            drop((child, pins));
            scene.end();
        });
    }
}

/// If fork copies a migration entry, the child must not get a page that is pinned in the parent.
#[test]
fn c57_fast_pin_concurrent_with_fork_and_migration() {
    explore("a pin concurrent with fork and migration", 120, |locking| {
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

/// C-56: two processes share the page with the first process; one stores and one exits while the first
/// process pins the page for reading. The pinned page is exclusive, either as a copy or because no process
/// shares it any more.
#[test]
fn c56_read_pin_of_a_shared_page_gets_an_exclusive_page() {
    explore("a pin of a shared page concurrent with stores and an exit", 60, |locking| {
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

/// Two threads pin one page for reading, while another thread stores to it. Afterwards both pins and the
/// program use one page.
#[test]
fn concurrent_pins_and_a_store_share_one_page() {
    explore("two pins of a shared page concurrent with a store", 60, |locking| {
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

/// While the lock-free walk runs, its page tables are freed with all their pages, and new tables are
/// installed.
#[test]
fn fast_pin_concurrent_with_munmap_of_whole_tables() {
    explore("a fast pin concurrent with munmap and another mapping", 120, |locking| {
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

/// Page tables move to another address. A pin gets only a page that was mapped at the address of the pin.
#[test]
fn fast_pin_concurrent_with_a_move_of_whole_tables() {
    explore("a fast pin concurrent with mremap of whole tables", 80, |locking| {
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

/// A page is pinned only if it was present, and pinned for writing only if it was writable.
#[test]
fn fast_pin_concurrent_with_dontneed_and_mprotect() {
    explore("a pin concurrent with DONTNEED and mprotect", 60, |locking| {
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

/// A page of a file is pinned while the file is truncated. When the file grows again, the file gets another
/// page.
#[test]
fn fast_pin_concurrent_with_truncation() {
    explore("a pin of a file's page concurrent with truncation", 100, |locking| {
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

/// A soft offline of the page runs concurrently with a pin. Either the page moves before it is pinned, or the
/// soft offline fails.
#[test]
fn fast_pin_concurrent_with_soft_offline() {
    explore("a pin concurrent with soft offline", 80, |locking| {
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

/// Pins beyond the largest count are refused, and the count is correct afterwards.
#[test]
fn pins_beyond_the_largest_count_are_refused() {
    if !CHECKED {
        return;
    }
    explore("more pins than the count can hold", 2, |locking| {
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
