//! Write-back by requests (`src/file/write.rs`, `src/file/change/write_back.rs`): requests that a pager
//! completes later, in any order, in part, or not at all, and the operations that meet a page that is being
//! written.
//!
//! The pager [`Device`] only queues its requests to write. A test takes a request from the queue and
//! completes its pages, while other threads wait for them. [`World::end`] fails if a frame of a request
//! leaks. `shuttle_engine/writes.rs` explores schedules.

use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    call::SyncFlags,
    error::{MigrateError, MsyncError, SyncError},
    fault::Access,
    file::{FillError, WriteRequest},
    rmap::Damage,
};
use freehold_machine::Task;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

type Request = WriteRequest<Machine>;

/// A device that keeps the first number of each page and whose requests to write wait in a queue. Page `n`
/// begins with the number of [`Disk`].
#[derive(Clone, Default)]
struct Device {
    /// Value of `write_pages`.
    window: u64,
    queue: Arc<Mutex<VecDeque<Request>>>,
    /// The stored numbers. `None` if the page was discarded.
    stored: Arc<Mutex<BTreeMap<u64, Option<u64>>>>,
    /// True if the device fails all requests.
    closed: Arc<AtomicBool>,
}

impl Pager<Machine> for Device {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let stored = self.stored.lock().unwrap().get(&index).copied();
        platform.zero_frame(frame);
        let number = stored.map_or(Disk::number(index), |stored| stored.unwrap_or(0));
        platform.write_frame(frame, 0, &number.to_le_bytes());
        Ok(())
    }

    fn write(&self, request: Request) {
        let mut queue = self.queue.lock().unwrap();
        if !self.closed.load(SeqCst) {
            queue.push_back(request);
        }
    }

    fn write_pages(&self) -> u64 {
        self.window
    }

    fn discard(&self, pages: PageRange) {
        let known: Vec<u64> = self.stored.lock().unwrap().keys().copied().collect();
        for page in known.into_iter().filter(|page| pages.contains(PageIndex::new(*page))) {
            self.stored.lock().unwrap().insert(page, None);
        }
    }
}

impl Device {
    fn new(window: u64) -> Self {
        Device { window, ..Device::default() }
    }

    /// Returns a file of `bytes` bytes on this device.
    fn file(&self, world: &World, bytes: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(world.engine(), self.clone(), bytes, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/device").unwrap()
    }

    /// Returns the oldest request, and waits for it.
    fn next(&self) -> Request {
        loop {
            if let Some(request) = self.queue.lock().unwrap().pop_front() {
                return request;
            }
            std::thread::yield_now();
        }
    }

    /// Returns a guard. If the test panics while the guard lives, the drop of the guard fails all requests,
    /// so that no thread of the test waits for ever.
    fn closes_on_panic(&self) -> Closes<'_> {
        Closes(self)
    }

    /// Returns the number of requests in the queue.
    fn asked(&self) -> usize {
        self.queue.lock().unwrap().len()
    }

    /// Stores a page of a request and completes it.
    fn complete(&self, request: &mut Request, index: u64) {
        let mut number = [0; 8];
        request.platform().read_frame(request.frame(PageIndex::new(index)).unwrap(), 0, &mut number);
        self.stored.lock().unwrap().insert(index, Some(u64::from_le_bytes(number)));
        request.complete(PageIndex::new(index), Ok(()));
    }

    /// Stores and completes all pages of a request.
    fn complete_all(&self, mut request: Request) {
        while let Some((index, _)) = request.next_page() {
            self.complete(&mut request, index.get());
        }
    }

    /// Completes the next `requests` requests.
    fn serve(&self, requests: usize) {
        (0..requests).for_each(|_| self.complete_all(self.next()));
    }

    /// Returns the stored number of a page, if the page was written.
    fn stored(&self, page: u64) -> Option<u64> {
        self.stored.lock().unwrap().get(&page).copied().flatten()
    }
}

/// See [`Device::closes_on_panic`].
struct Closes<'d>(&'d Device);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.closed.store(true, SeqCst);
            self.0.queue.lock().unwrap().clear();
        }
    }
}

fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex::new(start), PageIndex::new(end))
}

/// Maps the pages `range` of the file at `BASE`.
fn map(process: &Process, file: &Counted<File<Machine>>, range: PageRange) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    process.mmap(BASE, range.len().bytes(), RW, flags, Some(file), range.start.byte()).unwrap();
}

/// Writes a number at the start of a page by a call.
fn put(file: &File<Machine>, page: u64, number: u64) {
    assert_eq!(file.mapping().write_at(page * PAGE, &number.to_le_bytes()), Ok(8));
}

/// Reads the first number of a page by a call.
fn get(file: &File<Machine>, page: u64) -> u64 {
    let mut bytes = [0; 8];
    file.mapping().read_at(page * PAGE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn request_has_consecutive_dirty_pages() {
    let world = World::new();
    for (window, dirty, expected) in [
        (0, vec![5, 6], vec![pages(5, 6), pages(6, 7)]),
        (4, vec![1, 2, 4, 5, 6, 7, 8, 9], vec![pages(1, 3), pages(4, 8), pages(8, 10)]),
        (32, (0..70).collect(), vec![pages(0, 32), pages(32, 64), pages(64, 70)]),
        (99, vec![63, 64], vec![pages(63, 64), pages(64, 65)]),
    ] {
        let device = Device::new(window);
        let file = device.file(&world, 100 * PAGE);
        file.mapping().read_at(0, &mut vec![0; 100 * PAGE as usize]).unwrap();
        dirty.iter().for_each(|page| put(&file, *page, 7));
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            // All requests are under way at a time.
            let sync = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
            let asked: Vec<_> = device.queue.lock().unwrap().iter().map(Request::pages).collect();
            assert_eq!(asked, expected, "window {window}");
            file.mapping().check();
            device.serve(expected.len());
            assert_eq!(sync.join().unwrap(), Ok(()));
        });
        dirty.iter().for_each(|page| assert_eq!(device.stored(*page), Some(7)));
        assert_eq!(device.stored.lock().unwrap().len(), dirty.len(), "a clean page was written");
        file.mapping().write_back(PageRange::ALL).unwrap();
        assert_eq!(device.asked(), 0);
        assert_eq!(file.drop_clean(PageRange::ALL), 100, "the pages are clean and have no references");
    }
    world.end();
}

/// The pages of a request are completed in any order and on several threads. A write-back of one page ends
/// with that page.
#[test]
fn pages_are_completed_one_by_one_in_any_order() {
    let world = World::new();
    let device = Device::new(4);
    let file = device.file(&world, 4 * PAGE);
    (0..4).for_each(|page| put(&file, page, 10 + page));
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let all = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
        let two = spawn_until_waiting(scope, || file.mapping().write_back(pages(2, 3)));
        let mut request = device.next();
        assert_eq!((request.pages(), request.len().get(), device.asked()), (pages(0, 4), 4, 0));
        device.complete(&mut request, 2);
        assert_eq!(two.join().unwrap(), Ok(()));
        let rest = request.split_off(PageIndex::new(1));
        assert_eq!((request.pages(), rest.pages()), (pages(0, 1), pages(1, 4)));
        let device = &device;
        scope.spawn(move || device.complete_all(rest)).join().unwrap();
        assert!(!all.is_finished());
        device.complete_all(request);
        assert_eq!(all.join().unwrap(), Ok(()));
    });
    assert_eq!([0, 1, 2, 3].map(|page| device.stored(page)), [10, 11, 12, 13].map(Some));
    drop(file);
    world.end();
}

/// A page fails, a page is written, and the page that is left fails when the request is dropped. The failed
/// pages stay dirty, and the next write-back writes them.
#[test]
fn failed_and_dropped_pages_stay_dirty() {
    let world = World::new();
    let device = Device::new(4);
    let file = device.file(&world, 4 * PAGE);
    (0..3).for_each(|page| put(&file, page, 10 + page));
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let sync = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
        let mut request = device.next();
        device.complete(&mut request, 1);
        request.complete(PageIndex::new(0), Err(IoError));
        request.complete(PageIndex::new(0), Ok(()));
        request.complete(PageIndex::new(9), Ok(()));
        drop(request);
        assert_eq!(sync.join().unwrap(), Err(SyncError::Io));
        file.mapping().check();
        assert_eq!(file.drop_clean(PageRange::ALL), 1, "two pages are dirty");
        let again = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
        device.serve(2);
        assert_eq!(again.join().unwrap(), Ok(()));
    });
    assert_eq!([0, 1, 2].map(|page| device.stored(page)), [10, 11, 12].map(Some));
    assert_eq!(file.drop_clean(PageRange::ALL), 2);
    drop(file);
    world.end();
}

/// While a write hangs, every call on the space and on the file proceeds, except a removal of the page and a
/// write-back of the page.
#[test]
fn page_that_hangs_in_a_write_leaves_everything_else_usable() {
    everywhere(|world, process, cpu| {
        let device = Device::new(1);
        let file = device.file(world, 8 * PAGE);
        let mapping = file.mapping();
        map(process, &file, pages(0, 8));
        process.store(cpu, BASE + 2 * PAGE, 12u64).unwrap();
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let sync = spawn_until_waiting(scope, || process.msync(BASE, 8 * PAGE, SyncFlags::SYNC));
            let mut hung = device.next();
            // The page itself: loads, stores, reads, writes, and a hole in a part of it.
            assert_eq!(process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(12));
            process.store(cpu, BASE + 2 * PAGE, 13u64).unwrap();
            assert_eq!(mapping.write_at(2 * PAGE + 8, b"part"), Ok(4));
            mapping.punch(2 * PAGE + 16..2 * PAGE + 24).unwrap();
            assert_eq!(get(&file, 2), 13);
            let (_, frame) = hung.next_page().unwrap();
            assert_eq!(world.engine().migrate(frame), Err(MigrateError::Busy));
            // Other pages.
            process.store(cpu, BASE + PAGE, 11u64).unwrap();
            let other = spawn_until_waiting(scope, || mapping.write_back(pages(0, 2)));
            device.serve(1);
            assert_eq!(other.join().unwrap(), Ok(()));
            process.munmap(BASE + 4 * PAGE, PAGE).unwrap();
            drop(process.fork().unwrap());
            assert_eq!(get(&file, 4), Disk::number(4));
            assert_eq!(file.drop_clean(PageRange::ALL), 1);
            mapping.punch(4 * PAGE..5 * PAGE).unwrap();
            mapping.truncate(7 * PAGE).unwrap();
            mapping.truncate(6 * PAGE + 5).unwrap();
            mapping.check();
            process.check();
            assert!(!sync.is_finished());
            device.complete(&mut hung, 2);
            assert_eq!(sync.join().unwrap(), Ok(()));
            // The page is dirty again.
            let again = spawn_until_waiting(scope, || mapping.write_back(pages(2, 3)));
            device.serve(1);
            assert_eq!(again.join().unwrap(), Ok(()));
        });
        assert_eq!((device.stored(1), device.stored(2)), (Some(11), Some(13)));
    });
}

/// A store during a write makes the page dirty again. A write-back that begins after the store waits for the
/// first write, writes the page again, and waits for that write too.
#[test]
fn store_during_a_write_is_written_by_the_next_write_back() {
    everywhere(|world, process, cpu| {
        let device = Device::new(4);
        let file = device.file(world, 4 * PAGE);
        map(process, &file, pages(0, 4));
        (0..3).for_each(|page| process.store(cpu, BASE + page * PAGE, 10 + page).unwrap());
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let first = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
            let request = device.next();
            process.store(cpu, BASE + PAGE, 21u64).unwrap();
            let second = spawn_until_waiting(scope, || file.mapping().write_back(PageRange::ALL));
            assert_eq!(device.asked(), 0, "the page is being written");
            // The device has read the page before the store.
            device.complete_all(request);
            device.stored.lock().unwrap().insert(1, Some(11));
            until(|| device.asked() == 1 || second.is_finished());
            assert!(!second.is_finished(), "the store is not written");
            let request = device.next();
            assert_eq!(request.pages(), pages(1, 2), "only the dirty page");
            assert!(!second.is_finished());
            device.complete_all(request);
            // The first write-back may have waited for the second write of the page too.
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
        });
        assert_eq!((device.stored(1), device.asked()), (Some(21), 0));
    });
}

/// Two write-backs of a page cause one write, and both wait for it.
#[test]
fn second_write_back_waits_for_the_write_of_the_first() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, PAGE);
    put(&file, 0, 7);
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let syncs = [(); 3].map(|()| spawn_until_waiting(scope, || file.mapping().write_back(pages(0, 1))));
        assert_eq!(device.asked(), 1);
        assert!(syncs.iter().all(|sync| !sync.is_finished()));
        device.serve(1);
        syncs.into_iter().for_each(|sync| assert_eq!(sync.join().unwrap(), Ok(())));
    });
    assert_eq!(device.asked(), 0);
    drop(file);
    world.end();
}

/// A removal of a page that is being written waits for the write, with no lock held, and then discards the
/// page. The write never follows the discard.
#[test]
fn removal_waits_for_the_write_of_its_page() {
    type Removal = (&'static str, fn(&Mapping<Machine>) -> Result<(), FillError>);
    const REMOVALS: [Removal; 3] = [
        ("a truncation", |mapping| mapping.truncate(PAGE)),
        ("a truncation inside the page before", |mapping| mapping.truncate(PAGE / 2)),
        ("a hole", |mapping| mapping.punch(PAGE / 2..3 * PAGE)),
    ];
    for (what, remove) in REMOVALS {
        everywhere(|world, process, cpu| {
            let device = Device::new(1);
            let file = device.file(world, 8 * PAGE);
            let mapping = file.mapping();
            map(process, &file, pages(0, 8));
            [1, 2].into_iter().for_each(|page| process.store(cpu, BASE + page * PAGE, 10 + page).unwrap());
            std::thread::scope(|scope| {
                let _closes = device.closes_on_panic();
                let sync = spawn_until_waiting(scope, || mapping.write_back(PageRange::ALL));
                let requests = [device.next(), device.next()];
                let removal = spawn_until_waiting(scope, || remove(mapping));
                assert!(!removal.is_finished(), "{what}");
                // All pages are still there, and other changes of the file proceed.
                assert_eq!((mapping.size(), get(&file, 2)), (8 * PAGE, 12), "{what}");
                put(&file, 5, 15);
                mapping.truncate(7 * PAGE).unwrap();
                assert_eq!(mapping.write_at(7 * PAGE - 1, b"grow"), Ok(4));
                requests.into_iter().for_each(|request| {
                    assert!(!removal.is_finished(), "{what}");
                    device.complete_all(request);
                });
                assert_eq!((sync.join().unwrap(), removal.join().unwrap()), (Ok(()), Ok(())), "{what}");
            });
            // The device has discarded the pages after their writes.
            assert_eq!([1, 2].map(|page| device.stored(page)), [None; 2], "{what}");
            assert!(!mapping.has_page(PageIndex::new(2)), "{what}");
            mapping.check();
            process.check();
        });
    }
}

/// A fatal signal ends a wait for a write: that of a write-back and that of a removal. The write goes on.
#[test]
fn waits_for_a_write_are_killable() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, 4 * PAGE);
    let mapping = file.mapping();
    put(&file, 2, 12);
    fn killed<R>(call: impl FnOnce() -> R) -> R {
        Task::current().interrupt_wait(1);
        let result = call();
        assert!(Task::current().is_killed());
        result
    }
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let sync = scope.spawn(|| killed(|| mapping.write_back(PageRange::ALL)));
        assert_eq!(sync.join().unwrap(), Err(SyncError::Killed));
        let removal = scope.spawn(|| killed(|| mapping.truncate(0)));
        assert_eq!(removal.join().unwrap(), Err(FillError::Killed));
        assert_eq!((mapping.size(), get(&file, 2)), (4 * PAGE, 12));
        device.serve(1);
        assert_eq!(mapping.write_back(PageRange::ALL), Ok(()));
    });
    assert_eq!((device.stored(2), device.asked()), (Some(12), 0));
    drop(file);
    world.end();
}

/// The memory of a page fails during its write. The failure does not wait, the page counts as lost, and the
/// end of the write has no effect on the page that is read afterwards.
#[test]
fn memory_failure_during_a_write_does_not_wait() {
    for succeeds in [true, false] {
        let world = World::new();
        let device = Device::new(1);
        let file = device.file(&world, 2 * PAGE);
        let mapping = file.mapping();
        put(&file, 1, 11);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let sync = spawn_until_waiting(scope, || mapping.write_back(PageRange::ALL));
            let mut request = device.next();
            let (index, frame) = request.next_page().unwrap();
            assert_eq!(world.engine().memory_failure(frame), Ok(Damage::Lost));
            assert_eq!(get(&file, 1), Disk::number(1));
            mapping.check();
            request.complete(index, if succeeds { Ok(()) } else { Err(IoError) });
            assert_eq!(sync.join().unwrap(), Err(SyncError::Io));
            assert_eq!(mapping.write_back(PageRange::ALL), Ok(()));
        });
        assert_eq!((get(&file, 1), device.asked()), (Disk::number(1), 0));
        mapping.truncate(0).unwrap();
        mapping.check();
        drop((file, device));
        // Only the failed frame is missing.
        let World { machine, engine } = world;
        drop(engine);
        let left = machine.accounting();
        assert_eq!((left.frames, left.tables, left.spaces), (1, 0, 0), "{left}");
    }
}

/// A request keeps its file and its engine alive, and may be completed after all other references are gone.
#[test]
fn request_to_write_may_outlive_its_file() {
    for completes in [true, false] {
        let world = World::new();
        let device = Device::new(4);
        let file = device.file(&world, 4 * PAGE);
        (0..3).for_each(|page| put(&file, page, 7));
        let sync = || {
            Task::current().interrupt_wait(1);
            assert_eq!(file.mapping().write_back(PageRange::ALL), Err(SyncError::Killed));
        };
        std::thread::scope(|scope| scope.spawn(sync).join().unwrap());
        let mut request = device.next();
        drop(file);
        device.complete(&mut request, 1);
        match completes {
            true => device.complete_all(request),
            false => drop(request),
        }
        assert_eq!([0, 1].map(|page| device.stored(page)), [completes.then_some(7), Some(7)]);
        drop(device);
        world.end();
    }
}

/// A page that a fault makes writable after a write-back, and then a pin or another process changes, is found
/// by the next write-back, also if the page was clean in between.
#[test]
fn late_stores_are_found() {
    everywhere(|world, process, cpu| {
        let device = Device::new(8);
        let file = device.file(world, 200 * PAGE);
        let mapping = file.mapping();
        map(process, &file, pages(0, 200));
        let sync = |expected: usize| {
            std::thread::scope(|scope| {
                let _closes = device.closes_on_panic();
                let sync = scope.spawn(|| mapping.write_back(PageRange::ALL));
                let mut served = 0;
                until(|| {
                    let request = device.queue.lock().unwrap().pop_front();
                    served += usize::from(request.is_some());
                    request.into_iter().for_each(|request| device.complete_all(request));
                    sync.is_finished()
                });
                assert_eq!((sync.join().unwrap(), served), (Ok(()), expected));
            });
        };
        process.store(cpu, BASE + 150 * PAGE, 1u64).unwrap();
        let pins = process.pin_user_pages(BASE + 150 * PAGE, 1, freehold::remote::PinFlags::WRITE).unwrap();
        sync(1);
        pins.write(0, &2u64.to_le_bytes()).unwrap();
        sync(1);
        assert_eq!(device.stored(150), Some(2));
        sync(0);
        process.handle_fault(BASE + 3 * PAGE, Access::READ).unwrap();
        pins.unpin_dirty();
        sync(1);
        sync(0);
    });
}

/// Fails the next request of the device.
fn fail_next(device: &Device, sync: impl FnOnce() -> Result<(), SyncError> + Send) -> Result<(), SyncError> {
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let sync = scope.spawn(sync);
        drop(device.next());
        sync.join().unwrap()
    })
}

/// Serves one request of the device.
fn serve_next(device: &Device, sync: impl FnOnce() -> Result<(), SyncError> + Send) -> Result<(), SyncError> {
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let sync = scope.spawn(sync);
        device.serve(1);
        sync.join().unwrap()
    })
}

/// Each open file reports a failed write once: also a failure of another open file's call, of a write-back
/// that no open file asked for, and of msync. A file that is opened later reports a failure only if no other
/// open file has reported it.
#[test]
fn failure_is_reported_once_per_open_file() {
    everywhere(|world, process, cpu| {
        let device = Device::new(1);
        let a = device.file(world, 4 * PAGE);
        let mapping = a.mapping();
        let open = || File::new(mapping, FileAccess::READ_WRITE, "/device").unwrap();
        let b = open();
        map(process, &b, pages(0, 4));
        let all = PageRange::ALL;
        process.store(cpu, BASE, 7u64).unwrap();
        // In the call of an open file.
        assert_eq!(fail_next(&device, || a.sync(all)), Err(SyncError::Io));
        let later = open();
        assert_eq!(serve_next(&device, || a.sync(all)), Ok(()));
        assert_eq!(later.sync(all), Ok(()), "reported before the file was opened");
        assert_eq!(process.msync(BASE, PAGE, SyncFlags::SYNC), Err(MsyncError::Io));
        assert_eq!((process.msync(BASE, PAGE, SyncFlags::SYNC), b.sync(all)), (Ok(()), Ok(())));
        // In a write-back that no open file asked for, and outside the range of the later calls.
        process.store(cpu, BASE, 8u64).unwrap();
        assert_eq!(fail_next(&device, || mapping.write_back(all)), Err(SyncError::Io));
        assert_eq!(serve_next(&device, || mapping.write_back(all)), Ok(()));
        let unseen = open();
        let elsewhere = pages(3, 4);
        for file in [&a, &b, &later, &unseen] {
            assert_eq!([file.sync(elsewhere), file.sync(elsewhere)], [Err(SyncError::Io), Ok(())]);
        }
        assert_eq!(open().sync(all), Ok(()));
        // Two failures count as one for a file that asks after both.
        process.store(cpu, BASE, 9u64).unwrap();
        (0..2).for_each(|_| assert_eq!(fail_next(&device, || a.sync(all)), Err(SyncError::Io)));
        assert_eq!(serve_next(&device, || b.sync(all)), Err(SyncError::Io));
        assert_eq!((a.sync(all), b.sync(all)), (Ok(()), Ok(())));
    });
}

/// The loss of a dirty page by a failure of memory is reported like a failed write.
#[test]
fn lost_dirty_page_is_reported_once_per_open_file() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, PAGE);
    let other = File::new(file.mapping(), FileAccess::READ, "/device").unwrap();
    let process = world.process(Locking::default());
    map(&process, &file, pages(0, 1));
    process.store(&mut world.machine.cpu(0), BASE, 7u64).unwrap();
    let frame = process.frame_at(BASE).unwrap();
    assert_eq!(world.engine().memory_failure(frame), Ok(Damage::Lost));
    for file in [&file, &other] {
        assert_eq!([file.sync(PageRange::ALL), file.sync(PageRange::ALL)], [Err(SyncError::Io), Ok(())]);
    }
    assert_eq!(file.mapping().write_back(PageRange::ALL), Err(SyncError::Io));
    assert_eq!(file.mapping().write_back(PageRange::ALL), Ok(()));
    file.mapping().check();
}

/// A fatal signal that ends a sync does not hide a failure.
#[test]
fn killed_sync_reports_the_failure_later() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, 2 * PAGE);
    put(&file, 0, 7);
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let killed = || {
            Task::current().interrupt_wait(1);
            file.sync(PageRange::ALL)
        };
        assert_eq!(scope.spawn(killed).join().unwrap(), Err(SyncError::Killed));
        drop(device.next());
        assert_eq!(file.sync(pages(1, 2)), Err(SyncError::Io));
    });
    assert_eq!(serve_next(&device, || file.sync(PageRange::ALL)), Ok(()));
    drop(file);
    world.end();
}
