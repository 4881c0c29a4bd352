//! Files whose pages are the storage itself (DAX): nothing is copied, what is stored is noticed once after
//! every write-back, and a frame goes back to the storage only when nobody has it any more.

use crate::support::{
    ANON, BASE, Counted, File, Locking, Machine, MapFlags, PAGE, Process, R, RW, Vcpu, World, anon,
    everywhere, storage::Storage,
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

/// On every design: a process, its CPU, a file on a storage, and the file mapped shared.
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
fn programs_use_the_storage_itself() {
    with_file(|world, process, cpu, storage, file, at| {
        process.store(cpu, at + 2 * PAGE, 5u64).unwrap();
        assert_eq!(process.frame_at(at + 2 * PAGE), storage.frame(2));
        assert_eq!(storage.word(2), 5);
        assert_eq!(storage.state().frames.len(), 1, "nothing is brought in around a page");
        assert_eq!((process.rss().file, process.rss().anon), (1, 0));
        // read and write go there, too, and so do writes on behalf of a process.
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
        // The storage does not move.
        assert_eq!(world.engine().migrate(storage.frame(2).unwrap()), Err(MigrateError::NoPage));
        // Nor does it go when nobody maps it.
        drop(other);
        process.munmap(at, PAGES * PAGE).unwrap();
        assert_eq!((storage.word(2), storage.freed()), (5, 0));
    });
}

#[test]
fn each_store_after_a_write_back_is_noticed() {
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
            assert_eq!(storage.lasting(0), round - 1, "nothing lasts before it is written back");
            process.msync(at, PAGES * PAGE, SyncFlags::SYNC).unwrap();
            assert_eq!(storage.persisted(), [0, 1, 3]);
            assert_eq!([0, 1, 3].map(|index| storage.lasting(index)), [round; 3]);
            process.msync(at, PAGES * PAGE, SyncFlags::SYNC).unwrap();
            assert_eq!(storage.persisted(), [0u64; 0], "nothing was stored since");
        }
        // Two pages of which one is asked for.
        process.store(cpu, at, 10u64).unwrap();
        process.store(cpu, at + PAGE, 10u64).unwrap();
        file.mapping().write_back((1..2).into()).unwrap();
        assert_eq!((storage.persisted(), storage.lasting(0)), (vec![1], 3));
        // A store whose mapping goes before it was made to last.
        process.munmap(at, PAGES * PAGE).unwrap();
        file.mapping().write_back((0..PAGES).into()).unwrap();
        assert_eq!(storage.lasting(0), 10);
        // A private mapping's entries never were writable: they keep their TLB entries.
        drop((remembers, other));
    });
}

#[test]
fn what_could_not_be_made_to_last_stays_dirty() {
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
fn a_private_store_copies_from_the_storage() {
    with_file(|_, process, cpu, storage, file, at| {
        let private = map(process, MapFlags::PRIVATE, file);
        process.store(cpu, at, 1u64).unwrap();
        // Once with the page mapped before, once without.
        assert_eq!(process.load(cpu, private), Ok(1u64));
        assert_eq!(process.frame_at(private), storage.frame(0));
        for page in 0..2 {
            process.store(cpu, private + page * PAGE + 8, 2u64).unwrap();
            assert_ne!(process.frame_at(private + page * PAGE), storage.frame(page));
        }
        assert_eq!(process.load(cpu, private), Ok(1u64));
        assert_eq!(process.load(cpu, at + 8), Ok(0u64), "a private store reached the storage");
        // A child has what its parent had; the copy is not the storage's to take back, unless the file ends
        // before it.
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
fn a_frame_goes_back_when_nobody_maps_it() {
    with_file(|world, process, cpu, storage, file, at| {
        let other = world.process(Locking::default());
        let there = map(&other, MapFlags::PRIVATE, file);
        let mut remembers = world.machine.cpu(1);
        for page in 0..PAGES {
            process.store(cpu, at + page * PAGE, page + 1).unwrap();
            other.load::<u64>(&mut remembers, there + page * PAGE).unwrap();
        }
        // The storage itself asserts that nobody has a frame that it gets back, and the machine that no CPU
        // remembers it.
        file.mapping().punch(PAGE..2 * PAGE).unwrap();
        assert_eq!((storage.freed(), storage.frame(1)), (1, None));
        assert_eq!(process.load(cpu, at + PAGE), Ok(0u64), "a hole reads as zeroes");
        file.mapping().truncate(2 * PAGE + 8).unwrap();
        assert_eq!(storage.freed(), 1 + (PAGES - 3) as usize);
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(3u64));
        let beyond = at + 3 * PAGE;
        assert_eq!(process.load::<u64>(cpu, beyond), Err(FaultError::Bus { addr: beyond }));
        // What was stored behind the end, and what was cut off, is gone when the file is longer again.
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
fn a_storage_that_fails_or_lies_is_a_bus_error() {
    with_file(|world, process, cpu, storage, file, at| {
        let bus = Err(FaultError::Bus { addr: at });
        storage.state().broken = true;
        assert_eq!(process.load::<u64>(cpu, at), bus);
        storage.state().broken = false;
        // A frame of the engine's, and one that is another page's.
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
        // An ordinary file's store cannot be mapped directly: the pager has no frames.
        let plain = freehold::file::Mapping::direct(world.engine(), crate::support::Disk, PAGE).unwrap();
        assert_eq!(plain.fill(PageIndex::new(0)), Err(FillError::Io));
    });
}

#[test]
fn neither_locked_nor_read_ahead_nor_in_a_cache() {
    with_file(|_, process, cpu, storage, file, at| {
        process.mlock(at, PAGES * PAGE).unwrap();
        process.mlockall(LockAllFlags::CURRENT).unwrap();
        let flags = MapFlags::SHARED | MapFlags::LOCKED;
        let locked = process.mmap(0, PAGE, RW, flags, Some(file), 4 * PAGE).unwrap();
        assert_eq!(process.counts().locked_vm, 0);
        for line in process.maps(0) {
            assert!(!line.flags.contains(VmFlags::LOCKED));
        }
        // As on Linux, what was to be locked is brought in, though it is not locked.
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
        assert_eq!(resident, [0, 0, 0, 1, 0, 0, 0, 0], "only what is mapped counts");
    });
}

#[test]
fn discarding_leaves_the_storage() {
    with_file(|_, process, cpu, storage, _, at| {
        process.store(cpu, at, 3u64).unwrap();
        process.madvise(at, PAGES * PAGE, Advice::DontNeed).unwrap();
        assert_eq!((process.rss().file, storage.word(0)), (0, 3));
        process.msync(at, PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!(storage.lasting(0), 3, "the store was noticed, though its entry is gone");
        process.madvise(at, PAGE, Advice::Remove).unwrap();
        assert_eq!((storage.frame(0), process.load(cpu, at)), (None, Ok(0u64)));
    });
}

/// C-58 and C-26: frames that leave the file beside every task that could still have one. The storage frees
/// them as soon as it is told to, and asserts that nobody has them; the machine, that no CPU can reach a
/// frame that is free.
#[test]
fn c58_c26_frames_go_back_beside_stores_munmaps_and_transfers() {
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
            // Until the storage has got a frame back, which takes that another thread has asked for one.
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
fn the_file_may_go_before_its_storage() {
    let world = World::new();
    let storage = Storage::new(&world.machine);
    let process = world.process(Locking::default());
    let file = storage.file(&world, PAGES);
    let at = process.mmap(BASE, PAGE, R, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    let mut cpu = world.machine.cpu(0);
    assert_eq!(process.load(&mut cpu, at), Ok(0u64));
    drop(file);
    assert_eq!(process.load(&mut cpu, at), Ok(0u64));
    // The last mapping takes the file with it; the storage's frames are clean by then.
    process.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    drop((process, cpu));
    world.end();
}

/// Frames of storage are not the engine's to move or to take out of use, however they are found.
#[test]
fn advice_to_fail_leaves_storage_alone() {
    everywhere(|world, _, cpu| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, PAGES);
        let limits = Limits { may_inject_failure: true, ..Limits::default() };
        let process =
            Process::new(world.engine(), &SpaceConfig { limits, ..SpaceConfig::default() }).unwrap();
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
        // A private copy is memory like any other.
        let private = map(&process, MapFlags::PRIVATE, &file);
        process.store(cpu, private, 6u64).unwrap();
        let copy = process.frame_at(private);
        world.engine().migrate(copy.unwrap()).unwrap();
        assert_ne!(process.frame_at(private), copy);
        assert_eq!((process.load(cpu, private), storage.word(0)), (Ok(6u64), 5));
        process.check();
    });
}
