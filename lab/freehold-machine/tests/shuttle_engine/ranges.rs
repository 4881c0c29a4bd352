//! Range writers (`docs/guide/ranges.md`): every pair of changes on adjacent, overlapping and separate
//! ranges, concurrent with faults, fork, exit, truncation and migration.
//!
//! The code under test is `space/claim.rs`, `space/range_writer.rs` and `call/`. [`DESIGNS`] has all values
//! of [`Write`]. Two threads make a pair of changes (`change`), while a third thread calls `beside`. A change
//! may fail only with an error that some moment of the run explains. An access must find a value that was
//! stored at some time (`legal`). Nothing may leak. To cover another call, add a variant to [`Change`] and to
//! [`CHANGES`]. `linear.rs` compares results with a sequential order.

use crate::{
    explore::{CHECKED, explore_in, explore_until, seed, thread},
    files,
    scene::{ANON, FIXED, PAGE, R, RW, Scene, map, page, unmap, unmapped, value},
};
use freehold::{
    call::{Advice, LockFlags, RemapFlags},
    error::{MadviseError, MlockError, MmapError, MprotectError, MremapError, MunmapError},
    fault::FaultError,
    rmap::MigrateError,
    space::{Locking, MapFlags, Write},
};
use freehold_machine::{Process, Task};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Designs to test: range writers with three kinds of munmap and two kinds of faults, and exclusive writers
/// only.
pub const DESIGNS: [Locking; 6] = {
    let [exclusive, sectioned, downgraded, .., only, ranges] = Locking::ALL;
    [
        ranges,
        only,
        only.unmap(exclusive.unmap),
        only.fault(sectioned.fault),
        only.write(Write::Whole),
        only.unmap(downgraded.unmap),
    ]
};

/// Number of pages of the scene: one VMA of anonymous memory, whose first half is filled. A file replaces two
/// of the pages, from page [`FILE`] on.
const PAGES: u64 = 12;
/// First of the two pages that map a file.
const FILE: u64 = 3;

/// A change of VMAs that a range writer makes; `change` performs it.
#[derive(Clone, Copy, Debug)]
enum Change {
    MapAnywhere,
    MapFixed,
    Unmap,
    UnmapMiddle,
    UnmapEndAndBack,
    ProtectMiddle,
    ProtectAndBack,
    DontFork,
    Lock,
    Brk,
    Resize,
    Grow,
    Move,
    Fork,
}

/// All changes.
const CHANGES: [Change; 14] = {
    use Change::*;
    [
        MapAnywhere,
        MapFixed,
        Unmap,
        UnmapMiddle,
        UnmapEndAndBack,
        ProtectMiddle,
        ProtectAndBack,
        DontFork,
        Lock,
        Brk,
        Resize,
        Grow,
        Move,
        Fork,
    ]
};

/// First pages of the two ranges that are changed concurrently. Each range has three pages. The ranges are
/// adjacent, overlapping or separate.
const PLACES: [[u64; 2]; 3] = [[1, 4], [1, 3], [1, 7]];

/// Operation that runs concurrently with the two changes.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Faults,
    Fork,
    Exit,
    Truncate,
    Migrate,
}

const BESIDE: [Beside; 5] = [Beside::Faults, Beside::Fork, Beside::Exit, Beside::Truncate, Beside::Migrate];

/// Makes a change in the three pages from `at` on, on a CPU that no other thread uses. Panics on an error
/// that an unmapped page does not explain. Returns the child if the change is a fork.
fn change(scene: &Scene, cpu: usize, change: Change, at: u64) -> Option<Process> {
    let process = &scene.process;
    let mut cpu = scene.machine.cpu(cpu);
    let (from, middle, len) = (page(at), page(at + 1), 3 * PAGE);
    match change {
        Change::MapAnywhere => {
            let at = process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
            let found = process.load::<u64>(&mut cpu, at);
            assert!(found == Ok(0) || found == unmapped(at), "memory of another thread: {found:?}");
            process.munmap(at, PAGE).unwrap();
        }
        Change::MapFixed => map(process, at..at + 3, ANON),
        Change::Unmap => unmap(process, at..at + 3),
        Change::UnmapMiddle => unmap(process, at + 1..at + 2),
        Change::UnmapEndAndBack => {
            unmap(process, PAGES - at..PAGES);
            map(process, PAGES - at..PAGES, ANON);
        }
        Change::ProtectMiddle => {
            let done = process.mprotect(middle, PAGE, R);
            assert!(matches!(done, Ok(()) | Err(MprotectError::NotMapped)), "{done:?}");
        }
        Change::ProtectAndBack => {
            for prot in [R, RW] {
                let done = process.mprotect(from, len, prot);
                assert!(matches!(done, Ok(()) | Err(MprotectError::NotMapped)), "{done:?}");
            }
        }
        Change::DontFork => {
            let done = process.madvise(from, 2 * PAGE, Advice::DontFork);
            assert!(matches!(done, Ok(()) | Err(MadviseError::NotMapped)), "{done:?}");
        }
        Change::Lock => {
            let done = process.mlock2(from, 2 * PAGE, LockFlags::empty());
            let later = MlockError::NotAccessible;
            assert!(done == Ok(()) || done == Err(MlockError::NotMapped) || done == Err(later), "{done:?}");
            let done = process.munlock(middle, PAGE);
            assert!(matches!(done, Ok(()) | Err(MlockError::NotMapped)), "{done:?}");
        }
        Change::Brk => {
            let start = process.brk(0).unwrap();
            process.brk(start + 2 * PAGE).unwrap();
            process.brk(start).unwrap();
        }
        Change::Resize => {
            for (old, new) in [(3, 1), (1, 2)] {
                let done = process.mremap(from, old * PAGE, new * PAGE, RemapFlags::empty(), 0);
                let not = matches!(done, Err(MremapError::NotMapped | MremapError::NoSpace));
                assert!(not || done == Ok(from), "{done:?}");
            }
        }
        Change::Grow => {
            let moved = process.mremap(middle, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0);
            assert!(matches!(moved, Ok(_) | Err(MremapError::NotMapped)), "{moved:?}");
        }
        Change::Move => {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let moved = process.mremap(middle, PAGE, PAGE, flags, page(at + 10));
            assert!(matches!(moved, Ok(_) | Err(MremapError::NotMapped)), "{moved:?}");
        }
        Change::Fork => {
            let child = Process::of(process.fork().unwrap());
            legal(child.load(&mut cpu, middle));
            return Some(child);
        }
    }
    None
}

/// Checks the result of an access: a value that was stored at some time, or an allowed signal.
fn legal(found: Result<u64, FaultError>) {
    match found {
        Ok(found) => {
            let filled = (value(0)..value(PAGES)).contains(&found);
            assert!(found == 0 || found == 7 || filled, "{found} was never stored");
        }
        Err(FaultError::Segv { .. } | FaultError::Bus { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Runs the third operation of a scenario. Returns the child if the operation is a fork.
fn beside(scene: &Scene, cpu: usize, file: &files::Opened, beside: Beside) -> Option<Process> {
    let process = &scene.process;
    let mut cpu = scene.machine.cpu(cpu);
    match beside {
        Beside::Faults => {
            for number in [2, 5, 3, 2] {
                legal(process.load(&mut cpu, page(number)));
                legal(process.store(&mut cpu, page(number), 7u64).map(|()| 7));
            }
        }
        Beside::Fork => {
            let child = Process::of(process.fork().unwrap());
            for number in [1, FILE, 5] {
                legal(child.load(&mut cpu, page(number)));
            }
            return Some(child);
        }
        Beside::Exit => process.clear(),
        Beside::Truncate => {
            file.mapping().truncate(PAGE).unwrap();
            let found = process.load::<u64>(&mut cpu, page(FILE + 1));
            // Another thread may have replaced the mapping since.
            legal(found);
        }
        Beside::Migrate => {
            for number in [1, FILE, 5] {
                let Some(frame) = process.frame_at(page(number)) else { continue };
                match scene.engine.migrate(frame) {
                    Ok(_) | Err(MigrateError::NoPage | MigrateError::Busy) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    None
}

#[test]
fn every_pair_of_concurrent_changes() {
    let kinds = CHANGES.len() * CHANGES.len() * PLACES.len() * BESIDE.len() * 2;
    // Under the checker, each schedule draws a pair of its own.
    let rounds = if CHECKED { 1 } else { kinds };
    explore_in(&DESIGNS, "pairs of concurrent changes", 400, move |locking| {
        for _ in 0..rounds {
            let drawn = seed() as usize % kinds;
            let pair = [drawn % CHANGES.len(), drawn / CHANGES.len() % CHANGES.len()];
            let rest = drawn / CHANGES.len() / CHANGES.len();
            let (places, rest) = (PLACES[rest % PLACES.len()], rest / PLACES.len());
            let (other, touched) = (BESIDE[rest % BESIDE.len()], rest / BESIDE.len() == 0);
            let scene = Scene::new(locking);
            map(&scene.process, 0..PAGES, ANON);
            // Range writers change memory that was never touched in fewer steps.
            if touched {
                scene.fill(0..PAGES / 2);
            }
            let file = files::file(&scene);
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let mapped = scene.process.mmap(page(FILE), 2 * PAGE, RW, flags, Some(&file), 0);
            assert_eq!(mapped, Ok(page(FILE)));
            let children = thread::scope(|scope| {
                let (scene, file) = (&scene, &file);
                let change =
                    |(thread, at)| scope.spawn(move || change(scene, thread, CHANGES[pair[thread]], at));
                let mut tasks: Vec<_> = places.into_iter().enumerate().map(change).collect();
                tasks.push(scope.spawn(move || beside(scene, 2, file, other)));
                tasks.into_iter().filter_map(|task| task.join().unwrap()).collect::<Vec<_>>()
            });
            children.iter().for_each(|child| child.check());
            drop(children);
            scene.process.check();
            file.mapping().check();
            scene.process.clear();
            drop(file);
            scene.assert_empty();
            scene.end();
        }
    });
}

/// Makes two threads map and unmap a page each, at addresses that mmap chooses. If `touch` is true, the
/// threads also access the pages. Both threads are range writers if the design has them.
fn map_and_unmap(name: &str, touch: bool) {
    explore_in(&DESIGNS, name, 100, move |locking| {
        let scene = Scene::new(locking);
        thread::scope(|scope| {
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    for round in 0..4 {
                        let at = scene.process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
                        if touch {
                            let mark = (10 * number + round) as u64 + 1;
                            assert_eq!(
                                scene.process.load(&mut cpu, at),
                                Ok(0u64),
                                "memory of another thread"
                            );
                            scene.process.store(&mut cpu, at, mark).unwrap();
                            assert_eq!(scene.process.load(&mut cpu, at), Ok(mark));
                        }
                        scene.process.munmap(at, PAGE).unwrap();
                        // The page is unmapped, or another thread has mapped the address since.
                        let late = scene.process.load::<u64>(&mut cpu, at);
                        let own = |mark| mark > 10 * number as u64 && mark <= 10 * number as u64 + 4;
                        assert!(late == unmapped(at) || late.is_ok_and(|mark| !own(mark)), "{late:?}");
                    }
                });
            }
        });
        scene.assert_empty_but_fences();
        scene.end();
    });
}

#[test]
fn threads_map_and_unmap_a_page_concurrently() {
    map_and_unmap("two threads map and unmap a page", false);
}

#[test]
fn threads_map_touch_and_unmap_a_page_concurrently() {
    map_and_unmap("two threads map, touch and unmap a page", true);
}

/// Two threads change the rights of two pages of one mapping and restore them, while a third thread reads
/// other pages. No page was touched before, so each change may be made with a leaf of the tree latched. The
/// VMAs finally merge into one.
#[test]
fn pages_of_a_mapping_are_protected_concurrently_with_reads() {
    explore_in(&DESIGNS, "mprotect of two pages of a mapping, and reads", 200, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..4, ANON);
        thread::scope(|scope| {
            let scene = &scene;
            for number in [0, 2] {
                scope.spawn(move || {
                    for prot in [R, RW] {
                        scene.process.mprotect(page(number), PAGE, prot).unwrap();
                    }
                });
            }
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(2);
                for number in [1, 3, 1] {
                    assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(0u64));
                }
            });
        });
        assert_eq!(scene.process.counts().map_count, 1);
        scene.process.check();
        scene.process.clear();
        scene.assert_empty();
        scene.end();
    });
}

/// Two threads extend two mappings into the hole between the mappings, and unmap the new pages again, while a
/// third thread reads both mappings. Each change of bounds may be made with a leaf of the tree latched.
#[test]
fn mappings_grow_and_shrink_concurrently_with_reads() {
    explore_in(&DESIGNS, "growth and cuts of two mappings, and reads", 200, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..2, ANON);
        map(&scene.process, 6..8, ANON);
        thread::scope(|scope| {
            let scene = &scene;
            for pages in [2..4, 4..6] {
                scope.spawn(move || {
                    map(&scene.process, pages.clone(), ANON);
                    unmap(&scene.process, pages);
                });
            }
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(2);
                for number in [1, 2, 6, 5, 1] {
                    let found = scene.process.load(&mut cpu, page(number));
                    let is_new = (2..6).contains(&number);
                    assert!(found == Ok(0u64) || is_new && found == unmapped(page(number)), "{found:?}");
                }
            });
        });
        assert_eq!(scene.process.counts().map_count, 2);
        scene.process.check();
        scene.process.clear();
        scene.assert_empty();
        scene.end();
    });
}

/// A thread unmaps two VMAs with a hole between them. A fault may use the second VMA at the same time; the
/// VMAs then cannot be removed without a claim, and the hole makes a claim impossible. The munmap must have
/// unlocked the first VMA before the other thread can claim it.
#[test]
fn munmap_of_two_vmas_concurrent_with_a_fault_and_a_mapping_over_one() {
    explore_in(&DESIGNS, "a munmap of two VMAs, a fault and a mapping", 200, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..2, ANON);
        map(&scene.process, 4..6, ANON);
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || unmap(&scene.process, 0..6));
            scope.spawn(move || map(&scene.process, 0..2, ANON));
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(2);
                for number in [5, 4, 5] {
                    legal(scene.process.load(&mut cpu, page(number)));
                }
            });
        });
        scene.process.check();
        scene.process.clear();
        scene.assert_empty();
        scene.end();
    });
}

/// Two tasks grow the heap, while another task maps a page in the range into which the heap grows.
#[test]
fn heap_growth_concurrent_with_a_mapping_in_its_way() {
    explore_in(&DESIGNS, "heap growth concurrent with a mapping", 100, move |locking| {
        let scene = Scene::new(locking);
        let process = &scene.process;
        let heap = process.brk(0).unwrap();
        let (breaks, mapped) = thread::scope(|scope| {
            let to = |pages| scope.spawn(move || process.brk(heap + pages * PAGE).unwrap());
            let breaks = [to(3), to(2)];
            let flags = ANON | MapFlags::FIXED_NOREPLACE;
            let mapped = scope.spawn(move || process.mmap(heap + PAGE, PAGE, RW, flags, None, 0));
            (breaks.map(|grown| grown.join().unwrap()), mapped.join().unwrap())
        });
        let end = process.brk(0).unwrap();
        match mapped {
            Ok(_) => assert_eq!((breaks, end), ([heap; 2], heap)),
            Err(error) => {
                assert_eq!((error, breaks), (MmapError::Occupied, [heap + 3 * PAGE, heap + 2 * PAGE]));
                assert!(breaks.contains(&end), "{end:#x}");
                assert!(process.find_vma(end - 1).is_some() && process.find_vma(end).is_none());
            }
        }
        process.check();
        process.clear();
        scene.assert_empty();
        scene.end();
    });
}

/// Two mappings get their first pages while a new mapping between them merges with both, or while mprotect
/// merges all three. The reverse map finds all their pages afterwards.
#[test]
fn merges_concurrent_with_first_faults() {
    explore_in(&DESIGNS, "merges concurrent with first faults", 100, move |locking| {
        for number in 0..2 {
            let scene = Scene::new(locking);
            let (scene, process) = (&scene, &scene.process);
            map(process, 0..2, ANON);
            map(process, 3..5, ANON);
            thread::scope(|scope| {
                for (cpu, at) in [(0, 1), (1, 3)] {
                    scope.spawn(move || {
                        process.store(&mut scene.machine.cpu(cpu), page(at), value(at)).unwrap();
                    });
                }
                scope.spawn(move || match number {
                    0 => map(process, 2..3, ANON),
                    _ => {
                        process.mmap(page(2), PAGE, R, FIXED, None, 0).unwrap();
                        process.mprotect(page(2), PAGE, RW).unwrap();
                    }
                });
            });
            for at in [1, 3] {
                let frame = process.frame_at(page(at)).unwrap();
                scene.engine.migrate(frame).unwrap();
                assert_eq!(process.load(&mut scene.machine.cpu(0), page(at)), Ok(value(at)));
            }
            process.check();
            process.clear();
            scene.assert_empty();
        }
    });
}

/// A task that is killed while it waits for a claim has changed nothing, holds nothing, and blocks no other
/// task.
#[test]
fn c72_task_is_killed_while_it_waits_for_a_claim() {
    for attempt in 0..7 {
        let ended = Arc::new(AtomicU64::new(0));
        for nth in [3, 2, 1] {
            let count = ended.clone();
            // Some calls wait only once, so a kill is required only at the first wait.
            let is_met = || nth > 1 || ended.load(Relaxed) > 0;
            explore_until(&DESIGNS, "a change killed while others run", 20, is_met, move |locking| {
                let scene = Scene::new(locking);
                map(&scene.process, 0..PAGES, ANON);
                scene.fill(0..4);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        Task::current().interrupt_wait(nth);
                        let killed = killed(&scene, attempt);
                        count.fetch_add(u64::from(killed), Relaxed);
                        Task::current().revive();
                        // The task may try again.
                        scene.process.mprotect(page(0), 2 * PAGE, R).unwrap();
                    });
                    scope.spawn(|| change(&scene, 1, Change::ProtectAndBack, 2));
                    scope.spawn(|| {
                        unmap(&scene.process, 4..6);
                        change(&scene, 2, Change::MapAnywhere, 0)
                    });
                });
                assert!(scene.process.try_read().is_some(), "a lock is still held");
                scene.process.check();
                scene.process.clear();
                scene.assert_empty();
                scene.end();
            });
        }
    }
}

/// Makes a call on pages that other tasks change. Returns true if the call was killed.
fn killed(scene: &Scene, attempt: usize) -> bool {
    let process = &scene.process;
    let at = |number: u64| process.find_vma(page(number)).is_some();
    match attempt {
        0 => process.mprotect(page(1), 2 * PAGE, R) == Err(MprotectError::Killed),
        1 => {
            let killed = process.munmap(page(2), PAGE) == Err(MunmapError::Killed);
            assert_eq!(at(2), killed, "the page was unmapped by a killed call, or is still mapped");
            killed
        }
        2 => {
            let mapped = process.mmap(page(1), 2 * PAGE, R, FIXED, None, 0);
            mapped == Err(MmapError::Killed)
        }
        3 => process.madvise(page(1), 2 * PAGE, Advice::DontFork) == Err(MadviseError::Killed),
        4 => process.mlock2(page(1), 2 * PAGE, LockFlags::ONFAULT) == Err(MlockError::Killed),
        5 => {
            let resized = process.mremap(page(1), 2 * PAGE, PAGE, RemapFlags::empty(), 0);
            assert_eq!(at(2), resized.is_err(), "the page was unmapped by a failed call, or is still mapped");
            resized == Err(MremapError::Killed)
        }
        _ => {
            let heap = process.brk(0);
            heap.is_err() || process.brk(heap.unwrap() + PAGE).is_err()
        }
    }
}
