//! Seals of a memfd (`src/file/seals.rs`): what each seal refuses, and which mappings prevent the seal. No
//! concurrent mmap can bypass a seal. Most tests run on every design with a fresh memfd (`with_memfd`) and
//! assert the errors of the calls. The last test lets threads map and store while another thread adds the
//! seal. A new call that changes a file or its size must be tried here on a file with the seal that forbids
//! the change.

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

/// Runs `scenario` on every design, with a memory file.
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
fn size_seals_refuse_truncate_and_extension() {
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
        assert_eq!(mapping.write_at(5 * PAGE - 4, &[1; 8]), Ok(4), "up to the end of the file");
        assert_eq!(mapping.size(), 5 * PAGE);
        mapping.punch(0..PAGE).unwrap();
        assert_eq!(mapping.seals(), Some(Seals::SHRINK | Seals::GROW));
        mapping.add_seals(Seals::EXEC).unwrap();
        assert_eq!(mapping.seals(), Some(Seals::SHRINK | Seals::GROW | Seals::EXEC));
        assert_eq!(mapping.add_seals(Seals::from_bits_retain(0x40)), Err(SealError::Invalid));
    });
}

#[test]
fn write_seal_requires_that_no_writable_mapping_exists() {
    with_memfd(|_, process, cpu, file| {
        let mapping = file.mapping();
        // A mapping that may become writable also prevents the seal, and so does each remaining piece of such
        // a mapping.
        let at = map(process, file, R, MapFlags::SHARED).unwrap();
        assert_eq!(mapping.add_seals(Seals::WRITE), Err(SealError::Busy));
        process.mprotect(at + PAGE, PAGE, RW).unwrap();
        process.munmap(at + 2 * PAGE, 2 * PAGE).unwrap();
        let child = process.fork().unwrap();
        process.munmap(at, PAGES * PAGE).unwrap();
        assert_eq!(mapping.add_seals(Seals::WRITE | Seals::GROW), Err(SealError::Busy), "a child maps it");
        assert_eq!(mapping.seals(), Some(Seals::empty()), "the call adds all seals or none");
        drop(child);
        // Stores to private mappings never reach the file. Mappings of a file that was opened read-only
        // cannot store.
        let private = map(process, file, RW, MapFlags::PRIVATE).unwrap();
        process.store(cpu, private, 1u64).unwrap();
        let read_only = File::new(mapping, FileAccess::READ, "again").unwrap();
        map(process, &read_only, R, MapFlags::SHARED).unwrap();
        process.load::<u64>(cpu, private + PAGE).unwrap();
        mapping.add_seals(Seals::WRITE).unwrap();
        assert_eq!(mapping.write_at(0, &[1]), Err(FillError::Sealed));
        assert_eq!(mapping.punch(0..PAGE), Err(FillError::Sealed));
        assert_eq!(map(process, file, RW, MapFlags::SHARED), Err(MmapError::NotPermitted));
        // A read-only mapping is allowed, and stays read-only.
        let at = map(process, file, R, MapFlags::SHARED).unwrap();
        assert_eq!(process.mprotect(at, PAGE, RW), Err(MprotectError::AccessDenied));
        assert_eq!(process.madvise(at, PAGE, Advice::Remove), Err(MadviseError::AccessDenied));
        mapping.add_seals(Seals::WRITE).unwrap();
        let private = map(process, file, RW, MapFlags::PRIVATE).unwrap();
        process.store(cpu, private, 1u64).unwrap();
    });
}

#[test]
fn future_write_seal_keeps_existing_writable_mappings() {
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
fn only_memfds_accept_seals() {
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

/// A write seal is added concurrently with mmap, fork and merging. Either the seal or the writable mapping is
/// refused, and no store succeeds once the seal is set.
#[test]
fn write_seal_and_writable_mmap_exclude_each_other() {
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
                                    assert!(!sealed.load(SeqCst), "sealed while a writable mapping exists");
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
