//! Huge pages of pools, in two and three processes, which fault, share tables, leave them, and take pages
//! away.
//!
//! Each scenario runs with both designs of their locks. At the end of each the pool is where it was: no page
//! and no reservation is lost.

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
    space::{HugetlbLock, Locking, MapFlags, Prot},
    uffd::{Features, FillMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{Machine, Process};

type Open = Counted<File<Machine>>;

const HUGE: u64 = 2 << 20;
const SPAN: u64 = 1 << 30;
const BASE: u64 = 64 * SPAN;
/// Nothing is reserved: a span has more pages than there are.
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED).union(MapFlags::NORESERVE);
const PRIVATE: MapFlags =
    MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::HUGETLB).union(MapFlags::FIXED);
const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Pages are large, and each costs a schedule 512 frames.
fn explore_both(
    name: &str,
    share: usize,
    pages: u64,
    scenario: impl Fn(&Scene) + Send + Sync + Copy + 'static,
) {
    for hugetlb in [HugetlbLock::FileLock, HugetlbLock::VmaLock] {
        explore(&format!("{name} ({hugetlb:?})"), share, move |locking| {
            let scene = Scene::pool(Locking { hugetlb, ..locking }, pages);
            scenario(&scene);
            scene.process.check();
            scene.process.clear();
            let pool = scene.engine.huge_pool(HugePageSize::Mib2).counts(None);
            assert_eq!(pool, HugePoolCounts { total: pages, free: pages, reserved: 0, surplus: 0 });
            scene.end();
        });
    }
}

fn open(scene: &Scene) -> Open {
    let mapping = Mapping::of_huge_pages(&scene.engine, HugePageSize::Mib2, SPAN, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "huge").unwrap()
}

fn map(process: &Process, file: &Open, prot: Prot) {
    assert_eq!(process.mmap(BASE, SPAN, prot, SHARED, Some(file), 0), Ok(BASE));
}

fn at(page: u64) -> u64 {
    BASE + page * HUGE
}

/// A file, and two processes with one table for it, page n with n + 1 in it; a processor that remembers what
/// the first has.
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

/// What an access finds beside a truncation: a value, or that there is none.
#[track_caller]
fn either(result: Result<u64, FaultError>, values: &[u64], page: u64) {
    match result {
        Ok(value) => assert!(values.contains(&value), "{value} in page {page}"),
        Err(error) => assert_eq!(error, FaultError::Bus { addr: at(page) }),
    }
}

/// The only process that has a table unmaps, while two others look for a table to share, and find it, or each
/// other's, or make one.
#[test]
fn share_beside_munmap() {
    explore_both("huge pages: a table is looked for while its only user unmaps", 16, 1, |scene| {
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

/// Pages come, go with a part of a table, and are cut off, in three places at once (C-17, C-26).
#[test]
fn fault_unshare_truncate() {
    explore_both("huge pages: fault, unshare and truncate", 8, 2, |scene| {
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

/// A hole beside stores: pages come back, and the pool does not run dry (C-26).
#[test]
fn fault_beside_a_hole() {
    explore_both("huge pages: stores beside holes", 8, 1, |scene| {
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

/// A part of one process' span goes while the other faults: neither ends up with a part of a shared table
/// (C-12).
#[test]
fn split_beside_faults() {
    explore_both("huge pages: a split beside faults elsewhere", 8, 3, |scene| {
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

/// All sharers of a table leave it at once, while one more comes: the last one frees it, and nobody walks it
/// then (C-13, C-15).
#[test]
fn all_leave() {
    explore_both("huge pages: all leave a table", 8, 1, |scene| {
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

/// A child's VMA can be found when it has a lock of its own (C-18), and its tables are left like all others
/// (C-16).
#[test]
fn fork_beside_a_hole() {
    explore_both("huge pages: fork beside a hole", 8, 2, |scene| {
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

/// Rights go from one process while another, that has the same, and a third, that may only read, look for
/// tables.
#[test]
fn rights_beside_sharing() {
    explore_both("huge pages: rights beside sharing", 8, 1, |scene| {
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

/// A table is found for the first time by another process while its owner takes rights, and pages, away: it
/// must not be shared then.
#[test]
fn first_share_beside_changes() {
    explore_both("huge pages: a table found while it changes", 8, 2, |scene| {
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

/// A fault has a table in hand that a hole takes out of its space, and that the last one to have it then
/// frees.
#[test]
fn a_table_in_hand() {
    explore_both("huge pages: a fault, a hole, and who frees the table", 8, 3, |scene| {
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

/// A mapping moves away from under a truncation.
#[test]
fn move_beside_a_hole() {
    explore_both("huge pages: mremap beside a hole", 8, 2, |scene| {
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

/// A third process looks for tables to share while a mapping moves, and fills them: it does not come upon
/// those of the target, which are there and have not got their pages yet.
#[test]
fn move_beside_a_first_look() {
    explore_both("huge pages: a table is looked for beside mremap", 16, 3, |scene| {
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
                // A move begins with the first.
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

/// A third process shares the source's table, which is empty, fills it and leaves it: no page is lost.
#[test]
fn move_beside_a_passing_share() {
    explore_both("huge pages: mremap beside a process that shares and goes", 16, 1, |scene| {
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

/// A page moves to another frame while it is found, left and punched (C-27).
#[test]
fn migration() {
    explore_both("huge pages: migration, faults and a hole", 8, 3, |scene| {
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

/// A reservation is good whatever another thread gives back meanwhile, with no page to spare: the lock of
/// private mappings.
#[test]
fn reservations_beside_dontneed() {
    explore_both("huge pages: a fault beside DONTNEED of the only page", 8, 1, |scene| {
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

/// The last page serves all faults that want it at once: none asks for a second one (fault mutex).
#[test]
fn the_last_page() {
    explore_both("huge pages: two processes want the last page", 8, 1, |scene| {
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

/// Fork, and both write, with a page for one of them: the owner gets it, the child its own or a bus error
/// (C-28).
#[test]
fn copies_of_the_owner() {
    explore_both("huge pages: copies with too few pages", 8, 2, |scene| {
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

/// A private page is being made where the file is cut off meanwhile: nothing stays behind its end.
#[test]
fn private_beside_truncation() {
    explore_both("huge pages: a private page beside a truncation", 8, 2, |scene| {
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
/// What a load finds there.
const COPIED: u64 = 0x0101_0101_0101_0101;

fn uffd(process: &Process, features: Features) -> Userfaultfd<Machine> {
    Userfaultfd::new(process.space(), UffdConfig { features, user_mode_only: false }).unwrap()
}

/// A pager fills a page while its fault queues, and a munmap takes the memory away: nobody sleeps on, and the
/// reservation is used up, or given back, once (C-25).
#[test]
fn c25_a_fill_beside_its_fault_and_munmap() {
    explore_both("huge pages: a fill beside its fault and munmap", 8, 2, |scene| {
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
                // The engine does not tell faults that wait for a page that is gone.
                uffd.wake(BASE, HUGE).unwrap();
            });
        });
        let pool = scene.engine.huge_pool(HugePageSize::Mib2).counts(None);
        assert_eq!((pool.free, pool.reserved), (2, 1));
        drop(uffd);
    });
}

/// A page of the file that comes write-protected is so from the start: a store waits for the page, or for the
/// right to write; here both are a bus error (C-53).
#[test]
fn c53_a_protected_fill_beside_accesses() {
    explore_both(
        "huge pages: a fill of the file, write-protected, beside a load and a store",
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

/// A process leaves the table that it shares when it registers, while the other stores: the other's stores go
/// on, and what the pager protects when the call has returned nobody of its own process writes (C-53).
#[test]
fn c53_protection_beside_stores_through_a_shared_table() {
    explore_both("huge pages: registration leaves a shared table", 8, 2, |scene| {
        let (file, other, old) = sharing(scene, 2);
        let uffd = uffd(&scene.process, Features::SIGBUS);
        thread::scope(|scope| {
            let (uffd, process, machine) = (&uffd, &scene.process, &scene.machine);
            scope.spawn(move || {
                uffd.register(BASE, SPAN, RegisterMode::WP).unwrap();
                // In between stores have to ask, and may get the right while it is taken again.
                for mode in [ProtectMode::WP, ProtectMode::empty(), ProtectMode::WP] {
                    uffd.write_protect(at(0), HUGE, mode).unwrap();
                }
                let mut cpu = machine.cpu(0);
                let seen: u64 = process.load(&mut cpu, at(0) + 8).unwrap();
                let refused = process.store(&mut cpu, at(0) + 8, 3u64);
                assert_eq!(refused, Err(FaultError::Bus { addr: at(0) + 8 }));
                assert_eq!(process.load(&mut cpu, at(0) + 8), Ok(seen), "somebody stored");
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
