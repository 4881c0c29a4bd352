//! One file in four address spaces, whose VMAs are split and merged while pages are removed (C-26, C-37).
//!
//! While one thread truncates the file or punches a hole, other threads store, fork, split VMAs and unmap.
//! The walk over all VMAs of the file (`file/change/unmap.rs` in `freehold`) must visit each mapped page
//! exactly once. At the end no page beyond the end of the file may be mapped, and the counts of resident
//! pages must be exact: a page that was visited twice is counted twice.

use crate::{
    direct::Storage,
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, R, RW, Scene, beyond, page, unmap},
};
use freehold::{
    PageIndex,
    file::{File, FileAccess, Mapping, Zeroes},
    space::MapFlags,
};
use freehold_machine::Process;

/// Number of pages of the file.
const PAGES: u64 = 3;

/// Creates a file in shared memory.
fn memory(scene: &Scene) -> Opened {
    let mapping = Mapping::new(&scene.engine, Zeroes, PAGES * PAGE, true).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap()
}

/// Maps the whole file at page 0.
fn map_file(process: &Process, file: &Opened, flags: MapFlags) {
    let mapped = process.mmap(page(0), PAGES * PAGE, RW, flags | MapFlags::FIXED, Some(file), 0);
    assert_eq!(mapped, Ok(page(0)));
}

/// Reads the first `count` words of the file.
fn words(file: &Opened, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; 8 * count];
    assert_eq!(file.mapping().read_at(0, &mut bytes), Ok(8 * count));
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Truncates the file to one page. Concurrently, four spaces use it: one stores, one copies a page privately,
/// one stores and forks, and one stores and unmaps the file.
fn truncated_in_four_spaces(scene: Scene, file: Opened) {
    let spaces: [Process; 3] = std::array::from_fn(|_| scene.another());
    let [private, forking, leaving] = &spaces;
    for (process, flags) in [
        (&scene.process, MapFlags::SHARED),
        (private, MapFlags::PRIVATE),
        (forking, MapFlags::SHARED),
        (leaving, MapFlags::SHARED),
    ] {
        map_file(process, &file, flags);
    }
    leaving.store(&mut scene.machine.cpu(3), page(2), 1u64).unwrap();
    private.store(&mut scene.machine.cpu(1), page(2), 1u64).unwrap();
    let within = |result, number| assert!(result == Ok(()) || result == beyond(page(number)), "{result:?}");
    let child = thread::scope(|scope| {
        scope.spawn(|| file.mapping().truncate(PAGE).unwrap());
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(0);
            within(scene.process.store(&mut cpu, page(2), 5u64), 2);
            scene.process.store(&mut cpu, page(0), 5u64).unwrap();
        });
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(1);
            within(private.store(&mut cpu, page(1), 6u64), 1);
            private.store(&mut cpu, page(0) + 24, 6u64).unwrap();
        });
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(3);
            leaving.store(&mut cpu, page(0) + 16, 8u64).unwrap();
            unmap(leaving, 0..PAGES);
        });
        scope
            .spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                within(forking.store(&mut cpu, page(1), 7u64), 1);
                let child = Process::of(forking.fork().unwrap());
                child.store(&mut cpu, page(0) + 8, 7u64).unwrap();
                child
            })
            .join()
            .unwrap()
    });
    // No store inside the file is lost, and no store of a private mapping is in the file.
    assert_eq!(words(&file, 4), [5, 7, 8, 0]);
    let mut cpu = scene.machine.cpu(4);
    assert_eq!(private.load(&mut cpu, page(0) + 24), Ok(6u64));
    for process in [&scene.process, private, forking, &child] {
        for number in 1..PAGES {
            assert_eq!(process.load::<u64>(&mut cpu, page(number)), beyond(page(number)));
            assert_eq!(process.frame_at(page(number)), None);
        }
        let rss = process.rss();
        let in_file = i64::from(process.frame_at(page(0)).is_some());
        assert_eq!(rss.file + rss.shmem + rss.anon, in_file, "a page beyond the end is counted");
        process.check();
    }
    assert!((1..PAGES).all(|index| !file.mapping().has_page(PageIndex::new(index))));
    file.mapping().check();
    leaving.check();
    drop((cpu, child, spaces, file));
    scene.end();
}

#[test]
fn c26_truncation_concurrent_with_calls_in_four_spaces() {
    explore("truncation of a file that four spaces use", 40, |locking| {
        let scene = Scene::new(locking);
        let file = memory(&scene);
        truncated_in_four_spaces(scene, file);
    });
}

#[test]
fn c26_truncation_of_direct_file_in_four_spaces() {
    explore("truncation of a direct file that four spaces use", 30, |locking| {
        let scene = Scene::new(locking);
        let file = Storage::new(&scene).file(&scene);
        truncated_in_four_spaces(scene, file);
    });
}

#[test]
fn c37_hole_visits_each_page_once_despite_splits_and_moves() {
    explore("a hole concurrent with splits, merges and moves", 40, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (memory(&scene), scene.another());
        map_file(&scene.process, &file, MapFlags::SHARED);
        map_file(&other, &file, MapFlags::SHARED);
        for (cpu, process) in [(0, &scene.process), (1, &other)] {
            let mut cpu = scene.machine.cpu(cpu);
            (0..PAGES).for_each(|number| process.store(&mut cpu, page(number), number + 1).unwrap());
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                // The upper two pages are split off. The two pages merge with the first page again, one after
                // the other.
                scene.process.mprotect(page(1), 2 * PAGE, R).unwrap();
                scene.process.mprotect(page(1), PAGE, RW).unwrap();
                scene.process.mprotect(page(2), PAGE, RW).unwrap();
            });
            scope.spawn(|| {
                unmap(&other, 0..1);
                other.mprotect(page(1), PAGE, R).unwrap();
            });
            scope.spawn(|| file.mapping().punch(PAGE..3 * PAGE).unwrap());
        });
        // A page that was not visited would have old contents. A page that was visited twice would be counted
        // twice.
        let mut cpu = scene.machine.cpu(4);
        assert_eq!((scene.process.rss().shmem, other.rss().shmem), (1, 0));
        for number in 1..PAGES {
            assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(0u64));
            assert_eq!(other.load(&mut cpu, page(number)), Ok(0u64));
        }
        assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(1u64));
        assert_eq!((scene.process.rss().shmem, other.rss().shmem), (3, 2));
        other.check();
        file.mapping().check();
        drop((cpu, file, other));
        scene.end();
    });
}
