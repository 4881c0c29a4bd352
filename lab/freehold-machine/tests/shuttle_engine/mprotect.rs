//! mprotect concurrent with faults and DONTNEED (C-22, C-61).
//!
//! The code under test is `call/mprotect.rs`. An access uses the old rights or the new ones. After mprotect
//! has returned, no access with the old rights succeeds, whatever a TLB has cached. The scenarios set a flag
//! after the call, and the other thread reads the flag before each access, so that this thread knows when the
//! old rights are forbidden. Tables that huge pages share are in `hugetlb.rs`.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, R, RW, Scene, denied, map, page, unmap, value},
};
use freehold::{call::Advice, platform::PkeyRights, space::Prot};
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn c22_no_store_succeeds_after_mprotect_returns() {
    explore("mprotect concurrent with stores", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.mprotect(page(0), PAGE, R).unwrap();
                gone.store(true, SeqCst);
                let mut cpu = scene.machine.cpu(1);
                let before: u64 = scene.process.load(&mut cpu, page(0)).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(before), "a store succeeded");
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                let mut newest = value(0);
                for number in 1..4u64 {
                    let late = gone.load(SeqCst);
                    let stored = scene.process.store(&mut cpu, page(0), number);
                    assert!(stored == denied(page(0)) || (stored == Ok(()) && !late), "{stored:?}");
                    newest = if stored.is_ok() { number } else { newest };
                    assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(newest));
                }
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.store(&mut cpu, page(0), 9u64), denied(page(0)));
        scene.process.mprotect(page(0), PAGE, RW).unwrap();
        scene.process.store(&mut cpu, page(0), 9u64).unwrap();
        assert_eq!(scene.process.counts().map_count, 1);
        drop(cpu);
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c22_no_load_succeeds_after_all_rights_are_removed() {
    explore("mprotect(NONE) concurrent with loads", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.mprotect(page(0), PAGE, Prot::empty()).unwrap();
                gone.store(true, SeqCst);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for _ in 0..3 {
                    let late = gone.load(SeqCst);
                    let found = scene.process.load(&mut cpu, page(0));
                    assert!(found == denied(page(0)) || (found == Ok(value(0)) && !late), "{found:?}");
                }
            });
        });
        scene.process.mprotect(page(0), PAGE, R).unwrap();
        assert_eq!(scene.process.load(&mut scene.machine.cpu(1), page(0)), Ok(value(0)));
        scene.end();
    });
}

#[test]
fn c22_splits_and_merges_concurrent_with_faults() {
    explore("splits and merges by mprotect concurrent with faults", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        map(&scene.process, 2..4, ANON);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.mprotect(page(1), PAGE, R).unwrap();
                scene.process.mprotect(page(1), PAGE, RW).unwrap();
            });
            // The adjacent pages stay writable, and the page itself stays readable.
            for (cpu, neighbour) in [(0, 0), (1, 2)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(cpu);
                    for at in [page(neighbour), page(3) + 8 * neighbour] {
                        scene.process.store(&mut cpu, at, neighbour + 40).unwrap();
                        assert_eq!(scene.process.load(&mut cpu, at), Ok(neighbour + 40));
                        assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(value(1)));
                    }
                });
            }
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(40u64));
        assert_eq!(scene.process.load(&mut cpu, page(2)), Ok(42u64));
        drop(cpu);
        unmap(&scene.process, 0..4);
        scene.assert_empty();
        scene.end();
    });
}

/// The keys that a program can allocate: all but key 0 and the execute-only key.
const FREE_KEYS: usize = 14;

#[test]
fn concurrent_first_requests_for_exec_share_one_protection_key() {
    explore("first requests for EXEC", 200, |locking| {
        let scene = Scene::keyed(locking);
        // The VMAs between the two pages fill a leaf of the tree, so that two range writers do not wait for
        // each other.
        let pages = [0, 14];
        for at in (0..=14).step_by(2) {
            map(&scene.process, at..at + 1, ANON);
        }
        thread::scope(|scope| {
            for at in pages {
                let scene = &scene;
                scope.spawn(move || scene.process.mprotect(page(at), PAGE, Prot::EXEC).unwrap());
            }
        });
        let [first, second] = pages.map(|at| scene.process.find_vma(page(at)).unwrap().flags().pkey());
        assert_eq!(first, second);
        assert_ne!(first, 0);
        let left: Vec<u8> =
            std::iter::from_fn(|| scene.process.pkey_alloc(PkeyRights::empty()).ok()).collect();
        assert_eq!(left.len(), FREE_KEYS, "{left:?}");
        assert!(!left.contains(&first));
        scene.end();
    });
}

#[test]
fn c61_dontneed_concurrent_with_mprotect() {
    explore("DONTNEED concurrent with mprotect", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        thread::scope(|scope| {
            scope.spawn(|| {
                scene.process.mprotect(page(0), 2 * PAGE, R).unwrap();
                scene.process.mprotect(page(0), 2 * PAGE, RW).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(value(1)));
                scene.process.madvise(page(0), 2 * PAGE, Advice::DontNeed).unwrap();
                // mprotect changes entries in place, so DONTNEED never finds an entry missing.
                for number in 0..2 {
                    assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(0u64));
                }
            });
        });
        scene.end();
    });
}
