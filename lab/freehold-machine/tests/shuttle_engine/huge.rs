//! Huge pages beside whatever splits, shares and takes them: no store is lost, nobody reads what belongs to
//! others, and the tables that were kept for splits come back.
//!
//! Few schedules, for each frame of a huge page is counted by itself, and so makes steps.

use crate::{
    explore::{explore, thread},
    scene::{ANON, OLD, PAGE, Scene, TABLE, Vcpu, map, page, unmap, unmapped},
};
use freehold::{call::Advice, space::Locking};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::ops::Range;

/// The pages of the huge page that all scenarios are about.
pub const HUGE: Range<u64> = 0..TABLE;

/// A huge page with 1000 and more in its first and last pages and in the middle.
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

pub fn put(process: &Process, cpu: &mut Vcpu, number: u64, value: u64) {
    process.store(cpu, page(number), value).unwrap();
}

pub fn look(process: &Process, cpu: &mut Vcpu, number: u64) -> u64 {
    process.load(cpu, page(number)).unwrap()
}

fn discard(process: &Process, pages: Range<u64>) {
    process.madvise(page(pages.start), (pages.end - pages.start) * PAGE, Advice::DontNeed).unwrap();
}

/// Whether there is one huge page.
fn is_whole(process: &Process) -> bool {
    let mut whole = false;
    process.pagemap(page(0)..page(TABLE), |present| whole = present.huge);
    whole
}

pub fn end(scene: Scene) {
    scene.process.check();
    unmap(&scene.process, 0..2 * TABLE);
    scene.assert_empty();
    scene.end();
}

#[test]
fn one_huge_page_for_all_who_fill_it() {
    explore("stores and a load that fill one huge page", 12, |locking| {
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
fn filling_beside_munmap_of_a_part() {
    explore("stores that fill a huge page beside munmap of a part", 12, |locking| {
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
fn c21_fork_beside_a_split_and_stores() {
    explore("fork beside munmap of a part of a huge page, and stores to it", 10, |locking| {
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
fn c04_dontneed_of_parts_and_of_all_beside_stores() {
    explore("DONTNEED of a huge page and of its parts beside stores", 10, |locking| {
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
                // Nobody else stores here, so what is there once is there until it is taken.
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
fn zeroes_replaced_beside_dontneed() {
    explore("huge zeroes replaced beside DONTNEED", 12, |locking| {
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
fn c21_zeroes_replaced_beside_one_who_remembers_them() {
    explore("huge zeroes replaced beside a reader who remembers them", 20, |locking| {
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
fn both_sides_write_what_they_share() {
    explore("stores of parent and child to a huge page of both", 10, |locking| {
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
fn the_last_one_writes_while_the_other_leaves() {
    explore("stores to a huge page that another process lets go of", 10, |locking| {
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
