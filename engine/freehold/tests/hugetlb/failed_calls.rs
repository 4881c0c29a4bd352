//! Calls on files of huge pages that fail: mmap and fallocate. The file and the pool are unchanged
//! afterwards, and mmap also keeps the mapping that it would have replaced.
//!
//! `cases` lists arguments of mmap that must be refused, each as one change of an mmap that is granted, with
//! its errno. A new reason to refuse is one more entry. The remaining tests let mmap and fallocate fail for
//! another reason: a seal, a limit, a signal, no memory.

use super::{
    USER_END,
    support::failure::{Failure, at_every_allocation},
    *,
};
use freehold::{PageIndex, error::MmapError, file::Seals, space::Limits};
use freehold_machine::Task;

const POOL: u64 = 4;
const RESERVED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
const COPIED: MapFlags = MapFlags::PRIVATE.union(MapFlags::FIXED);

/// An mmap that is refused. The call maps two pages, and the file has fewer.
struct Refused {
    why: &'static str,
    access: FileAccess,
    prot: freehold::space::Prot,
    flags: MapFlags,
    addr: u64,
    len: u64,
    offset: u64,
    limits: Limits,
    errno: Errno,
}

/// Returns an mmap that is granted. Each of the cases below changes the argument that makes the call fail.
fn granted() -> Refused {
    Refused {
        why: "granted",
        access: FileAccess::READ_WRITE,
        prot: RW,
        flags: RESERVED,
        addr: BASE,
        len: 2 * HUGE,
        offset: 0,
        limits: Limits::default(),
        errno: Errno::EINVAL,
    }
}

/// Returns the calls of mmap that must fail, each with its errno.
fn cases() -> Vec<Refused> {
    let shut = |access| Refused { access, errno: Errno::EACCES, ..granted() };
    let x = freehold::space::Prot::EXEC;
    let all = FileAccess::READ_WRITE;
    // The last offset at which a page of the pool would lie if files could have any size.
    let last = 0x8000_0000_0000_0000;
    let limited = |limits, errno| Refused { limits, errno, ..granted() };
    let locked = |memlock| Limits::new().memlock(memlock);
    let with = |flags| granted().flags | flags;
    vec![
        Refused { why: "beyond the largest file size", offset: last, errno: Errno::EOVERFLOW, ..granted() },
        Refused { why: "not for writing", ..shut(FileAccess::READ) },
        Refused { why: "for appending", ..shut(all.append(true)) },
        Refused { why: "not for reading", ..shut(all.read(false)) },
        Refused { why: "a copy, not for reading", flags: COPIED, ..shut(all.read(false)) },
        Refused { why: "not for execution", prot: RW | x, errno: Errno::EPERM, ..shut(all.noexec(true)) },
        Refused { why: "not to be mapped", errno: Errno::ENODEV, ..shut(all.mappable(false)) },
        Refused { why: "a mapping that grows down", flags: with(MapFlags::GROWSDOWN), ..granted() },
        Refused {
            why: "an unknown flag",
            flags: MapFlags::SHARED_VALIDATE | MapFlags::FIXED | MapFlags::SYNC,
            errno: Errno::EOPNOTSUPP,
            ..granted()
        },
        Refused { why: "a misaligned address", addr: BASE + PAGE, ..granted() },
        Refused { why: "an offset inside a page", offset: PAGE, ..granted() },
        Refused { why: "a copy from inside a page", offset: PAGE, flags: COPIED, ..granted() },
        // An offset inside a page is checked after all other conditions.
        Refused { why: "not for writing, inside a page", offset: PAGE, ..shut(FileAccess::READ) },
        Refused {
            why: "beyond the largest file size, inside a page",
            offset: last - PAGE,
            errno: Errno::EOVERFLOW,
            ..granted()
        },
        Refused {
            why: "occupied, inside a page",
            offset: PAGE,
            flags: MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
            addr: BASE + SPAN,
            errno: Errno::EEXIST,
            ..granted()
        },
        Refused {
            why: "occupied, beyond the largest file size",
            offset: last,
            flags: MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
            addr: BASE + SPAN,
            errno: Errno::EEXIST,
            ..granted()
        },
        Refused {
            why: "address space limit, inside a page",
            offset: PAGE,
            ..limited(Limits::new().address_space(2 * HUGE), Errno::ENOMEM)
        },
        Refused { why: "beyond user space", addr: USER_END, errno: Errno::ENOMEM, ..granted() },
        Refused { why: "too low", addr: 0, errno: Errno::EPERM, ..granted() },
        Refused {
            why: "occupied",
            flags: MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
            addr: BASE + SPAN,
            errno: Errno::EEXIST,
            ..granted()
        },
        Refused {
            why: "no right to lock memory",
            flags: with(MapFlags::LOCKED),
            ..limited(locked(0), Errno::EPERM)
        },
        Refused {
            why: "limit of locked memory",
            flags: with(MapFlags::LOCKED),
            ..limited(locked(HUGE), Errno::EAGAIN)
        },
        Refused {
            why: "address space limit",
            ..limited(Limits::new().address_space(2 * HUGE), Errno::ENOMEM)
        },
        Refused {
            why: "a copy, address space limit",
            flags: COPIED,
            ..limited(Limits::new().address_space(2 * HUGE), Errno::ENOMEM)
        },
        Refused { why: "more than the pool has", len: (POOL + 1) * HUGE, errno: Errno::ENOMEM, ..granted() },
        Refused {
            why: "a copy of more than the pool has",
            flags: COPIED,
            len: (POOL + 1) * HUGE,
            errno: Errno::ENOMEM,
            ..granted()
        },
    ]
}

/// A refused mmap changes neither the size of the file nor the pool nor the reservations. The mapping that
/// would have been replaced also stays. In two cases Linux has unmapped that mapping before it fails: if the
/// pool has too few pages, and if the offset is inside a page.
#[test]
fn refused_mmap_changes_nothing() {
    for (case, locking) in cases().into_iter().zip(designs().collect::<Vec<_>>().into_iter().cycle()) {
        let world = world(POOL);
        let process = world.process(locking);
        let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, HUGE, false).unwrap();
        let file = File::new(&mapping, case.access, "/huge/file").unwrap();
        let taken = process.mmap(BASE + SPAN, PAGE, R, support::ANON | MapFlags::FIXED, None, 0);
        assert_eq!(taken, Ok(BASE + SPAN));
        support::anon(&process, BASE + PAGE, 2);
        let mut cpu = world.machine.cpu(0);
        process.store(&mut cpu, BASE + PAGE, 7u64).unwrap();
        process.limits().set(&case.limits);
        let before: Vec<_> = process.maps(0).map(|line| line.to_string()).collect();
        let mapped = process.mmap(case.addr, case.len, case.prot, case.flags, Some(&file), case.offset);
        assert_eq!(mapped.map_err(MmapError::errno), Err(case.errno), "{}", case.why);
        assert_eq!((counts(&world), mapping.size()), (all_free(POOL), HUGE), "{}", case.why);
        let after: Vec<_> = process.maps(0).map(|line| line.to_string()).collect();
        assert_eq!(before, after, "{}", case.why);
        assert_eq!(process.load::<u64>(&mut cpu, BASE + PAGE), Ok(7), "{}", case.why);
        drop((process, cpu, file, mapping));
        world.end();
    }
}

#[test]
fn mmap_refused_by_a_seal_reserves_nothing() {
    everywhere(POOL, |world, process, _| {
        let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, HUGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
        mapping.add_seals(Seals::WRITE).unwrap();
        let mapped = process.mmap(BASE, 2 * HUGE, RW, RESERVED, Some(&file), 0);
        assert_eq!(mapped.map_err(MmapError::errno), Err(Errno::EPERM));
        assert_eq!((counts(world), mapping.size()), (all_free(POOL), HUGE));
    });
}

/// The limit admits one VMA more than its value, as on Linux.
#[test]
fn mmap_refused_by_the_vma_limit_reserves_nothing() {
    let config = Config::new().max_map_count(1);
    let world = World::with((POOL + 4) * HUGE, config);
    world.engine().resize_huge_pool(HugePageSize::Mib2, POOL, None);
    let process = world.process(Locking::default());
    let file = file(&world, HUGE);
    for n in 1..3 {
        process.mmap(BASE + n * SPAN, PAGE, R, support::ANON | MapFlags::FIXED, None, 0).unwrap();
    }
    let mapped = process.mmap(BASE, 2 * HUGE, RW, RESERVED, Some(&file), 0);
    assert_eq!(mapped, Err(MmapError::TooManyVmas));
    assert_eq!((counts(&world), file.mapping().size()), (all_free(POOL), HUGE));
    drop((process, file));
    world.end();
}

#[test]
fn killed_mmap_reserves_nothing() {
    everywhere(POOL, |world, process, _| {
        let file = file(world, HUGE);
        let guard = process.space().write();
        let mapped = std::thread::scope(|scope| {
            let call = || {
                Task::current().interrupt_wait(1);
                process.mmap(BASE, 2 * HUGE, RW, RESERVED, Some(&file), 0)
            };
            scope.spawn(call).join().unwrap()
        });
        drop(guard);
        assert_eq!(mapped, Err(MmapError::Killed));
        assert_eq!((counts(world), file.mapping().size()), (all_free(POOL), HUGE));
    });
}

/// Every allocation of an mmap fails once. The file is also mapped elsewhere, and the mmap replaces another
/// mapping.
#[test]
fn mmap_without_memory_reserves_nothing() {
    let mut failed = 0;
    for (flags, private) in [(RESERVED, false), (COPIED, true)] {
        at_every_allocation(&Failure::ALL, |point| {
            let world = world(POOL);
            let process = world.process(designs().nth(point.nth as usize % designs().count()).unwrap());
            let file = file(&world, HUGE);
            process.mmap(BASE + HUGE, HUGE, R, support::ANON | MapFlags::FIXED, None, 0).unwrap();
            let mapped = point.fail(|| process.mmap(BASE, 2 * HUGE, RW, flags, Some(&file), 0));
            let size = file.mapping().size();
            match mapped {
                Ok(_) => assert_eq!((counts(&world).reserved, size), (2, 2 * HUGE)),
                Err(_) => assert_eq!((counts(&world), size), (all_free(POOL), HUGE), "{private}, {point}"),
            }
            failed += u64::from(mapped.is_err());
            process.check();
            drop((process, file));
            assert_eq!(counts(&world), all_free(POOL));
            world.end();
        });
    }
    assert!(failed > 5, "{failed} calls failed");
}

/// fallocate finds the pool empty half-way. The size of the file stays, pages beyond the end are freed, and
/// pages inside the file stay allocated.
#[test]
fn failed_fallocate_does_not_enlarge_the_file() {
    everywhere(POOL, |world, process, cpu| {
        let file = file(world, 2 * HUGE);
        let mapping = file.mapping();
        // Pages 3 and 4 are reserved for a read-only mapping, which does not enlarge the file.
        process.mmap(BASE, 2 * HUGE, R, RESERVED, Some(&file), 3 * HUGE).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (POOL, 2));
        // Pages 2 to 4 are allocated, and freed again because no page is left for page 5.
        assert_eq!(mapping.allocate(HUGE..6 * HUGE).unwrap_err().errno(), Errno::ENOSPC);
        assert_eq!(mapping.size(), 2 * HUGE);
        assert!(mapping.has_page(PageIndex::new(1)), "a page inside the file stays allocated");
        assert_eq!((counts(world).free, counts(world).reserved), (POOL - 1, 2));
        assert_eq!(process.load::<u64>(cpu, BASE), Err(FaultError::Bus { addr: BASE }));
        mapping.allocate(HUGE..5 * HUGE).unwrap();
        assert_eq!((mapping.size(), counts(world).free, counts(world).reserved), (5 * HUGE, 0, 0));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        for end in [u64::MAX, 1 << 63] {
            assert!(mapping.allocate(HUGE..end).is_err(), "larger than any file");
        }
        assert_eq!((mapping.size(), counts(world).free), (5 * HUGE, 0));
        mapping.truncate(0).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (POOL, 0));
    });
}

/// Each allocation of a fallocate fails once. The page that a mapping has reserved beyond the end of the file
/// is reserved again afterwards.
#[test]
fn fallocate_without_memory_restores_reservations() {
    at_every_allocation(&Failure::ALL, |point| {
        let world = world(POOL);
        let process = world.process(Locking::default());
        let file = file(&world, HUGE);
        let mapping = file.mapping();
        process.mmap(BASE, HUGE, R, RESERVED, Some(&file), 2 * HUGE).unwrap();
        let allocated = point.fail(|| mapping.allocate(HUGE..4 * HUGE));
        match allocated {
            Ok(()) => assert_eq!((mapping.size(), counts(&world).free), (4 * HUGE, POOL - 3)),
            Err(_) => {
                assert_eq!(mapping.size(), HUGE);
                assert_eq!((counts(&world).free, counts(&world).reserved), (POOL, 1), "{point}");
            }
        }
        drop((process, file));
        assert_eq!(counts(&world), all_free(POOL));
        world.end();
    });
}
