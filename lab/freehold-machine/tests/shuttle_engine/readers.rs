//! As many readers of a VMA as can be counted (C-20).
//!
//! A look-up without locks gained a second way to fail, and its caller took what came back for a VMA. With
//! the count at its limit everybody has to go by the lock of the address space, and no count may be lost on
//! the way. The checkers' builds count up to two readers.

use crate::{
    explore::{CHECKED, explore, thread},
    scene::{PAGE, R, Scene, page, value},
};
use freehold::{call::Advice, remote::AccessMode, space::FaultLock};

#[test]
fn c20_a_vma_with_as_many_readers_as_can_be_counted() {
    explore("a VMA with as many readers as can be counted", 30, |locking| {
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
        // A lock beside the VMA counts further than a test can.
        let counted = CHECKED && locking.fault != FaultLock::VmaRwsem;
        assert!(!counted || climbed() > before, "the limit was not reached");
        // Readers that wait for a place get one, and a writer that waits for all to leave sees them leave.
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
