//! The bound on the dirty pages of a file (`src/file/throttle.rs`). `Slow` is a device that counts the pages that
//! are dirty as far as it knows, or that keeps the requests to write until a test completes them.

use crate::support::*;
use freehold::{PageIndex, PageRange, fault::Access, file::WriteRequest};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
    mpsc::{Receiver, Sender, channel},
};

/// Maximum number of dirty pages of the files of these tests.
const LIMIT: u64 = 4;

#[derive(Clone, Default)]
struct Slow {
    written: Arc<AtomicU64>,
    /// The requests go here if there is a channel.
    queue: Arc<Mutex<Option<Sender<WriteRequest<Machine>>>>>,
}

impl Slow {
    /// Makes the device keep the requests to write. Returns the end at which they arrive.
    fn keep(&self) -> Receiver<WriteRequest<Machine>> {
        let (sender, receiver) = channel();
        *self.queue.lock().unwrap() = Some(sender);
        receiver
    }
}

/// Completes all pages of a request.
fn complete(mut request: WriteRequest<Machine>) {
    while let Some((index, _)) = request.next_page() {
        request.complete(index, Ok(()));
    }
}

impl Pager<Machine> for Slow {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        Disk.read_page(platform, index, frame)
    }

    fn write(&self, request: WriteRequest<Machine>) {
        self.written.fetch_add(request.len().get(), SeqCst);
        match &*self.queue.lock().unwrap() {
            Some(queue) => queue.send(request).unwrap(),
            None => complete(request),
        }
    }
}

/// Returns a world whose files have a bound, and a file of 64 pages.
fn world() -> (World, Slow, Counted<Mapping<Machine>>) {
    let world = World::with(16 << 20, Config::default().dirty_limit(LIMIT));
    let slow = Slow::default();
    let mapping = Mapping::new(world.engine(), slow.clone(), 64 * PAGE, false).unwrap();
    (world, slow, mapping)
}

#[test]
fn full_file_makes_its_writer_write_back() {
    let (world, slow, mapping) = world();
    for page in 0..32 {
        mapping.write_at(page * PAGE, b"it").unwrap();
        assert!(page + 1 - slow.written.load(SeqCst) <= LIMIT, "page {page}");
    }
    // One call with many pages has the same bound.
    mapping.write_at(32 * PAGE, &[1; 32 * PAGE as usize]).unwrap();
    assert!(64 - slow.written.load(SeqCst) <= LIMIT);
    // A change of a dirty page writes nothing.
    let written = slow.written.load(SeqCst);
    for _ in 0..100 {
        mapping.write_at(63 * PAGE, b"again").unwrap();
    }
    assert_eq!(slow.written.load(SeqCst), written);
    // Neither does a read.
    mapping.read_at(0, &mut [0; 64 * PAGE as usize]).unwrap();
    assert_eq!(slow.written.load(SeqCst), written);
    mapping.check();
    drop(mapping);
    world.end();
}

#[test]
fn stores_through_mappings_have_the_same_bound() {
    for locking in Locking::ALL {
        let (world, slow, mapping) = world();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 64 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        for page in 0..64 {
            process.store(&mut cpu, at + page * PAGE, page).unwrap();
            assert!(page + 1 - slow.written.load(SeqCst) <= LIMIT, "page {page}");
        }
        // Pages that leave the file make room without a write.
        let written = slow.written.load(SeqCst);
        mapping.truncate(60 * PAGE).unwrap();
        // A task that waited for room would get a fatal signal.
        Task::current().interrupt_wait(1);
        (0..2).for_each(|page| process.store(&mut cpu, at + page * PAGE, 1u64).unwrap());
        Task::current().revive();
        assert_eq!(slow.written.load(SeqCst), written);
        drop((mapping, file, process, cpu));
        world.end();
    }
}

/// The device takes no page. Writers wait, and all other tasks proceed. Any write that ends makes room.
#[test]
fn writers_wait_for_a_device_that_hangs_and_readers_do_not() {
    let (world, slow, mapping) = world();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
    let process = world.process(Locking::default());
    let at = process.mmap(0, 64 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
    let requests = slow.keep();
    for page in 0..LIMIT {
        mapping.write_at(page * PAGE, b"it").unwrap();
    }
    let log = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (mapping, log) = (&mapping, &log);
        let space = process.space();
        let writer = scope.spawn(move || {
            mapping.write_at(10 * PAGE, b"it").unwrap();
            log.lock().unwrap().push("written");
        });
        let storer = scope.spawn(move || {
            space.handle_fault(at + 11 * PAGE, Access::WRITE).unwrap();
            log.lock().unwrap().push("stored");
        });
        // Both need room, so all four pages are being written.
        let held: Vec<_> = (0..LIMIT).map(|_| requests.recv().unwrap()).collect();
        mapping.read_at(20 * PAGE, &mut [0; 8]).unwrap();
        space.handle_fault(at + 20 * PAGE, Access::READ).unwrap();
        space.handle_fault(at + 2 * PAGE, Access::READ).unwrap();
        log.lock().unwrap().push("read");
        *slow.queue.lock().unwrap() = None;
        // The first page never ends; the others make room.
        let mut held = held.into_iter();
        let hangs = held.next().unwrap();
        held.for_each(complete);
        writer.join().unwrap();
        storer.join().unwrap();
        complete(hangs);
    });
    let log = log.into_inner().unwrap();
    assert_eq!((log[0], log.len()), ("read", 3));
    mapping.write_back(PageRange::ALL).unwrap();
    mapping.check();
    drop((mapping, file, process));
    world.end();
}
