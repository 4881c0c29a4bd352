//! Pages that are swapped out and come back (`reclaim/swap_out.rs`, `fault/swap.rs`), concurrent with stores,
//! fork, munmap, exit, mprotect, mremap, moves, swapoff, and other reclaim.
//!
//! No store is lost, no task sees a page of another time, and at the end no slot and no frame is in use. The
//! machine's oracle of TLBs detects a store to a page that was swapped out. The device checks that each slot
//! is written once between two discards. `swap.rs` explores the slots alone.

use crate::{
    explore::{explore, thread},
    scene::{PAGE, R, RW, Scene, page, unmap, value},
};
use freehold::{
    call::{Advice, RemapFlags},
    error::SwapOffError,
    reclaim::ReclaimRequest,
    space::Locking,
    swap::SwapId,
    uffd::{MoveMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{MemorySwap, Process};
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::OnceLock;

struct Rig {
    scene: Scene,
    device: MemorySwap,
    id: SwapId,
}

impl Rig {
    /// Returns a scene with two filled pages.
    fn new(locking: Locking) -> Self {
        let device = MemorySwap::new(8);
        let (scene, id) = Scene::swapping(locking, &device);
        scene.fill(0..2);
        Rig { scene, device, id }
    }

    /// Returns a scene whose pages are swapped out.
    fn swapped(locking: Locking) -> Self {
        let rig = Self::new(locking);
        rig.reclaim();
        assert_eq!((rig.scene.process.rss().anon, rig.used()), (0, 2));
        rig
    }

    /// Swaps out what can go in some visits of memory.
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

    /// Checks the words of both pages, unmaps them, and ends the scene.
    fn end(self, words: [u64; 2]) {
        assert_eq!([0, 1].map(|number| self.load(3, number)), words);
        self.scene.process.check();
        unmap(&self.scene.process, 0..2);
        self.end_empty();
    }

    fn end_empty(self) {
        let Rig { scene, device, id } = self;
        scene.end_swapping(device, id);
    }
}

#[test]
fn stores_concurrent_with_reclaim_are_kept() {
    explore("stores concurrent with two tasks that swap out", 100, |locking| {
        let rig = Rig::new(locking);
        let [first, second] = [0, 1].map(|number| rig.scene.acquainted(number, 0..2));
        thread::scope(|scope| {
            let (scene, mut first, mut second) = (&rig.scene, first, second);
            scope.spawn(move || {
                scene.process.store(&mut first, page(0), 7u64).unwrap();
                assert_eq!(scene.process.load(&mut first, page(1)), Ok(value(1)));
                scene.process.store(&mut first, page(0), 8u64).unwrap();
            });
            scope.spawn(move || {
                scene.process.store(&mut second, page(0) + 8, 9u64).unwrap();
                assert_eq!(scene.process.load(&mut second, page(0) + 8), Ok(9u64));
            });
            (0..2).for_each(|_| _ = scope.spawn(|| rig.reclaim()));
        });
        let mut cpu = rig.scene.machine.cpu(2);
        assert_eq!(rig.scene.process.load(&mut cpu, page(0) + 8), Ok(9u64));
        drop(cpu);
        rig.end([8, value(1)]);
    });
}

#[test]
fn faults_of_one_swapped_page_and_reclaim() {
    explore("faults of one swapped page concurrent with reclaim", 100, |locking| {
        let rig = Rig::swapped(locking);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(rig.load(0, 0), value(0)));
            scope.spawn(|| {
                rig.store(1, 1, 5);
                assert_eq!(rig.load(1, 1), 5);
            });
            scope.spawn(|| {
                let found = rig.load(2, 1);
                assert!([value(1), 5].contains(&found), "{found}");
            });
            scope.spawn(|| rig.reclaim());
        });
        rig.end([value(0), 5]);
    });
}

#[test]
fn fork_concurrent_with_swapping() {
    explore("a fork and stores of both sides concurrent with swapping", 100, |locking| {
        let rig =
            if crate::explore::seed().is_multiple_of(2) { Rig::new(locking) } else { Rig::swapped(locking) };
        thread::scope(|scope| {
            scope.spawn(|| {
                let child = Process::of(rig.scene.process.fork().unwrap());
                let mut cpu = rig.scene.machine.cpu(0);
                let found: u64 = child.load(&mut cpu, page(0)).unwrap();
                assert!([value(0), 5].contains(&found), "{found}");
                child.store(&mut cpu, page(0), 6u64).unwrap();
                assert_eq!(child.load(&mut cpu, page(1)), Ok(value(1)));
                assert_eq!(child.load(&mut cpu, page(0)), Ok(6u64));
            });
            scope.spawn(|| rig.store(1, 0, 5));
            scope.spawn(|| rig.reclaim());
        });
        rig.end([5, value(1)]);
    });
}

#[test]
fn munmap_and_discard_concurrent_with_swapping() {
    explore("munmap and MADV_DONTNEED concurrent with faults and swapping", 100, |locking| {
        let rig =
            if crate::explore::seed().is_multiple_of(2) { Rig::new(locking) } else { Rig::swapped(locking) };
        thread::scope(|scope| {
            scope.spawn(|| unmap(&rig.scene.process, 0..1));
            scope.spawn(|| rig.scene.process.madvise(page(1), PAGE, Advice::DontNeed).unwrap());
            scope.spawn(|| {
                let found = rig.load(0, 1);
                assert!([value(1), 0].contains(&found), "{found}");
            });
            scope.spawn(|| rig.reclaim());
        });
        assert_eq!(rig.load(1, 1), 0);
        unmap(&rig.scene.process, 1..2);
        rig.end_empty();
    });
}

#[test]
fn changes_of_rights_concurrent_with_swapping() {
    explore("mprotect concurrent with faults and swapping", 100, |locking| {
        let rig =
            if crate::explore::seed().is_multiple_of(2) { Rig::new(locking) } else { Rig::swapped(locking) };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = rig.scene.machine.cpu(0);
                rig.scene.process.mprotect(page(0), 2 * PAGE, R).unwrap();
                assert!(rig.scene.process.store(&mut cpu, page(0), 5u64).is_err());
                rig.scene.process.mprotect(page(0), PAGE, RW).unwrap();
                rig.scene.process.store(&mut cpu, page(0), 6u64).unwrap();
            });
            scope.spawn(|| assert_eq!(rig.load(1, 1), value(1)));
            scope.spawn(|| rig.reclaim());
        });
        rig.end([6, value(1)]);
    });
}

#[test]
fn mremap_concurrent_with_swapping() {
    explore("mremap concurrent with faults and swapping", 100, |locking| {
        let rig =
            if crate::explore::seed().is_multiple_of(2) { Rig::new(locking) } else { Rig::swapped(locking) };
        // The other place is under another page table.
        let to = page(512);
        thread::scope(|scope| {
            scope.spawn(|| {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                rig.scene.process.mremap(page(0), PAGE, PAGE, flags, to).unwrap();
                let mut cpu = rig.scene.machine.cpu(0);
                assert_eq!(rig.scene.process.load(&mut cpu, to), Ok(value(0)));
            });
            scope.spawn(|| rig.store(1, 1, 5));
            scope.spawn(|| rig.reclaim());
        });
        let mut cpu = rig.scene.machine.cpu(2);
        assert_eq!(rig.scene.process.load(&mut cpu, to), Ok(value(0)));
        drop(cpu);
        rig.scene.process.check();
        assert_eq!(rig.load(2, 1), 5);
        rig.scene.process.munmap(to, PAGE).unwrap();
        unmap(&rig.scene.process, 1..2);
        rig.end_empty();
    });
}

#[test]
fn move_of_a_page_concurrent_with_swapping() {
    explore("a move of a page concurrent with a fault and swapping", 100, |locking| {
        let rig = Rig::new(locking);
        let frame = rig.scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| rig.scene.engine.migrate(frame).is_ok());
            scope.spawn(|| rig.store(0, 0, 5));
            scope.spawn(|| rig.reclaim());
        });
        rig.end([5, value(1)]);
    });
}

#[test]
fn move_by_a_userfaultfd_concurrent_with_swapping() {
    explore("a move by a userfaultfd concurrent with swapping", 100, |locking| {
        let rig =
            if crate::explore::seed().is_multiple_of(2) { Rig::new(locking) } else { Rig::swapped(locking) };
        let process = &rig.scene.process;
        crate::scene::map(process, 4..5, crate::scene::FIXED);
        let uffd = Userfaultfd::new(process.space(), UffdConfig::new()).unwrap();
        uffd.register(page(4), PAGE, RegisterMode::MISSING).unwrap();
        let moved = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let done = uffd.move_pages(page(4), page(0), PAGE, MoveMode::empty());
                moved.store(u64::from(done.is_ok()), SeqCst);
            });
            scope.spawn(|| rig.store(1, 1, 5));
            scope.spawn(|| rig.reclaim());
        });
        let at = if moved.load(SeqCst) == 1 { 4 } else { 0 };
        assert_eq!((rig.load(2, at), rig.load(2, 1)), (value(0), 5));
        drop(uffd);
        process.check();
        unmap(process, 0..2);
        unmap(process, 4..5);
        rig.end_empty();
    });
}

/// A device that completes requests on another CPU.
#[test]
fn late_completions_concurrent_with_faults_and_exit() {
    explore("faults and an exit concurrent with late completions", 100, |locking| {
        let rig = Rig::new(locking);
        let child = Process::of(rig.scene.process.fork().unwrap());
        rig.device.complete_later(true);
        let left = AtomicU64::new(3);
        thread::scope(|scope| {
            let (rig, left) = (&rig, &left);
            scope.spawn(move || {
                rig.reclaim();
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(move || {
                rig.store(0, 0, 5);
                assert_eq!(rig.load(0, 1), value(1));
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(move || {
                let found = child.load(&mut rig.scene.machine.cpu(1), page(1));
                assert_eq!(found, Ok(value(1)));
                drop(child);
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(move || {
                while left.load(SeqCst) != 0 {
                    if !rig.device.complete_next() {
                        thread::yield_now();
                    }
                }
                while rig.device.complete_next() {}
            });
        });
        rig.device.complete_later(false);
        rig.end([5, value(1)]);
    });
}

#[test]
fn swapoff_concurrent_with_fork_and_reclaim() {
    explore("swapoff concurrent with a fork, stores and reclaim", 100, |locking| {
        let rig = Rig::swapped(locking);
        let child = OnceLock::new();
        let off = || {
            let spaces = || {
                let child = child.get().map(|child: &Process| child.space().clone());
                [rig.scene.process.space().clone()].into_iter().chain(child)
            };
            rig.scene.engine.swap_off(rig.id, spaces)
        };
        let removed = AtomicU64::new(0);
        thread::scope(|scope| {
            let (rig, child, off, removed) = (&rig, &child, &off, &removed);
            scope.spawn(move || match off() {
                Ok(()) => removed.store(1, SeqCst),
                // The child is not listed until the fork has returned, so swapoff may give up before.
                Err(failed) => assert_eq!(failed, SwapOffError::InUse),
            });
            scope.spawn(move || {
                let forked = Process::of(rig.scene.process.fork().unwrap());
                let forked = child.get_or_init(|| forked);
                let found: u64 = forked.load(&mut rig.scene.machine.cpu(0), page(0)).unwrap();
                assert!([value(0), 5].contains(&found), "{found}");
            });
            scope.spawn(move || {
                rig.store(1, 0, 5);
                assert_eq!(rig.load(1, 1), value(1));
            });
            scope.spawn(move || rig.reclaim());
        });
        if removed.load(SeqCst) == 0 {
            assert_eq!(off(), Ok(()));
        }
        let child = child.into_inner().unwrap();
        assert_eq!((rig.scene.process.rss().swap, child.rss().swap), (0, 0));
        assert_eq!(child.load(&mut rig.scene.machine.cpu(0), page(1)), Ok(value(1)));
        child.check();
        drop(child);
        assert_eq!(rig.scene.engine.swap_on(rig.device.clone(), 0), Ok(rig.id));
        rig.end([5, value(1)]);
    });
}
