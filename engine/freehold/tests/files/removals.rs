//! Removals that wait for writes, and pagers that take long to discard pages or to name frames
//! (`src/file/removal.rs`, `src/file/kinds/direct.rs`).
//!
//! The pager [`Device`] keeps requests to write in a queue, and runs a function of the test in the next
//! discard and in the next question ([`Gate`]). A test completes the requests while other threads wait.
//! `shuttle_engine/removals.rs` explores schedules.

use crate::support::{gate::Gate, storage::Storage, *};
use freehold::{
    PageIndex, PageRange,
    call::SyncFlags,
    fault::Access,
    file::{FillError, WriteRefused, WriteRequest},
};
use freehold_machine::Task;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    thread::{Scope, ScopedJoinHandle},
};

/// Maximum number of discards of a file that are under way (`PLACES` in `src/file/removal.rs`).
const PLACES: u64 = 2;

/// A device that keeps the first number of each page. Page `n` begins with the number of [`Disk`].
#[derive(Clone, Default)]
struct Device {
    /// Value of `guards_writes`.
    guards: bool,
    /// Value of `read_pages`.
    window: u64,
    /// Value of `reads_zeroes`.
    zeroes: bool,
    queue: Arc<Mutex<VecDeque<WriteRequest<Machine>>>>,
    /// The stored numbers of pages that were written or discarded.
    stored: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// The pages of the questions so far.
    asked: Arc<Mutex<Vec<u64>>>,
    /// Passed before a discard has an effect.
    discard: Gate,
    /// Passed at the end of a question.
    question: Gate,
    /// Number of discards that have begun.
    discards: Arc<AtomicU64>,
}

impl Pager<Machine> for Device {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let number = self.stored.lock().unwrap().get(&index).copied().unwrap_or(Disk::number(index));
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &number.to_le_bytes());
        Ok(())
    }

    fn read_pages(&self) -> u64 {
        self.window
    }

    fn reads_zeroes(&self) -> bool {
        self.zeroes
    }

    fn write(&self, request: WriteRequest<Machine>) {
        self.queue.lock().unwrap().push_back(request);
    }

    fn guards_writes(&self) -> bool {
        self.guards
    }

    fn make_writable(&self, pages: PageRange) -> Result<(), WriteRefused> {
        self.asked.lock().unwrap().extend(pages.numbers());
        self.question.pass();
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        self.discards.fetch_add(1, SeqCst);
        self.discard.pass();
        pages.numbers().take_while(|page| *page < 64).for_each(|page| {
            self.stored.lock().unwrap().insert(page, 0);
        });
    }
}

impl Device {
    /// Returns a file of `pages` pages on this device.
    fn file(&self, world: &World, pages: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(world.engine(), self.clone(), pages * PAGE, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/device").unwrap()
    }

    /// Returns the oldest request, and waits for it.
    fn next(&self) -> WriteRequest<Machine> {
        loop {
            if let Some(request) = self.queue.lock().unwrap().pop_front() {
                return request;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the number of requests in the queue.
    fn requests(&self) -> usize {
        self.queue.lock().unwrap().len()
    }

    /// Stores and completes all pages of a request.
    fn complete(&self, mut request: WriteRequest<Machine>) {
        while let Some((index, frame)) = request.next_page() {
            let mut number = [0; 8];
            request.platform().read_frame(frame, 0, &mut number);
            self.stored.lock().unwrap().insert(index.get(), u64::from_le_bytes(number));
            request.complete(index, Ok(()));
        }
    }

    /// Completes all requests until `ended` returns true.
    fn serve_until(&self, ended: impl Fn() -> bool) {
        until(|| {
            let request = self.queue.lock().unwrap().pop_front();
            request.into_iter().for_each(|request| self.complete(request));
            ended()
        });
    }

    /// Writes back the whole file.
    fn sync(&self, mapping: &Mapping<Machine>) {
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| mapping.write_back(PageRange::ALL));
            self.serve_until(|| sync.is_finished());
            assert_eq!(sync.join().unwrap(), Ok(()));
        });
    }

    /// Makes the next discard wait. Returns the barriers that it passes when it begins, and before it goes
    /// on.
    fn hold_discard(&self) -> [Arc<Barrier>; 2] {
        hold(&self.discard)
    }

    /// Returns the stored number of a page.
    fn stored(&self, page: u64) -> Option<u64> {
        self.stored.lock().unwrap().get(&page).copied()
    }
}

/// Makes the next thread at the gate wait. Returns the barriers that it passes when it has come, and before it
/// goes on.
fn hold(gate: &Gate) -> [Arc<Barrier>; 2] {
    let barriers = [(); 2].map(|()| Arc::new(Barrier::new(2)));
    let inside = barriers.clone();
    gate.put(move || {
        for barrier in inside {
            barrier.wait();
        }
    });
    barriers
}

/// Reads the first number of a page.
fn get(mapping: &Mapping<Machine>, page: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(mapping.read_at(page * PAGE, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

/// Writes the first number of a page.
fn put(mapping: &Mapping<Machine>, page: u64, number: u64) {
    assert_eq!(mapping.write_at(page * PAGE, &number.to_le_bytes()), Ok(8));
}

fn one(page: u64) -> PageRange {
    PageRange::one(PageIndex::new(page))
}

/// Kinds of removals of the pages 1 and 2 of a file of 4 pages.
type Remove = fn(&Mapping<Machine>) -> Result<(), FillError>;
const REMOVALS: [(&str, Remove); 2] =
    [("a truncation", |mapping| mapping.truncate(PAGE)), ("a hole", |mapping| mapping.punch(PAGE..3 * PAGE))];

/// While a removal waits for a write, other tasks make its pages dirty again and write them back. No further
/// write of these pages begins, so that the removal waits for one write only.
#[test]
fn removal_waits_only_for_writes_that_began_before_it() {
    for (what, remove) in REMOVALS {
        everywhere(|world, process, cpu| {
            let device = Device::default();
            let file = device.file(world, 4);
            let mapping = file.mapping();
            process.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
            process.store(cpu, BASE + PAGE, 11u64).unwrap();
            std::thread::scope(|scope| {
                let first = scope.spawn(|| mapping.write_back(PageRange::ALL));
                let write = device.next();
                let removal = spawn_until_waiting(scope, || remove(mapping));
                // Pages of the removal and another page become dirty. Stores and calls do not wait.
                process.store(cpu, BASE, 20u64).unwrap();
                process.store(cpu, BASE + PAGE, 21u64).unwrap();
                put(mapping, 2, 22);
                let second = spawn_until_waiting(scope, || process.msync(BASE, 4 * PAGE, SyncFlags::SYNC));
                // Only the other page is written.
                let other = device.next();
                assert_eq!((other.pages(), device.requests()), (one(0), 0), "{what}");
                device.complete(other);
                let third = spawn_until_waiting(scope, || mapping.write_back(one(2)));
                assert_eq!(device.requests(), 0, "{what}");
                assert!(!removal.is_finished() && !second.is_finished() && !third.is_finished(), "{what}");
                device.complete(write);
                assert_eq!(removal.join().unwrap(), Ok(()), "{what}");
                // Nothing is left to write.
                assert_eq!(second.join().unwrap(), Ok(()), "{what}");
                assert_eq!([first, third].map(|thread| thread.join().unwrap()), [Ok(()); 2], "{what}");
            });
            assert_eq!(device.requests(), 0, "{what}");
            assert_eq!([0, 1, 2].map(|page| device.stored(page)), [Some(20), Some(0), Some(0)], "{what}");
            mapping.check();
        });
    }
}

/// Starts a truncation that waits. Also returns its task, which the test kills.
fn truncation<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mapping: &'scope Mapping<Machine>,
    size: u64,
) -> (ScopedJoinHandle<'scope, Result<(), FillError>>, Task) {
    let (sender, receiver) = channel();
    let thread = spawn_until_waiting(scope, move || {
        sender.send(Task::current()).unwrap();
        mapping.truncate(size)
    });
    (thread, receiver.recv().unwrap())
}

/// A fatal signal ends a removal that waits for writes. The write-backs that it held back then write.
#[test]
fn end_of_a_killed_removal_lets_writes_begin() {
    let world = World::new();
    let device = Device::default();
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    put(mapping, 1, 11);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| mapping.write_back(PageRange::ALL));
        let write = device.next();
        let (removal, task) = truncation(scope, mapping, PAGE);
        put(mapping, 1, 21);
        put(mapping, 3, 23);
        let second = spawn_until_waiting(scope, || mapping.write_back(one(3)));
        assert_eq!((device.requests(), second.is_finished()), (0, false));
        task.kill();
        assert_eq!(removal.join().unwrap(), Err(FillError::Killed));
        let last = device.next();
        assert_eq!(last.pages(), one(3));
        device.complete(last);
        assert_eq!(second.join().unwrap(), Ok(()));
        device.complete(write);
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    device.sync(mapping);
    assert_eq!([1, 3].map(|page| device.stored(page)), [Some(21), Some(23)]);
    mapping.check();
    drop(file);
    world.end();
}

/// A task that waits for room under the bound on dirty pages goes on when a removal does not hold the writes
/// back any more.
#[test]
fn end_of_a_killed_removal_wakes_tasks_that_wait_for_room() {
    let world = World::with(16 << 20, Config::default().dirty_limit(2));
    let device = Device::default();
    let file = device.file(&world, 8);
    let mapping = file.mapping();
    put(mapping, 1, 11);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| mapping.write_back(PageRange::ALL));
        let write = device.next();
        let (removal, task) = truncation(scope, mapping, PAGE);
        // One page is being written and one is dirty, so the file is full.
        put(mapping, 2, 12);
        let writer = spawn_until_waiting(scope, || put(mapping, 0, 20));
        assert_eq!((device.requests(), writer.is_finished()), (0, false));
        task.kill();
        assert_eq!(removal.join().unwrap(), Err(FillError::Killed));
        // The writer writes the dirty page back, although the other write hangs.
        let room = device.next();
        assert_eq!(room.pages(), one(2));
        device.complete(room);
        writer.join().unwrap();
        device.complete(write);
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    device.sync(mapping);
    drop(file);
    world.end();
}

/// A truncation to a size inside a page needs a permission for this page. While it waits for writes of other
/// pages, no write of the page ends the permission, so the pager is asked once.
#[test]
fn removal_that_waits_keeps_its_permission() {
    let world = World::new();
    let device = Device { guards: true, ..Device::default() };
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    put(mapping, 2, 12);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| mapping.write_back(PageRange::ALL));
        let write = device.next();
        let removal = spawn_until_waiting(scope, || mapping.truncate(PAGE + 8));
        let second = spawn_until_waiting(scope, || mapping.write_back(one(1)));
        assert_eq!((device.requests(), second.is_finished()), (0, false));
        device.complete(write);
        assert_eq!(removal.join().unwrap(), Ok(()));
        device.complete(device.next());
        assert_eq!([first, second].map(|thread| thread.join().unwrap()), [Ok(()); 2]);
    });
    assert_eq!(*device.asked.lock().unwrap(), [2, 1]);
    drop(file);
    world.end();
}

/// The pager hangs in a discard. The pages of the discard are part of the file again, and tasks that need one
/// wait. Everything else proceeds, and the discard comes before every read and write of its pages.
#[test]
fn discard_that_hangs_leaves_other_pages_usable() {
    for (what, remove) in REMOVALS {
        everywhere(|world, process, cpu| {
            let device = Device::default();
            let file = device.file(world, 4);
            let mapping = file.mapping();
            process.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
            [1, 2].into_iter().for_each(|page| put(mapping, page, 10 + page));
            let [begun, go_on] = device.hold_discard();
            std::thread::scope(|scope| {
                let removal = scope.spawn(|| remove(mapping));
                begun.wait();
                mapping.truncate(6 * PAGE).unwrap();
                // Other pages: read, written, mapped, truncated, dropped.
                assert_eq!(get(mapping, 4), Disk::number(4), "{what}");
                put(mapping, 0, 20);
                process.store(cpu, BASE + 8, 1u64).unwrap();
                mapping.punch(4 * PAGE..5 * PAGE).unwrap();
                mapping.truncate(4 * PAGE + 8).unwrap();
                mapping.drop_clean(PageRange::ALL);
                mapping.check();
                assert_eq!((mapping.size(), get(mapping, 0)), (4 * PAGE + 8, 20), "{what}");
                // The pages of the discard.
                let cpus = [1, 2].map(|number| world.machine.cpu(number));
                let [mut loads, mut stores] = cpus;
                let load = spawn_until_waiting(scope, move || process.load::<u64>(&mut loads, BASE + PAGE));
                let store =
                    spawn_until_waiting(scope, move || process.store(&mut stores, BASE + 2 * PAGE, 1u64));
                let read = spawn_until_waiting(scope, || get(mapping, 1));
                let write = spawn_until_waiting(scope, || put(mapping, 1, 31));
                let whole = spawn_until_waiting(scope, || mapping.write_at(PAGE, &[5; PAGE as usize]));
                assert!(!removal.is_finished(), "{what}");
                assert!(!load.is_finished() && !store.is_finished(), "{what}");
                assert!(!read.is_finished() && !write.is_finished() && !whole.is_finished(), "{what}");
                assert_eq!(killed(|| mapping.fill(PageIndex::new(2))), Err(FillError::Killed), "{what}");
                assert_eq!(killed(|| mapping.write_at(PAGE, b"it")), Err(FillError::Killed), "{what}");
                go_on.wait();
                assert_eq!(removal.join().unwrap(), Ok(()), "{what}");
                assert_eq!(store.join().unwrap(), Ok(()), "{what}");
                assert_eq!(whole.join().unwrap(), Ok(PAGE as usize), "{what}");
                write.join().unwrap();
                for number in [load.join().unwrap().unwrap(), read.join().unwrap()] {
                    // Zero, or what another of the threads has written.
                    assert!([0, 31, 0x0505_0505_0505_0505].contains(&number), "{what}: {number}");
                }
            });
            assert_eq!(get(mapping, 2), 1, "{what}: the contents before the removal are gone");
            device.sync(mapping);
            assert_eq!(device.stored(2), Some(1), "{what}: the write came after the discard");
            mapping.check();
        });
    }
}

/// A hole with two edges needs two permissions. The pager may write pages back while it is asked for the
/// second, because the removal is not announced then.
#[test]
fn pager_may_write_back_while_a_removal_asks_it() {
    let world = World::new();
    let device = Device { guards: true, ..Device::default() };
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    let (inside, second) = (mapping.clone(), device.question.clone());
    device.question.put(move || {
        second.put(move || assert_eq!(inside.write_back(one(0)), Ok(())));
    });
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| mapping.punch(PAGE - 8..2 * PAGE + 8));
        device.serve_until(|| removal.is_finished());
        assert_eq!(removal.join().unwrap(), Ok(()));
    });
    // The write has ended the first permission.
    assert_eq!(*device.asked.lock().unwrap(), [0, 2, 0]);
    device.sync(mapping);
    drop(file);
    world.end();
}

/// A page that needs no read also enters the cache after its discard, because it may be written then.
#[test]
fn page_of_zeroes_waits_for_the_discard() {
    let world = World::new();
    let device = Device { zeroes: true, ..Device::default() };
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    let [begun, go_on] = device.hold_discard();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| mapping.punch(PAGE..2 * PAGE));
        begun.wait();
        put(mapping, 0, 10);
        let read = spawn_until_waiting(scope, || get(mapping, 1));
        let write = spawn_until_waiting(scope, || put(mapping, 1, 11));
        assert!(!read.is_finished() && !write.is_finished());
        go_on.wait();
        assert_eq!(removal.join().unwrap(), Ok(()));
        write.join().unwrap();
        assert!([0, 11].contains(&read.join().unwrap()));
    });
    device.sync(mapping);
    assert_eq!([0, 1].map(|page| device.stored(page)), [Some(10), Some(11)]);
    drop(file);
    world.end();
}

/// A request to read has the pages around the wanted one, except those that are being discarded.
#[test]
fn read_around_a_page_skips_pages_that_are_being_discarded() {
    let world = World::new();
    let device = Device { window: 4, ..Device::default() };
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    let [begun, go_on] = device.hold_discard();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| mapping.punch(2 * PAGE..3 * PAGE));
        begun.wait();
        assert_eq!(get(mapping, 0), Disk::number(0));
        let cached = [0, 1, 2, 3].map(|page| mapping.has_page(PageIndex::new(page)));
        assert_eq!(cached, [true, true, false, false]);
        go_on.wait();
        assert_eq!(removal.join().unwrap(), Ok(()));
    });
    assert_eq!([2, 3].map(|page| get(mapping, page)), [0, Disk::number(3)]);
    drop(file);
    world.end();
}

/// The pager is asked for permission only about pages that it is not discarding.
#[test]
fn question_does_not_overlap_a_discard() {
    let world = World::new();
    let device = Device { guards: true, ..Device::default() };
    let file = device.file(&world, 4);
    let mapping = file.mapping();
    let [begun, go_on] = device.hold_discard();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| mapping.punch(2 * PAGE..3 * PAGE));
        begun.wait();
        let write = spawn_until_waiting(scope, || mapping.write_at(0, &[1; 4 * PAGE as usize]));
        assert_eq!((write.is_finished(), device.asked.lock().unwrap().clone()), (false, vec![0, 1]));
        assert_eq!(get(mapping, 1), 0x0101_0101_0101_0101);
        go_on.wait();
        assert_eq!(removal.join().unwrap(), Ok(()));
        assert_eq!(write.join().unwrap(), Ok(4 * PAGE as usize));
    });
    assert_eq!(*device.asked.lock().unwrap(), [0, 1, 2, 3]);
    device.sync(mapping);
    drop(file);
    world.end();
}

/// Only so many discards of a file are under way. The next removal waits for the end of one of them, killably,
/// and has changed nothing until then.
#[test]
fn removal_waits_for_a_place_among_the_discards() {
    let world = World::new();
    let device = Device::default();
    let file = device.file(&world, 16);
    let mapping = file.mapping();
    put(mapping, 15, 25);
    std::thread::scope(|scope| {
        let mut removals = Vec::new();
        for page in 0..PLACES {
            let [begun, go_on] = device.hold_discard();
            let removal = scope.spawn(move || mapping.punch(page * PAGE..(page + 1) * PAGE));
            begun.wait();
            removals.push((removal, go_on));
        }
        assert_eq!(killed(|| mapping.punch(15 * PAGE..16 * PAGE)), Err(FillError::Killed));
        let next = spawn_until_waiting(scope, || mapping.punch(15 * PAGE..16 * PAGE));
        assert_eq!((next.is_finished(), get(mapping, 15)), (false, 25));
        assert_eq!(device.discards.load(SeqCst), PLACES);
        // The end of any discard makes room.
        let (removal, go_on) = removals.pop().unwrap();
        go_on.wait();
        assert_eq!([removal, next].map(|thread| thread.join().unwrap()), [Ok(()); 2]);
        assert_eq!(get(mapping, 15), 0);
        for (removal, go_on) in removals {
            go_on.wait();
            assert_eq!(removal.join().unwrap(), Ok(()));
        }
    });
    mapping.check();
    drop(file);
    world.end();
}

/// Runs `scenario` in every design with a process that shares a direct file of four pages at [`BASE`].
fn with_direct_file(scenario: impl Fn(&Storage, &World, &Process, &mut Vcpu, &Mapping<Machine>)) {
    everywhere(|world, process, cpu| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, 4);
        process.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        scenario(&storage, world, process, cpu, file.mapping());
        file.mapping().check();
    });
}

/// The storage of a direct file hangs while it names a frame. Everything else proceeds, also a truncation that
/// removes the page. The frame that was named before is not used, because it was discarded.
#[test]
fn frame_that_was_discarded_while_it_was_named_is_not_used() {
    with_direct_file(|storage, world, process, cpu, mapping| {
        let [begun, go_on] = hold(&storage.named);
        std::thread::scope(|scope| {
            let mut other = world.machine.cpu(1);
            let fault = scope.spawn(move || process.store(&mut other, BASE + 2 * PAGE, 7u64));
            begun.wait();
            // Other pages are usable.
            process.store(cpu, BASE, 1u64).unwrap();
            put(mapping, 1, 11);
            assert_eq!((get(mapping, 1), get(mapping, 3)), (11, 0));
            mapping.write_back(PageRange::ALL).unwrap();
            assert!(!fault.is_finished());
            // The named frame returns to the storage.
            assert!(storage.frame(2).is_some());
            mapping.truncate(2 * PAGE).unwrap();
            mapping.truncate(4 * PAGE).unwrap();
            assert_eq!(storage.frame(2), None);
            assert_eq!(get(mapping, 3), 0);
            go_on.wait();
            assert_eq!(fault.join().unwrap(), Ok(()));
        });
        assert_eq!((storage.word(2), storage.word(3)), (7, 0));
    });
}

/// A page that the storage has named in vain, because the file has shrunk, is discarded.
#[test]
fn frame_beyond_the_end_returns_to_the_storage() {
    with_direct_file(|storage, _, process, _, mapping| {
        let [begun, go_on] = hold(&storage.asked);
        std::thread::scope(|scope| {
            let space = process.space();
            let fault = scope.spawn(move || space.handle_fault(BASE + 2 * PAGE, Access::READ));
            begun.wait();
            mapping.truncate(2 * PAGE).unwrap();
            go_on.wait();
            assert!(fault.join().unwrap().is_err());
        });
        assert_eq!((storage.frame(2), storage.freed()), (None, 1));
    });
}

/// A write that enlarges a direct file does not hold the content lock while the storage names the new page.
#[test]
fn growth_of_a_direct_file_holds_no_lock_while_the_storage_names_the_page() {
    let world = World::new();
    let storage = Storage::new(&world.machine);
    let file = storage.file(&world, 1);
    let mapping = file.mapping();
    let [begun, go_on] = hold(&storage.named);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| mapping.write_at(PAGE, &[7; PAGE as usize]));
        begun.wait();
        put(mapping, 0, 10);
        mapping.punch(0..PAGE).unwrap();
        mapping.truncate(PAGE).unwrap();
        go_on.wait();
        assert_eq!(write.join().unwrap(), Ok(PAGE as usize));
    });
    assert_eq!((mapping.size(), get(mapping, 0), get(mapping, 1)), (2 * PAGE, 0, 0x0707_0707_0707_0707));
    // A write that fails leaves no page beyond the end.
    let machine = world.machine.clone();
    storage.state().lie = Some(storage.frame(0).unwrap());
    assert_eq!(mapping.write_at(2 * PAGE, b"it"), Err(FillError::Io));
    storage.state().lie = None;
    assert_eq!((mapping.size(), storage.frame(2)), (2 * PAGE, None));
    mapping.check();
    drop((file, storage, machine));
    world.end();
}
