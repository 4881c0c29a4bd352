//! Mapped files: what programs see through their mappings, and the effects of truncation, hole punching and
//! copy on write. The TLBs of the machine keep stale translations until they are flushed.
//!
//! The file under test is on a disk whose pages contain their numbers and which stores written pages. This
//! module has its own `World` and `Disk`, because those of `support/mod.rs` do not store written pages.
//! `on_every_design` runs a test. The tests check the words that a program loads, the words on the disk and
//! the number of writes. The tests with C-21 and C-26 run several threads. A test of a new subject belongs in
//! another file of this folder (`mod.rs` lists the subjects), or in a new file.

use crate::support::failure::{Failure, at_every_allocation};
use freehold::{
    PAGE_SIZE, PageIndex, PageRange,
    counted::Counted,
    engine::{Config, Engine},
    error::{MunmapError, SyncError},
    fault::FaultError,
    file::{File, FileAccess, ForeignFrames, Frames, IoError, Mapping, Pager, Special, Zeroes},
    platform::{FramePurpose, FrameRequest, Platform},
    space::{Locking, MapFlags, Prot, SpaceConfig},
    vma::flags::VmFlags,
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use freehold_pagetable::Pfn;
use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

/// A CPU of the machine, with a TLB.
type Vcpu = Cpu<DefaultFormat>;

const RW: Prot = Prot::READ.union(Prot::WRITE);

/// A disk with a number in every page. The disk stores written pages.
#[derive(Clone, Default)]
struct Disk {
    pages: Arc<Mutex<HashMap<u64, u64>>>,
    writes: Arc<AtomicU64>,
    broken: Arc<AtomicBool>,
}

impl Disk {
    /// Returns the initial content of a page of the disk.
    fn number(index: u64) -> u64 {
        index * 1000 + 7
    }

    fn page(&self, index: u64) -> u64 {
        *self.pages.lock().unwrap().get(&index).unwrap_or(&Self::number(index))
    }
}

impl Pager<Machine> for Disk {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        if self.broken.load(SeqCst) {
            return Err(IoError);
        }
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &self.page(index).to_le_bytes());
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        if self.broken.load(SeqCst) {
            return Err(IoError);
        }
        let mut bytes = [0; 8];
        platform.read_frame(frame, 0, &mut bytes);
        self.pages.lock().unwrap().insert(index, u64::from_le_bytes(bytes));
        self.writes.fetch_add(1, SeqCst);
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        let mut on_disk = self.pages.lock().unwrap();
        for index in pages.numbers() {
            on_disk.insert(index, 0);
        }
    }
}

/// A machine, its engine and a file. All its memory must be free when the world ends.
struct World {
    machine: Machine,
    engine: Option<Counted<Engine<Machine>>>,
    disk: Disk,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        World { machine, engine: Some(engine), disk: Disk::default() }
    }

    fn engine(&self) -> &Counted<Engine<Machine>> {
        self.engine.as_ref().unwrap()
    }

    fn process(&self, locking: Locking) -> Process {
        Process::new(self.engine(), &SpaceConfig::new().locking(locking)).unwrap()
    }

    fn file(&self, bytes: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(self.engine(), self.disk.clone(), bytes, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
    }

    /// Ends the world. Fails if an object of the world leaked.
    fn end(mut self) {
        self.engine = None;
        self.machine.accounting().assert_clean();
    }
}

fn map(process: &Process, pages: u64, flags: MapFlags, file: &Counted<File<Machine>>, first: u64) -> u64 {
    process.mmap(0, pages * PAGE_SIZE, RW, flags, Some(file), first * PAGE_SIZE).unwrap()
}

fn load(process: &Process, cpu: &mut Vcpu, address: u64) -> u64 {
    process.load(cpu, address).unwrap()
}

/// Returns the number at the start of a page of the file.
fn read_number(file: &File<Machine>, index: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.mapping().read_at(index * PAGE_SIZE, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

/// Runs `test` on every design. A program must see the same memory on every design.
fn on_every_design(test: impl Fn(&World, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        let world = World::new();
        {
            let process = world.process(locking);
            let mut cpu = world.machine.cpu(0);
            test(&world, &process, &mut cpu);
        }
        world.end();
    }
}

#[test]
fn reads_stop_at_the_end_of_the_file() {
    on_every_design(|world, process, cpu| {
        // The size is not a whole number of pages. The mapping begins in the middle of the file and extends
        // beyond its end.
        let file = world.file(40 * PAGE_SIZE + 100);
        let at = map(process, 50, MapFlags::PRIVATE, &file, 3);
        for page in [20, 0, 1, 37, 36, 5] {
            assert_eq!(load(process, cpu, at + page * PAGE_SIZE), Disk::number(page + 3));
        }
        assert_eq!(load(process, cpu, at + 37 * PAGE_SIZE + 104), 0, "the last page ends in zeroes");
        for page in [38, 49] {
            let address = at + page * PAGE_SIZE + 8;
            assert_eq!(process.load::<u64>(cpu, address), Err(FaultError::Bus { addr: address }));
            assert_eq!(process.store(cpu, address, 1u64), Err(FaultError::Bus { addr: address }));
        }
    });
}

#[test]
fn one_fault_maps_the_surrounding_cached_pages() {
    on_every_design(|world, process, cpu| {
        let file = world.file(64 * PAGE_SIZE);
        for index in 0..64 {
            file.mapping().fill(PageIndex::new(index)).unwrap();
        }
        let at = map(process, 64, MapFlags::SHARED, &file, 0);
        let mut faults = 0;
        for page in 0..64 {
            cpu.load::<u64, FaultError>(process.space().mmu(), at + page * PAGE_SIZE, |address, access| {
                faults += 1;
                process.handle_fault(address.get(), access).map(drop)
            })
            .unwrap();
        }
        // Windows of 16 pages are aligned; the mapping may begin inside a window.
        let windows = if at.is_multiple_of(16 * PAGE_SIZE) { 4 } else { 5 };
        assert_eq!(faults, windows);
    });
}

/// ```text
/// pages of two tables    0 1               16 17              32 496             512        521
///                        .[----------------------------------------------------------------).
/// a read of page 1         ##################
/// a read of page 20                        ####################  the multiple of 16 around it
/// a read of page 511                                             ################             its table ends
/// a read of page 515                                                             ###########  its VMA ends
/// ```
#[test]
fn fault_around_window_is_clipped_to_table_and_vma() {
    on_every_design(|world, process, cpu| {
        let file = world.file(600 * PAGE_SIZE);
        (0..600).for_each(|index| file.mapping().fill(PageIndex::new(index)).unwrap());
        let table = 0x30_0000_0000;
        let at = table + PAGE_SIZE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        process.mmap(at, 520 * PAGE_SIZE, RW, flags, Some(&file), 7 * PAGE_SIZE).unwrap();
        let present = |range: Range<u64>| {
            // The capacity is reserved for all pages, because the closure runs under page table locks and
            // must not allocate.
            let mut pages = Vec::with_capacity(600);
            process.pagemap(table + range.start * PAGE_SIZE..table + range.end * PAGE_SIZE, |present| {
                pages.extend((present.range.start()..present.range.end()).step_by(PAGE_SIZE as usize));
            });
            pages.into_iter().map(|page| (page - table) / PAGE_SIZE).collect::<Vec<_>>()
        };
        for (read, maps) in [(1, 1..17), (20, 16..32), (511, 496..512), (515, 512..521)] {
            let before = present(0..600);
            assert_eq!(load(process, cpu, table + read * PAGE_SIZE), Disk::number(read - 1 + 7));
            let now: Vec<u64> = present(0..600).into_iter().filter(|page| !before.contains(page)).collect();
            let new: Vec<u64> = maps.filter(|page| !before.contains(page)).collect();
            assert_eq!(now, new, "a read of page {read}");
        }
        // A store maps only its own page.
        process.store(cpu, table + 100 * PAGE_SIZE, 1u64).unwrap();
        assert_eq!(present(80..120), [100]);
    });
}

#[test]
fn only_shared_stores_reach_the_file() {
    on_every_design(|world, process, cpu| {
        let file = world.file(8 * PAGE_SIZE);
        let other = world.process(Locking::default());
        let shared = map(process, 8, MapFlags::SHARED, &file, 0);
        let private = map(process, 8, MapFlags::PRIVATE, &file, 0);
        let elsewhere = map(&other, 8, MapFlags::SHARED, &file, 0);
        // Page 0 is mapped by a read before the store. Page 1 is not mapped before the store.
        for page in [0, 1] {
            let offset = page * PAGE_SIZE;
            if page == 0 {
                for at in [shared, private] {
                    assert_eq!(load(process, cpu, at + offset), Disk::number(page));
                }
            }
            process.store(cpu, private + offset, 5u64).unwrap();
            process.store(cpu, shared + offset, 6u64).unwrap();
            assert_eq!(load(process, cpu, private + offset), 5);
            assert_eq!(load(process, cpu, shared + offset), 6);
            assert_eq!(load(&other, cpu, elsewhere + offset), 6);
            assert_eq!(read_number(&file, page), 6);
        }
        assert_eq!(file.mapping().write_at(2 * PAGE_SIZE, &9u64.to_le_bytes()), Ok(8));
        for at in [shared, private] {
            assert_eq!(load(process, cpu, at + 2 * PAGE_SIZE), 9, "a mapping shows what was written");
        }
    });
}

#[test]
fn shared_memory_starts_as_zeroes_and_is_one_object() {
    on_every_design(|_, process, cpu| {
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS;
        let at = process.mmap(0, 20 * PAGE_SIZE, RW, flags, None, 0).unwrap();
        assert_eq!(load(process, cpu, at + 7 * PAGE_SIZE), 0);
        process.store(cpu, at + 7 * PAGE_SIZE, 3u64).unwrap();
        assert_eq!(load(process, cpu, at + 7 * PAGE_SIZE), 3);
        assert_eq!(load(process, cpu, at + 19 * PAGE_SIZE), 0);
    });
}

#[test]
fn truncation_unmaps_private_copies() {
    on_every_design(|world, process, cpu| {
        let file = world.file(10 * PAGE_SIZE);
        let shared = map(process, 10, MapFlags::SHARED, &file, 0);
        let private = map(process, 10, MapFlags::PRIVATE, &file, 0);
        for page in 0..10 {
            process.store(cpu, shared + page * PAGE_SIZE, 100 + page).unwrap();
            process.store(cpu, private + page * PAGE_SIZE, 200 + page).unwrap();
        }
        process.store(cpu, shared + 4 * PAGE_SIZE + 512, 1u64).unwrap();
        file.mapping().truncate(4 * PAGE_SIZE + 512).unwrap();
        assert_eq!(load(process, cpu, shared + 4 * PAGE_SIZE), 104);
        assert_eq!(load(process, cpu, private + 4 * PAGE_SIZE), 204);
        assert_eq!(load(process, cpu, shared + 4 * PAGE_SIZE + 512), 0);
        for at in [shared, private] {
            let address = at + 5 * PAGE_SIZE;
            assert_eq!(process.load::<u64>(cpu, address), Err(FaultError::Bus { addr: address }));
        }
        file.mapping().truncate(10 * PAGE_SIZE).unwrap();
        for at in [shared, private] {
            assert_eq!(load(process, cpu, at + 5 * PAGE_SIZE), 0, "pages of the grown file read as zeroes");
        }
    });
}

#[test]
fn growing_a_file_clears_bytes_behind_the_old_end() {
    on_every_design(|world, process, cpu| {
        let file = world.file(PAGE_SIZE / 2);
        let at = map(process, 1, MapFlags::SHARED, &file, 0);
        for grow in [0, 1] {
            file.mapping().truncate(PAGE_SIZE / 2).unwrap();
            process.store(cpu, at + PAGE_SIZE - 8, 1u64).unwrap();
            match grow {
                0 => file.mapping().truncate(PAGE_SIZE).unwrap(),
                _ => assert_eq!(file.mapping().write_at(3 * PAGE_SIZE, &[1]), Ok(1)),
            }
            assert_eq!(load(process, cpu, at + PAGE_SIZE - 8), 0);
        }
        assert_eq!(file.mapping().size(), 3 * PAGE_SIZE + 1);
    });
}

#[test]
fn hole_punching_keeps_private_copies() {
    on_every_design(|world, process, cpu| {
        let file = world.file(10 * PAGE_SIZE);
        let shared = map(process, 10, MapFlags::SHARED, &file, 0);
        let private = map(process, 10, MapFlags::PRIVATE, &file, 0);
        for page in 0..10 {
            process.store(cpu, shared + page * PAGE_SIZE, 100 + page).unwrap();
        }
        process.store(cpu, private + 4 * PAGE_SIZE, 204u64).unwrap();
        assert_eq!(load(process, cpu, private + 5 * PAGE_SIZE), 105);
        // The hole begins inside page 2 and ends inside page 6.
        file.mapping().punch(2 * PAGE_SIZE + 8..6 * PAGE_SIZE + 8).unwrap();
        let found: Vec<u64> = (0..10).map(|page| load(process, cpu, shared + page * PAGE_SIZE)).collect();
        assert_eq!(found, [100, 101, 102, 0, 0, 0, 0, 107, 108, 109]);
        assert_eq!(load(process, cpu, private + 4 * PAGE_SIZE), 204);
        assert_eq!(load(process, cpu, private + 5 * PAGE_SIZE), 0);
        // The first hole lies within one page, and the second hole lies beyond the end.
        file.mapping().punch(7 * PAGE_SIZE..7 * PAGE_SIZE + 8).unwrap();
        file.mapping().punch(20 * PAGE_SIZE..30 * PAGE_SIZE).unwrap();
        assert_eq!(read_number(&file, 7), 0);
        assert_eq!(read_number(&file, 8), 108);
    });
}

/// A page that is absent from shared memory already reads as zeroes. Punching part of such a page does not
/// allocate it, as on Linux.
#[test]
fn hole_in_absent_shared_memory_allocates_nothing() {
    on_every_design(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, 8 * PAGE_SIZE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        let at = map(process, 8, MapFlags::SHARED, &file, 0);
        process.store(cpu, at + 5 * PAGE_SIZE + 200, 7u64).unwrap();
        process.store(cpu, at + 5 * PAGE_SIZE, 8u64).unwrap();
        mapping.punch(100..150).unwrap();
        mapping.punch(PAGE_SIZE + 100..3 * PAGE_SIZE + 100).unwrap();
        mapping.punch(5 * PAGE_SIZE + 100..6 * PAGE_SIZE + 100).unwrap();
        let present = || (0..8).filter(|index| mapping.has_page(PageIndex::new(*index))).collect::<Vec<_>>();
        assert_eq!(present(), [5]);
        assert_eq!([0, 200].map(|offset| load(process, cpu, at + 5 * PAGE_SIZE + offset)), [8, 0]);
        mapping.truncate(6 * PAGE_SIZE + 100).unwrap();
        assert_eq!(present(), [5]);
        mapping.truncate(5 * PAGE_SIZE + 4).unwrap();
        assert_eq!(present(), [5]);
    });
}

#[test]
fn page_is_written_back_once_per_dirtying() {
    on_every_design(|world, process, cpu| {
        let file = world.file(10 * PAGE_SIZE);
        let at = map(process, 10, MapFlags::SHARED, &file, 0);
        let writes = || world.disk.writes.load(SeqCst);
        load(process, cpu, at);
        file.mapping().write_back((0..10).into()).unwrap();
        assert_eq!(writes(), 0, "nothing was stored");
        for round in 1..4 {
            process.store(cpu, at + PAGE_SIZE, round).unwrap();
            process.store(cpu, at + 3 * PAGE_SIZE, round).unwrap();
            file.mapping().write_back((0..3).into()).unwrap();
            assert_eq!((writes(), world.disk.page(1)), (round * 2 - 1, round));
            world.disk.broken.store(true, SeqCst);
            assert_eq!(file.mapping().write_back((0..10).into()), Err(SyncError::Io));
            world.disk.broken.store(false, SeqCst);
            file.mapping().write_back((0..10).into()).unwrap();
            assert_eq!(
                (writes(), world.disk.page(3)),
                (round * 2, round),
                "a page whose write failed stays dirty"
            );
        }
        // A page is stored to, and its mapping is unmapped before the write-back.
        process.store(cpu, at + 4 * PAGE_SIZE, 44u64).unwrap();
        process.munmap(at, 10 * PAGE_SIZE).unwrap();
        file.mapping().write_back((0..10).into()).unwrap();
        assert_eq!(world.disk.page(4), 44);
    });
}

#[test]
fn read_error_raises_a_bus_error() {
    on_every_design(|world, process, cpu| {
        let file = world.file(4 * PAGE_SIZE);
        let at = map(process, 4, MapFlags::SHARED, &file, 0);
        world.disk.broken.store(true, SeqCst);
        assert_eq!(process.load::<u64>(cpu, at + 8), Err(FaultError::Bus { addr: at + 8 }));
        world.disk.broken.store(false, SeqCst);
        assert_eq!(load(process, cpu, at), Disk::number(0));
    });
}

#[test]
fn fault_without_a_frame_fails_and_leaks_nothing() {
    for access in 0..3 {
        let points = at_every_allocation(&[Failure::Memory], |point| {
            let world = World::new();
            let process = world.process(Locking::default());
            let mut cpu = world.machine.cpu(0);
            let file = world.file(4 * PAGE_SIZE);
            let flags = if access == 2 { MapFlags::SHARED } else { MapFlags::PRIVATE };
            let at = map(&process, 4, flags, &file, 0);
            let result = point.fail(|| match access {
                0 => process.load::<u64>(&mut cpu, at).map(drop),
                _ => process.store(&mut cpu, at, 1u64),
            });
            let failed = result.is_err();
            assert!(matches!(result, Ok(()) | Err(FaultError::OutOfMemory)), "{result:?}");
            // A second attempt succeeds.
            assert_eq!(load(&process, &mut cpu, at), if access == 0 || failed { Disk::number(0) } else { 1 });
            drop((process, file, cpu));
            world.end();
        });
        assert!(points > 0, "no allocation was ever refused");
    }
}

/// Releases the thread that waits for this count if the thread that advances the count fails.
struct NeverStuck<'a>(&'a AtomicU64);

impl Drop for NeverStuck<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, SeqCst);
    }
}

/// C-21: after one thread has stored to a page that was mapped read-only, no other thread reads the old page.
#[test]
fn c21_no_cpu_reads_the_old_page_after_a_store() {
    const PAGES: u64 = 200;
    on_every_design(|world, process, _| {
        let file = world.file(PAGES * PAGE_SIZE);
        let from_file = map(process, PAGES, MapFlags::PRIVATE, &file, 0);
        let anonymous =
            process.mmap(0, PAGES * PAGE_SIZE, RW, MapFlags::PRIVATE | MapFlags::ANONYMOUS, None, 0).unwrap();
        for at in [from_file, anonymous] {
            let stored = AtomicU64::new(0);
            let seen = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut cpu = world.machine.cpu(1);
                    let _done = NeverStuck(&stored);
                    for page in 0..PAGES {
                        while seen.load(SeqCst) <= page {
                            std::thread::yield_now();
                        }
                        process.store(&mut cpu, at + page * PAGE_SIZE, u64::MAX).unwrap();
                        stored.store(page + 1, SeqCst);
                    }
                });
                scope.spawn(|| {
                    let mut cpu = world.machine.cpu(2);
                    let _done = NeverStuck(&seen);
                    for page in 0..PAGES {
                        // The old page is in this CPU's TLB from here on.
                        assert_ne!(load(process, &mut cpu, at + page * PAGE_SIZE), u64::MAX);
                        seen.store(page + 1, SeqCst);
                        while stored.load(SeqCst) <= page {
                            std::thread::yield_now();
                        }
                        assert_eq!(
                            load(process, &mut cpu, at + page * PAGE_SIZE),
                            u64::MAX,
                            "page {page} is stale"
                        );
                    }
                });
            });
        }
    });
}

/// Stops the other threads when its own thread ends or fails.
struct StopOthers<'a>(&'a AtomicBool);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// C-26, C-37: faults, splits, merges and munmaps run concurrently with truncation and hole punching. Under
/// every schedule, a fault maps a page or raises a bus error, and no thread reads a page that was removed. In
/// the end nothing is mapped beyond the end of the file.
#[test]
fn c26_c37_faults_and_splits_during_truncation() {
    const PAGES: u64 = 64;
    const ROUNDS: u64 = 40;
    for locking in [Locking::default(), Locking::ALL[0], Locking::ALL[2]] {
        let world = World::new();
        let process = world.process(locking);
        let file = world.file(PAGES * PAGE_SIZE);
        let shared = map(&process, PAGES, MapFlags::SHARED, &file, 0);
        let private = map(&process, PAGES, MapFlags::PRIVATE, &file, 0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (world, process, stop) = (&world, &process, &stop);
                scope.spawn(move || {
                    let mut cpu = world.machine.cpu(thread);
                    let mut n = thread as u64;
                    while !stop.load(SeqCst) {
                        n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let page = (n >> 33) % PAGES;
                        let at = if n >> 62 & 1 == 0 { shared } else { private } + page * PAGE_SIZE;
                        let result = match n >> 60 & 3 {
                            0 => process.store(&mut cpu, at, page),
                            _ => process.load::<u64>(&mut cpu, at).map(|found| {
                                assert!(
                                    [page, 0, Disk::number(page)].contains(&found),
                                    "page {page} reads {found}"
                                );
                            }),
                        };
                        assert!(matches!(result, Ok(()) | Err(FaultError::Bus { .. })), "{result:?}");
                    }
                });
            }
            let (process, stop, file) = (&process, &stop, &file);
            scope.spawn(move || {
                // Splits VMAs, moves their borders and merges them again.
                let mut n = 0;
                while !stop.load(SeqCst) {
                    n += 1;
                    for at in [shared, private] {
                        let (first, pages) = (n % 50, 3 + n % 11);
                        let (start, len) = (at + first * PAGE_SIZE, pages * PAGE_SIZE);
                        let flags = if at == shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
                        let flags = flags | MapFlags::FIXED;
                        process.mmap(start, len, RW, flags, Some(file), first * PAGE_SIZE).unwrap();
                    }
                }
            });
            let machine = &world.machine;
            scope.spawn(move || {
                let _stop = StopOthers(stop);
                let mut cpu = machine.cpu(3);
                for round in 0..ROUNDS {
                    let kept = round * 7 % PAGES;
                    file.mapping().truncate(kept * PAGE_SIZE).unwrap();
                    for page in kept..PAGES {
                        for at in [shared, private] {
                            let found = process.load::<u64>(&mut cpu, at + page * PAGE_SIZE);
                            assert!(found.is_err(), "page {page} is still mapped, with {kept} left");
                        }
                    }
                    file.mapping().truncate(PAGES * PAGE_SIZE).unwrap();
                    let hole = round * 13 % PAGES * PAGE_SIZE;
                    file.mapping().punch(hole..hole + 5 * PAGE_SIZE).unwrap();
                }
            });
        });
        let mut cpu = world.machine.cpu(0);
        file.mapping().truncate(0).unwrap();
        for page in 0..PAGES {
            for at in [shared, private] {
                let address = at + page * PAGE_SIZE;
                assert_eq!(process.load::<u64>(&mut cpu, address), Err(FaultError::Bus { addr: address }));
            }
        }
        process.space().check();
        file.mapping().check();
        drop((process, file, cpu));
        world.end();
    }
}

#[test]
fn special_mapping_is_not_merged_and_copied_on_store() {
    on_every_design(|world, process, cpu| {
        let mut frames = [Pfn::new(0); 2];
        assert_eq!(world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), 2);
        for (n, &frame) in frames.iter().enumerate() {
            world.machine.zero_frame(frame);
            world.machine.write_frame(frame, 0, &(n as u64 + 70).to_le_bytes());
        }
        // SAFETY: the frames were allocated from the machine above, and are freed below only after the last
        // mapping is gone.
        #[expect(unsafe_code, reason = "declares that its frames may be mapped")]
        let foreign = frames.map(|frame| unsafe { ForeignFrames::new(frame, 1) });
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &foreign).unwrap()).unwrap();
        let flags = VmFlags::READ | VmFlags::WRITE | VmFlags::MAYREAD | VmFlags::MAYWRITE;
        // A mapping of three pages has only two frames. A second mapping is adjacent to the first mapping,
        // and the two mappings could merge.
        let at = process.install_special(0x10_0000, 3 * PAGE_SIZE, flags, &vdso).unwrap();
        assert_eq!(at, 0x10_0000);
        let next = process.install_special(at + 3 * PAGE_SIZE, PAGE_SIZE, flags, &vdso).unwrap();
        assert_eq!(next, at + 3 * PAGE_SIZE);
        let elsewhere = process.install_special(at, PAGE_SIZE, flags, &vdso).unwrap();
        assert!(elsewhere > next, "an occupied range is not replaced");
        assert_eq!(load(process, cpu, at), 70);
        process.store(cpu, at + PAGE_SIZE, 1u64).unwrap();
        assert_eq!(load(process, cpu, at + PAGE_SIZE), 1);
        let beyond = at + 2 * PAGE_SIZE;
        assert_eq!(process.load::<u64>(cpu, beyond), Err(FaultError::Bus { addr: beyond }));
        let mut bytes = [0; 8];
        world.machine.read_frame(frames[1], 0, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 71, "the store went to a copy");
        assert_eq!(process.munmap(at + PAGE_SIZE, PAGE_SIZE), Err(MunmapError::NotSplittable));
        assert_eq!(load(process, cpu, at + PAGE_SIZE), 1);
        for (start, pages) in [(at, 3), (next, 1), (elsewhere, 1)] {
            process.munmap(start, pages * PAGE_SIZE).unwrap();
        }
        process.space().check();
        // SAFETY: the frames were allocated from the machine, and no translation of them is left.
        #[expect(unsafe_code, reason = "frees frames that the engine did not own")]
        unsafe {
            world.machine.free_frames(&frames);
        }
    });
}

/// A fault reports its cost: a page that was read from the storage is a major fault and a wait.
#[test]
fn fault_reports_major_and_waited() {
    for locking in Locking::ALL {
        let world = World::new();
        let process = world.process(locking);
        let file = world.file(40 * PAGE_SIZE);
        let mapped = map(&process, 40, MapFlags::SHARED, &file, 0);
        let memory = process.mmap(0, PAGE_SIZE, RW, MapFlags::SHARED | MapFlags::ANONYMOUS, None, 0).unwrap();
        let took = |at, access| {
            let done = process.space().handle_fault(at, access).unwrap();
            (done.major, done.waited)
        };
        assert_eq!(
            took(mapped + 20 * PAGE_SIZE, freehold::fault::Access::READ),
            (true, true),
            "from the storage"
        );
        assert_eq!(
            took(mapped + 20 * PAGE_SIZE, freehold::fault::Access::WRITE),
            (false, false),
            "from the cache"
        );
        assert_eq!(
            took(memory, freehold::fault::Access::WRITE),
            (false, true),
            "shared memory has no storage"
        );
        drop((process, file));
        world.end();
    }
}
