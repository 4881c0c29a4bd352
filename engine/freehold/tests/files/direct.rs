//! Direct access (DAX, `src/file/kinds/direct.rs`): the pages of a file are its storage. Nothing is copied.
//! The first store to a page after each write-back marks the page dirty. A frame is returned to the storage
//! only when it has no user left.
//!
//! `with_file` maps a file of `support/storage.rs` on every design. The storage records which pages were made
//! persistent, and panics if it gets back a frame that is still in use.
//! `lab/freehold-machine/tests/shuttle_engine/direct.rs` explores concurrent cases.

use crate::support::{
    ANON, BASE, Counted, File, Locking, Machine, MapFlags, PAGE, Process, R, RW, Vcpu, World, anon,
    everywhere, spawn_until_waiting, storage::Storage,
};
use freehold::{
    PageIndex,
    call::{Advice, LockAllFlags, SyncFlags},
    error::{MadviseError, MsyncError},
    fault::FaultError,
    file::FillError,
    remote::AccessMode,
    rmap::MigrateError,
    space::{Limits, SpaceConfig},
    vma::flags::VmFlags,
};
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

const PAGES: u64 = 8;

fn map(process: &Process, flags: MapFlags, file: &Counted<File<Machine>>) -> u64 {
    process.mmap(0, PAGES * PAGE, RW, flags, Some(file), 0).unwrap()
}

/// Runs `scenario` on every design, with a process, its CPU, a file on a storage, and the file mapped shared.
fn with_file(scenario: impl Fn(&World, &Process, &mut Vcpu, &Storage, &Counted<File<Machine>>, u64)) {
    everywhere(|world, process, cpu| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, PAGES);
        let at = map(process, MapFlags::SHARED, &file);
        scenario(world, process, cpu, &storage, &file, at);
        process.check();
        file.mapping().check();
    });
}

#[test]
fn direct_mappings_use_the_frames_of_the_storage() {
    with_file(|world, process, cpu, storage, file, at| {
        process.store(cpu, at + 2 * PAGE, 5u64).unwrap();
        assert_eq!(process.frame_at(at + 2 * PAGE), storage.frame(2));
        assert_eq!(storage.word(2), 5);
        assert_eq!(storage.state().frames.len(), 1, "a fault maps only its own page");
        assert_eq!((process.rss().file, process.rss().anon), (1, 0));
        // Reads and writes by system calls, and writes on behalf of a process, also use the storage directly.
        file.mapping().write_at(3 * PAGE, &6u64.to_le_bytes()).unwrap();
        assert_eq!((storage.word(3), process.load(cpu, at + 3 * PAGE)), (6, Ok(6u64)));
        process.write_memory(at + 3 * PAGE, &7u64.to_le_bytes(), AccessMode::Plain).unwrap();
        assert_eq!(storage.word(3), 7);
        let mut bytes = [0; 8];
        file.mapping().read_at(2 * PAGE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 5);
        let other = world.process(Locking::default());
        let there = map(&other, MapFlags::SHARED, file);
        assert_eq!(other.load(cpu, there + 2 * PAGE), Ok(5u64));
        // Frames of the storage cannot be migrated.
        assert_eq!(world.engine().migrate(storage.frame(2).unwrap()), Err(MigrateError::NoPage));
        // A frame stays in the file after its last unmap.
        drop(other);
        process.munmap(at, PAGES * PAGE).unwrap();
        assert_eq!((storage.word(2), storage.freed()), (5, 0));
    });
}

#[test]
fn store_after_each_write_back_makes_the_page_dirty() {
    with_file(|world, process, cpu, storage, file, at| {
        let other = world.process(Locking::default());
        let there = map(&other, MapFlags::SHARED, file);
        let mut remembers = world.machine.cpu(1);
        process.load::<u64>(cpu, at).unwrap();
        file.mapping().write_back((0..PAGES).into()).unwrap();
        assert_eq!(storage.persisted(), [0u64; 0], "nothing was stored");
        for round in 1..4u64 {
            process.store(cpu, at, round).unwrap();
            process.store(cpu, at + PAGE, round).unwrap();
            other.store(&mut remembers, there + 3 * PAGE, round).unwrap();
            assert_eq!(storage.lasting(0), round - 1, "stores are persistent only after a write-back");
            process.msync(at, PAGES * PAGE, SyncFlags::SYNC).unwrap();
            assert_eq!(storage.persisted(), [0, 1, 3]);
            assert_eq!([0, 1, 3].map(|index| storage.lasting(index)), [round; 3]);
            process.msync(at, PAGES * PAGE, SyncFlags::SYNC).unwrap();
            assert_eq!(storage.persisted(), [0u64; 0], "no store since the last write-back");
        }
        // Two pages are dirty, and the write-back covers one of them.
        process.store(cpu, at, 10u64).unwrap();
        process.store(cpu, at + PAGE, 10u64).unwrap();
        file.mapping().write_back((1..2).into()).unwrap();
        assert_eq!((storage.persisted(), storage.lasting(0)), (vec![1], 3));
        // A page is stored to, and its mapping is unmapped before the write-back.
        process.munmap(at, PAGES * PAGE).unwrap();
        file.mapping().write_back((0..PAGES).into()).unwrap();
        assert_eq!(storage.lasting(0), 10);
        // Entries of a private mapping were never writable, so write-back does not flush them.
        drop((remembers, other));
    });
}

#[test]
fn page_stays_dirty_when_write_back_fails() {
    with_file(|_, process, cpu, storage, _, at| {
        process.store(cpu, at + PAGE, 8u64).unwrap();
        storage.state().broken = true;
        assert_eq!(process.msync(at, PAGES * PAGE, SyncFlags::SYNC), Err(MsyncError::Io));
        storage.state().broken = false;
        process.msync(at, PAGES * PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!((storage.persisted(), storage.lasting(1)), (vec![1], 8));
    });
}

#[test]
fn private_store_copies_from_the_storage() {
    with_file(|_, process, cpu, storage, file, at| {
        let private = map(process, MapFlags::PRIVATE, file);
        process.store(cpu, at, 1u64).unwrap();
        // Stores to a page that was mapped before, and to a page that was not.
        assert_eq!(process.load(cpu, private), Ok(1u64));
        assert_eq!(process.frame_at(private), storage.frame(0));
        for page in 0..2 {
            process.store(cpu, private + page * PAGE + 8, 2u64).unwrap();
            assert_ne!(process.frame_at(private + page * PAGE), storage.frame(page));
        }
        assert_eq!(process.load(cpu, private), Ok(1u64));
        assert_eq!(process.load(cpu, at + 8), Ok(0u64), "a private store reached the storage");
        // A child inherits the copy. A hole in the file does not remove a private copy, but a truncation that
        // removes the page from the file does.
        let child = Process::of(process.fork().unwrap());
        process.store(cpu, private + 8, 3u64).unwrap();
        file.mapping().punch(0..PAGE).unwrap();
        assert_eq!(child.load(cpu, private + 8), Ok(2u64));
        assert_eq!(process.load(cpu, private + 8), Ok(3u64));
        child.check();
        file.mapping().truncate(0).unwrap();
        assert_eq!(child.load::<u64>(cpu, private), Err(FaultError::Bus { addr: private }));
        assert_eq!((child.rss().anon, process.rss().anon), (0, 0));
        child.check();
    });
}

#[test]
fn frame_returns_to_the_storage_when_unmapped_everywhere() {
    with_file(|world, process, cpu, storage, file, at| {
        let other = world.process(Locking::default());
        let there = map(&other, MapFlags::PRIVATE, file);
        let mut remembers = world.machine.cpu(1);
        for page in 0..PAGES {
            process.store(cpu, at + page * PAGE, page + 1).unwrap();
            other.load::<u64>(&mut remembers, there + page * PAGE).unwrap();
        }
        // The storage asserts that a returned frame has no user left. The machine asserts that no CPU has a
        // translation of the frame.
        file.mapping().punch(PAGE..2 * PAGE).unwrap();
        assert_eq!((storage.freed(), storage.frame(1)), (1, None));
        assert_eq!(process.load(cpu, at + PAGE), Ok(0u64), "a hole reads as zeroes");
        file.mapping().truncate(2 * PAGE + 8).unwrap();
        assert_eq!(storage.freed(), 1 + (PAGES - 3) as usize);
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(3u64));
        let beyond = at + 3 * PAGE;
        assert_eq!(process.load::<u64>(cpu, beyond), Err(FaultError::Bus { addr: beyond }));
        // Stored bytes beyond the end of the file and truncated pages read as zeroes after the file grows
        // again.
        process.store(cpu, at + 2 * PAGE + 16, 9u64).unwrap();
        file.mapping().truncate(PAGES * PAGE).unwrap();
        for offset in [16, PAGE, 3 * PAGE] {
            assert_eq!(process.load(cpu, at + 2 * PAGE + offset), Ok(0u64));
        }
        assert_eq!((process.rss().file, other.rss().file), (5, 2));
        other.check();
    });
}

#[test]
fn failing_or_lying_storage_raises_a_bus_error() {
    with_file(|world, process, cpu, storage, file, at| {
        let bus = Err(FaultError::Bus { addr: at });
        storage.state().broken = true;
        assert_eq!(process.load::<u64>(cpu, at), bus);
        storage.state().broken = false;
        // The storage returns a frame of the engine, and then the frame of another page.
        let memory = anon(process, BASE, 1);
        process.store(cpu, memory, 1u64).unwrap();
        process.store(cpu, at + PAGE, 2u64).unwrap();
        for frame in [process.frame_at(memory), storage.frame(1)] {
            storage.state().lie = frame;
            assert_eq!(process.load::<u64>(cpu, at), bus);
            assert_eq!(file.mapping().fill(PageIndex::new(0)), Err(FillError::Io));
        }
        storage.state().lie = None;
        assert_eq!(process.load(cpu, at), Ok(0u64));
        assert_eq!(process.load(cpu, at + PAGE), Ok(2u64));
        // The pager of an ordinary file has no frames of its own, so its pages cannot be mapped directly.
        let plain = freehold::file::Mapping::direct(world.engine(), crate::support::Disk, PAGE).unwrap();
        assert_eq!(plain.fill(PageIndex::new(0)), Err(FillError::Io));
    });
}

#[test]
fn direct_mappings_are_not_locked_or_read_ahead() {
    with_file(|_, process, cpu, storage, file, at| {
        process.mlock(at, PAGES * PAGE).unwrap();
        process.mlockall(LockAllFlags::CURRENT).unwrap();
        let flags = MapFlags::SHARED | MapFlags::LOCKED;
        let locked = process.mmap(0, PAGE, RW, flags, Some(file), 4 * PAGE).unwrap();
        assert_eq!(process.counts().locked_vm, 0);
        for line in process.maps(0) {
            assert!(!line.flags.contains(VmFlags::LOCKED));
        }
        // MAP_LOCKED populates the mapping but does not lock it, as on Linux.
        assert!(process.frame_at(locked).is_some());
        process.munmap(at, PAGES * PAGE).unwrap();
        let at = map(process, MapFlags::SHARED, file);
        file.mapping().fill(PageIndex::new(1)).unwrap();
        process.load::<u64>(cpu, at + 3 * PAGE).unwrap();
        let before = storage.state().frames.len();
        process.madvise(at, PAGES * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(storage.state().frames.len(), before);
        let mut resident = [9; PAGES as usize];
        process.mincore(at, PAGES * PAGE, &mut resident).unwrap();
        assert_eq!(resident, [0, 0, 0, 1, 0, 0, 0, 0], "only mapped pages are resident");
    });
}

#[test]
fn dontneed_keeps_the_storage_and_its_dirty_state() {
    with_file(|_, process, cpu, storage, _, at| {
        process.store(cpu, at, 3u64).unwrap();
        process.madvise(at, PAGES * PAGE, Advice::DontNeed).unwrap();
        assert_eq!((process.rss().file, storage.word(0)), (0, 3));
        process.msync(at, PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!(storage.lasting(0), 3, "the page stayed dirty after its entry was discarded");
        process.madvise(at, PAGE, Advice::Remove).unwrap();
        assert_eq!((storage.frame(0), process.load(cpu, at)), (None, Ok(0u64)));
    });
}

/// C-58 and C-26: frames leave the file while other tasks store, unmap and copy. The storage frees each frame
/// as soon as the engine returns it, and asserts that the frame has no user left. The machine asserts that no
/// CPU can reach a free frame.
#[test]
fn c58_c26_frames_return_to_the_storage_during_concurrent_use() {
    for locking in Locking::ALL {
        let world = World::new();
        let storage = Storage::new(&world.machine);
        let file = storage.file(&world, PAGES);
        let (first, second) = (world.process(locking), world.process(locking));
        let at = map(&first, MapFlags::SHARED, &file);
        let stop = AtomicBool::new(false);
        let bus_or = |result: Result<(), FaultError>| match result {
            Ok(()) | Err(FaultError::Bus { .. }) => {}
            other => panic!("{other:?}"),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = world.machine.cpu(0);
                for n in 0.. {
                    bus_or(first.store(&mut cpu, at + n % PAGES * PAGE, n));
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                let mut cpu = world.machine.cpu(1);
                while !stop.load(SeqCst) {
                    let there = map(&second, MapFlags::SHARED, &file);
                    for n in 0..PAGES {
                        bus_or(second.store(&mut cpu, there + n * PAGE + 8, n));
                        let _ = second.read_memory(there + n * PAGE, &mut [0; 64], AccessMode::Plain);
                    }
                    second.munmap(there, PAGES * PAGE).unwrap();
                }
            });
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    file.mapping().write_back((0..PAGES).into()).unwrap();
                    let _ = file.mapping().read_at(5 * PAGE, &mut [0; 64]);
                }
            });
            // Repeats until the storage has freed a frame, which another thread must request first.
            for n in (0..).take_while(|&n| n < 120 || storage.freed() == 0) {
                match n % 3 {
                    0 => file.mapping().truncate(n % PAGES * PAGE + 8).unwrap(),
                    1 => file.mapping().punch(n % PAGES * PAGE..(n % PAGES + 2) * PAGE).unwrap(),
                    _ => file.mapping().truncate(PAGES * PAGE).unwrap(),
                }
            }
            stop.store(true, SeqCst);
        });
        first.check();
        second.check();
        drop((first, second, file));
        world.end();
    }
}

#[test]
fn file_may_be_dropped_before_its_storage() {
    let world = World::new();
    let storage = Storage::new(&world.machine);
    let process = world.process(Locking::default());
    let file = storage.file(&world, PAGES);
    let at = process.mmap(BASE, PAGE, R, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    let mut cpu = world.machine.cpu(0);
    assert_eq!(process.load(&mut cpu, at), Ok(0u64));
    drop(file);
    assert_eq!(process.load(&mut cpu, at), Ok(0u64));
    // The last munmap frees the file. The frames of the storage have no users then.
    process.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    drop((process, cpu));
    world.end();
}

/// The engine neither migrates nor offlines frames of a storage. Every call that gets such a frame number
/// refuses it.
#[test]
fn hwpoison_and_soft_offline_refuse_storage_frames() {
    everywhere(|world, _, cpu| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, PAGES);
        let limits = Limits::new().may_inject_failure(true);
        let process = Process::new(world.engine(), &SpaceConfig::new().limits(limits)).unwrap();
        let at = map(&process, MapFlags::SHARED, &file);
        process.store(cpu, at, 5u64).unwrap();
        let frame = storage.frame(0);
        for advice in [Advice::SoftOffline, Advice::HwPoison] {
            assert_eq!(process.madvise(at, PAGE, advice), Err(MadviseError::Busy), "{advice:?}");
            assert_eq!((storage.frame(0), storage.word(0)), (frame, 5));
            process.store(cpu, at, 5u64).unwrap();
            assert_eq!(process.frame_at(at), frame);
        }
        assert_eq!(world.engine().failed_frames(), 0);
        // A private copy is ordinary memory, which can be offlined.
        let private = map(&process, MapFlags::PRIVATE, &file);
        process.store(cpu, private, 6u64).unwrap();
        let copy = process.frame_at(private);
        world.engine().migrate(copy.unwrap()).unwrap();
        assert_ne!(process.frame_at(private), copy);
        assert_eq!((process.load(cpu, private), storage.word(0)), (Ok(6u64), 5));
        process.check();
    });
}

/// A truncation waits until the storage has made a page persistent, with no lock held, and then returns the
/// frame.
#[test]
fn frame_returns_to_the_storage_after_the_write_of_its_page() {
    with_file(|_, process, cpu, storage, file, at| {
        process.store(cpu, at + 6 * PAGE, 6u64).unwrap();
        storage.state().held = Some(Vec::new());
        thread::scope(|scope| {
            let sync = spawn_until_waiting(scope, || file.mapping().write_back((0..PAGES).into()));
            let held = storage.state().held.take().unwrap();
            let cut = spawn_until_waiting(scope, || file.mapping().truncate(4 * PAGE));
            let is_waiting = !cut.is_finished() && storage.freed() == 0;
            // Other pages of the file are usable.
            process.store(cpu, at + PAGE, 1u64).unwrap();
            file.mapping().write_back((0..4).into()).unwrap();
            held.into_iter().for_each(|request| storage.serve(request));
            assert_eq!((sync.join().unwrap(), cut.join().unwrap()), (Ok(()), Ok(())));
            assert!(is_waiting, "the page was removed during its write");
        });
        assert_eq!((storage.persisted(), storage.freed()), (vec![1, 6], 1));
    });
}
