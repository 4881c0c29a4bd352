//! Removals of pages whose pager takes long: other tasks use the pages during the discard, or while the
//! removal waits for their writes.
//!
//! The code under test is `file/removal.rs` and `file/change/truncate.rs`. The device ([`Device`]) queues its
//! requests to write, which a thread of the scenario serves, and lets other threads run in a discard. Each
//! scenario ends with a comparison of the device with the cache. A task that is never woken is a deadlock,
//! which the checker reports.

use crate::{
    device::{self, PAGES, Queue, unmap_file},
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, page},
};
use freehold::{
    PageIndex, PageRange, Pfn,
    error::FillError,
    file::{IoError, Pager, WriteRefused, WriteRequest},
    platform::Platform,
    space::Locking,
};
use freehold_machine::{Machine, Task};
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A device whose requests wait in a queue, and which keeps the first two words of each page.
#[derive(Clone, Default)]
struct Device {
    /// True if the device must be asked before clean pages change.
    guards: bool,
    /// Number of questions.
    asked: Arc<Mutex<u64>>,
    queue: Queue<WriteRequest<Machine>>,
    /// A lock of the standard library, held without a wait in between.
    stored: Arc<Mutex<[[u64; 2]; PAGES as usize]>>,
}

/// Returns the first two words of a frame.
fn words(platform: &Machine, frame: Pfn) -> [u64; 2] {
    let mut bytes = [[0; 8]; 2];
    platform.read_frame(frame, 0, bytes.as_flattened_mut());
    bytes.map(u64::from_le_bytes)
}

impl Pager<Machine> for Device {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let stored = self.stored(index.get());
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, stored.map(u64::to_le_bytes).as_flattened());
        Ok(())
    }

    fn write(&self, request: WriteRequest<Machine>) {
        self.queue.push(request);
    }

    fn guards_writes(&self) -> bool {
        self.guards
    }

    fn make_writable(&self, _: PageRange) -> Result<(), WriteRefused> {
        *self.asked.lock().unwrap() += 1;
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        for index in pages.numbers().take_while(|index| *index < PAGES) {
            // Other threads run before the discard has an effect.
            thread::yield_now();
            self.stored.lock().unwrap()[index as usize] = [0; 2];
        }
    }
}

impl Device {
    /// Returns a scene, and a file on this device that the scene's process maps at page 0. Both words of each
    /// page are 7, and the pages are dirty.
    fn mapped(&self, locking: Locking) -> (Scene, Opened) {
        let (scene, file) = device::mapped(locking, self.clone());
        let mut cpu = scene.machine.cpu(0);
        for at in (0..PAGES).flat_map(|number| [page(number), page(number) + 8]) {
            scene.process.store(&mut cpu, at, 7u64).unwrap();
        }
        drop(cpu);
        (scene, file)
    }

    /// Serves requests until the number of tasks that may wait is 0.
    fn serve(&self, tasks: &AtomicU64) {
        self.queue.serve_tasks(tasks, |mut request| {
            while let Some((index, frame)) = request.next_page() {
                let found = words(request.platform(), frame);
                self.stored.lock().unwrap()[index.get() as usize] = found;
                request.complete(index, Ok(()));
            }
        });
    }

    fn stored(&self, index: u64) -> [u64; 2] {
        self.stored.lock().unwrap()[index as usize]
    }

    /// Writes the file back and reads it again. Fails if the device does not have the contents of the cache.
    /// Returns the words of all pages.
    fn end(&self, scene: Scene, file: Opened) -> [[u64; 2]; PAGES as usize] {
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| self.serve(&left));
            assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
            left.store(0, SeqCst);
        });
        let read = || {
            [0, 1].map(|number| {
                let mut bytes = [[0; 8]; 2];
                file.mapping().read_at(number * PAGE, bytes.as_flattened_mut()).unwrap();
                bytes.map(u64::from_le_bytes)
            })
        };
        let cached = read();
        unmap_file(&scene, &file);
        self.queue.assert_empty();
        assert_eq!(file.drop_clean(PageRange::ALL), file.mapping().present_pages() + PAGES);
        assert_eq!(read(), cached, "the device has other contents than the cache");
        device::end(scene, file);
        cached
    }
}

/// Pages are removed, and other tasks bring them back and write them during the discard. The device ends up
/// with the contents of the cache, and no task sees contents from before the hole after it has stored to the
/// page.
#[test]
fn discard_precedes_every_later_use_of_its_pages() {
    explore("a hole concurrent with a store and its write-back", 60, |locking| {
        let device = Device::default();
        let (scene, file) = device.mapped(locking);
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(file.mapping().punch(0..PAGE), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                scene.process.store(&mut scene.machine.cpu(1), page(0), 5u64).unwrap();
                assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        let [first, second] = device.end(scene, file);
        assert!(first == [5, 0] || first == [0, 0], "{first:?}");
        assert_eq!(second, [7, 7]);
    });
}

/// A direct write of a whole page, and a truncation that removes the page, in both orders.
#[test]
fn write_of_a_whole_page_follows_the_discard() {
    explore("a truncation concurrent with a write that enlarges the file", 40, |locking| {
        let device = Device::default();
        let (scene, file) = device.mapped(locking);
        let left = AtomicU64::new(2);
        let contents = vec![1; PAGE as usize];
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(file.mapping().truncate(PAGE), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                assert_eq!(file.mapping().write_at(PAGE, &contents), Ok(PAGE as usize));
                assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        file.mapping().truncate(PAGES * PAGE).unwrap();
        let [first, second] = device.end(scene, file);
        assert_eq!(first, [7, 7]);
        assert!(second == [0x0101_0101_0101_0101; 2] || second == [0; 2], "{second:?}");
    });
}

/// A truncation that waits for writes is killed, or not, while two tasks write its pages back. All tasks end,
/// and the pages are on the device or removed.
#[test]
fn end_of_a_removal_wakes_every_task() {
    explore("a truncation that is killed concurrent with two write-backs", 60, |locking| {
        let device = Device::default();
        let (scene, file) = device.mapped(locking);
        let (left, removed) = (AtomicU64::new(3), AtomicU64::new(0));
        thread::scope(|scope| {
            for number in 0..2 {
                let (scene, file, left) = (&scene, &file, &left);
                scope.spawn(move || {
                    let stored = scene.process.store(&mut scene.machine.cpu(number as usize), page(1), 5u64);
                    assert_eq!(file.mapping().write_back((number..2).into()), Ok(()));
                    left.fetch_sub(1, SeqCst);
                    stored
                });
            }
            scope.spawn(|| {
                Task::current().interrupt_wait(2);
                let done = file.mapping().truncate(PAGE);
                assert!(matches!(done, Ok(()) | Err(FillError::Killed)), "{done:?}");
                removed.fetch_add(done.is_ok().into(), SeqCst);
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        let removed = removed.into_inner() == 1;
        assert_eq!(file.mapping().size(), if removed { PAGE } else { PAGES * PAGE });
        file.mapping().truncate(PAGES * PAGE).unwrap();
        let [first, second] = device.end(scene, file);
        assert_eq!((first, second), ([7, 7], if removed { [0; 2] } else { [5, 7] }));
    });
}

/// A truncation to a size inside a page asks the pager, while another task writes the page back. The write
/// does not end the permission before the truncation uses it.
#[test]
fn truncation_asks_the_pager_once() {
    explore("a truncation inside a page concurrent with its write-back", 60, |locking| {
        let device = Device { guards: true, ..Device::default() };
        let (scene, file) = device.mapped(locking);
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| device.serve(&left));
            assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
            left.store(0, SeqCst);
        });
        let (left, asked) = (AtomicU64::new(2), *device.asked.lock().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(file.mapping().truncate(8), Ok(()));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                (0..2).for_each(|_| assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(())));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| device.serve(&left));
        });
        assert_eq!(*device.asked.lock().unwrap() - asked, 1, "the permission has ended before the store");
        file.mapping().truncate(PAGES * PAGE).unwrap();
        assert_eq!(device.end(scene, file), [[7, 0], [0; 2]]);
    });
}
