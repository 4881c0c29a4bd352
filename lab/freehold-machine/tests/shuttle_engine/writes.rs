//! Writes that end on another CPU: requests that a device completes or drops while programs store to the
//! pages, and while other tasks write back, truncate, unmap or migrate.
//!
//! The code under test is `file/write.rs`, `file/change/write_back.rs`, `file/dirty.rs` and
//! `file/cache/marks.rs`. The device ([`Device`]) only queues its requests; a thread of the scenario serves
//! them. Each scenario ends with a write-back, after which the device must have the last store to each page.
//! A task that is never woken is a deadlock, which the checker reports.

use crate::{
    device::{self, PAGES, Queue, mapped, unmap_file},
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, page, unmap},
};
use freehold::{
    PageIndex, PageRange, Pfn,
    error::{MigrateError, SyncError},
    file::{IoError, Pager, WriteRequest},
    platform::Platform,
};
use freehold_machine::Machine;
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A device whose requests wait in a queue, and which keeps the first word of each page that was written and
/// not discarded.
#[derive(Clone, Default)]
struct Device {
    queue: Queue<WriteRequest<Machine>>,
    /// A lock of the standard library, held without a wait in between.
    stored: Arc<Mutex<[Option<u64>; PAGES as usize]>>,
}

impl Pager<Machine> for Device {
    fn read_page(&self, platform: &Machine, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        Ok(())
    }

    fn write(&self, request: WriteRequest<Machine>) {
        self.queue.push(request);
    }

    fn write_pages(&self) -> u64 {
        PAGES
    }

    fn discard(&self, pages: PageRange) {
        for index in pages.numbers().take_while(|index| *index < PAGES) {
            self.stored.lock().unwrap()[index as usize] = None;
        }
    }
}

impl Device {
    /// Completes requests until the number of tasks that may wait is 0.
    fn serve(&self, tasks: &AtomicU64) {
        self.queue.serve_tasks(tasks, |request| self.complete_all(request));
    }

    /// Stores the pages of a request and completes them, the last first.
    fn complete_all(&self, mut request: WriteRequest<Machine>) {
        for index in (0..PAGES).rev().map(PageIndex::new) {
            let Some(frame) = request.frame(index) else { continue };
            let mut word = [0; 8];
            request.platform().read_frame(frame, 0, &mut word);
            self.stored.lock().unwrap()[index.get() as usize] = Some(u64::from_le_bytes(word));
            request.complete(index, Ok(()));
        }
    }

    fn stored(&self, index: u64) -> Option<u64> {
        self.stored.lock().unwrap()[index as usize]
    }

    /// Writes back the whole file while another thread serves the requests.
    fn sync(&self, file: &Opened) -> Result<(), SyncError> {
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| self.serve(&left));
            let synced = file.mapping().write_back(PageRange::ALL);
            left.store(0, SeqCst);
            synced
        })
    }

    /// Ends a scene after its threads.
    fn end(&self, scene: Scene, file: Opened) {
        assert_eq!(self.sync(&file), Ok(()));
        unmap_file(&scene, &file);
        self.queue.assert_empty();
        assert_eq!(self.sync(&file), Ok(()));
        let cached = file.mapping().present_pages();
        assert_eq!(file.drop_clean(PageRange::ALL), cached, "a page is still dirty or in use");
        device::end(scene, file);
    }
}

/// Two tasks store to the same two pages and write them back. Each finds its own stores on the device
/// afterwards, whichever of the two wrote them.
#[test]
fn write_back_includes_every_earlier_store_of_its_task() {
    explore("two write-backs concurrent with stores", 60, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            for number in 0..2 {
                let (scene, file, device, left) = (&scene, &file, &device, &left);
                scope.spawn(move || {
                    let at = page(number) + 8;
                    let mut cpu = scene.machine.cpu(number as usize);
                    scene.process.store(&mut cpu, page(number), 10 + number).unwrap();
                    scene.process.store(&mut cpu, at, 1u64).unwrap();
                    let range = if number == 0 { PageRange::ALL } else { (1..2).into() };
                    assert_eq!(file.mapping().write_back(range), Ok(()));
                    assert_eq!(device.stored(number), Some(10 + number), "a store is not on the device");
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| device.serve(&left));
        });
        device.end(scene, file);
    });
}

/// A program stores to a page again and again while it is written. The last store is on the device after the
/// last write-back.
#[test]
fn stores_during_writes_are_not_lost() {
    explore("stores concurrent with writes of their page", 60, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                (1..4u64).for_each(|value| scene.process.store(&mut cpu, page(0), value).unwrap());
            });
            scope.spawn(|| {
                (0..2).for_each(|_| assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(())));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        assert_eq!(device.sync(&file), Ok(()));
        assert_eq!(device.stored(0), Some(3), "the last store is lost");
        device.end(scene, file);
    });
}

/// A truncation comes before, during or after a write. No write of the page follows its discard.
#[test]
fn truncation_waits_for_a_write_that_another_cpu_ends() {
    explore("a truncation concurrent with a write", 60, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let mut cpu = scene.machine.cpu(0);
        (0..PAGES).for_each(|number| scene.process.store(&mut cpu, page(number), 7u64).unwrap());
        drop(cpu);
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                assert_eq!(device.stored(1), None, "the page is on the device after its discard");
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        assert_eq!([device.stored(0), device.stored(1)], [Some(7), None]);
        assert_eq!(file.mapping().present_pages(), 1);
        device.end(scene, file);
    });
}

/// The pages are unmapped while they are written back. The store that munmap finds in the entry is not lost.
#[test]
fn munmap_concurrent_with_a_write_keeps_the_store() {
    explore("a munmap concurrent with a write", 60, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(1), 5u64).unwrap();
                scene.process.store(&mut cpu, page(1), 6u64).unwrap();
                unmap(&scene.process, 1..2);
            });
            scope.spawn(|| {
                assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        assert_eq!(device.sync(&file), Ok(()));
        assert_eq!(device.stored(1), Some(6), "a store is lost");
        device.end(scene, file);
    });
}

/// A request is dropped on another CPU while two tasks wait for its page. Neither sleeps for ever, one of
/// them at least learns of the failure, and the page stays dirty.
#[test]
fn failed_write_wakes_every_task_and_leaves_the_page_dirty() {
    explore("a write that fails while two tasks wait", 40, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        scene.process.store(&mut scene.machine.cpu(0), page(0), 7u64).unwrap();
        let (left, failed) = (AtomicU64::new(2), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let synced = file.mapping().write_back(PageRange::ALL);
                    failed.fetch_add(synced.is_err().into(), SeqCst);
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| device.queue.serve_tasks(&left, drop));
        });
        assert!(failed.load(SeqCst) > 0, "the failure was not reported");
        assert_eq!((device.sync(&file), device.stored(0)), (Ok(()), Some(7)));
        device.end(scene, file);
    });
}

/// A page moves to another frame before or after it is written, and not during the write.
#[test]
fn migration_concurrent_with_a_write() {
    explore("a migration concurrent with a write", 40, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let mut cpu = scene.machine.cpu(0);
        scene.process.store(&mut cpu, page(0), 7u64).unwrap();
        drop(cpu);
        let frame = scene.process.frame_at(page(0)).unwrap();
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let moved = scene.engine.migrate(frame);
                assert!(matches!(moved, Ok(_) | Err(MigrateError::Busy | MigrateError::NoPage)), "{moved:?}");
            });
            scope.spawn(|| {
                assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
                assert_eq!(device.stored(0), Some(7));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        device.end(scene, file);
    });
}
