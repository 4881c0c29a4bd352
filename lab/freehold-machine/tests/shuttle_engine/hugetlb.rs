//! Huge pages of pools, in two and three processes that fault, share page tables, unshare them, and remove
//! pages.
//!
//! The code under test is `hugetlb/`, and `fill_huge.rs` and `protect.rs` of `uffd/`. Two VMAs share a PMD
//! table if they map the same aligned GiB of a file ([`SPAN`]); `sharing` sets up two processes that share a
//! table. A process stops sharing (unshares) for example when its VMA changes, or when a hole is punched.
//! `explore_both` runs each scenario with both designs of the hugetlb locks, and checks at the end that the
//! pool has its initial counts: no page and no reservation is lost. A new scenario should use few huge pages
//! and few schedules (`share`), because each huge page adds the counts of 512 frames to a schedule.

use crate::{
    explore::{explore, thread},
    scene::{OLD, R, RW, Scene, Vcpu},
};
use freehold::{
    call::{Advice, RemapFlags},
    counted::Counted,
    error::UffdError,
    fault::FaultError,
    file::{File, FileAccess, Mapping},
    hugetlb::{HugePageSize, HugePoolCounts},
    space::{HugetlbLock, MapFlags, Prot},
    uffd::{Features, FillMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{Machine, Process};

type Open = Counted<File<Machine>>;

const HUGE: u64 = 2 << 20;
/// Bytes that one PMD table maps.
const SPAN: u64 = 1 << 30;
/// Address of the mappings, aligned so that they can share tables.
const BASE: u64 = 64 * SPAN;
/// Flags of shared mappings. These mappings reserve no pages, because a span has more pages than the pool.
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED).union(MapFlags::NORESERVE);
const PRIVATE: MapFlags =
    MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::HUGETLB).union(MapFlags::FIXED);
const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Runs `scenario` on every design and with both designs of the hugetlb locks, with a pool of `pages` huge
/// pages. Checks afterwards that all pages and reservations are back in the pool.
fn explore_both(
    name: &str,
    share: usize,
    pages: u64,
    scenario: impl Fn(&Scene) + Send + Sync + Copy + 'static,
) {
    for hugetlb in [HugetlbLock::FileLock, HugetlbLock::VmaLock] {
        explore(&format!("{name} ({hugetlb:?})"), share, move |locking| {
            let scene = Scene::pool(locking.hugetlb(hugetlb), pages);
            scenario(&scene);
            scene.process.check();
            scene.process.clear();
            let pool = scene.engine.huge_pool(HugePageSize::Mib2).counts(None);
            assert_eq!(pool, HugePoolCounts { total: pages, free: pages, reserved: 0, surplus: 0 });
            scene.end();
        });
    }
}

/// Creates a file of one span.
fn open(scene: &Scene) -> Open {
    let mapping = Mapping::of_huge_pages(&scene.engine, HugePageSize::Mib2, SPAN, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "huge").unwrap()
}

/// Maps the file shared, at [`BASE`].
fn map(process: &Process, file: &Open, prot: Prot) {
    assert_eq!(process.mmap(BASE, SPAN, prot, SHARED, Some(file), 0), Ok(BASE));
}

/// Returns the address of a huge page.
fn at(page: u64) -> u64 {
    BASE + page * HUGE
}

/// Returns a file, and a second process that shares a page table of the file with the first process. The
/// value in page `n` is one more than `n`. The returned CPU has cached translations of the first process.
fn sharing(scene: &Scene, pages: u64) -> (Open, Process, Vcpu) {
    let (file, other) = (open(scene), scene.another());
    let mut cpu = scene.machine.cpu(OLD);
    for process in [&scene.process, &other] {
        map(process, &file, RW);
    }
    for n in 0..pages {
        other.store(&mut cpu, at(n), n + 1).unwrap();
    }
    for n in 0..pages {
        assert_eq!(scene.process.load(&mut cpu, at(n)), Ok(n + 1));
    }
    (file, other, cpu)
}

/// Checks the result of an access concurrent with a truncation: one of `values`, or a bus error.
#[track_caller]
fn either(result: Result<u64, FaultError>, values: &[u64], page: u64) {
    match result {
        Ok(value) => assert!(values.contains(&value), "{value} in page {page}"),
        Err(error) => assert_eq!(error, FaultError::Bus { addr: at(page) }),
    }
}

/// The only process that has a page table unmaps the file, while two other processes search for a table to
/// share. Each searching process shares the table of the first process or of the other searching process, or
/// allocates a table.
#[test]
fn sharing_concurrent_with_munmap_of_the_only_user() {
    explore_both("huge pages: sharing of a table while its only user unmaps", 16, 1, |scene| {
        let (file, others) = (open(scene), [scene.another(), scene.another()]);
        let mut old = scene.machine.cpu(OLD);
        map(&scene.process, &file, RW);
        others.iter().for_each(|other| map(other, &file, RW));
        scene.process.store(&mut old, at(0), 1u64).unwrap();
        thread::scope(|scope| {
            for (number, other) in others.iter().enumerate() {
                let machine = &scene.machine;
                scope.spawn(move || {
                    assert_eq!(other.load(&mut machine.cpu(number), at(0)), Ok(1u64));
                });
            }
            scope.spawn(|| scene.process.munmap(BASE, SPAN).unwrap());
        });
        assert!(scene.process.load::<u64>(&mut old, at(0)).is_err());
        others.iter().for_each(|other| other.check());
    });
}

/// C-17, C-26: one task faults pages in, one discards a page and therefore unshares the table, and one
/// truncates the file.
#[test]
fn c17_c26_fault_unshare_and_truncation_are_concurrent() {
    explore_both("huge pages: concurrent fault, unshare and truncation", 8, 2, |scene| {
        let (file, other, mut old) = sharing(scene, 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                either(other.load(&mut cpu, at(1)), &[2, 0], 1);
                either(other.load(&mut cpu, at(0)), &[1], 0);
            });
            scope.spawn(|| scene.process.madvise(at(0), HUGE, Advice::DontNeed).unwrap());
            scope.spawn(|| file.mapping().truncate(HUGE).unwrap());
        });
        for process in [&scene.process, &other] {
            assert_eq!(process.load::<u64>(&mut old, at(1)), Err(FaultError::Bus { addr: at(1) }));
            assert_eq!(process.load::<u64>(&mut old, at(0)), Ok(1));
        }
        other.check();
    });
}

/// C-26: a hole is punched concurrently with stores. The page is allocated again, and the pool of one page
/// does not run out.
#[test]
fn c26_faults_concurrent_with_a_hole() {
    explore_both("huge pages: stores concurrent with holes", 8, 1, |scene| {
        let (file, other, mut old) = sharing(scene, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                other.store(&mut cpu, at(0), 5u64).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                either(scene.process.load(&mut cpu, at(0)), &[0, 1, 5], 0);
            });
            scope.spawn(|| file.mapping().punch(0..HUGE).unwrap());
        });
        let value: u64 = scene.process.load(&mut old, at(0)).unwrap();
        assert!([0, 5].contains(&value));
        assert_eq!(other.load(&mut old, at(0)), Ok(value));
        other.check();
    });
}

/// C-12: one process unmaps a part of its span while another process faults pages in. Afterwards no VMA that
/// maps only a part of the span uses a shared table.
#[test]
fn c12_vma_split_concurrent_with_faults() {
    explore_both("huge pages: a split concurrent with faults elsewhere", 8, 3, |scene| {
        let (_file, other, mut old) = sharing(scene, 2);
        thread::scope(|scope| {
            scope.spawn(|| scene.process.munmap(at(1), HUGE).unwrap());
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, at(2), 3u64).unwrap();
                other.store(&mut cpu, at(1), 9u64).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                assert_eq!(scene.process.load(&mut cpu, at(0)), Ok(1u64));
            });
        });
        assert!(scene.process.load::<u64>(&mut old, at(1)).is_err());
        assert_eq!(scene.process.load(&mut old, at(2)), Ok(3u64));
        assert_eq!(other.load(&mut old, at(1)), Ok(9u64));
        other.check();
    });
}

/// C-13, C-15: all sharers of a table unshare it concurrently while another process begins to share it. The
/// last sharer frees the table, and no CPU walks the table afterwards.
#[test]
fn c13_c15_all_sharers_leave_a_table() {
    explore_both("huge pages: all sharers leave a table", 8, 1, |scene| {
        let (file, other, _) = sharing(scene, 1);
        let third = scene.another();
        map(&third, &file, RW);
        thread::scope(|scope| {
            scope.spawn(|| scene.process.munmap(BASE, SPAN).unwrap());
            scope.spawn(|| drop(other));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                assert_eq!(third.load(&mut cpu, at(0)), Ok(1u64));
                third.munmap(BASE, SPAN).unwrap();
            });
        });
    });
}

/// C-18: walks see the VMA of a child only after this VMA has a lock of its own. C-16: the hole unshares the
/// tables of the child like all other tables.
#[test]
fn c16_c18_fork_concurrent_with_a_hole() {
    explore_both("huge pages: fork concurrent with a hole", 8, 2, |scene| {
        let (file, other, mut old) = sharing(scene, 2);
        let child = thread::scope(|scope| {
            scope.spawn(|| file.mapping().punch(0..HUGE).unwrap());
            let forked = scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(1);
                assert_eq!(child.load(&mut cpu, at(1)), Ok(2u64));
                either(child.load(&mut cpu, at(0)), &[0, 1], 0);
                child
            });
            forked.join().unwrap()
        });
        for process in [&child, &other, &scene.process] {
            assert_eq!(process.load(&mut old, at(0)), Ok(0u64));
            process.check();
        }
    });
}

/// An mprotect removes write access from a mapping of one process. Concurrently, a process with a writable
/// mapping and a process with a read-only mapping search for tables to share.
#[test]
fn mprotect_concurrent_with_table_sharing() {
    explore_both("huge pages: mprotect concurrent with sharing", 8, 1, |scene| {
        let (file, other, mut old) = sharing(scene, 1);
        let reader = scene.another();
        map(&reader, &file, R);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.mprotect(BASE, SPAN, R).unwrap();
                let mut cpu = scene.machine.cpu(0);
                assert!(scene.process.store(&mut cpu, at(0), 1u64).is_err());
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.madvise(BASE, SPAN, Advice::DontNeed).unwrap();
                other.store(&mut cpu, at(0), 7u64).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                assert!(reader.load::<u64>(&mut cpu, at(0)).is_ok());
                assert!(reader.store(&mut cpu, at(0), 1u64).is_err());
            });
        });
        assert!(scene.process.store(&mut old, at(0), 1u64).is_err());
        assert!(reader.store(&mut old, at(0), 1u64).is_err());
        other.store(&mut old, at(0), 8u64).unwrap();
        assert_eq!(reader.load(&mut old, at(0)), Ok(8u64));
        for process in [&other, &reader] {
            process.check();
        }
    });
}

/// Another process finds a table for the first time while the owner of the table changes its protection and
/// discards its pages. The table must not become shared during these changes.
#[test]
fn table_is_not_shared_while_its_owner_changes() {
    explore_both("huge pages: a table is found while its owner changes it", 8, 2, |scene| {
        let (file, other) = (open(scene), scene.another());
        let mut old = scene.machine.cpu(OLD);
        for process in [&scene.process, &other] {
            map(process, &file, RW);
        }
        for n in 0..2 {
            scene.process.store(&mut old, at(n), n + 1).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.madvise(at(1), HUGE, Advice::DontNeed).unwrap();
                scene.process.mprotect(BASE, SPAN, R).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                assert_eq!(other.load(&mut cpu, at(1)), Ok(2u64));
                other.store(&mut cpu, at(0), 7u64).unwrap();
            });
        });
        assert!(scene.process.store(&mut old, at(0), 1u64).is_err());
        assert_eq!(scene.process.load(&mut old, at(0)), Ok(7u64));
        file.mapping().truncate(HUGE).unwrap();
        for process in [&scene.process, &other] {
            assert_eq!(
                process.load::<u64>(&mut scene.machine.cpu(1), at(1)),
                Err(FaultError::Bus { addr: at(1) })
            );
            process.check();
        }
    });
}

/// A hole unshares a page table from a space while a fault in that space uses the table. The last sharer then
/// frees the table.
#[test]
fn fault_uses_a_table_that_is_unshared() {
    explore_both("huge pages: a fault, a hole, and a munmap that frees the table", 8, 3, |scene| {
        let (file, other, mut old) = sharing(scene, 1);
        file.mapping().allocate(2 * HUGE..3 * HUGE).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(scene.process.load(&mut cpu, at(2)), Ok(0u64));
            });
            scope.spawn(|| file.mapping().punch(0..HUGE).unwrap());
            scope.spawn(|| other.munmap(BASE, SPAN).unwrap());
        });
        assert_eq!(scene.process.load(&mut old, at(0)), Ok(0u64));
    });
}

/// A mapping moves while a hole is punched into its file.
#[test]
fn mremap_concurrent_with_a_hole() {
    explore_both("huge pages: mremap concurrent with a hole", 8, 2, |scene| {
        let (file, other, mut old) = sharing(scene, 2);
        let to = BASE + 5 * SPAN;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(scene.process.mremap(BASE, SPAN, SPAN, MOVE, to), Ok(to)));
            scope.spawn(|| file.mapping().punch(0..HUGE).unwrap());
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                assert_eq!(other.load(&mut cpu, at(1)), Ok(2u64));
            });
        });
        assert_eq!(scene.process.load(&mut old, to), Ok(0u64));
        assert_eq!(scene.process.load(&mut old, to + HUGE), Ok(2u64));
        assert!(scene.process.load::<u64>(&mut old, at(0)).is_err());
        other.check();
    });
}

/// Another process searches for tables to share while a mapping moves. This process must not share the tables
/// of the target, which are installed but do not have their entries yet.
#[test]
fn tables_of_a_move_target_are_not_shared_early() {
    explore_both("huge pages: sharing of a table concurrent with mremap", 16, 3, |scene| {
        let all = 3 * SPAN;
        let mapping = Mapping::of_huge_pages(&scene.engine, HugePageSize::Mib2, all, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "huge").unwrap();
        let (third, mut old) = (scene.another(), scene.machine.cpu(OLD));
        for process in [&scene.process, &third] {
            process.mmap(BASE, all, RW, SHARED, Some(&file), 0).unwrap();
        }
        (0..3).for_each(|n| scene.process.store(&mut old, BASE + n * SPAN, n).unwrap());
        let to = BASE + 5 * SPAN;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(scene.process.mremap(BASE, all, all, MOVE, to), Ok(to)));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                // A move begins with the first span, so the loads begin with the last span.
                for n in [2, 1, 0] {
                    assert_eq!(third.load(&mut cpu, BASE + n * SPAN), Ok(n));
                }
            });
        });
        for n in 0..3 {
            third.store(&mut old, BASE + n * SPAN, 7 + n).unwrap();
            assert_eq!(scene.process.load(&mut old, to + n * SPAN), Ok(7 + n));
        }
        third.check();
    });
}

/// While a mapping moves, another process shares the empty table of the source, fills it and unshares it. No
/// page is lost.
#[test]
fn mremap_concurrent_with_a_short_share() {
    explore_both("huge pages: mremap concurrent with a process that shares and unmaps", 16, 1, |scene| {
        let (file, third, mut old) = (open(scene), scene.another(), scene.machine.cpu(OLD));
        for process in [&scene.process, &third] {
            map(process, &file, RW);
        }
        scene.process.store(&mut old, at(0), 1u64).unwrap();
        scene.process.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
        let to = BASE + 5 * SPAN;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(scene.process.mremap(BASE, SPAN, SPAN, MOVE, to), Ok(to)));
            scope.spawn(|| {
                assert_eq!(third.load(&mut scene.machine.cpu(2), at(0)), Ok(1u64));
                third.munmap(BASE, SPAN).unwrap();
            });
        });
        assert_eq!(scene.process.load(&mut old, to), Ok(1u64));
    });
}

/// C-27: a page is migrated concurrently with faults, unsharing and a hole.
#[test]
fn c27_migration_concurrent_with_faults_and_a_hole() {
    explore_both("huge pages: concurrent migration, faults and a hole", 8, 3, |scene| {
        let (file, other, mut old) = sharing(scene, 1);
        let frame = scene.process.frame_at(at(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = scene.engine.migrate(frame);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, at(0) + 8, 5u64).unwrap();
            });
            scope.spawn(|| file.mapping().punch(0..HUGE).unwrap());
        });
        assert_eq!(scene.process.load(&mut old, at(0)), Ok(0u64));
        let value: u64 = scene.process.load(&mut old, at(0) + 8).unwrap();
        assert_eq!(other.load(&mut old, at(0) + 8), Ok(value));
        other.check();
    });
}

/// A fault in a private mapping can use the reservation of its page, even if the pool has no other page and
/// another thread discards the page concurrently.
#[test]
fn reservation_holds_during_dontneed() {
    explore_both("huge pages: a fault concurrent with DONTNEED of the only page", 8, 1, |scene| {
        assert_eq!(scene.process.mmap(BASE, HUGE, RW, PRIVATE, None, 0), Ok(BASE));
        scene.process.store(&mut scene.machine.cpu(OLD), BASE, 1u64).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| scene.process.madvise(BASE, HUGE, Advice::DontNeed).unwrap());
            for (cpu, value) in [(0, 5u64), (1, 6)] {
                scope.spawn(move || {
                    scene.process.store(&mut scene.machine.cpu(cpu), BASE + cpu as u64 * 8, value).unwrap()
                });
            }
        });
    });
}

/// The fault mutex: three concurrent faults on one page of a file get the last page of the pool. No fault
/// requests a second page.
#[test]
fn concurrent_faults_use_one_page() {
    explore_both("huge pages: three threads fault on the last page", 8, 1, |scene| {
        let (file, other) = (open(scene), scene.another());
        map(&scene.process, &file, RW);
        map(&other, &file, R);
        thread::scope(|scope| {
            scope.spawn(|| scene.process.store(&mut scene.machine.cpu(0), at(0), 1u64).unwrap());
            scope.spawn(|| assert!(other.load::<u64>(&mut scene.machine.cpu(1), at(0)).is_ok()));
            scope.spawn(|| assert!(scene.process.load::<u64>(&mut scene.machine.cpu(2), at(0)).is_ok()));
        });
        other.check();
    });
}

/// C-28: parent and child store after a fork, although the pool has no other page. The parent, which owns the
/// reservations, always gets its pages. The child finds the old contents, its own store, or a bus error
/// because it has lost its page to the parent.
#[test]
fn c28_owner_gets_its_page_after_fork() {
    explore_both("huge pages: copies after fork with too few pages", 8, 2, |scene| {
        assert_eq!(scene.process.mmap(BASE, 2 * HUGE, RW, PRIVATE, None, 0), Ok(BASE));
        let mut cpu = scene.machine.cpu(OLD);
        (0..2).for_each(|n| scene.process.store(&mut cpu, at(n), n + 1).unwrap());
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            for n in 0..2 {
                scope.spawn(move || {
                    scene.process.store(&mut scene.machine.cpu(n as usize), at(n), 10 + n).unwrap()
                });
            }
            let (child, machine) = (&child, &scene.machine);
            scope.spawn(move || {
                let mut cpu = machine.cpu(2);
                either(child.load(&mut cpu, at(0)), &[1], 0);
                let _ = child.store(&mut cpu, at(1), 20u64);
            });
        });
        assert_eq!(scene.process.load(&mut cpu, at(0)), Ok(10u64));
        assert_eq!(scene.process.load(&mut cpu, at(1)), Ok(11u64));
        either(child.load(&mut cpu, at(1)), &[2, 20], 1);
        child.check();
    });
}

/// The file is truncated while a fault prepares a private page. No page stays mapped beyond the end.
#[test]
fn private_fault_concurrent_with_truncation() {
    explore_both("huge pages: a private fault concurrent with truncation", 8, 2, |scene| {
        let file = open(scene);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        assert_eq!(scene.process.mmap(BASE, SPAN, RW, flags, Some(&file), 0), Ok(BASE));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = scene.process.store(&mut scene.machine.cpu(0), at(0), 1u64);
            });
            scope.spawn(|| file.mapping().truncate(0).unwrap());
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(scene.process.load::<u64>(&mut cpu, at(0)), Err(FaultError::Bus { addr: at(0) }));
    });
}

static MIB2: [u8; HUGE as usize] = [1; HUGE as usize];
/// The word that a load finds in a page that the pager has filled.
const COPIED: u64 = 0x0101_0101_0101_0101;

/// Creates a userfaultfd of the process.
fn uffd(process: &Process, features: Features) -> Userfaultfd<Machine> {
    Userfaultfd::new(process.space(), UffdConfig::new().features(features)).unwrap()
}

/// C-25: a pager fills a page while the fault on it is being queued, and a munmap unmaps the range. No thread
/// stays asleep, and the reservation is used or released exactly once.
#[test]
fn c25_fill_concurrent_with_its_fault_and_munmap() {
    explore_both("huge pages: a fill concurrent with its fault and munmap", 8, 2, |scene| {
        assert_eq!(scene.process.mmap(BASE, 2 * HUGE, RW, PRIVATE, None, 0), Ok(BASE));
        let uffd = uffd(&scene.process, Features::empty());
        uffd.register(BASE, 2 * HUGE, RegisterMode::MISSING).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| match scene.process.load::<u64>(&mut scene.machine.cpu(0), at(0)) {
                Ok(found) => assert_eq!(found, COPIED),
                Err(error) => assert!(matches!(error, FaultError::Segv { .. }), "{error}"),
            });
            scope.spawn(|| {
                let done = uffd.copy(at(0), &MIB2, FillMode::empty());
                assert!([Ok(HUGE), Err(UffdError::NotRegistered)].contains(&done), "{done:?}");
            });
            scope.spawn(|| {
                scene.process.munmap(BASE, HUGE).unwrap();
                // The engine does not wake faults that wait for an unmapped page.
                uffd.wake(BASE, HUGE).unwrap();
            });
        });
        let pool = scene.engine.huge_pool(HugePageSize::Mib2).counts(None);
        assert_eq!((pool.free, pool.reserved), (2, 1));
        drop(uffd);
    });
}

/// C-53: the pager fills a page of the file with write protection. The page is protected as soon as it is
/// mapped: a store always raises a bus error, because the page is either missing or protected.
#[test]
fn c53_protected_pool_fill_concurrent_with_accesses() {
    explore_both(
        "huge pages: a write-protected fill of the file concurrent with a load and a store",
        8,
        1,
        |scene| {
            let file = open(scene);
            map(&scene.process, &file, RW);
            let uffd = uffd(&scene.process, Features::SIGBUS);
            uffd.register(BASE, SPAN, RegisterMode::MISSING | RegisterMode::WP).unwrap();
            let refused = FaultError::Bus { addr: at(0) };
            thread::scope(|scope| {
                scope.spawn(|| assert_eq!(uffd.copy(at(0), &MIB2, FillMode::WP), Ok(HUGE)));
                scope.spawn(|| {
                    let stored = scene.process.store(&mut scene.machine.cpu(0), at(0), 1u64);
                    assert_eq!(stored, Err(refused));
                });
                scope.spawn(|| {
                    let found = scene.process.load(&mut scene.machine.cpu(1), at(0));
                    assert!([Ok(COPIED), Err(refused)].contains(&found), "{found:?}");
                });
            });
            let mut cpu = scene.machine.cpu(OLD);
            assert_eq!(scene.process.store(&mut cpu, at(0), 1u64), Err(refused));
            assert_eq!(scene.process.load(&mut cpu, at(0)), Ok(COPIED));
        },
    );
}

/// C-53: a process unshares its page table when it registers, while another process stores through the same
/// table. The stores of the other process succeed. In the registering process, no store succeeds after the
/// pager has protected the page.
#[test]
fn c53_registration_unshares_a_table_during_stores() {
    explore_both("huge pages: registration unshares a table", 8, 2, |scene| {
        let (file, other, old) = sharing(scene, 2);
        let uffd = uffd(&scene.process, Features::SIGBUS);
        thread::scope(|scope| {
            let (uffd, process, machine) = (&uffd, &scene.process, &scene.machine);
            scope.spawn(move || {
                uffd.register(BASE, SPAN, RegisterMode::WP).unwrap();
                // Between the first and the last protection, stores may get the right to write while the
                // pager removes that right again.
                for mode in [ProtectMode::WP, ProtectMode::empty(), ProtectMode::WP] {
                    uffd.write_protect(at(0), HUGE, mode).unwrap();
                }
                let mut cpu = machine.cpu(0);
                let seen: u64 = process.load(&mut cpu, at(0) + 8).unwrap();
                let refused = process.store(&mut cpu, at(0) + 8, 3u64);
                assert_eq!(refused, Err(FaultError::Bus { addr: at(0) + 8 }));
                assert_eq!(process.load(&mut cpu, at(0) + 8), Ok(seen), "a store succeeded");
            });
            let mut old = old;
            scope.spawn(move || {
                for value in [1u64, 2] {
                    let _ = process.store(&mut old, at(0) + 8, value);
                }
            });
            scope.spawn(|| other.store(&mut machine.cpu(1), at(0) + 16, 9u64).unwrap());
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(scene.process.load(&mut cpu, at(0) + 16), Ok(9u64));
        other.store(&mut cpu, at(0), 7u64).unwrap();
        drop((uffd, file));
        scene.process.store(&mut cpu, at(0), 8u64).unwrap();
        assert_eq!(other.load(&mut cpu, at(0)), Ok(8u64));
        other.check();
    });
}
