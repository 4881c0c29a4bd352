//! Dropping clean pages from page caches (`src/file/change/drop_clean.rs`). Pages in use and dirty pages
//! stay. A page is in use while it is mapped, pinned or being read. `left_after` fills the cache, makes a
//! call and returns the pages that are left; the tests compare this list and the words on the disk.
//! `lab/freehold-machine/tests/shuttle_engine/drop_clean.rs` explores concurrent cases.

use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    file::{FillError, Zeroes},
    remote::PinFlags,
};
use freehold_machine::Process;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

const ALL: PageRange = PageRange::ALL;

/// A disk that stores written pages and counts reads.
#[derive(Clone, Default)]
struct Store {
    written: Arc<Mutex<HashMap<u64, u64>>>,
    reads: Arc<AtomicU64>,
}

impl Pager<Machine> for Store {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        self.reads.fetch_add(1, SeqCst);
        let number = self.written.lock().unwrap().get(&index).copied().unwrap_or(Disk::number(index));
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &number.to_le_bytes());
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let mut bytes = [0; 8];
        platform.read_frame(frame, 0, &mut bytes);
        self.written.lock().unwrap().insert(index, u64::from_le_bytes(bytes));
        Ok(())
    }
}

/// An open file.
type Opened = Counted<File<Machine>>;

fn open(world: &World, store: impl Pager<Machine>, pages: u64, shmem: bool) -> Opened {
    let mapping = Mapping::new(world.engine(), store, pages * PAGE, shmem).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
}

/// Returns the number at the start of a page of the file.
fn number(file: &Opened, page: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.mapping().read_at(page * PAGE, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

/// Reads every page, calls `f`, and returns the pages that are in the cache afterwards.
fn left_after(file: &Opened, f: impl FnOnce()) -> Vec<u64> {
    let pages = file.mapping().pages();
    (0..pages).for_each(|page| file.mapping().fill(PageIndex::new(page)).unwrap());
    f();
    (0..pages).filter(|&page| file.mapping().has_page(PageIndex::new(page))).collect()
}

fn map(process: &Process, file: &Opened, pages: u64) -> u64 {
    process.mmap(0, pages * PAGE, RW, MapFlags::SHARED, Some(file), 0).unwrap()
}

#[test]
fn drop_clean_removes_clean_pages_of_a_range() {
    let world = World::new();
    let (engine, file) = (world.engine(), open(&world, Store::default(), 300, false));
    assert_eq!(left_after(&file, || assert_eq!(file.drop_clean((2..299).into()), 297)), [0, 1, 299]);
    assert_eq!(file.drop_clean((2..299).into()), 0);
    assert_eq!(file.drop_clean(ALL), 3);
    assert_eq!(file.drop_clean((5..5).into()), 0);
    engine.trim();
    // Only the frame of the zero page is in use.
    assert_eq!(world.machine.accounting().frames, 1);
    assert_eq!(number(&file, 7), Disk::number(7));
    drop(file);
    world.end();
}

#[test]
fn drop_clean_keeps_mapped_and_pinned_pages() {
    for locking in Locking::ALL {
        let world = World::new();
        let (file, process) = (open(&world, Store::default(), 6, false), world.process(locking));
        let mut cpu = world.machine.cpu(0);
        let at = map(&process, &file, 6);
        assert_eq!(process.load(&mut cpu, at + PAGE), Ok(Disk::number(1)));
        assert_eq!(process.load(&mut cpu, at + 4 * PAGE), Ok(Disk::number(4)));
        let pins = process.pin_user_pages(at + 4 * PAGE, 1, PinFlags::empty()).unwrap();
        // The faults also mapped the surrounding pages.
        process.munmap(at, PAGE).unwrap();
        process.munmap(at + 2 * PAGE, 4 * PAGE).unwrap();
        assert_eq!(left_after(&file, || assert_eq!(file.drop_clean(ALL), 4)), [1, 4]);
        assert_eq!(process.load(&mut cpu, at + PAGE), Ok(Disk::number(1)));
        drop(pins);
        process.munmap(at, 6 * PAGE).unwrap();
        assert_eq!(file.drop_clean(ALL), 2);
        drop((file, process, cpu));
        world.end();
    }
}

#[test]
fn drop_clean_keeps_dirty_pages_until_write_back() {
    let world = World::new();
    let store = Store::default();
    let (file, process) = (open(&world, store.clone(), 4, false), world.process(Locking::default()));
    let mut cpu = world.machine.cpu(0);
    let at = map(&process, &file, 4);
    process.store(&mut cpu, at + PAGE, 11u64).unwrap();
    process.munmap(at, 4 * PAGE).unwrap();
    file.mapping().write_at(3 * PAGE, &33u64.to_le_bytes()).unwrap();
    assert_eq!(left_after(&file, || assert_eq!(file.drop_clean(ALL), 2)), [1, 3]);
    file.mapping().write_back(ALL).unwrap();
    let reads = store.reads.load(SeqCst);
    assert_eq!(file.drop_clean(ALL), 2);
    assert_eq!([0, 1, 2, 3].map(|page| number(&file, page)), [7, 11, 2007, 33]);
    assert_eq!(store.reads.load(SeqCst), reads + 4);
    drop((file, process, cpu));
    world.end();
}

#[test]
fn drop_clean_keeps_pages_of_shared_memory() {
    let world = World::new();
    let memory = open(&world, Zeroes, 3, true);
    assert_eq!(left_after(&memory, || assert_eq!(memory.drop_clean(ALL), 0)), [0, 1, 2]);
    let memfd = Mapping::memfd(world.engine(), 2 * PAGE).unwrap();
    memfd.fill(PageIndex::new(1)).unwrap();
    assert_eq!((memfd.drop_clean(ALL), world.engine().drop_clean(u64::MAX)), (0, 0));
    assert!(memfd.has_page(PageIndex::new(1)));
    drop((memory, memfd));
    world.end();
}

/// A disk that keeps its odd pages in the cache, and stores the sizes and the pages that it is told.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<(&'static str, u64)>>>);

impl Keeper {
    /// Returns the calls since the last call of this function.
    fn calls(&self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Pager<Machine> for Keeper {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        Disk.read_page(platform, index, frame)
    }

    fn release(&self, index: PageIndex) -> bool {
        self.0.lock().unwrap().push(("release", index.get()));
        index.get().is_multiple_of(2)
    }

    fn resized(&self, size: u64) {
        self.0.lock().unwrap().push(("size", size));
    }

    fn discard(&self, pages: PageRange) {
        self.0.lock().unwrap().push(("discard", pages.start.get()));
    }
}

#[test]
fn pager_keeps_pages_that_it_does_not_release() {
    for locking in Locking::ALL {
        let world = World::new();
        let keeper = Keeper::default();
        let (file, process) = (open(&world, keeper.clone(), 5, false), world.process(locking));
        let mut cpu = world.machine.cpu(0);
        file.mapping().write_at(4 * PAGE, b"dirty").unwrap();
        assert_eq!(left_after(&file, || assert_eq!(file.drop_clean(ALL), 2)), [1, 3, 4]);
        // The pager is not asked about the dirty page.
        assert_eq!(keeper.calls(), [0, 1, 2, 3].map(|page| ("release", page)));
        // A page that was kept is as usable as before.
        let at = map(&process, &file, 5);
        process.store(&mut cpu, at + PAGE, 11u64).unwrap();
        assert_eq!(number(&file, 1), 11);
        process.munmap(at, 5 * PAGE).unwrap();
        file.mapping().write_back(ALL).unwrap();
        assert_eq!((world.engine().drop_clean(u64::MAX), keeper.calls().len()), (1, 3));
        file.mapping().truncate(0).unwrap();
        assert_eq!(keeper.calls(), [("size", 0), ("discard", 0)]);
        drop((file, process, cpu));
        world.end();
    }
}

#[test]
fn pager_records_each_new_size() {
    let world = World::new();
    let keeper = Keeper::default();
    let file = open(&world, keeper.clone(), 2, false);
    let mapping = file.mapping();
    mapping.write_at(0, &[1; 9]).unwrap();
    assert_eq!(keeper.calls(), []);
    // The size of a write grows page by page.
    mapping.write_at(2 * PAGE, &vec![1; PAGE as usize + 9]).unwrap();
    assert_eq!(keeper.calls(), [("size", 3 * PAGE), ("size", 3 * PAGE + 9)]);
    mapping.truncate(9 * PAGE).unwrap();
    mapping.truncate(9 * PAGE).unwrap();
    mapping.punch(PAGE..2 * PAGE).unwrap();
    mapping.truncate(PAGE).unwrap();
    assert_eq!(keeper.calls(), [("size", 9 * PAGE), ("discard", 1), ("size", PAGE), ("discard", 1)]);
    drop(file);
    world.end();
}

/// A disk that drops clean pages of its own file while it reads or writes pages, or is asked to release one.
#[derive(Clone, Default)]
struct Meddler {
    file: Arc<OnceLock<(Opened, Counted<Engine<Machine>>)>>,
    /// The numbers of pages that were dropped.
    dropped: Arc<Mutex<Vec<(u64, u64)>>>,
    /// True if the disk drops pages only when it is asked to release one.
    releases: bool,
}

impl Meddler {
    fn meddle(&self, releases: bool) {
        if let Some((file, engine)) = self.file.get().filter(|_| releases == self.releases) {
            let dropped = (file.drop_clean(ALL), engine.drop_clean(u64::MAX));
            self.dropped.lock().unwrap().push(dropped);
        }
    }
}

impl Pager<Machine> for Meddler {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        self.meddle(false);
        Disk.read_page(platform, index, frame)
    }

    fn write_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        self.meddle(false);
        Ok(())
    }

    fn release(&self, _: PageIndex) -> bool {
        self.meddle(true);
        true
    }
}

/// The lock is held while the pager is asked to release a page. The pager drops no other page, and does not
/// wait.
#[test]
fn drop_clean_does_not_wait_for_the_lock() {
    let world = World::new();
    let meddler = Meddler { releases: true, ..Meddler::default() };
    let file = open(&world, meddler.clone(), 2, false);
    let mapping = file.mapping();
    [0, 1].into_iter().for_each(|page| mapping.fill(PageIndex::new(page)).unwrap());
    assert!(meddler.file.set((file.clone(), world.engine().clone())).is_ok());
    assert_eq!(mapping.drop_clean(ALL), 2);
    assert_eq!(*meddler.dropped.lock().unwrap(), [(0, 0), (0, 0)]);
    // The pager and the file refer to each other, so the world cannot be checked for leaks.
    core::mem::forget(world);
}

/// A read and a write leave the invalidate lock free, so the other pages of the file can be dropped.
#[test]
fn drop_clean_skips_pages_that_are_read_or_written() {
    let world = World::new();
    let meddler = Meddler::default();
    let file = open(&world, meddler.clone(), 4, false);
    let mapping = file.mapping();
    mapping.fill(PageIndex::new(0)).unwrap();
    mapping.write_at(2 * PAGE, b"dirty").unwrap();
    assert!(meddler.file.set((file.clone(), world.engine().clone())).is_ok());
    mapping.fill(PageIndex::new(1)).unwrap();
    let cached = || [0, 1, 2, 3].map(|page| mapping.has_page(PageIndex::new(page)));
    assert_eq!(cached(), [false, true, true, false]);
    mapping.write_back(ALL).unwrap();
    assert_eq!(*meddler.dropped.lock().unwrap(), [(1, 0), (1, 0)]);
    assert_eq!(cached(), [false, false, true, false]);
    assert_eq!(mapping.fill(PageIndex::new(4)), Err(FillError::BeyondEnd));
    // The pager and the file refer to each other, so the world cannot be checked for leaks.
    core::mem::forget(world);
}

#[test]
fn engine_drops_pages_of_its_files_round_robin() {
    let world = World::new();
    let engine = world.engine().clone();
    let cached = |files: &[Opened]| {
        files
            .iter()
            .map(|file| (0..10).filter(|&page| file.mapping().has_page(PageIndex::new(page))).count())
            .collect::<Vec<_>>()
    };
    let fill = |file: &Opened| (0..10).for_each(|page| file.mapping().fill(PageIndex::new(page)).unwrap());
    assert_eq!(engine.drop_clean(1), 0);
    let mut files: Vec<_> = (0..4).map(|_| open(&world, Disk, 10, false)).collect();
    files.iter().for_each(fill);
    assert_eq!(engine.drop_clean(4), 4);
    assert_eq!(cached(&files), [6, 10, 10, 10]);
    assert_eq!(engine.drop_clean(15), 15);
    assert_eq!(cached(&files), [6, 0, 5, 10]);
    // Two files are dropped: a file in the middle, and the file at which the next call would continue. A new
    // file is added.
    files.remove(3);
    files.remove(1);
    files.push(open(&world, Disk, 10, false));
    fill(&files[2]);
    assert_eq!(engine.drop_clean(7), 7);
    assert_eq!(cached(&files), [0, 4, 10]);
    assert_eq!(engine.drop_clean(u64::MAX), 14);
    assert_eq!((engine.drop_clean(u64::MAX), engine.drop_clean(0)), (0, 0));
    drop(files);
    assert_eq!(engine.drop_clean(u64::MAX), 0);
    drop(engine);
    world.end();
}

#[test]
fn files_open_and_close_during_drop_clean() {
    let world = World::new();
    let engine = world.engine();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..200 {
                    let file = open(&world, Disk, 4, false);
                    assert_eq!(number(&file, round % 4), Disk::number(round % 4));
                    assert_eq!(number(&file, round % 3), Disk::number(round % 3));
                }
            });
        }
        scope.spawn(|| (0..400).map(|_| engine.drop_clean(3)).sum::<u64>());
    });
    assert_eq!(engine.drop_clean(u64::MAX), 0);
    world.end();
}
