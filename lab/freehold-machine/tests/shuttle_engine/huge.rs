//! Transparent huge pages concurrent with calls that split, share and discard them.
//!
//! The code under test is `fault/huge.rs`, and `huge.rs` and `zap.rs` of `freehold-vmspace`. No store is
//! lost, no task reads memory of another process, and the tables that huge pages keep for a later split are
//! freed. `collapse.rs`, `reclaim.rs` and `forced.rs` use the helpers of this file: `filled` sets up most
//! scenarios, `put` and `look` make accesses, and `end` makes the final checks. Huge pages of pools are in
//! `hugetlb.rs`. The scenarios run few schedules, because each frame of a huge page is counted individually
//! and the counting takes many steps.

use crate::{
    explore::{explore, thread},
    scene::{ANON, OLD, PAGE, Scene, TABLE, Vcpu, map, page, unmap, unmapped},
};
use freehold::{call::Advice, space::Locking};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::ops::Range;

/// Pages of the huge page that all scenarios use.
pub const HUGE: Range<u64> = 0..TABLE;

/// Returns a scene with a huge page. Its small pages 0, 1, 300 and 511 contain 1000 plus their number.
pub fn filled(locking: Locking) -> Scene {
    let scene = Scene::huge(locking);
    map(&scene.process, HUGE, ANON);
    let mut cpu = scene.machine.cpu(OLD);
    for number in [0, 1, 300, 511] {
        put(&scene.process, &mut cpu, number, 1000 + number);
    }
    assert!(is_whole(&scene.process));
    scene
}

/// Stores a word to a mapped page.
pub fn put(process: &Process, cpu: &mut Vcpu, number: u64, value: u64) {
    process.store(cpu, page(number), value).unwrap();
}

/// Loads the first word of a mapped page.
pub fn look(process: &Process, cpu: &mut Vcpu, number: u64) -> u64 {
    process.load(cpu, page(number)).unwrap()
}

/// Discards pages with DONTNEED.
fn discard(process: &Process, pages: Range<u64>) {
    process.madvise(page(pages.start), (pages.end - pages.start) * PAGE, Advice::DontNeed).unwrap();
}

/// Returns true if one huge page maps the range.
fn is_whole(process: &Process) -> bool {
    let mut whole = false;
    process.pagemap(page(0)..page(TABLE), |present| whole = present.huge);
    whole
}

/// Unmaps two tables of pages and ends the scenario. Checks that the space is empty and nothing leaked.
pub fn end(scene: Scene) {
    scene.process.check();
    unmap(&scene.process, 0..2 * TABLE);
    scene.assert_empty();
    scene.end();
}

#[test]
fn concurrent_faults_allocate_one_huge_page() {
    explore("stores and a load that fault on one huge page", 12, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, HUGE, ANON);
        thread::scope(|scope| {
            for number in [3, 400] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu((number % 2) as usize);
                    put(&scene.process, &mut cpu, number, number);
                    assert_eq!(look(&scene.process, &mut cpu, number), number);
                });
            }
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                assert_eq!(look(&scene.process, &mut cpu, 5), 0);
                let found = look(&scene.process, &mut cpu, 3);
                assert!(found == 0 || found == 3, "{found}");
            });
        });
        let mut cpu = scene.machine.cpu(3);
        assert_eq!([3, 4, 400].map(|number| look(&scene.process, &mut cpu, number)), [3, 0, 400]);
        assert!(is_whole(&scene.process));
        assert_eq!(scene.process.rss().anon, 512);
        drop(cpu);
        end(scene);
    });
}

#[test]
fn huge_page_faults_concurrent_with_munmap_of_a_part() {
    explore("huge page faults concurrent with munmap of a part", 12, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, HUGE, ANON);
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 256..TABLE);
                scene.assert_unmapped(300..301);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                put(&scene.process, &mut cpu, 7, 7);
                let stored = scene.process.store(&mut cpu, page(300), 8u64);
                assert!(stored == Ok(()) || stored == unmapped(page(300)), "{stored:?}");
                assert_eq!(look(&scene.process, &mut cpu, 7), 7);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                let found = look(&scene.process, &mut cpu, 7);
                assert!(found == 0 || found == 7, "{found}");
            });
        });
        scene.assert_unmapped(300..301);
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(look(&scene.process, &mut cpu, 7), 7);
        assert!(scene.process.rss().anon <= 256);
        drop(cpu);
        end(scene);
    });
}

#[test]
fn c21_fork_concurrent_with_a_split_and_stores() {
    explore("fork concurrent with munmap of a part of a huge page and stores", 10, |locking| {
        let scene = filled(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 256..TABLE);
                scene.assert_unmapped(300..301);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                put(&scene.process, &mut cpu, 0, 1);
                put(&scene.process, &mut cpu, 1, 1);
                assert_eq!(look(&scene.process, &mut cpu, 0), 1);
                assert_eq!(look(&scene.process, &mut cpu, 1), 1);
            });
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(1);
                let found = [0, 1].map(|number| look(&child, &mut cpu, number));
                assert!([[1000, 1001], [1, 1001], [1, 1]].contains(&found), "{found:?}");
                let rest = [300, 511].map(|number| child.load::<u64>(&mut cpu, page(number)));
                let gone = [300, 511].map(|number| unmapped(page(number)));
                assert!(rest == [Ok(1300), Ok(1511)] || rest == gone, "{rest:?}");
                put(&child, &mut cpu, 1, 77);
                assert_eq!([0, 1].map(|number| look(&child, &mut cpu, number)), [found[0], 77]);
                child.check();
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!([0, 1].map(|number| look(&scene.process, &mut cpu, number)), [1, 1]);
        drop(cpu);
        end(scene);
    });
}

#[test]
fn c04_dontneed_of_parts_concurrent_with_stores() {
    explore("DONTNEED of a huge page and of its parts concurrent with stores", 10, |locking| {
        let scene = filled(locking);
        thread::scope(|scope| {
            for (cpu, pages) in [(0, HUGE), (1, 0..2), (2, 1..400)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(cpu);
                    let first = pages.start;
                    discard(&scene.process, pages);
                    let found = look(&scene.process, &mut cpu, first);
                    assert!(found == 0 || found == 7, "{found}");
                });
            }
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(3);
                put(&scene.process, &mut cpu, 1, 7);
                let found = look(&scene.process, &mut cpu, 1);
                assert!(found == 0 || found == 7, "{found}");
                // No other task stores to this page, so it stays present until it is discarded.
                put(&scene.process, &mut cpu, 511, 8);
                let found = look(&scene.process, &mut cpu, 511);
                assert!(found == 0 || found == 8, "{found}");
            });
        });
        let mut cpu = scene.machine.cpu(4);
        assert_eq!([0, 300].map(|number| look(&scene.process, &mut cpu, number)), [0, 0]);
        drop(cpu);
        end(scene);
    });
}

#[test]
fn huge_zero_page_replaced_during_dontneed() {
    explore("huge zero page replaced concurrent with DONTNEED", 12, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, HUGE, ANON);
        let mut old = scene.machine.cpu(OLD);
        assert_eq!(look(&scene.process, &mut old, 5), 0);
        drop(old);
        thread::scope(|scope| {
            scope.spawn(|| discard(&scene.process, 100..200));
            scope.spawn(|| discard(&scene.process, HUGE));
            for number in [5, 150] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu((number % 2) as usize);
                    put(&scene.process, &mut cpu, number, number);
                    let found = look(&scene.process, &mut cpu, number);
                    assert!(found == 0 || found == number, "{found}");
                });
            }
        });
        end(scene);
    });
}

#[test]
fn c21_huge_zero_page_replaced_with_a_stale_reader() {
    explore("huge zero page replaced concurrent with a reader that has it in its TLB", 20, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, HUGE, ANON);
        let mut old = scene.machine.cpu(OLD);
        assert_eq!(look(&scene.process, &mut old, 5), 0);
        let written = AtomicBool::new(false);
        thread::scope(|scope| {
            let (scene, written) = (&scene, &written);
            scope.spawn(move || put(&scene.process, &mut scene.machine.cpu(0), 9, 9));
            scope.spawn(move || {
                put(&scene.process, &mut scene.machine.cpu(1), 5, 5);
                written.store(true, SeqCst);
            });
            scope.spawn(move || {
                while !written.load(SeqCst) {
                    thread::yield_now();
                }
                assert_eq!(look(&scene.process, &mut old, 5), 5);
            });
        });
        end(scene);
    });
}

#[test]
fn concurrent_stores_to_a_shared_huge_page() {
    explore("stores of parent and child to a shared huge page", 10, |locking| {
        let scene = filled(locking);
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            for (number, process) in [(1, &scene.process), (2, &child)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number as usize);
                    assert_eq!(look(process, &mut cpu, 0), 1000);
                    put(process, &mut cpu, 0, number);
                    put(process, &mut cpu, 300, number);
                    let found = [0, 1, 300, 511].map(|at| look(process, &mut cpu, at));
                    assert_eq!(found, [number, 1001, number, 1511]);
                });
            }
        });
        child.check();
        drop(child);
        end(scene);
    });
}

#[test]
fn stores_to_a_huge_page_while_its_other_owner_exits() {
    explore("stores to a huge page while another process unmaps it", 10, |locking| {
        let scene = filled(locking);
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| drop(child));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                put(&scene.process, &mut cpu, 0, 1);
                let found = [0, 1, 300, 511].map(|at| look(&scene.process, &mut cpu, at));
                assert_eq!(found, [1, 1001, 1300, 1511]);
            });
        });
        end(scene);
    });
}
