//! Memory failures, and operations on all entries of a page, concurrent with programs (C-27).
//!
//! The code under test is `rmap/failure.rs`, `failure_swapped.rs`, `entries.rs` and `migrate.rs`. No task
//! keeps an entry of a frame that the engine has taken out of use. A store is present in memory, written back
//! to the disk, or reported as lost. A page that left the cache of its file is not mapped. [`Store`] is the
//! disk. From the words on the disk, the scenarios check that `write_back` has written every store made
//! before the call. A scenario opens its file with `opened` or `opened_twice`, and reports a failure with
//! `fail`. `end` checks that exactly the failed frames are missing at the end.

use crate::{
    explore::{explore, explore_until, thread},
    scene::{OLD, PAGE, RW, Scene, Vcpu, page, unmap, unmapped, value},
};
use freehold::{
    PageIndex, PageRange,
    call::Advice,
    counted::Counted,
    engine::Engine,
    error::SyncError,
    fault::FaultError,
    file::{File, FileAccess, IoError, Mapping, Pager},
    platform::Platform,
    reclaim::ReclaimRequest,
    remote::AccessMode,
    rmap::{Damage, MigrateError, OfflineError, PageError},
    space::{Locking, MapFlags},
};
use freehold_machine::{Effort, Machine, MemorySwap, Process};
use freehold_pagetable::Pfn;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, atomic::AtomicU64};

type Opened = Counted<File<Machine>>;

/// A disk that stores the first three words of each of two pages.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<[[u64; 3]; 2]>>);

impl Pager<Machine> for Store {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        let kept = self.kept(index.get());
        for (offset, word) in kept.iter().enumerate() {
            platform.write_frame(frame, offset * 8, &word.to_le_bytes());
        }
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let words = [0, 1, 2].map(|offset| {
            let mut bytes = [0; 8];
            platform.read_frame(frame, offset * 8, &mut bytes);
            u64::from_le_bytes(bytes)
        });
        // A scheduling point, because a write takes time.
        thread::yield_now();
        self.0.lock().unwrap()[index.get() as usize] = words;
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        let mut kept = self.0.lock().unwrap();
        for index in pages.numbers().start..pages.numbers().end.min(2) {
            kept[index as usize] = [0; 3];
        }
    }
}

impl Store {
    /// Returns the words that the disk has for a page.
    fn kept(&self, index: u64) -> [u64; 3] {
        self.0.lock().unwrap()[index as usize]
    }
}

/// Creates a file of two pages, each with a value on the disk, and maps it shared at page 0.
fn opened(scene: &Scene, store: &Store) -> Opened {
    *store.0.lock().unwrap() = [[value(0), 0, 0], [value(1), 0, 0]];
    let mapping = Mapping::new(&scene.engine, store.clone(), 2 * PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "a file").unwrap();
    map_file(&scene.process, &file);
    file
}

/// Creates the file of [`opened`], and another process with the same mapping.
fn opened_twice(scene: &Scene, store: &Store) -> (Opened, Process) {
    let (file, other) = (opened(scene, store), scene.another());
    map_file(&other, &file);
    (file, other)
}

/// Maps both pages of the file shared, at page 0.
fn map_file(process: &Process, file: &Opened) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    assert_eq!(process.mmap(page(0), 2 * PAGE, RW, flags, Some(file), 0), Ok(page(0)));
}

/// Loads the first word of a page.
fn look(process: &Process, cpu: &mut Vcpu, number: u64) -> Result<u64, FaultError> {
    process.load(cpu, page(number))
}

/// Returns the error of an access to a page that was lost with its frame.
fn failed<T>(number: u64) -> Result<T, FaultError> {
    Err(FaultError::MemoryFailed { addr: page(number) })
}

/// Reports a failure of the memory of `pfn`. The frame may be in use or free. Returns `None` if the frame is
/// busy or has failed before.
fn fail(engine: &Engine<Machine>, pfn: Pfn) -> Option<Damage> {
    match engine.memory_failure(pfn) {
        Ok(damage) => Some(damage),
        Err(OfflineError::Busy | OfflineError::Failed) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Ends a scenario and frees all memory. Checks that exactly the frames that failed stay in use.
fn end(scene: Scene) {
    scene.process.check();
    unmap(&scene.process, 0..8);
    assert_eq!(scene.process.rss(), Default::default());
    let failed = scene.engine.failed_frames();
    let Scene { process, engine, machine, .. } = scene;
    drop((process, engine));
    let left = machine.accounting();
    assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{left}");
}

#[test]
fn memory_failure_concurrent_with_fork_store_and_munmap() {
    explore("a memory failure concurrent with fork, a store and munmap", 40, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let child = Process::of(scene.process.fork().unwrap());
        let pfn = scene.process.frame_at(page(0)).unwrap();
        let (damage, grandchild, stored) = thread::scope(|scope| {
            let failure = scope.spawn(|| fail(&scene.engine, pfn));
            let fork = scope.spawn(|| Process::of(child.fork().unwrap()));
            let store = scope.spawn(|| {
                let mut cpu = scene.acquainted(0, 1..2);
                child.store(&mut cpu, page(0), 7u64)
            });
            scope.spawn(|| {
                unmap(&scene.process, 0..1);
                scene.assert_unmapped(0..1);
            });
            (failure.join().unwrap(), fork.join().unwrap(), store.join().unwrap())
        });
        let mut cpu = scene.machine.cpu(2);
        // A copy that was made before the failure is another page and is kept. A process that maps the failed
        // page has lost it. If the child is the last user of the failed page, a store of the child goes to
        // that page and is lost.
        let lost = damage == Some(Damage::Lost);
        assert!(stored == Ok(()) || (stored == failed(0) && lost), "{stored:?}");
        let found = look(&child, &mut cpu, 0);
        assert!((found == Ok(7) && stored.is_ok()) || (found == failed(0) && lost), "{found:?}, {damage:?}");
        let found = look(&grandchild, &mut cpu, 0);
        // The grandchild has the contents from before or after the store, in the first page or in a copy.
        let kept = found == Ok(7) || found == Ok(value(0));
        assert!(kept || (found == failed(0) && lost), "{found:?}, {damage:?}");
        for process in [&child, &grandchild] {
            assert_ne!(process.frame_at(page(0)), Some(pfn).filter(|_| damage.is_some()));
            assert_eq!(look(process, &mut cpu, 1), Ok(value(1)));
            process.check();
        }
        drop((cpu, child, grandchild));
        end(scene);
    });
}

/// A fault at a swap entry maps the page of the swap cache without the lock of its frame.
#[test]
fn memory_failure_concurrent_with_faults_at_swap_entries() {
    explore("a memory failure of a frame in the swap cache concurrent with faults", 200, |locking| {
        let device = MemorySwap::new(8);
        let (scene, id) = Scene::swapping(locking, &device);
        scene.fill(0..1);
        scene.engine.reclaim(&ReclaimRequest::pages(u64::MAX));
        let [child, other] = [(); 2].map(|()| Process::of(scene.process.fork().unwrap()));
        let mut cpu = scene.machine.cpu(3);
        assert_eq!(look(&scene.process, &mut cpu, 0), Ok(value(0)));
        let pfn = scene.process.frame_at(page(0)).unwrap();
        // In half of the runs no entry maps the page.
        if crate::explore::seed().is_multiple_of(2) {
            unmap(&scene.process, 0..1);
        }
        let (damage, found) = thread::scope(|scope| {
            let failure = scope.spawn(|| fail(&scene.engine, pfn));
            let faults = [(0, &child), (1, &other)].map(|(cpu, process)| {
                let machine = &scene.machine;
                scope.spawn(move || look(process, &mut machine.cpu(cpu), 0))
            });
            (failure.join().unwrap(), faults.map(|fault| fault.join().unwrap()))
        });
        let is_right = |found| found == Ok(value(0)) || (found == failed(0) && damage == Some(Damage::Lost));
        for (process, found) in [&child, &other].into_iter().zip(found) {
            assert!(is_right(found), "{found:?}, {damage:?}");
            assert_ne!(process.frame_at(page(0)), Some(pfn).filter(|_| damage.is_some()), "{damage:?}");
            let again = look(process, &mut cpu, 0);
            assert!(is_right(again), "{again:?}, {damage:?}");
            process.check();
        }
        drop((cpu, child, other));
        assert_eq!(scene.engine.swap_usage(id).map(|usage| usage.used), Some(0));
        end(scene);
    });
}

/// A page of shared memory leaves the swap cache and enters the cache of its file in one step for a failure.
#[test]
fn memory_failure_concurrent_with_the_return_of_a_page_of_shared_memory() {
    explore("a memory failure of a frame in the swap cache concurrent with its return", 200, |locking| {
        let device = MemorySwap::new(8);
        let (scene, id) = Scene::swapping(locking, &device);
        let mapping = Mapping::memfd(&scene.engine, 2 * PAGE).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        map_file(&scene.process, &file);
        let mut cpu = scene.machine.cpu(3);
        scene.process.store(&mut cpu, page(0), value(0)).unwrap();
        scene.engine.reclaim(&ReclaimRequest::pages(u64::MAX));
        scene.process.madvise(page(0), PAGE, Advice::WillNeed).unwrap();
        let is_cached = |pfn: &Pfn| scene.machine.frame(*pfn).is_in_cache();
        let frames = scene.machine.frames();
        let mut cached = (frames.start.get()..frames.end.get()).map(Pfn::new).filter(is_cached);
        let pfn = cached.next().expect("the page is in the swap cache");
        assert_eq!(cached.next(), None);
        let (damage, found) = thread::scope(|scope| {
            let failure = scope.spawn(|| scene.engine.memory_failure(pfn));
            let fault = scope.spawn(|| look(&scene.process, &mut scene.machine.cpu(0), 0));
            (failure.join().unwrap(), fault.join().unwrap())
        });
        let damage = damage.expect("a frame in a cache is not busy");
        let again = look(&scene.process, &mut cpu, 0);
        assert_ne!(scene.process.frame_at(page(0)), Some(pfn), "{damage:?}");
        assert_eq!(scene.machine.frame(pfn).maps(), 0, "{damage:?}");
        for found in [found, again] {
            // The device has the page, so an access fails only if the page was in the cache of its file.
            let is_lost = found.is_err() && damage == Damage::Lost;
            assert!(found == Ok(value(0)) || is_lost, "{found:?}, {damage:?}");
        }
        drop(cpu);
        unmap(&scene.process, 0..2);
        drop((file, mapping));
        assert_eq!(scene.engine.swap_usage(id).map(|usage| usage.used), Some(0));
        end(scene);
    });
}

#[test]
fn memory_failure_of_both_frames_of_a_migration() {
    explore("a migration, and a failure of both frames", 80, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let child = Process::of(scene.process.fork().unwrap());
        let old = scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| match scene.engine.migrate(old) {
                Ok(_) | Err(MigrateError::NoPage | MigrateError::Busy) => {}
                Err(error) => panic!("{error}"),
            });
            // At this moment the migration may be at any stage. The migration processes the parent first, and
            // may not have reached the child.
            scope.spawn(|| {
                if let Some(pfn) = scene.process.frame_at(page(0)) {
                    fail(&scene.engine, pfn);
                }
            });
            scope.spawn(|| {
                if let Some(pfn) = child.frame_at(page(0)) {
                    let done = scene.engine.soft_offline(pfn);
                    assert!(!matches!(done, Err(OfflineError::OutOfMemory)), "{done:?}");
                }
            });
        });
        let mut cpu = scene.machine.cpu(2);
        let (here, there) = (look(&scene.process, &mut cpu, 0), look(&child, &mut cpu, 0));
        assert_eq!(here, there);
        assert!(here == Ok(value(0)) || here == failed(0), "{here:?}");
        child.check();
        drop((cpu, child));
        end(scene);
    });
}

#[test]
fn store_to_a_failed_page_of_a_file_is_kept_or_reported() {
    explore("a failure of a file's page concurrent with a store, a fault and a write", 60, |locking| {
        let (scene, store) = (Scene::new(locking), Store::default());
        let (file, other) = opened_twice(&scene, &store);
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(
            (look(&scene.process, &mut cpu, 0), look(&other, &mut cpu, 0)),
            (Ok(value(0)), Ok(value(0)))
        );
        let pfn = other.frame_at(page(0)).unwrap();
        let (damage, stored, seen, written) = thread::scope(|scope| {
            let failure = scope.spawn(|| fail(&scene.engine, pfn));
            let store = scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0) + 8, 5u64)
            });
            let fault = scope.spawn(|| look(&other, &mut scene.machine.cpu(1), 0));
            let write = scope.spawn(|| file.mapping().write_at(16, &6u64.to_le_bytes()));
            let store = store.join().unwrap();
            (failure.join().unwrap(), store, fault.join().unwrap(), write.join().unwrap())
        });
        assert_eq!(written, Ok(8));
        let damage = damage.expect("only the failure removes the page");
        let told = file.mapping().write_back((0..2).into());
        let found = store.kept(0);
        assert_eq!(found[0], value(0));
        match damage {
            // The failed page was clean and was dropped. Later stores went to another frame.
            Damage::Dropped => {
                assert_eq!((stored, seen, told, found[1], found[2]), (Ok(()), Ok(value(0)), Ok(()), 5, 6))
            }
            Damage::Lost => {
                assert!(seen == Ok(value(0)) || seen == failed(0), "{seen:?}");
                assert_eq!(told, Err(SyncError::Io));
                assert_eq!(file.mapping().write_back((0..2).into()), Ok(()), "the error is reported once");
            }
            other => panic!("{other:?}"),
        }
        for process in [&scene.process, &other] {
            let found = look(process, &mut cpu, 0);
            assert!(found == Ok(value(0)) || (found == failed(0) && damage == Damage::Lost), "{found:?}");
            assert_ne!(process.frame_at(page(0)), Some(pfn));
            process.check();
        }
        drop((cpu, file, other));
        end(scene);
    });
}

#[test]
fn clean_page_is_equal_to_the_disk() {
    explore("mkclean and write-back concurrent with stores", 200, |locking| {
        let (scene, store) = (Scene::new(locking), Store::default());
        let (file, other) = opened_twice(&scene, &store);
        scene.process.store(&mut scene.machine.cpu(OLD), page(0), 1u64).unwrap();
        let pfn = scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            for (number, process) in [&scene.process, &other].into_iter().enumerate() {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    for stored in 1..3u64 {
                        process.store(&mut cpu, page(0) + 8 * (1 + number as u64), stored).unwrap();
                    }
                });
            }
            scope.spawn(|| assert!(scene.engine.mkclean(pfn).unwrap() <= 2));
            scope.spawn(|| file.mapping().write_back((0..1).into()).unwrap());
        });
        file.mapping().write_back((0..1).into()).unwrap();
        assert_eq!(store.kept(0), [1, 2, 2]);
        // The page is clean, so it is dropped without a loss.
        assert_eq!(fail(&scene.engine, pfn), Some(Damage::Dropped));
        assert_eq!(look(&other, &mut scene.machine.cpu(0), 0), Ok(1));
        other.check();
        drop((file, other));
        end(scene);
    });
}

#[test]
fn write_back_writes_every_earlier_store() {
    explore("two write-backs, one after a store, concurrent with mkclean and munmap", 60, |locking| {
        let (scene, store) = (Scene::new(locking), Store::default());
        let (file, other) = opened_twice(&scene, &store);
        scene.process.store(&mut scene.machine.cpu(OLD), page(0), 1u64).unwrap();
        let pfn = scene.process.frame_at(page(0)).unwrap();
        let keep_written = |process: &Process, offset: usize| {
            let mut cpu = scene.machine.cpu(offset);
            for stored in 1..3u64 {
                process.store(&mut cpu, page(0) + 8 * offset as u64, stored).unwrap();
                file.mapping().write_back((0..1).into()).unwrap();
                assert_eq!(store.kept(0)[offset], stored, "the store is not on the disk after write-back");
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                keep_written(&other, 1);
                unmap(&other, 0..2);
            });
            scope.spawn(|| keep_written(&scene.process, 2));
            scope.spawn(|| assert!(scene.engine.mkclean(pfn).unwrap() <= 3));
            scope.spawn(|| assert!(scene.engine.try_to_unmap(pfn).unwrap() <= 4));
        });
        assert_eq!(store.kept(0), [1, 2, 2]);
        drop((file, other));
        end(scene);
    });
}

/// The mapping through which the store was made is unmapped concurrently with the write-back.
#[test]
fn write_back_writes_stores_of_a_mapping_being_unmapped() {
    explore(
        "write-back after a store, concurrent with another write-back and munmap of the storing mapping",
        150,
        |locking| {
            let (scene, store) = (Scene::new(locking), Store::default());
            let (file, other) = opened_twice(&scene, &store);
            let mut cpu = scene.machine.cpu(OLD);
            assert_eq!(look(&other, &mut cpu, 0), Ok(value(0)));
            let stored = AtomicBool::new(false);
            thread::scope(|scope| {
                // This write-back may clear the dirty bit of the frame just after the entry has become dirty.
                scope.spawn(|| file.mapping().write_back((0..1).into()).unwrap());
                scope.spawn(|| {
                    other.store(&mut scene.machine.cpu(0), page(0) + 8, 5u64).unwrap();
                    stored.store(true, SeqCst);
                    unmap(&other, 0..2);
                });
                scope.spawn(|| {
                    let before = stored.load(SeqCst);
                    file.mapping().write_back((0..1).into()).unwrap();
                    assert!(
                        !before || store.kept(0)[1] == 5,
                        "the store is not on the disk after write-back"
                    );
                });
            });
            file.mapping().write_back((0..1).into()).unwrap();
            assert_eq!(store.kept(0), [value(0), 5, 0]);
            drop((cpu, file, other));
            end(scene);
        },
    );
}

#[test]
fn try_to_unmap_concurrent_with_stores_loses_none() {
    explore("try_to_unmap of a file's page concurrent with stores and munmap", 40, |locking| {
        let (scene, store) = (Scene::new(locking), Store::default());
        let (file, other) = opened_twice(&scene, &store);
        scene.process.store(&mut scene.machine.cpu(OLD), page(0), 1u64).unwrap();
        let pfn = scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| assert!(scene.engine.try_to_unmap(pfn).unwrap() <= 3));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0) + 8, 2u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0) + 8), Ok(2u64));
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, page(0) + 16, 3u64).unwrap();
                unmap(&other, 0..1);
                assert_eq!(look(&other, &mut cpu, 0), unmapped(page(0)));
            });
        });
        file.mapping().write_back((0..1).into()).unwrap();
        assert_eq!(store.kept(0), [1, 2, 3]);
        other.check();
        drop((file, other));
        end(scene);
    });
}

/// Number of schedules in which `Engine::referenced` failed because another task held the rmap lock.
static CONTENDED: AtomicU64 = AtomicU64::new(0);

#[test]
fn referenced_concurrent_with_munmap_and_fork() {
    let name = "referenced concurrent with munmap, fork and a store";
    // The rmap lock is contended in one schedule of 150, so a quick run needs more schedules than other
    // scenarios.
    let share = Effort::of(500, 250, 250);
    explore_until(
        &Locking::ALL,
        name,
        share,
        || CONTENDED.load(SeqCst) > 0,
        |locking| {
            let scene = Scene::new(locking);
            scene.fill(0..1);
            let child = Process::of(scene.process.fork().unwrap());
            let pfn = scene.process.frame_at(page(0)).unwrap();
            let grandchild = thread::scope(|scope| {
                scope.spawn(|| match scene.engine.referenced(pfn) {
                    Ok(used) => assert!(used <= 3, "{used}"),
                    Err(PageError::Contended) => drop(CONTENDED.fetch_add(1, SeqCst)),
                    Err(error) => assert_eq!(error, PageError::NoPage),
                });
                scope.spawn(|| unmap(&scene.process, 0..1));
                scope.spawn(|| Process::of(child.fork().unwrap())).join().unwrap()
            });
            let mut cpu = scene.machine.cpu(2);
            for process in [&child, &grandchild] {
                assert_eq!(look(process, &mut cpu, 0), Ok(value(0)));
                process.check();
            }
            // No task holds the lock now. The child has accessed the page, and so has the grandchild.
            let used = scene.engine.referenced(pfn);
            assert!(used == Ok(1) || used == Ok(2), "{used:?}");
            assert_eq!(scene.engine.referenced(pfn), Ok(0));
            drop((cpu, child, grandchild));
            end(scene);
        },
    );
}

/// C-27: a page that the cache of its file does not contain is not mapped anywhere, whether its migration
/// succeeded or failed.
#[test]
fn c27_migration_concurrent_with_a_hole_leaves_no_mapping() {
    for truncated in [false, true] {
        explore("a migration of a file's page concurrent with truncation and a reader", 40, move |locking| {
            let (scene, store) = (Scene::new(locking), Store::default());
            let (file, other) = opened_twice(&scene, &store);
            other.store(&mut scene.machine.cpu(OLD), page(1), 3u64).unwrap();
            let pfn = other.frame_at(page(1)).unwrap();
            let moved = thread::scope(|scope| {
                let migration = scope.spawn(|| scene.engine.migrate(pfn));
                scope.spawn(|| match truncated {
                    true => file.mapping().truncate(PAGE).unwrap(),
                    false => file.mapping().punch(PAGE..2 * PAGE).unwrap(),
                });
                // The reader holds a reference for some time. During this time, the migration fails.
                scope.spawn(|| {
                    let mut bytes = [0; 8];
                    match other.read_memory(page(1), &mut bytes, AccessMode::Plain) {
                        Ok(_) => assert!([0, 3].contains(&u64::from_le_bytes(bytes))),
                        Err(_) => assert!(truncated, "a page of the file could not be read"),
                    }
                });
                scope.spawn(|| {
                    let found = look(&scene.process, &mut scene.machine.cpu(0), 1);
                    assert!(found == Ok(0) || found == Ok(3) || truncated, "{found:?}");
                });
                migration.join().unwrap()
            });
            // The page is in its old frame after a failed migration, and in its new frame after a successful
            // migration. If the cache has no page, neither frame may be mapped.
            let mut frames = vec![pfn];
            frames.extend(moved.ok());
            for pfn in frames {
                let mapped = [&scene.process, &other]
                    .into_iter()
                    .any(|process| process.frame_at(page(1)) == Some(pfn));
                assert!(
                    !mapped || file.mapping().has_page(PageIndex::new(1)),
                    "the page is mapped but not in the cache"
                );
            }
            let mut cpu = scene.machine.cpu(OLD);
            for process in [&scene.process, &other] {
                let found = look(process, &mut cpu, 1);
                assert_eq!(found, if truncated { Err(FaultError::Bus { addr: page(1) }) } else { Ok(0) });
                process.check();
            }
            drop((cpu, file, other));
            end(scene);
        });
    }
}
