//! Readahead (`src/file/readahead/`): which pages are read with a page, and when.
//!
//! The pager [`Instant`] completes each request at once and records it. With it, the pages in the cache after
//! a list of accesses are the same in each run. The first test has the answers of Linux 6.18, on ext4 with
//! windows of at most 128 KiB, where Linux does not round windows to the sizes of large folios. The other tests use
//! a [`Device`], whose requests they complete. `src/file/readahead/window.rs` tests the sizes of windows.

#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges of pages")]

use super::device::*;
use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    call::Advice,
    fault::Access,
    file::{FileAdvice, ReadRequest},
};
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

/// A pager that completes each request at once, and records the pages of the request.
#[derive(Clone, Default)]
struct Instant {
    /// Value of `read_pages`.
    window: u64,
    log: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Pager<Machine> for Instant {
    fn read(&self, request: ReadRequest<Machine>) {
        self.log.lock().unwrap().push(request.pages().numbers());
        complete_all(request);
    }

    fn read_pages(&self) -> u64 {
        self.window
    }
}

impl Instant {
    fn new(window: u64) -> Self {
        Instant { window, ..Instant::default() }
    }

    /// Returns a file of `bytes` bytes.
    fn file(&self, world: &World, bytes: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(world.engine(), self.clone(), bytes, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/instant").unwrap()
    }

    /// Returns the requests since the last call.
    fn asked(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

/// Reads `count` pages from page `page` on by one call.
fn read(file: &File<Machine>, page: u64, count: u64) {
    let mut bytes = vec![0; (count * PAGE) as usize];
    assert_eq!(file.read_at(page * PAGE, &mut bytes), Ok(bytes.len()));
    for at in 0..count {
        let number = bytes[(at * PAGE) as usize..][..8].try_into().map(u64::from_le_bytes).unwrap();
        assert_eq!(number, Disk::number(page + at), "page {}", page + at);
    }
}

/// An access to a file of 2048 pages that is mapped as a whole.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads pages by one call: the first page and the number of pages.
    Read(u64, u64),
    /// Reads pages by one call each.
    ReadEach(u64, u64),
    /// Loads from each page of a range.
    Load(u64, u64),
    /// Advice about the open file, for a range of bytes.
    Fadvise(FileAdvice, u64, u64),
    /// Advice about pages of the mapping.
    Madvise(Advice, u64, u64),
    /// readahead(2).
    Ahead(u64, u64),
}
use Step::*;

/// Returns the ranges of pages that are in the cache.
fn runs(mapping: &Mapping<Machine>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in cached(mapping, mapping.pages()) {
        match runs.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

/// Number of pages of the files.
const SIZE: u64 = 2048;

#[test]
fn pages_in_the_cache_are_those_of_linux() {
    use FileAdvice::{Normal, Random, Sequential, WillNeed};
    let cases: &[(&[Step], &[Range<u64>])] = &[
        // Read calls from the start of the file.
        (&[Read(0, 1)], &[0..4]),
        (&[Read(0, 3)], &[0..8]),
        (&[Read(0, 8)], &[0..16]),
        (&[Read(0, 12)], &[0..32]),
        (&[Read(0, 16)], &[0..32]),
        (&[Read(0, 32)], &[0..64]),
        (&[Read(0, 64)], &[0..128]),
        (&[ReadEach(0, 2)], &[0..12]),
        (&[ReadEach(0, 4)], &[0..12]),
        // Read calls elsewhere.
        (&[Read(100, 1)], &[100..101]),
        (&[Read(100, 16)], &[100..116]),
        (&[Read(100, 1), Read(101, 1)], &[100..105]),
        (&[Read(100, 4), Read(104, 4)], &[100..112]),
        (&[Read(100, 4), Read(104, 4), Read(108, 4)], &[100..128]),
        (&[Read(100, 1), Read(100, 1)], &[100..101]),
        (&[Read(100, 1), Read(300, 1), Read(500, 1)], &[100..101, 300..301, 500..501]),
        (&[Read(102, 1), Read(101, 1), Read(100, 1)], &[100..103]),
        (&[Read(200, 1), Read(203, 1), Read(206, 1)], &[200..201, 203..204, 206..207]),
        (&[ReadEach(0, 4), Read(500, 1)], &[0..12, 500..501]),
        // Advice about the open file.
        (&[Fadvise(Random, 0, 0), Read(0, 1), Read(1, 5), Read(6, 1)], &[0..7]),
        (&[Fadvise(Random, 0, 0), Load(50, 51)], &[34..66]),
        (&[Fadvise(Random, 0, 0), Fadvise(Normal, 0, 0), Read(100, 1), Read(101, 1)], &[100..105]),
        (&[Fadvise(Sequential, 0, 0), Read(0, 1)], &[0..4]),
        (&[Fadvise(Sequential, 0, 0), Load(300, 301)], &[268..332]),
        (&[Fadvise(WillNeed, 10 * PAGE + 5, 16 * PAGE + 5)], &[10..17]),
        (&[Ahead(10 * PAGE + 5, 16 * PAGE + 5)], &[10..17]),
        (&[Read(0, 64), Fadvise(FileAdvice::DontNeed, 10 * PAGE + 5, 16 * PAGE + 5)], &[0..11, 16..128]),
        // Faults.
        (&[Load(0, 1)], &[0..32]),
        (&[Load(16, 17)], &[0..32]),
        (&[Load(17, 18)], &[1..33]),
        (&[Load(300, 301)], &[284..316]),
        (&[Load(2047, 2048)], &[2031..2048]),
        (&[Load(0, 10)], &[0..32]),
        (&[Load(0, 40)], &[0..96]),
        (&[Load(0, 100)], &[0..160]),
        (&[Load(500, 510)], &[484..548]),
        (&[Madvise(Advice::Random, 0, SIZE), Load(0, 2), Load(300, 340)], &[0..2, 300..340]),
        (&[Madvise(Advice::Sequential, 0, SIZE), Load(0, 2), Load(300, 301)], &[0..32, 300..332]),
        (&[Madvise(Advice::WillNeed, 1, 9)], &[1..9]),
    ];
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    for (steps, expected) in cases {
        let pager = Instant::new(32);
        let file = pager.file(&world, SIZE * PAGE);
        map(&process, &file, pages(0, SIZE), MapFlags::SHARED);
        for step in *steps {
            match *step {
                Read(page, count) => read(&file, page, count),
                ReadEach(page, count) => (page..page + count).for_each(|page| read(&file, page, 1)),
                Load(start, end) => (start..end).for_each(|page| {
                    assert_eq!(process.load::<u64>(&mut cpu, BASE + page * PAGE), Ok(Disk::number(page)));
                }),
                Fadvise(advice, start, end) => file.advise(advice, start..end),
                Madvise(advice, start, end) => {
                    process.madvise(BASE + start * PAGE, (end - start) * PAGE, advice).unwrap();
                }
                Ahead(start, end) => file.readahead(start..end),
            }
        }
        assert_eq!(runs(file.mapping()), *expected, "{steps:?}");
        file.mapping().check();
        process.munmap(BASE, SIZE * PAGE).unwrap();
    }
    drop((process, cpu));
    world.end();
}

/// Each window begins where the last one ends, and is asked for once.
#[test]
fn sequential_reads_ask_for_growing_windows() {
    let world = World::new();
    let pager = Instant::new(32);
    let file = pager.file(&world, SIZE * PAGE);
    let mut asked = Vec::new();
    for page in 0..100 {
        read(&file, page, 1);
        asked.extend(pager.asked().into_iter().map(|pages| (page, pages)));
    }
    let expected =
        [(0, 0..4), (1, 4..12), (4, 12..28), (12, 28..60), (28, 60..92), (60, 92..124), (92, 124..156)];
    assert_eq!(asked, expected);
    // A read elsewhere does not end the sequence.
    read(&file, 1000, 1);
    assert_eq!(pager.asked(), [1000..1001]);
    (100..130).for_each(|page| read(&file, page, 1));
    assert_eq!(pager.asked(), [156..188]);
    drop(file);
    world.end();
}

/// A window is larger than a request of the pager.
#[test]
fn window_is_asked_for_in_several_requests() {
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let pager = Instant::new(8);
    let file = pager.file(&world, SIZE * PAGE);
    map(&process, &file, pages(0, SIZE), MapFlags::SHARED);
    // The request for the page itself comes first.
    process.load::<u64>(&mut cpu, BASE + 100 * PAGE).unwrap();
    assert_eq!(pager.asked(), [100..108, 84..92, 92..100, 108..116]);
    read(&file, 0, 20);
    assert_eq!(pager.asked(), [0..8, 8..16, 16..24, 24..32]);
    process.munmap(BASE, SIZE * PAGE).unwrap();
    drop((file, process, cpu));
    world.end();
}

/// If pages of a window left the cache before the program has used them, the window begins small again.
#[test]
fn window_shrinks_if_pages_are_lost() {
    let world = World::new();
    let pager = Instant::new(32);
    let file = pager.file(&world, SIZE * PAGE);
    (0..70).for_each(|page| read(&file, page, 1));
    assert_eq!(file.drop_clean(PageRange::ALL), 124);
    pager.asked();
    read(&file, 70, 1);
    assert_eq!(pager.asked(), [70..74]);
    drop(file);
    world.end();
}

/// The next window is asked for while the program still has pages of this one, and nothing waits for it.
#[test]
fn next_window_is_asked_for_before_it_is_needed() {
    let world = World::new();
    let device = Device::new(32);
    let file = device.file(&world, 128 * PAGE);
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let first = scope.spawn(|| read(&file, 0, 1));
        let request = device.next();
        assert_eq!((request.pages(), device.asked()), (pages(0, 4), 0));
        complete_all(request);
        first.join().unwrap();
        read(&file, 1, 1);
        let second = device.next();
        assert_eq!((second.pages(), device.asked()), (pages(4, 12), 0));
        (2..4).for_each(|page| read(&file, page, 1));
        assert_eq!(device.asked(), 0);
        // The program reaches the second window while it is still being read. Before it waits, it asks for
        // the third one.
        let waits = spawn_until_waiting(scope, || read(&file, 4, 1));
        let third = device.next();
        assert_eq!((third.pages(), device.asked()), (pages(12, 28), 0));
        complete_all(second);
        waits.join().unwrap();
        assert_eq!(device.asked(), 0, "the mark was taken once");
        complete_all(third);
    });
    assert_eq!(runs(file.mapping()), [0..28]);
    drop(file);
    world.end();
}

/// Counts waits: of 512 faults in ascending order, only the first waits for the device. It is the only major
/// fault.
#[test]
fn sequential_faults_wait_once() {
    everywhere(|world, process, _| {
        for advice in [Advice::Normal, Advice::Sequential] {
            let pager = Instant::new(32);
            let file = pager.file(world, 512 * PAGE);
            map(process, &file, pages(0, 512), MapFlags::SHARED);
            process.madvise(BASE, 512 * PAGE, advice).unwrap();
            let mut waits = Vec::new();
            for page in 0..512 {
                let done = process.handle_fault(BASE + page * PAGE, Access::READ).unwrap();
                assert_eq!(done.major, done.waited);
                waits.extend(done.major.then_some(page));
            }
            assert_eq!(waits, [0]);
            assert_eq!(pager.asked().len(), 512 / 32);
            process.munmap(BASE, 512 * PAGE).unwrap();
        }
    });
}

/// Stores that need a page with the mark start readahead, too, for shared and for private mappings.
#[test]
fn stores_start_readahead() {
    everywhere(|world, process, cpu| {
        for kind in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let pager = Instant::new(32);
            let file = pager.file(world, 128 * PAGE);
            map(process, &file, pages(0, 128), kind);
            for page in 0..25 {
                process.store(cpu, BASE + page * PAGE, page).unwrap();
            }
            assert_eq!(pager.asked(), [0..32, 32..64]);
            process.munmap(BASE, 128 * PAGE).unwrap();
        }
    });
}

/// Two sequences of one open file replace each other's window. Each is known by its pages in the cache.
#[test]
fn interleaved_sequences_are_both_read_ahead() {
    let world = World::new();
    let pager = Instant::new(32);
    let file = pager.file(&world, SIZE * PAGE);
    let mut asked = Vec::new();
    for page in 0..256 {
        read(&file, 100 + page, 1);
        read(&file, 1100 + page, 1);
        asked.extend(pager.asked());
    }
    let mut numbers: Vec<u64> = asked.iter().cloned().flatten().collect();
    let total = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), total, "a page was read twice");
    assert!(total <= 2 * (256 + 64), "{total} pages");
    assert!(asked.len() <= 2 * (256 / 32 + 7), "{} requests: {asked:?}", asked.len());
    drop(file);
    world.end();
}

/// After 100 faults far from each other, a fault reads only its own page. Faults beside cached pages turn the
/// windows on again.
#[test]
fn scattered_faults_turn_windows_off() {
    let world = World::new();
    let process = world.process(Locking::default());
    let pager = Instant::new(32);
    let file = pager.file(&world, 1 << 26);
    let size = file.mapping().pages();
    map(&process, &file, pages(0, size), MapFlags::PRIVATE);
    let fault = |page: u64| {
        process.handle_fault(BASE + page * PAGE, Access::WRITE).unwrap();
        pager.asked().iter().map(|pages| pages.end - pages.start).sum::<u64>()
    };
    let mut scattered = (0..).map(|number| 20 + 40 * number);
    for page in scattered.by_ref().take(100) {
        assert_eq!(fault(page), 32, "page {page}");
    }
    for page in scattered.by_ref().take(4) {
        assert_eq!(fault(page), 1, "page {page}");
    }
    // Faults in descending order, each beside a page in the cache, and behind no window.
    let near = 20 + 40 * 103;
    assert_eq!((1..5).map(|number| fault(near - number)).collect::<Vec<_>>(), [1, 1, 1, 32 - 4]);
    process.munmap(BASE, size * PAGE).unwrap();
    drop((file, process));
    world.end();
}

/// The end of the file cuts windows off.
#[test]
fn windows_end_at_the_end_of_the_file() {
    let world = World::new();
    let pager = Instant::new(32);
    let file = pager.file(&world, 10 * PAGE + 1);
    (0..10).for_each(|page| read(&file, page, 1));
    assert_eq!(file.read_at(10 * PAGE, &mut [0; 16]), Ok(1));
    assert_eq!(file.read_at(11 * PAGE, &mut [0; 16]), Ok(0));
    file.readahead(9 * PAGE..u64::MAX);
    file.readahead(u64::MAX - 1..u64::MAX);
    assert_eq!(pager.asked(), [0..4, 4..11]);
    drop(file);
    // A window that begins with a miss.
    let file = pager.file(&world, 10 * PAGE + 1);
    let process = world.process(Locking::default());
    map(&process, &file, pages(0, 11), MapFlags::SHARED);
    process.handle_fault(BASE + 10 * PAGE, Access::READ).unwrap();
    assert_eq!((pager.asked(), file.mapping().present_pages()), (vec![0..11], 11));
    process.munmap(BASE, 11 * PAGE).unwrap();
    drop((file, process));
    world.end();
}

/// A truncation removes pages that are being read ahead. Their reads end without effect.
#[test]
fn truncation_removes_pages_that_are_read_ahead() {
    let world = World::new();
    let device = Device::new(32);
    let file = device.file(&world, 128 * PAGE);
    let mapping = file.mapping();
    file.readahead(0..4 * PAGE);
    device.take_all().into_iter().for_each(complete_all);
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let waits = spawn_until_waiting(scope, || file.read_at(4 * PAGE, &mut [0; 8]));
        let request = device.next();
        mapping.truncate(4 * PAGE).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(0));
        assert_eq!(mapping.present_pages(), 4);
        complete_all(request);
    });
    assert_eq!((runs(mapping), device.asked()), (vec![0..4], 0));
    mapping.check();
    drop(file);
    world.end();
}

/// Without memory for a whole window, the page itself is read, and nothing fails.
#[test]
fn readahead_gives_up_without_memory() {
    let world = World::new();
    let pager = Instant::new(32);
    let file = pager.file(&world, 128 * PAGE);
    let process = world.process(Locking::default());
    anon(&process, BASE, 2 * (16 << 20) / PAGE);
    let mut cpu = world.machine.cpu(0);
    let touched = (0..).find(|page| process.store(&mut cpu, BASE + page * PAGE, 1u64).is_err());
    let rest = world.file(64);
    assert!((0..64).any(|page| rest.mapping().fill(PageIndex::new(page)).is_err()), "{touched:?}");
    assert_eq!(file.read_at(0, &mut [0; 8]), Err(freehold::file::FillError::NoMemory));
    file.readahead(0..128 * PAGE);
    assert_eq!((file.mapping().present_pages(), pager.asked().len()), (0, 0));
    process.madvise(BASE, 4 * PAGE, Advice::DontNeed).unwrap();
    world.engine().trim();
    read(&file, 100, 1);
    file.readahead(0..128 * PAGE);
    let present = file.mapping().present_pages();
    assert!((1..32).contains(&present), "{present} pages");
    file.mapping().check();
    drop((process, cpu, file, rest));
    world.end();
}

/// A device that fails at once gets no further request for the window, and the page fails once.
#[test]
fn readahead_gives_up_if_the_device_fails() {
    struct Fails(Arc<Mutex<u64>>);
    impl Pager<Machine> for Fails {
        fn read(&self, _: ReadRequest<Machine>) {
            *self.0.lock().unwrap() += 1;
        }
        fn read_pages(&self) -> u64 {
            4
        }
    }
    let world = World::new();
    let asked = Arc::new(Mutex::new(0));
    let mapping = Mapping::new(world.engine(), Fails(asked.clone()), 64 * PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ, "/fails").unwrap();
    assert_eq!(file.read_at(0, &mut [0; 20 * PAGE as usize]), Err(freehold::file::FillError::Io));
    file.readahead(0..64 * PAGE);
    assert_eq!((*asked.lock().unwrap(), mapping.present_pages()), (2, 0));
    mapping.check();
    drop((file, mapping));
    world.end();
}

/// A pager that wants single pages, or a maximum of 0, turns readahead off.
#[test]
fn readahead_is_off_for_pagers_of_single_pages() {
    let world = World::new();
    let pager = Instant::new(1);
    let file = pager.file(&world, 64 * PAGE);
    assert_eq!(file.mapping().readahead(), 0);
    (0..4).for_each(|page| read(&file, page, 1));
    assert_eq!(pager.asked(), [0..1, 1..2, 2..3, 3..4]);
    file.mapping().set_readahead(8);
    (4..7).for_each(|page| read(&file, page, 1));
    assert_eq!(pager.asked(), (4..12).map(|page| page..page + 1).collect::<Vec<_>>());
    drop(file);
    let pager = Instant::new(8);
    let file = pager.file(&world, 64 * PAGE);
    assert_eq!(file.mapping().readahead(), 32);
    file.mapping().set_readahead(0);
    read(&file, 13, 1);
    assert_eq!(pager.asked(), [8..16]);
    file.mapping().set_readahead(u32::MAX);
    assert_eq!(file.mapping().readahead(), 8192);
    drop(file);
    world.end();
}

/// DONTNEED writes pages back. A page that cannot be written stays, and the next write-back reports it.
#[test]
fn advice_that_cannot_write_a_page_is_reported_later() {
    struct Full;
    impl Pager<Machine> for Full {
        fn write_page(&self, _: &Machine, index: PageIndex, _: Pfn) -> Result<(), IoError> {
            if index.get() == 1 { Err(IoError) } else { Ok(()) }
        }
    }
    let world = World::new();
    let mapping = Mapping::new(world.engine(), Full, 3 * PAGE + 5, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/full").unwrap();
    mapping.write_at(0, &[7; 3 * PAGE as usize]).unwrap();
    file.advise(FileAdvice::DontNeed, 0..3 * PAGE + 5);
    assert_eq!(cached(&mapping, 4), [1]);
    assert_eq!(mapping.write_back(pages(0, 1)), Err(freehold::error::SyncError::Io));
    assert_eq!(mapping.write_back(pages(0, 1)), Ok(()));
    drop((file, mapping));
    world.end();
}
