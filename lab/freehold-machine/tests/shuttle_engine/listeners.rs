//! A device that follows an address space as a listener, concurrent with the changes of that space.
//!
//! The code under test is `notify/` of `freehold-vmspace`, `space/listener.rs` and `remote/device.rs`, and
//! the announcement of each change (`VmSpace::gather`). When a call has returned, the device accesses no page
//! and has no right that the call took away, and no store of the device is lost. The oracles of [`Shadow`]
//! detect a frame that is freed while the device translates an address to it, and every scenario ends with
//! [`Shadow::check`].

use crate::{
    drop_clean::{Store, map_file, open_on, words},
    explore::{explore, thread},
    scene::{ANON, PAGE, R, Scene, TABLE, map, page, unmap, value},
};
use freehold::{PageRange, call::Advice, error::AccessError, rmap::MigrateError, space::ListenerId};
use freehold_machine::{Process, Shadow};
use std::sync::Arc;

/// Returns a scene with two filled pages, and a device that has translations of them for writing.
fn with_device(scene: Scene) -> (Scene, Arc<Shadow>, ListenerId) {
    scene.fill(0..2);
    let (device, id) = Shadow::attach(scene.process.space()).unwrap();
    for number in [0, 1] {
        device.store(&scene.process, page(number), value(number)).unwrap();
    }
    (scene, device, id)
}

/// Checks the device, and ends the scene.
fn end(scene: Scene, device: &Shadow) {
    device.check(&scene.process);
    unmap(&scene.process, 0..8);
    device.check(&scene.process);
    scene.end();
    device.assert_released();
}

/// Moves a page to another frame, unless another task uses the page.
fn migrate(scene: &Scene, number: u64) {
    if let Some(frame) = scene.process.frame_at(page(number)) {
        match scene.engine.migrate(frame) {
            Ok(_) | Err(MigrateError::Busy | MigrateError::NoPage) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn device_uses_no_page_after_munmap() {
    explore("accesses of a device concurrent with munmap", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                unmap(&scene.process, 0..1);
                assert_eq!(device.load(&scene.process, page(0)), Err(AccessError::BadAddress));
            });
            scope.spawn(move || {
                let found = device.load(&scene.process, page(0));
                assert!(matches!(found, Ok(1000) | Err(AccessError::BadAddress)), "{found:?}");
                let _ = device.store(&scene.process, page(0), 7);
            });
            scope.spawn(move || assert_eq!(device.load(&scene.process, page(1)), Ok(value(1))));
        });
        end(scene, &device);
    });
}

#[test]
fn device_sees_no_old_page_after_munmap_and_mmap() {
    explore("accesses of a device concurrent with a mapping over its pages", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                map(&scene.process, 0..1, ANON);
                assert_eq!(device.load(&scene.process, page(0)), Ok(0));
            });
            scope.spawn(move || {
                let found = device.load(&scene.process, page(0)).unwrap();
                assert!(found == 0 || found == value(0), "{found}");
            });
        });
        end(scene, &device);
    });
}

#[test]
fn copy_on_write_is_seen_by_a_device() {
    explore("stores of a program, a child and a device to pages shared by fork", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            let (scene, device, child) = (&scene, &device, &child);
            scope.spawn(move || {
                scene.process.store(&mut scene.machine.cpu(0), page(0), 7u64).unwrap();
                assert_eq!(device.load(&scene.process, page(0)), Ok(7));
            });
            scope.spawn(move || {
                let found = device.load(&scene.process, page(0)).unwrap();
                assert!(found == value(0) || found == 7, "{found}");
                device.store(&scene.process, page(1), 8).unwrap();
                assert_eq!(scene.process.load(&mut scene.machine.cpu(1), page(1)), Ok(8u64));
            });
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(2);
                assert_eq!(child.load(&mut cpu, page(1)), Ok(value(1)));
                child.store(&mut cpu, page(0), 9u64).unwrap();
            });
        });
        assert_eq!([0, 1].map(|number| device.load(&scene.process, page(number))), [Ok(7), Ok(8)]);
        drop(child);
        end(scene, &device);
    });
}

#[test]
fn fork_ends_the_stores_of_a_device_to_shared_pages() {
    explore("fork concurrent with stores of a device", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(0);
                let first: u64 = child.load(&mut cpu, page(0)).unwrap();
                assert!(first == value(0) || first == 7 || first == 8, "{first}");
                device.store(&scene.process, page(0), 9).unwrap();
                assert_eq!(child.load(&mut cpu, page(0)), Ok(first));
            });
            scope.spawn(move || {
                device.store(&scene.process, page(0), 7).unwrap();
                device.store(&scene.process, page(0), 8).unwrap();
            });
        });
        end(scene, &device);
    });
}

#[test]
fn stores_of_a_device_survive_migration() {
    explore("stores of a device and of a program concurrent with migrations", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                migrate(scene, 0);
                migrate(scene, 1);
            });
            scope.spawn(move || {
                device.store(&scene.process, page(0), 7).unwrap();
                assert_eq!(device.load(&scene.process, page(0)), Ok(7));
            });
            scope.spawn(move || {
                scene.process.store(&mut scene.machine.cpu(1), page(1), 8u64).unwrap();
                assert_eq!(device.load(&scene.process, page(1)), Ok(8));
            });
        });
        assert_eq!(scene.process.load(&mut scene.machine.cpu(2), page(0)), Ok(7u64));
        end(scene, &device);
    });
}

#[test]
fn stores_of_a_device_survive_pageout() {
    explore("stores of a device after MADV_FREE concurrent with PAGEOUT", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        scene.process.madvise(page(0), 2 * PAGE, Advice::Free).unwrap();
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                scene.process.madvise(page(0), 2 * PAGE, Advice::PageOut).unwrap();
                scene.process.drop_discardable();
            });
            scope.spawn(move || {
                device.store(&scene.process, page(0), 7).unwrap();
                let found = device.load(&scene.process, page(1)).unwrap();
                assert!(found == 0 || found == value(1), "{found}");
            });
        });
        assert_eq!(device.load(&scene.process, page(0)), Ok(7));
        end(scene, &device);
    });
}

#[test]
fn stores_of_a_device_to_a_file_reach_the_file() {
    explore("stores of a device to a file concurrent with write-back and PAGEOUT", 60, |locking| {
        let scene = Scene::new(locking);
        let store = Store::default();
        let file = open_on(&scene, store.clone());
        map_file(&scene.process, &file);
        let (device, _) = Shadow::attach(scene.process.space()).unwrap();
        device.store(&scene.process, page(0), 1).unwrap();
        thread::scope(|scope| {
            let (scene, device, file) = (&scene, &device, &file);
            scope.spawn(move || {
                scene.process.madvise(page(0), 2 * PAGE, Advice::PageOut).unwrap();
            });
            scope.spawn(move || file.mapping().write_back(PageRange::ALL).unwrap());
            scope.spawn(move || {
                device.store(&scene.process, page(0), 7).unwrap();
                assert_eq!(device.load(&scene.process, page(0)), Ok(7));
            });
        });
        assert_eq!(words(&file, 0)[0], 7);
        file.mapping().write_back(PageRange::ALL).unwrap();
        assert_eq!(store.first(0), Some(7));
        drop(file);
        end(scene, &device);
    });
}

#[test]
fn device_uses_no_page_beyond_the_end_of_a_file() {
    explore("accesses of a device concurrent with truncation", 60, |locking| {
        let scene = Scene::new(locking);
        let file = open_on(&scene, Store::default());
        map_file(&scene.process, &file);
        let (device, _) = Shadow::attach(scene.process.space()).unwrap();
        for number in [0, 1] {
            device.store(&scene.process, page(number), 1).unwrap();
        }
        thread::scope(|scope| {
            let (scene, device, file) = (&scene, &device, &file);
            scope.spawn(move || {
                file.mapping().truncate(PAGE).unwrap();
                assert!(device.load(&scene.process, page(1)).is_err());
            });
            scope.spawn(move || {
                let _ = device.store(&scene.process, page(1), 7);
                assert_eq!(device.load(&scene.process, page(0)), Ok(1));
            });
        });
        drop(file);
        end(scene, &device);
    });
}

#[test]
fn device_stores_to_no_page_after_mprotect() {
    explore("stores of a device concurrent with mprotect", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                scene.process.mprotect(page(0), PAGE, R).unwrap();
                assert!(device.store(&scene.process, page(0), 9).is_err());
                let first = device.load(&scene.process, page(0));
                assert_eq!(device.load(&scene.process, page(0)), first);
            });
            scope.spawn(move || {
                let _ = device.store(&scene.process, page(0), 7);
                let _ = device.store(&scene.process, page(0), 8);
            });
        });
        end(scene, &device);
    });
}

/// A discard of a part splits the huge page, and the table of the split is reclaimed when it is empty.
#[test]
fn device_uses_no_part_of_a_discarded_huge_page() {
    explore("accesses of a device concurrent with DONTNEED of a part of a huge page", 10, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, 0..TABLE, ANON);
        let (device, _) = Shadow::attach(scene.process.space()).unwrap();
        for number in [3, 4] {
            device.store(&scene.process, page(number), 7).unwrap();
        }
        thread::scope(|scope| {
            let (scene, device) = (&scene, &device);
            scope.spawn(move || {
                scene.process.madvise(page(3), PAGE, Advice::DontNeed).unwrap();
                let found = device.load(&scene.process, page(3)).unwrap();
                assert!(found == 0 || found == 8, "{found}");
            });
            scope.spawn(move || {
                device.store(&scene.process, page(3), 8).unwrap();
                assert_eq!(device.load(&scene.process, page(4)), Ok(7));
            });
        });
        device.check(&scene.process);
        unmap(&scene.process, 0..TABLE);
        scene.end();
        device.assert_released();
    });
}

/// Attaches a device while `change` is in progress. The device must not keep what the change has taken.
fn attach_during(name: &str, share: usize, change: impl Fn(&Scene) + Send + Sync + 'static) {
    explore(name, share, move |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let device = thread::scope(|scope| {
            let (scene, change) = (&scene, &change);
            scope.spawn(move || change(scene));
            let device = scope.spawn(move || {
                let (device, _) = Shadow::attach(scene.process.space()).unwrap();
                let _ = device.load(&scene.process, page(0));
                device
            });
            device.join().unwrap()
        });
        end(scene, &device);
    });
}

#[test]
fn attached_device_hears_of_changes_under_a_vma_lock() {
    attach_during("registration of a listener concurrent with DONTNEED", 200, |scene| {
        scene.process.madvise(page(0), PAGE, Advice::DontNeed).unwrap();
    });
}

#[test]
fn attached_device_hears_of_changes_under_an_rmap_lock() {
    attach_during("registration of a listener concurrent with a migration", 100, |scene| migrate(scene, 0));
}

#[test]
fn attached_device_hears_of_changes_under_the_mmap_lock() {
    attach_during("registration of a listener concurrent with munmap", 100, |scene| {
        unmap(&scene.process, 0..1);
    });
}

#[test]
fn two_devices_hear_of_the_same_changes() {
    explore("two devices, one of which leaves, concurrent with munmap and migration", 60, |locking| {
        let (scene, device, id) = with_device(Scene::new(locking));
        let (other, _) = Shadow::attach(scene.process.space()).unwrap();
        thread::scope(|scope| {
            let (scene, device, other) = (&scene, &device, &other);
            scope.spawn(move || {
                unmap(&scene.process, 0..1);
                migrate(scene, 1);
            });
            scope.spawn(move || {
                let _ = device.load(&scene.process, page(0));
                device.forget();
                scene.process.unregister_listener(id);
            });
            scope.spawn(move || {
                let _ = other.load(&scene.process, page(0));
                assert_eq!(other.load(&scene.process, page(1)), Ok(value(1)));
            });
        });
        end(scene, &other);
    });
}

/// The end of the space is concurrent with a walk of the reverse map, which still finds the space.
#[test]
fn device_is_released_before_its_pages_are_freed() {
    explore("the end of a space with a device concurrent with a migration", 60, |locking| {
        let (scene, device, _) = with_device(Scene::new(locking));
        let child = Process::of(scene.process.fork().unwrap());
        let (of_child, _) = Shadow::attach(child.space()).unwrap();
        let frame = scene.process.frame_at(page(0)).unwrap();
        for number in [0, 1] {
            assert_eq!(of_child.load(&child, page(number)), Ok(value(number)));
        }
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || drop(child));
            scope.spawn(move || scene.engine.migrate(frame).is_ok());
        });
        of_child.assert_released();
        assert_eq!(device.load(&scene.process, page(0)), Ok(value(0)));
        end(scene, &device);
    });
}
