//! Objects of two engines must never be combined, because each engine assumes that objects belong to its own
//! caches and records. There is one test for each call that gets an object of another engine: a file, a
//! device, a special mapping, a segment, another address space. The call must fail and change nothing. The
//! last two tests use frame numbers that belong to no frame or to another engine. A new call of this kind
//! needs a test in [`two`], which checks at its end that the process has no mapping and no page.

use crate::support::*;
use freehold::{
    call::{ShmFlags, SpecialPart},
    error::{AccessError, Errno, MmapError, ShmatError},
    fault::FaultError,
    file::{Driver, Frames, MapRequest, Segment, Special, VmOps, Zeroes},
    hugetlb::HugePageSize,
    nommu::{NoMmuSpace, Regions},
    remote::IoVec,
    rmap::{Damage, MigrateError, OfflineError, PageError},
    vma::flags::VmFlags,
};

/// Runs `scenario` with a process of one world, and with another world.
fn two(scenario: impl Fn(&World, &Process, &mut Vcpu, &World)) {
    let (own, other) = (World::new(), World::new());
    own.live(Locking::default(), |own, process, cpu| {
        scenario(own, process, cpu, &other);
        assert_eq!((process.counts().map_count, process.rss().total()), (0, 0));
    });
    other.end();
}

/// Checks that mmap refuses a file of another engine.
fn refused(process: &Process, file: &Counted<File<Machine>>, len: u64, flags: MapFlags) {
    let error = process.mmap(BASE, len, R, flags, Some(file), 0).unwrap_err();
    assert_eq!((error, error.errno()), (MmapError::OtherEngine, Errno::EXDEV));
}

#[test]
fn file_of_another_engine_is_refused() {
    two(|_, process, cpu, other| {
        let file = other.file(4);
        for flags in [MapFlags::SHARED, MapFlags::PRIVATE, MapFlags::SHARED | MapFlags::FIXED] {
            refused(process, &file, 4 * PAGE, flags);
        }
        let shm = File::shared_memory(other.engine(), PAGE, true).unwrap();
        refused(process, &shm, PAGE, MapFlags::SHARED | MapFlags::POPULATE);
        // The file is ignored for an anonymous mapping, so its engine does not matter.
        let at = process.mmap(0, PAGE, RW, ANON, Some(&file), 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        process.munmap(at, PAGE).unwrap();
    });
}

#[test]
fn hugetlb_file_of_another_engine_is_refused() {
    two(|_, process, _, other| {
        let size = HugePageSize::Mib2;
        other.engine().resize_huge_pool(size, 1, None);
        let mapping = Mapping::of_huge_pages(other.engine(), size, size.bytes(), false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "huge").unwrap();
        refused(process, &file, size.bytes(), MapFlags::SHARED);
        refused(process, &file, size.bytes(), MapFlags::PRIVATE);
        assert_eq!(other.engine().huge_pool(size).counts(None).reserved, 0, "nothing was reserved");
    });
}

/// A mapping without frames. All its hooks have their defaults.
struct Nothing;
impl VmOps<Machine> for Nothing {}

/// A driver that must not be called.
struct Asked;
impl Driver<Machine> for Asked {
    fn mmap(&self, _: &mut MapRequest<'_, Machine>) -> Result<Counted<Special<Machine>>, MmapError> {
        panic!("a driver is not called for another engine's mapping");
    }
}

#[test]
fn device_of_another_engine_is_refused() {
    two(|_, process, _, other| {
        let mapping = Mapping::new(other.engine(), Zeroes, 0, true).unwrap();
        let file = File::with_driver(&mapping, Asked, FileAccess::READ_WRITE, "device").unwrap();
        refused(process, &file, PAGE, MapFlags::SHARED);
    });
}

#[test]
fn special_mapping_of_another_engine_is_refused() {
    two(|own, process, _, other| {
        let flags = VmFlags::READ | VmFlags::MAYREAD;
        let mapping = Mapping::new(other.engine(), Zeroes, 0, true).unwrap();
        let frames = || Frames::new("[vdso]", &[]).unwrap();
        let foreign =
            [Special::new(other.engine(), frames()).unwrap(), Special::of_file(Nothing, &mapping).unwrap()];
        let native = Special::new(own.engine(), frames()).unwrap();
        for special in &foreign {
            let error = process.install_special(BASE, PAGE, flags, special);
            assert_eq!(error, Err(MmapError::OtherEngine));
            let part = |special| SpecialPart { len: PAGE, flags, special };
            let error = process.install_specials(BASE, &[part(&native), part(special)]);
            assert_eq!(error, Err(MmapError::OtherEngine), "no part may be installed");
        }
    });
}

#[test]
fn segment_of_another_engine_is_refused() {
    two(|_, process, _, other| {
        let segment = Segment::new(other.engine(), 1, PAGE).unwrap();
        let error = process.shmat(&segment, 0, ShmFlags::empty()).unwrap_err();
        assert_eq!((error, error.errno()), (ShmatError::OtherEngine, Errno::EXDEV));
        assert_eq!(segment.attached(), 0);
        segment.remove();
    });
}

#[test]
fn process_vm_refuses_a_space_of_another_engine() {
    two(|_, process, cpu, other| {
        let stranger = other.process(Locking::default());
        let mut their_cpu = other.machine.cpu(0);
        for (who, cpu, value) in [(process, &mut *cpu, 1u64), (&stranger, &mut their_cpu, 2)] {
            anon(who, BASE, 1);
            who.store(cpu, BASE, value).unwrap();
        }
        let part = [IoVec { base: BASE, len: 8 }];
        let read = process.process_vm_readv(&part, &stranger, &part);
        let written = process.process_vm_writev(&part, &stranger, &part);
        assert_eq!((read, written), (Err(AccessError::OtherEngine), Err(AccessError::OtherEngine)));
        assert_eq!(AccessError::OtherEngine.errno(), Errno::EXDEV);
        assert_eq!(process.load(cpu, BASE), Ok(1u64));
        assert_eq!(stranger.load(&mut their_cpu, BASE), Ok(2u64));
        process.munmap(BASE, PAGE).unwrap();
    });
}

#[test]
fn nommu_space_refuses_a_file_of_another_engine() {
    two(|own, _, _, other| {
        let space = NoMmuSpace::new(&Regions::new(own.engine()).unwrap()).unwrap();
        let shm = File::shared_memory(other.engine(), PAGE, true).unwrap();
        for (file, flags) in [(&shm, MapFlags::SHARED), (&other.file(1), MapFlags::PRIVATE)] {
            let mapped = space.mmap(0, PAGE, R, flags, Some(file), 0);
            assert_eq!(mapped, Err(MmapError::OtherEngine));
        }
        assert_eq!(space.map_count(), 0);
    });
}

/// Two engines on one platform share its frame records. An engine that gets the number of a frame of the
/// other engine does not change that frame.
#[test]
fn frame_of_another_engine_on_the_same_machine_is_untouched() {
    let world = World::new();
    let other = Engine::new(world.machine.clone(), Config::default()).unwrap();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let file = world.file(1);
    anon(&process, BASE, 1);
    process.mmap(BASE + PAGE, PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    process.store(&mut cpu, BASE, 5u64).unwrap();
    process.store(&mut cpu, BASE + PAGE, 6u64).unwrap();
    let frames = [0, 1].map(|n| process.frame_at(BASE + n * PAGE).unwrap());
    for pfn in frames {
        assert_eq!(other.entries_of(pfn), 0);
        assert_eq!(other.migrate(pfn), Err(MigrateError::NoPage));
        assert_eq!(other.try_to_unmap(pfn), Err(PageError::NoPage));
        assert_eq!(other.mkclean(pfn), Err(PageError::NoPage));
        assert_eq!(other.soft_offline(pfn), Err(OfflineError::Busy));
        assert_eq!(other.memory_failure(pfn), Err(OfflineError::Busy));
    }
    assert_eq!([0, 1].map(|n| process.frame_at(BASE + n * PAGE).unwrap()), frames);
    assert_eq!((process.load(&mut cpu, BASE), process.load(&mut cpu, BASE + PAGE)), (Ok(5u64), Ok(6u64)));
    // The owning engine accepts the same numbers.
    assert_eq!(world.engine().entries_of(frames[0]), 1);
    assert_eq!(world.engine().memory_failure(frames[0]), Ok(Damage::Lost));
    assert!(matches!(process.load::<u64>(&mut cpu, BASE), Err(FaultError::MemoryFailed { .. })));
    process.check();
    drop((process, cpu, file, other));
    drop(world);
}

#[test]
fn number_without_a_frame_is_refused() {
    let world = World::new();
    let engine = world.engine();
    for pfn in [1 << 30, 1 << 40, u64::MAX].map(Pfn::new) {
        assert_eq!(engine.entries_of(pfn), 0);
        assert_eq!(engine.migrate(pfn), Err(MigrateError::NoPage));
        assert_eq!(engine.try_to_unmap(pfn), Err(PageError::NoPage));
        assert_eq!(engine.mkclean(pfn), Err(PageError::NoPage));
        assert_eq!(engine.referenced(pfn), Err(PageError::NoPage));
        assert_eq!(engine.soft_offline(pfn), Err(OfflineError::Busy));
        assert_eq!(engine.memory_failure(pfn), Err(OfflineError::Busy));
    }
    world.end();
}
