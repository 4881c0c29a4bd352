//! Committed memory (`src/committed.rs`, `src/file/committed.rs`): which pages count, and which requests the
//! policies of vm.overcommit_memory refuse. After each call the tests compare `Engine::committed_pages` with
//! the expected number. The expected changes of the number are those of Committed_AS on Linux 6.18. The last
//! test lets several tasks map at the same time under the policy that limits the sum; this limit must be
//! exact. A new call that maps writable memory or changes rights must be tried here.

use crate::support::{
    failure::{Failure, at_every_allocation},
    *,
};
use freehold::{
    PageCount,
    call::{Advice, RemapFlags},
    engine::Overcommit,
    error::{ForkError, MmapError, MprotectError, MremapError},
    fault::FaultError,
    file::{FillError, Segment},
    space::Write,
};

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);
const NORESERVE: MapFlags = MapFlags::NORESERVE;
const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN).union(MapFlags::FIXED);

/// Returns the number of committed pages.
fn committed(world: &World) -> u64 {
    world.engine().committed_pages().get()
}

fn device_of_zeroes(world: &World) -> Counted<File<Machine>> {
    let mapping = Mapping::zeroes(world.engine()).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/dev/zero").unwrap()
}

fn memfd(world: &World, pages: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::memfd(world.engine(), pages * PAGE).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/memfd:m (deleted)").unwrap()
}

#[test]
fn private_memory_is_committed_while_it_is_writable() {
    everywhere(|world, process, cpu| {
        let map = |prot, flags| process.mmap(BASE, 8 * PAGE, prot, flags, None, 0).unwrap();
        let unmap = || process.munmap(BASE, 8 * PAGE).unwrap();
        let fixed = ANON | MapFlags::FIXED;
        for (prot, flags, pages) in [(RW, fixed, 8), (R, fixed, 0), (RW, fixed | NORESERVE, 0)] {
            map(prot, flags);
            assert_eq!(committed(world), pages, "{prot:?} {flags:?}");
            process.munmap(BASE, 3 * PAGE).unwrap();
            assert_eq!(committed(world), pages * 5 / 8);
            unmap();
            assert_eq!(committed(world), 0);
        }
        map(R, fixed);
        process.mprotect(BASE, 3 * PAGE, RW).unwrap();
        assert_eq!(committed(world), 3);
        process.mprotect(BASE, 8 * PAGE, R).unwrap();
        assert_eq!(committed(world), 0, "read-only memory without a page does not count");
        process.mprotect(BASE, 8 * PAGE, RW).unwrap();
        process.store(cpu, BASE, 1u64).unwrap();
        process.mprotect(BASE, 8 * PAGE, R).unwrap();
        assert_eq!(committed(world), 8, "read-only memory that has a page counts");
        map(RW, fixed);
        assert_eq!(committed(world), 8, "a replaced mapping is uncommitted");
        map(R, fixed);
        assert_eq!(committed(world), 0);
        let file = world.file(8);
        process.mmap(BASE, 8 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        assert_eq!(committed(world), 8);
        process.mmap(BASE, 8 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        assert_eq!(committed(world), 0, "a shared mapping of a file commits nothing");
    });
}

#[test]
fn growth_moves_and_forks_are_committed() {
    everywhere(|world, process, cpu| {
        let heap = process.brk(0).unwrap();
        process.brk(heap + 4 * PAGE).unwrap();
        assert_eq!(committed(world), 4);
        process.brk(heap + PAGE).unwrap();
        assert_eq!(committed(world), 1);
        process.brk(heap).unwrap();
        process.mmap(BASE, PAGE, RW, STACK, None, 0).unwrap();
        process.store(cpu, BASE - 2 * PAGE, 1u64).unwrap();
        assert_eq!(committed(world), 3, "a stack grew by two pages");
        process.munmap(BASE - 2 * PAGE, 3 * PAGE).unwrap();
        anon(process, BASE, 4);
        let at = process.mremap(BASE, 4 * PAGE, 6 * PAGE, RemapFlags::empty(), 0).unwrap();
        assert_eq!((at, committed(world)), (BASE, 6));
        let to = BASE + 100 * PAGE;
        let named = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(BASE, 6 * PAGE, 10 * PAGE, named, to).unwrap();
        assert_eq!(committed(world), 10, "a move that grows");
        process.mremap(to, 10 * PAGE, 5 * PAGE, named, BASE).unwrap();
        assert_eq!(committed(world), 5, "a move that shrinks");
        process.mremap(BASE, 5 * PAGE, 5 * PAGE, named | RemapFlags::DONTUNMAP, to).unwrap();
        assert_eq!(committed(world), 10, "a move that leaves the source mapped");
        let child = cpu.call(|| process.fork()).unwrap();
        assert_eq!(committed(world), 20);
        drop(child);
        assert_eq!(committed(world), 10);
    });
}

#[test]
fn shared_memory_is_committed_once_until_it_is_freed() {
    everywhere(|world, process, cpu| {
        let zeroes = device_of_zeroes(world);
        for prot in [RW, R] {
            for (flags, file) in [(SHARED, None), (MapFlags::SHARED, Some(&zeroes))] {
                let at = process.mmap(0, 8 * PAGE, prot, flags, file, 0).unwrap();
                let child = cpu.call(|| process.fork()).unwrap();
                assert_eq!(committed(world), 8, "a fork commits no further pages");
                drop(child);
                process.madvise(at, 8 * PAGE, Advice::Remove).ok();
                process.munmap(at, 4 * PAGE).unwrap();
                assert_eq!(committed(world), 8, "the file is as large as before");
                process.munmap(at + 4 * PAGE, 4 * PAGE).unwrap();
                assert_eq!(committed(world), 0);
            }
        }
        let segment = Segment::new(world.engine(), 1, 8 * PAGE - 9).unwrap();
        let at = process.shmat(&segment, 0, freehold::call::ShmFlags::empty()).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        segment.remove();
        assert_eq!(committed(world), 8);
        process.shmdt(at).unwrap();
        assert_eq!(committed(world), 0, "a removed segment is destroyed when its last mapping is unmapped");
        let segment = Segment::new(world.engine(), 1, 4 * PAGE).unwrap();
        segment.mapping().truncate(7 * PAGE + 1).unwrap();
        segment.mapping().write_at(8 * PAGE, &[1]).unwrap();
        assert_eq!(committed(world), 9, "the file grew");
        segment.mapping().truncate(2 * PAGE).unwrap();
        assert_eq!(committed(world), 2);
    });
}

#[test]
fn unreserved_shared_memory_is_committed_page_by_page() {
    everywhere(|world, process, cpu| {
        let memfd = memfd(world, 8);
        let segment = Segment::noreserve(world.engine(), 1, 8 * PAGE).unwrap();
        let attached = process.shmat(&segment, 0, freehold::call::ShmFlags::empty()).unwrap();
        let map = |flags, file| process.mmap(0, 8 * PAGE, RW, flags, file, 0).unwrap();
        let mapped = [map(SHARED | NORESERVE, None), map(MapFlags::SHARED, Some(&memfd)), attached];
        assert_eq!(committed(world), 0);
        for (n, at) in (1..).zip(mapped) {
            process.store(cpu, at, 1u64).unwrap();
            process.store(cpu, at + 3 * PAGE, 1u64).unwrap();
            process.store(cpu, at + 3 * PAGE, 2u64).unwrap();
            assert_eq!(committed(world), n * 2);
        }
        for (n, at) in (1..).zip(mapped) {
            process.madvise(at, PAGE, Advice::Remove).unwrap();
            assert_eq!(committed(world), 6 - n);
        }
        memfd.mapping().truncate(PAGE).unwrap();
        assert_eq!(committed(world), 2);
        memfd.mapping().write_at(5 * PAGE, &[1; 8192]).unwrap();
        assert_eq!(committed(world), 4);
        process.munmap(mapped[0], 8 * PAGE).unwrap();
        assert_eq!(committed(world), 3, "the file ends with its last mapping");
    });
}

#[test]
fn heuristic_policy_refuses_a_request_beyond_all_memory() {
    everywhere(|world, process, cpu| {
        let engine = world.engine();
        engine.set_overcommit(Overcommit::Heuristic(PageCount::new(8)));
        assert_eq!(engine.overcommit(), Overcommit::Heuristic(PageCount::new(8)));
        let zeroes = device_of_zeroes(world);
        let memfd = memfd(world, 20);
        let map = |pages, prot, flags, file| process.mmap(0, pages * PAGE, prot, flags, file, 0);
        for (prot, flags, file) in [
            (RW, ANON, None),
            (RW, SHARED, None),
            (R, SHARED, None),
            (R, MapFlags::SHARED, Some(&zeroes)),
            (RW, MapFlags::PRIVATE, Some(&zeroes)),
            (RW, MapFlags::PRIVATE, Some(&memfd)),
        ] {
            for _ in 0..2 {
                assert!(map(8, prot, flags, file).is_ok());
            }
            let refused = map(9, prot, flags, file).map_err(|error| error.errno());
            assert_eq!(refused, Err(freehold::error::Errno::ENOMEM), "{flags:?}");
            assert!(map(9, prot, flags | NORESERVE, file).is_ok());
        }
        let large = map(20, RW, MapFlags::SHARED, Some(&memfd)).unwrap();
        (0..20).for_each(|page| process.store(cpu, large + page * PAGE, 1u64).unwrap());
        assert!(Segment::new(engine, 1, 9 * PAGE).is_err());
        assert!(Segment::noreserve(engine, 1, 9 * PAGE).is_ok());
        let segment = Segment::new(engine, 1, 8 * PAGE).unwrap();
        assert_eq!(segment.mapping().truncate(17 * PAGE), Err(FillError::NoMemory));
        assert_eq!(segment.mapping().size(), 8 * PAGE);
        engine.set_overcommit(Overcommit::Always);
        assert!(map(9, RW, SHARED, None).is_ok());
    });
}

#[test]
fn never_policy_keeps_committed_memory_within_the_limit() {
    everywhere(|world, process, cpu| {
        let engine = world.engine();
        let limit = |pages| engine.set_overcommit(Overcommit::Never(PageCount::new(pages)));
        anon(process, BASE, 6);
        limit(10);
        let map = |pages, flags| process.mmap(0, pages * PAGE, RW, flags, None, 0);
        for flags in [ANON, SHARED] {
            for flags in [flags, flags | NORESERVE] {
                assert_eq!(map(5, flags).map_err(|error| error.errno().0), Err(12), "{flags:?}");
                let at = map(4, flags).unwrap();
                assert_eq!(committed(world), 10, "{flags:?} counts");
                process.munmap(at, 4 * PAGE).unwrap();
            }
        }
        assert!(Segment::noreserve(engine, 1, 5 * PAGE).is_err(), "SHM_NORESERVE is ignored");
        // A mapping that replaces another mapping commits only the difference.
        process.mmap(BASE, 10 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        assert_eq!(committed(world), 10);
        let named = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(BASE, 10 * PAGE, 10 * PAGE, named, BASE + 100 * PAGE).unwrap();
        process.mremap(BASE + 100 * PAGE, 10 * PAGE, 10 * PAGE, named, BASE).unwrap();
        let grown = process.mremap(BASE, 10 * PAGE, 11 * PAGE, RemapFlags::MAYMOVE, 0);
        assert_eq!(grown, Err(MremapError::Limit));
        let kept = named | RemapFlags::DONTUNMAP;
        let kept = process.mremap(BASE, 10 * PAGE, 10 * PAGE, kept, BASE + 100 * PAGE);
        assert_eq!(kept, Err(MremapError::Limit));
        assert_eq!(cpu.call(|| process.fork()).map(drop), Err(ForkError::Limit));
        let heap = process.brk(0).unwrap();
        assert_eq!(process.brk(heap + PAGE), Ok(heap), "the break is unchanged");
        assert_eq!(committed(world), 10, "a refused request commits nothing");
        process.munmap(BASE + 4 * PAGE, 6 * PAGE).unwrap();
        // The limit is lowered below the committed memory. Mapped memory stays, and every further request is
        // refused.
        limit(3);
        assert_eq!(map(1, ANON), Err(MmapError::Limit));
        assert!(process.mmap(0, PAGE, R, ANON, None, 0).is_ok());
        process.mprotect(BASE, 4 * PAGE, R).unwrap();
        assert_eq!(process.mprotect(BASE, 4 * PAGE, RW), Err(MprotectError::Limit));
        assert_eq!(committed(world), 0);
        process.mprotect(BASE, 3 * PAGE, RW).unwrap();
    });
}

#[test]
fn failed_change_commits_nothing() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        process.store(cpu, BASE, 1u64).unwrap();
        let before = committed(world);
        let failed = at_every_allocation(&Failure::ALL, |point| {
            let mapped = point.fail(|| process.mmap(0, 3 * PAGE, RW, ANON, None, 0));
            assert_eq!(committed(world), before + if mapped.is_ok() { 3 } else { 0 }, "mmap, {point}");
            mapped.map(|at| process.munmap(at, 3 * PAGE).unwrap()).ok();
            let child = point.fail(|| cpu.call(|| process.fork()));
            assert_eq!(committed(world), before * if child.is_ok() { 2 } else { 1 }, "fork, {point}");
            drop(child);
            let shared = point.fail(|| File::shared_memory(world.engine(), 5 * PAGE, true));
            assert_eq!(committed(world), before + if shared.is_ok() { 5 } else { 0 }, "shared, {point}");
        });
        assert!(failed > 0);
        assert_eq!(committed(world), before);
    });
}

#[test]
fn fault_on_shared_memory_beyond_the_limit_raises_sigbus() {
    everywhere(|world, process, cpu| {
        let engine = world.engine();
        let memfd = memfd(world, 8);
        let at = process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&memfd), 0).unwrap();
        engine.set_overcommit(Overcommit::Never(PageCount::new(2)));
        (0..2).for_each(|page| process.store(cpu, at + page * PAGE, 1u64).unwrap());
        let beyond = at + 2 * PAGE;
        assert_eq!(process.store(cpu, beyond, 1u64), Err(FaultError::Bus { addr: beyond }));
        assert_eq!(memfd.mapping().write_at(2 * PAGE, &[1]), Err(FillError::NoSpace));
        assert_eq!(FillError::NoSpace.errno(), freehold::error::Errno::ENOSPC);
        process.madvise(at, PAGE, Advice::Remove).unwrap();
        process.store(cpu, beyond, 1u64).unwrap();
        assert_eq!(committed(world), 2);
    });
}

/// `Config::max_file_pages` limits the pages of files that can outlive every program, under every policy on
/// committed memory. Private memory, memory whose size is committed, and files with contents have no limit.
#[test]
fn pages_of_files_have_a_limit_of_their_own() {
    let world = World::with(16 << 20, Config::new().max_file_pages(Some(PageCount::new(3))));
    let engine = world.engine();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let shared = |file: &Counted<File<Machine>>| {
        process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(file), 0).unwrap()
    };
    let mut touch =
        |at: u64, pages: u64| (0..pages).try_for_each(|n| process.store(&mut cpu, at + n * PAGE, 1u64));
    let (one, other) = (memfd(&world, 8), memfd(&world, 8));
    let (at, other_at) = (shared(&one), shared(&other));
    touch(at, 2).unwrap();
    touch(other_at, 1).unwrap();
    let beyond = other_at + PAGE;
    assert_eq!(touch(beyond, 1), Err(FaultError::Bus { addr: beyond }));
    assert_eq!(other.mapping().write_at(7 * PAGE, &[1]), Err(FillError::NoSpace));
    touch(process.mmap(0, 8 * PAGE, RW, ANON, None, 0).unwrap(), 8).unwrap();
    touch(process.mmap(0, 8 * PAGE, RW, SHARED, None, 0).unwrap(), 8).unwrap();
    let stored = Mapping::new(engine, Disk, 8 * PAGE, true).unwrap();
    assert_eq!(stored.read_at(0, &mut [0; 5 * PAGE as usize]), Ok(5 * PAGE as usize));
    // Each way by which a page leaves a file makes room for another page.
    process.madvise(at, PAGE, Advice::Remove).unwrap();
    touch(beyond, 1).unwrap();
    one.mapping().truncate(0).unwrap();
    touch(beyond + PAGE, 1).unwrap();
    process.munmap(other_at, 8 * PAGE).unwrap();
    drop(other);
    touch(shared(&memfd(&world, 8)), 3).unwrap();
}

/// Tasks on several CPUs map and unmap concurrently. The limit is exact: committed memory never exceeds it,
/// and a request that fits is not refused.
#[test]
fn concurrent_tasks_share_an_exact_commit_limit() {
    const TASKS: u64 = 4;
    const EACH: u64 = 4;
    for write in [Write::Whole, Write::RangesOnly] {
        let world = World::new();
        let process = world.process(Locking::default().write(write));
        let engine = world.engine();
        engine.set_overcommit(Overcommit::Never(PageCount::new(TASKS * EACH)));
        std::thread::scope(|scope| {
            for n in 0..TASKS {
                let (world, process) = (&world, &process);
                let at = BASE + n * (1 << 30);
                scope.spawn(move || {
                    let flags = ANON | MapFlags::FIXED;
                    for _ in 0..Effort::of(50, 500, 5000) {
                        process.mmap(at, EACH * PAGE, RW, flags, None, 0).expect("below the limit");
                        let more = process.mmap(at + (1 << 20), TASKS * EACH * PAGE, RW, flags, None, 0);
                        assert_eq!(more, Err(MmapError::Limit), "beyond the limit");
                        assert!(committed(world) <= TASKS * EACH);
                        process.munmap(at, EACH * PAGE).unwrap();
                    }
                });
            }
        });
        assert_eq!(committed(&world), 0);
        drop(process);
        world.end();
    }
}
