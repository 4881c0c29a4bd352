//! Seals of a memfd: what they refuse, what has to be gone before they are put on, and that no mmap slips
//! through beside.

use crate::support::{
    Counted, File, FileAccess, Locking, Machine, MapFlags, Mapping, PAGE, Process, R, RW, Vcpu, World,
    everywhere,
};
use freehold::{
    call::Advice,
    error::{Errno, MadviseError, MmapError, MprotectError, SealError},
    file::{FillError, Seals},
};
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

const PAGES: u64 = 4;

fn memfd(world: &World) -> Counted<File<Machine>> {
    let mapping = Mapping::memfd(world.engine(), PAGES * PAGE).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/memfd:test (deleted)").unwrap()
}

fn with_memfd(scenario: impl Fn(&World, &Process, &mut Vcpu, &Counted<File<Machine>>)) {
    everywhere(|world, process, cpu| scenario(world, process, cpu, &memfd(world)));
}

fn map(
    process: &Process,
    file: &Counted<File<Machine>>,
    prot: crate::support::Prot,
    flags: MapFlags,
) -> Result<u64, MmapError> {
    process.mmap(0, PAGES * PAGE, prot, flags, Some(file), 0)
}

#[test]
fn sizes_that_are_sealed_stay() {
    with_memfd(|_, _, _, file| {
        let mapping = file.mapping();
        mapping.add_seals(Seals::SHRINK).unwrap();
        assert_eq!(mapping.truncate(PAGE), Err(FillError::Sealed));
        assert_eq!(FillError::Sealed.errno(), Errno::EPERM);
        mapping.truncate(5 * PAGE).unwrap();
        mapping.add_seals(Seals::GROW).unwrap();
        assert_eq!(mapping.truncate(6 * PAGE), Err(FillError::Sealed));
        mapping.truncate(5 * PAGE).unwrap();
        assert_eq!(mapping.write_at(5 * PAGE, &[1; 8]), Err(FillError::Sealed));
        assert_eq!(mapping.write_at(5 * PAGE - 4, &[1; 8]), Ok(4), "as far as it goes");
        assert_eq!(mapping.size(), 5 * PAGE);
        mapping.punch(0..PAGE).unwrap();
        assert_eq!(mapping.seals(), Some(Seals::SHRINK | Seals::GROW));
        mapping.add_seals(Seals::EXEC).unwrap();
        assert_eq!(mapping.seals(), Some(Seals::SHRINK | Seals::GROW | Seals::EXEC));
        assert_eq!(mapping.add_seals(Seals::from_bits_retain(0x40)), Err(SealError::Invalid));
    });
}

#[test]
fn a_seal_against_writing_wants_no_writer() {
    with_memfd(|_, process, cpu, file| {
        let mapping = file.mapping();
        // Also one that could become a writer, and what is left of one.
        let at = map(process, file, R, MapFlags::SHARED).unwrap();
        assert_eq!(mapping.add_seals(Seals::WRITE), Err(SealError::Busy));
        process.mprotect(at + PAGE, PAGE, RW).unwrap();
        process.munmap(at + 2 * PAGE, 2 * PAGE).unwrap();
        let child = process.fork().unwrap();
        process.munmap(at, PAGES * PAGE).unwrap();
        assert_eq!(mapping.add_seals(Seals::WRITE | Seals::GROW), Err(SealError::Busy), "a child has it");
        assert_eq!(mapping.seals(), Some(Seals::empty()), "all or nothing");
        drop(child);
        // Stores to private mappings never reach it, nor do mappings of a file that was opened for reading.
        let private = map(process, file, RW, MapFlags::PRIVATE).unwrap();
        process.store(cpu, private, 1u64).unwrap();
        let read_only = File::new(mapping, FileAccess::READ, "again").unwrap();
        map(process, &read_only, R, MapFlags::SHARED).unwrap();
        process.load::<u64>(cpu, private + PAGE).unwrap();
        mapping.add_seals(Seals::WRITE).unwrap();
        assert_eq!(mapping.write_at(0, &[1]), Err(FillError::Sealed));
        assert_eq!(mapping.punch(0..PAGE), Err(FillError::Sealed));
        assert_eq!(map(process, file, RW, MapFlags::SHARED), Err(MmapError::NotPermitted));
        // Reading is allowed, and stays reading.
        let at = map(process, file, R, MapFlags::SHARED).unwrap();
        assert_eq!(process.mprotect(at, PAGE, RW), Err(MprotectError::AccessDenied));
        assert_eq!(process.madvise(at, PAGE, Advice::Remove), Err(MadviseError::AccessDenied));
        mapping.add_seals(Seals::WRITE).unwrap();
        let private = map(process, file, RW, MapFlags::PRIVATE).unwrap();
        process.store(cpu, private, 1u64).unwrap();
    });
}

#[test]
fn a_seal_against_future_writers_leaves_those_there_are() {
    with_memfd(|_, process, cpu, file| {
        let at = map(process, file, RW, MapFlags::SHARED).unwrap();
        file.mapping().add_seals(Seals::FUTURE_WRITE).unwrap();
        process.store(cpu, at, 5u64).unwrap();
        assert_eq!(map(process, file, RW, MapFlags::SHARED), Err(MmapError::NotPermitted));
        let later = map(process, file, R, MapFlags::SHARED).unwrap();
        assert_eq!(process.load(cpu, later), Ok(5u64));
        assert_eq!(process.mprotect(later, PAGE, RW), Err(MprotectError::AccessDenied));
        assert_eq!(process.madvise(at, PAGE, Advice::Remove), Err(MadviseError::Sealed));
        assert_eq!(file.mapping().write_at(0, &[1]), Err(FillError::Sealed));
        assert_eq!(file.mapping().add_seals(Seals::WRITE), Err(SealError::Busy));
        process.munmap(at, PAGES * PAGE).unwrap();
        file.mapping().add_seals(Seals::WRITE | Seals::SEAL).unwrap();
        assert_eq!(file.mapping().add_seals(Seals::GROW), Err(SealError::Sealed));
    });
}

#[test]
fn what_cannot_be_sealed() {
    with_memfd(|world, _, _, file| {
        assert_eq!(file.mapping().add_seals(Seals::from_bits_retain(1 << 9)), Err(SealError::Invalid));
        let plain = world.file(PAGES);
        assert_eq!(
            (plain.mapping().seals(), plain.mapping().add_seals(Seals::SEAL)),
            (None, Err(SealError::Invalid))
        );
        assert_eq!(
            [SealError::Invalid, SealError::Sealed, SealError::Busy].map(|error| error.errno()),
            [Errno::EINVAL, Errno::EPERM, Errno::EBUSY]
        );
    });
}

/// A seal against writing beside mmaps, forks and merges: either the seal or the mapping is refused, and
/// nobody stores afterwards.
#[test]
fn a_seal_beside_mmap() {
    for locking in Locking::ALL {
        for round in 0..20u64 {
            let world = World::new();
            let (process, file) = (world.process(locking), memfd(&world));
            let sealed = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    loop {
                        match file.mapping().add_seals(Seals::WRITE) {
                            Ok(()) => break sealed.store(true, SeqCst),
                            Err(error) => assert_eq!(error, SealError::Busy),
                        }
                    }
                });
                for cpu in 0..2 {
                    let (world, process, file, sealed) = (&world, &process, &file, &sealed);
                    scope.spawn(move || {
                        let mut cpu = world.machine.cpu(cpu);
                        for n in 0..round {
                            let before = sealed.load(SeqCst);
                            match map(process, file, RW, MapFlags::SHARED) {
                                Ok(at) => {
                                    assert!(!before, "mapped for writing after it was sealed");
                                    process.store(&mut cpu, at, n).unwrap();
                                    assert!(!sealed.load(SeqCst), "sealed beside a mapping that writes");
                                    process.munmap(at, PAGES * PAGE).unwrap();
                                }
                                Err(error) => assert_eq!(error, MmapError::NotPermitted),
                            }
                        }
                    });
                }
            });
            process.check();
            drop((process, file));
            world.end();
        }
    }
}
