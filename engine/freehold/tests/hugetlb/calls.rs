//! Calls on huge pages of pools: mmap, mremap and segments of huge pages, the arguments that these calls
//! refuse, and the contents of reports. Pages of 1 GiB are tested here on a machine whose memory has no
//! contents. `failed_calls.rs` tests what a refused call leaves behind.

use super::*;
use freehold::{
    call::{RemapFlags, ShmFlags},
    file::{FillError, Segment},
    remote::AccessMode,
};

#[test]
fn mmap_checks_page_sizes_and_flags() {
    let world = world(2);
    let process = world.process(Locking::default());
    let map = |len, flags| process.mmap(0, len, RW, flags, None, 0);
    let sized = |shift: u64| MapFlags::from_bits_retain(PRIVATE.bits() | shift << 26);
    // Lengths are rounded up to whole pages, of the default size or of the size in the flags.
    let at = map(PAGE, PRIVATE).unwrap();
    assert_eq!(process.maps(at).next().map(|line| line.end), Some(at + HUGE));
    assert!(process.maps(at).next().unwrap().to_string().ends_with("/anon_hugepage (deleted)"));
    process.munmap(at, HUGE).unwrap();
    map(HUGE, sized(21)).unwrap();
    assert_eq!(map(SPAN, sized(30)).unwrap_err().errno(), Errno::ENOMEM);
    assert_eq!(map(HUGE, sized(16)).unwrap_err().errno(), Errno::EINVAL);
    let small = world.file(1);
    let refused = process.mmap(0, HUGE, RW, MapFlags::SHARED | MapFlags::HUGETLB, Some(&small), 0);
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    let huge = file(&world, 2 * HUGE);
    let at = |at, offset| process.mmap(at, HUGE, RW, SHARED, Some(&huge), offset);
    assert_eq!(at(BASE + PAGE, 0).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(at(BASE, PAGE).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(at(BASE, HUGE), Ok(BASE));
    assert!(Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, PAGE, false).is_err());
    drop((process, small, huge));
    assert_eq!(counts(&world), all_free(2));
    world.end();
}

#[test]
fn segments_of_huge_pages_map_only_at_aligned_addresses() {
    everywhere(2, |world, process, cpu| {
        let segment = |bytes| Segment::of_huge_pages(world.engine(), 7, HugePageSize::Mib2, bytes, true);
        assert!(segment(HUGE + PAGE).is_err(), "the size is not a whole number of pages");
        let segment = segment(2 * HUGE).unwrap();
        let none = ShmFlags::empty();
        assert_eq!(process.shmat(&segment, BASE + PAGE, none).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(process.shmat(&segment, BASE, none), Ok(BASE));
        let other = process.shmat(&segment, 0, none).unwrap();
        assert!(other.is_multiple_of(HUGE));
        process.store(cpu, BASE + HUGE + 8, 5u64).unwrap();
        assert_eq!(process.load(cpu, other + HUGE + 8), Ok(5u64));
        assert_eq!((segment.attached(), counts(world).free), (2, 1));
        segment.remove();
        process.shmdt(BASE).unwrap();
        assert_eq!(process.load(cpu, other + HUGE + 8), Ok(5u64));
        process.shmdt(other).unwrap();
        assert!(segment.is_destroyed());
    });
}

/// A segment reserves all its pages when it is created, and keeps the reservation until it is removed,
/// whether it is attached or not.
#[test]
fn segment_reserves_its_pages_until_it_is_removed() {
    everywhere(3, |world, process, cpu| {
        let segment = |pages, reserved| {
            Segment::of_huge_pages(world.engine(), 7, HugePageSize::Mib2, pages * HUGE, reserved)
        };
        let two = segment(2, true).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (3, 2));
        assert_eq!(segment(2, true).err(), Some(FillError::NoHugePages), "only one page is unreserved");
        assert_eq!(process.mmap(0, 2 * HUGE, RW, PRIVATE, None, 0).unwrap_err().errno(), Errno::ENOMEM);
        assert_eq!(
            (counts(world).free, counts(world).reserved),
            (3, 2),
            "a refused request changes no counts"
        );
        // After attach, store and detach, each page is either reserved or allocated.
        let at = process.shmat(&two, 0, ShmFlags::empty()).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (2, 1));
        process.shmdt(at).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (2, 1));
        // A segment without a reservation gets only unreserved pages.
        let more = segment(2, false).unwrap();
        let at = process.shmat(&more, 0, ShmFlags::empty()).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        let store = process.store(cpu, at + HUGE, 1u64);
        assert_eq!(
            store,
            Err(FaultError::Bus { addr: at + HUGE }),
            "the last page is reserved for another segment"
        );
        two.remove();
        assert_eq!(counts(world).reserved, 0);
        process.store(cpu, at + HUGE, 1u64).unwrap();
        process.shmdt(at).unwrap();
        // A segment that is dropped without being removed frees its pages, too.
        drop(more);
        let one = segment(1, true).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (3, 1));
        drop(one);
        assert_eq!(counts(world), all_free(3));
    });
}

/// Two segments that are created concurrently cannot both reserve pages that suffice for only one.
#[test]
fn concurrent_segments_never_reserve_the_same_pages() {
    let world = world(3);
    for _ in 0..50 {
        let make = || Segment::of_huge_pages(world.engine(), 7, HugePageSize::Mib2, 2 * HUGE, true);
        std::thread::scope(|scope| {
            let both = [scope.spawn(make), scope.spawn(make)].map(|thread| thread.join().unwrap());
            assert_eq!(both.iter().filter(|made| made.is_ok()).count(), 1);
            assert_eq!(counts(&world).reserved, 2);
        });
        assert_eq!(counts(&world), all_free(3));
    }
    world.end();
}

/// Calls with an address or length inside a huge page fail and change nothing (hazards C-29, C-30).
#[test]
fn c29_c30_unaligned_ranges_are_refused_or_rounded() {
    everywhere(3, |world, process, cpu| {
        assert_eq!(process.mmap(BASE, 3 * HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0), Ok(BASE));
        for n in 0..3 {
            process.store(cpu, BASE + n * HUGE, n + 1).unwrap();
        }
        let before: Vec<_> = process.maps(0).map(|line| line.to_string()).collect();
        let inside = BASE + HUGE + PAGE;
        let einval = |result: Result<(), Errno>| assert_eq!(result, Err(Errno::EINVAL));
        einval(process.munmap(inside, HUGE).map_err(|error| error.errno()));
        einval(process.munmap(BASE + HUGE, PAGE).map_err(|error| error.errno()));
        einval(process.mprotect(inside, HUGE, R).map_err(|error| error.errno()));
        einval(process.madvise(inside, HUGE, Advice::DontNeed).map_err(|error| error.errno()));
        einval(process.madvise(BASE, HUGE, Advice::Free).map_err(|error| error.errno()));
        einval(process.madvise(BASE, HUGE, Advice::Cold).map_err(|error| error.errno()));
        let to = BASE + 8 * HUGE;
        let mv = |addr, old, new, to| {
            process
                .mremap(addr, old, new, RemapFlags::MAYMOVE | RemapFlags::FIXED, to)
                .map(drop)
                .map_err(|error| error.errno())
        };
        einval(mv(inside, HUGE, HUGE, to));
        einval(mv(BASE, HUGE, HUGE, to + PAGE));
        einval(mv(BASE, HUGE, 2 * HUGE, to));
        einval(
            process
                .mremap(BASE, HUGE, 4 * HUGE, RemapFlags::MAYMOVE, 0)
                .map(drop)
                .map_err(|error| error.errno()),
        );
        let after: Vec<_> = process.maps(0).map(|line| line.to_string()).collect();
        assert_eq!(before, after);
        // The end of a madvise range inside a page is rounded down.
        process.madvise(BASE, HUGE + PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(2));
        // Lengths of mremap are rounded up.
        assert_eq!(process.mremap(BASE, HUGE, PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, to), Ok(to));
        assert_eq!(process.load::<u64>(cpu, to), Ok(0));
        assert_eq!(counts(world).reserved, 0);
    });
}

/// A move keeps the pages, and moves the unused reservations with them.
#[test]
fn mremap_moves_pages_and_reservations() {
    everywhere(3, |world, process, cpu| {
        assert_eq!(process.mmap(BASE, 3 * HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0), Ok(BASE));
        process.store(cpu, BASE + HUGE, 5u64).unwrap();
        let to = BASE + SPAN + 5 * HUGE;
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(process.mremap(BASE, 3 * HUGE, 2 * HUGE, flags, to), Ok(to));
        assert_eq!(process.load::<u64>(cpu, to + HUGE), Ok(5));
        assert_eq!((counts(world).free, counts(world).reserved), (2, 1));
        process.store(cpu, to, 4u64).unwrap();
        process.check();
        process.munmap(to, 2 * HUGE).unwrap();
        assert_eq!(counts(world), all_free(3));
    });
}

#[test]
fn smaps_and_remote_access_cover_huge_pages() {
    everywhere(2, |world, process, cpu| {
        let file = file(world, SPAN);
        map_span(process, &file, BASE);
        process.store(cpu, BASE + HUGE, 1u64).unwrap();
        let smap = process.smaps(BASE).next().unwrap();
        assert_eq!((smap.page_bytes, smap.usage.rss, smap.usage.private_hugetlb), (HUGE, 0, HUGE));
        assert!(smap.to_string().contains("KernelPageSize:     2048 kB"));
        assert!(smap.to_string().contains("Private_Hugetlb:    2048 kB"));
        let other = world.process(process.locking());
        map_span(&other, &file, BASE);
        assert_eq!(other.load::<u64>(cpu, BASE + HUGE), Ok(1));
        let smap = process.smaps(BASE).next().unwrap();
        assert_eq!((smap.usage.shared_hugetlb, smap.usage.private_hugetlb), (HUGE, 0));
        let mut resident = vec![0; 3 * 512];
        process.mincore(BASE, 3 * HUGE, &mut resident).unwrap();
        let pages: Vec<u8> = resident.chunks(512).map(|page| page[17]).collect();
        assert_eq!(pages, [0, 1, 0]);
        // Other processes and debuggers can read and write the pages.
        assert_eq!(process.write_memory(BASE + HUGE + 4090, &[1; 12], AccessMode::Plain), Ok(12));
        let mut bytes = [0; 12];
        assert_eq!(other.read_memory(BASE + HUGE + 4090, &mut bytes, AccessMode::Forced), Ok(12));
        assert_eq!(bytes, [1; 12]);
        assert_eq!(file.mapping().read_at(HUGE + 4090, &mut bytes), Ok(12));
        assert_eq!(bytes, [1; 12]);
        assert!(file.mapping().write_at(0, &bytes).is_err());
        // A forced write does not copy a private huge page.
        let private = process.mmap(0, HUGE, R, PRIVATE | MapFlags::NORESERVE, None, 0).unwrap();
        assert!(process.write_memory(private, &bytes, AccessMode::Forced).is_err());
        process.munmap(private, HUGE).unwrap();
        process.mlock(BASE, HUGE).unwrap();
        process.madvise(BASE, 2 * HUGE, Advice::PopulateWrite).unwrap();
        assert_eq!(counts(world).free, 0);
        process.madvise(BASE, HUGE, Advice::Remove).unwrap();
        assert_eq!(counts(world).free, 1);
        file.mapping().allocate(0..HUGE).unwrap();
        assert_eq!(file.mapping().allocate(2 * HUGE..3 * HUGE).unwrap_err().errno(), Errno::ENOSPC);
    });
}

/// Pages of 1 GiB, on a machine whose memory has no contents.
#[test]
fn pages_of_1_gib_are_mapped_and_reserved() {
    for locking in designs() {
        let machine: Machine = Machine::new(MachineConfig::phantom(5 << 30)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Gib1, 3, None), 3);
        let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let mut cpu = machine.cpu(0);
        let flags = MapFlags::from_bits_retain(PRIVATE.bits() | 30 << 26);
        let at = process.mmap(0, 2 * SPAN, RW, flags, None, 0).unwrap();
        assert!(at.is_multiple_of(SPAN));
        process.store(&mut cpu, at + 5 * HUGE, 1u64).unwrap();
        let pool = || engine.huge_pool(HugePageSize::Gib1).counts(None);
        assert_eq!((pool().free, pool().reserved), (2, 1));
        let child = Process::of(process.fork().unwrap());
        child.store(&mut cpu, at, 1u64).unwrap();
        assert_eq!((pool().free, pool().reserved), (1, 1));
        assert_eq!(process.munmap(at, HUGE).unwrap_err().errno(), Errno::EINVAL);
        let to = at - 8 * SPAN;
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(process.mremap(at, SPAN, SPAN, fixed, to), Ok(to));
        let moved = engine.migrate(process.frame_at(to).unwrap());
        assert!(moved.is_err(), "the only free page is reserved");
        process.munmap(at + SPAN, SPAN).unwrap();
        engine.migrate(process.frame_at(to).unwrap()).unwrap();
        process.check();
        drop((process, child, cpu));
        assert_eq!((pool().total, pool().free, pool().reserved), (3, 3, 0));
        drop(engine);
        machine.accounting().assert_clean();
    }
}

#[test]
fn reap_leaves_huge_pages_of_pools() {
    everywhere(2, |_, process, cpu| {
        process.mmap(BASE, HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0).unwrap();
        process.store(cpu, BASE, 5u64).unwrap();
        process.reap().unwrap();
        assert_eq!(process.load(cpu, BASE), Ok(5u64));
    });
}
