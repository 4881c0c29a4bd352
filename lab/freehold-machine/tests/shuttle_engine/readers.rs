//! C-20: a VMA with the largest number of readers that its count can hold.
//!
//! The bug in Linux: the lookup of a VMA without locks got a second way to fail, and its caller used the
//! returned error as a VMA. With the count at its limit, every task must use the mmap lock instead of the VMA
//! lock, and no reader may be lost from the count. In the builds for checkers the limit is two readers, so
//! the two read locks of one VMA that the scenario holds reach this limit. Without a checker, the scenario
//! runs below the limit.

use crate::{
    explore::{CHECKED, explore, thread},
    scene::{PAGE, R, Scene, page, value},
};
use freehold::{call::Advice, remote::AccessMode, space::FaultLock};

#[test]
fn c20_vma_at_its_reader_limit_falls_back_to_the_mmap_lock() {
    explore("a VMA at its reader limit", 30, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..4);
        let process = &scene.process;
        let find = || process.find_vma(page(0)).unwrap();
        let readers = [find(), find()];
        let climbed = || process.faults().mmap_lock;
        let before = climbed();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(process.load(&mut cpu, page(0)), Ok(value(0)));
                process.madvise(page(1), PAGE, Advice::DontNeed).unwrap();
                assert_eq!(process.load(&mut cpu, page(1)), Ok(0u64));
                let mut word = [0; 8];
                assert_eq!(process.read_memory(page(2), &mut word, AccessMode::Plain), Ok(8));
                assert_eq!(u64::from_le_bytes(word), value(2));
                let lines: Vec<_> = process.maps(0).map(|line| (line.start, line.end)).collect();
                assert_eq!(lines, [(page(0), page(4))]);
            });
        });
        // If the VMA lock is a rwsem, its count has no limit that a test can reach.
        let counted = CHECKED && locking.fault != FaultLock::VmaRwsem;
        assert!(!counted || climbed() > before, "the limit was not reached");
        // When the readers leave, a reader that waits for room in the count gets the lock, and a writer that
        // waits for all readers gets the lock.
        thread::scope(|scope| {
            scope.spawn(|| drop(find()));
            scope.spawn(|| process.mprotect(page(0), PAGE, R).unwrap());
            drop(readers);
        });
        process.munmap(page(0), 4 * PAGE).unwrap();
        scene.assert_empty();
        scene.end();
    });
}
