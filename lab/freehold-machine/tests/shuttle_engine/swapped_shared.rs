//! Pages of shared memory that are swapped out and come back (`file/swapped.rs`), concurrent with stores, reads,
//! writes, holes, truncation, fork, swapoff, and other reclaim.
//!
//! No store is lost, no task sees a page of another time, and at the end no slot and no frame is in use.
//! `swapped.rs` explores private memory.

use crate::{
    explore::{explore, thread},
    files::{Opened, map_file},
    scene::{PAGE, Scene, page, unmap},
};
use freehold::{
    PageIndex,
    call::Advice,
    counted::Counted,
    error::SwapOffError,
    file::{File, FileAccess, Mapping},
    reclaim::ReclaimRequest,
    space::{AddressSpace, Locking},
    swap::SwapId,
};
use freehold_machine::{Machine, MemorySwap, Process};

/// A file of two pages, which the process maps at page 0. Page `n` has the word `n + 1`.
struct Rig {
    scene: Scene,
    file: Opened,
    device: MemorySwap,
    id: SwapId,
}

impl Rig {
    fn new(locking: Locking) -> Self {
        Self::with_slots(locking, 8)
    }

    fn with_slots(locking: Locking, slots: u64) -> Self {
        let device = MemorySwap::new(slots);
        let (scene, id) = Scene::swapping(locking, &device);
        let mapping = Mapping::memfd(&scene.engine, 2 * PAGE).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        map_file(&scene.process, &file);
        let rig = Rig { scene, file, device, id };
        (0..2).for_each(|number| rig.store(5, number, number + 1));
        rig
    }

    /// Returns a rig whose pages are swapped out.
    fn swapped(locking: Locking) -> Self {
        let rig = Self::new(locking);
        rig.reclaim();
        assert_eq!((rig.scene.process.rss().shmem, rig.used()), (0, 2));
        rig
    }

    /// Returns a rig whose pages are swapped out in every second run.
    fn either(locking: Locking) -> Self {
        if crate::explore::seed().is_multiple_of(2) { Self::new(locking) } else { Self::swapped(locking) }
    }

    fn mapping(&self) -> &Mapping<Machine> {
        self.file.mapping()
    }

    fn reclaim(&self) {
        self.scene.engine.reclaim(&ReclaimRequest::pages(u64::MAX));
    }

    fn used(&self) -> u64 {
        self.scene.engine.swap_usage(self.id).unwrap().used
    }

    fn load(&self, cpu: usize, number: u64) -> u64 {
        self.scene.process.load(&mut self.scene.machine.cpu(cpu), page(number)).unwrap()
    }

    fn store(&self, cpu: usize, number: u64, value: u64) {
        self.scene.process.store(&mut self.scene.machine.cpu(cpu), page(number), value).unwrap();
    }

    fn word(&self, number: u64) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(self.mapping().read_at(number * PAGE, &mut bytes), Ok(8));
        u64::from_le_bytes(bytes)
    }

    /// Checks the words of both pages, and ends the scene.
    fn end(self, words: [u64; 2]) {
        assert_eq!([0, 1].map(|number| self.word(number)), words);
        assert_eq!([0, 1].map(|number| self.load(3, number)), words);
        self.mapping().check();
        self.finish();
    }

    fn finish(self) {
        unmap(&self.scene.process, 0..2);
        let Rig { scene, file, device, id } = self;
        drop(file);
        scene.end_swapping(device, id);
    }
}

#[test]
fn stores_concurrent_with_reclaim_are_kept() {
    explore("stores to shared memory concurrent with two tasks that swap out", 100, |locking| {
        let rig = Rig::new(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                rig.store(0, 0, 7);
                assert_eq!(rig.load(0, 1), 2);
                rig.store(0, 0, 8);
            });
            scope.spawn(|| {
                let (at, cpu) = (page(0) + 8, &mut rig.scene.machine.cpu(1));
                rig.scene.process.store(cpu, at, 9u64).unwrap();
                assert_eq!(rig.scene.process.load(cpu, at), Ok(9u64));
            });
            (0..2).for_each(|_| _ = scope.spawn(|| rig.reclaim()));
        });
        let mut cpu = rig.scene.machine.cpu(2);
        assert_eq!(rig.scene.process.load(&mut cpu, page(0) + 8), Ok(9u64));
        drop(cpu);
        rig.end([8, 2]);
    });
}

#[test]
fn tasks_that_need_the_same_page() {
    explore("faults and reads of one page of shared memory that is swapped out", 100, |locking| {
        let rig = Rig::swapped(locking);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(rig.load(0, 0), 1));
            scope.spawn(|| assert_eq!(rig.word(0), 1));
            scope.spawn(|| assert_eq!(rig.load(1, 0), 1));
        });
        assert_eq!(rig.device.stats().pages_read, 2, "the page, and the next one");
        rig.end([1, 2]);
    });
}

#[test]
fn page_that_comes_and_goes_while_a_task_returns_it() {
    explore("a reader of a page that another task changes and swaps out", 400, |locking| {
        // The page always goes to the same slot.
        let rig = Rig::with_slots(locking, 1);
        rig.mapping().punch(PAGE..2 * PAGE).unwrap();
        rig.reclaim();
        rig.scene.process.madvise(page(0), PAGE, Advice::WillNeed).unwrap();
        assert_eq!((rig.used(), rig.scene.process.rss().shmem), (1, 0));
        thread::scope(|scope| {
            scope.spawn(|| assert!([1, 5].contains(&rig.word(0))));
            scope.spawn(|| {
                // The page leaves the swap cache, and comes back in another frame.
                rig.reclaim();
                rig.store(1, 0, 5);
                rig.reclaim();
                assert_eq!(rig.load(1, 0), 5);
            });
        });
        rig.end([5, 0]);
    });
}

#[test]
fn writes_of_parts_and_of_whole_pages() {
    explore("writes of parts and of whole pages concurrent with reclaim", 100, |locking| {
        let rig = Rig::either(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                let whole: Vec<u8> = 6u64.to_le_bytes().repeat((PAGE / 8) as usize);
                assert_eq!(rig.mapping().write_at(0, &whole), Ok(whole.len()));
                assert_eq!(rig.word(0), 6);
            });
            scope.spawn(|| {
                assert_eq!(rig.mapping().write_at(PAGE + 8, &[7; 8]), Ok(8));
                assert_eq!(rig.word(1), 2);
            });
            scope.spawn(|| assert!([1, 6].contains(&rig.load(2, 0))));
            scope.spawn(|| rig.reclaim());
        });
        rig.end([6, 2]);
    });
}

#[test]
fn hole_concurrent_with_stores_and_reclaim() {
    explore("a hole concurrent with stores and reclaim", 200, |locking| {
        let rig = Rig::new(locking);
        // All pages are absent at first. The hole looks at the first page, then at the last one, and then takes
        // the lock.
        rig.mapping().punch(0..2 * PAGE).unwrap();
        rig.mapping().truncate(3 * PAGE).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| rig.mapping().punch(8..2 * PAGE + 8).unwrap());
            scope.spawn(|| {
                let (process, cpu) = (&rig.scene.process, &mut rig.scene.machine.cpu(1));
                process.store(cpu, page(0) + 8, 5u64).unwrap();
                process.store(cpu, page(1), 6u64).unwrap();
                rig.reclaim();
            });
        });
        let mut cpu = rig.scene.machine.cpu(2);
        let first: u64 = rig.scene.process.load(&mut cpu, page(0) + 8).unwrap();
        let second: u64 = rig.scene.process.load(&mut cpu, page(1)).unwrap();
        // The hole removes an earlier store if it removes the later one.
        assert!([(5, 6), (0, 6), (0, 0)].contains(&(first, second)), "{first} {second}");
        drop(cpu);
        rig.mapping().check();
        rig.finish();
    });
}

#[test]
fn truncation_concurrent_with_swapping() {
    explore("a truncation concurrent with reads and reclaim", 100, |locking| {
        let rig = Rig::either(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                rig.mapping().truncate(PAGE).unwrap();
                rig.mapping().truncate(2 * PAGE).unwrap();
                assert_eq!(rig.word(1), 0);
            });
            scope.spawn(|| {
                rig.mapping().read_at(PAGE, &mut [0; 8]).unwrap();
                assert_eq!(rig.load(1, 0), 1);
            });
            scope.spawn(|| rig.reclaim());
        });
        rig.end([1, 0]);
    });
}

#[test]
fn fork_and_exit_concurrent_with_swapping() {
    explore("a fork and an exit concurrent with swapping of shared memory", 100, |locking| {
        let rig = Rig::either(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                let child = Process::of(rig.scene.process.fork().unwrap());
                let mut cpu = rig.scene.machine.cpu(0);
                child.store(&mut cpu, page(0), 5u64).unwrap();
                assert_eq!(child.load(&mut cpu, page(1)), Ok(2u64));
            });
            scope.spawn(|| assert!([1, 5].contains(&rig.load(1, 0))));
            scope.spawn(|| rig.reclaim());
        });
        rig.end([5, 2]);
    });
}

#[test]
fn swapoff_concurrent_with_swapping() {
    explore("swapoff concurrent with stores and reclaim of shared memory", 100, |locking| {
        let rig = Rig::either(locking);
        let none = || None::<Counted<AddressSpace<Machine>>>;
        let off = thread::scope(|scope| {
            let off = scope.spawn(|| rig.scene.engine.swap_off(rig.id, none));
            scope.spawn(|| rig.store(1, 0, 5));
            scope.spawn(|| rig.reclaim());
            off.join().unwrap()
        });
        match off {
            Ok(()) => assert_eq!(rig.scene.engine.swap_on(rig.device.clone(), 0), Ok(rig.id)),
            Err(error) => assert_eq!(error, SwapOffError::InUse),
        }
        assert!(rig.mapping().has_data(PageIndex::ZERO));
        rig.end([5, 2]);
    });
}
