//! Hooks that fail, call back, or are called for a mapping that never existed (C-31), and private data that
//! is freed twice (C-30).
//!
//! Hooks that run under a lock must not change mappings: the tests with `should_panic` expect that the lock
//! order checker reports such a call. These tests exist only in builds with debug assertions. The close hook
//! runs without a lock and may make any call. The remaining tests count opened and closed VMAs, and check
//! that invalid requests of a driver are refused. A new hook needs a test with `with_unmapping_hook`.

use super::*;
use freehold::{
    call::RemapFlags,
    error::MmapError,
    file::{Driver, MapRequest, Special, VmOps},
    vma::flags::VmFlags,
};
use std::sync::{Arc, atomic::Ordering::SeqCst};

/// Runs `scene` in a process with a device mapping. The named hook unmaps memory of the process, once.
fn with_unmapping_hook(hook: &'static str, scene: impl Fn(&Process, &mut Vcpu, &Arc<Board>)) {
    everywhere(|world, process, cpu| {
        let board = Board::new(&world.machine);
        *board.driver_mode() = DriverMode { splits: true, notified: true, ..DriverMode::default() };
        let file = board.open(world);
        let own = process.clone();
        board.inside(hook, move || own.munmap(BASE, PAGE).unwrap());
        // The hooks `mmap` and `open` already run in this call.
        process.mmap(BASE, 2 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        scene(process, cpu, &board);
    });
}

/// C-31 c: the vmcore hook in Linux unmapped its own range, and its caller continued with outdated knowledge
/// of that range.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: waiting for Mmap while holding Mmap")]
fn c31_munmap_by_an_mmap_hook_is_detected() {
    with_unmapping_hook("mmap", |_, _, _| ());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: waiting for Mmap while holding Mmap")]
fn c31_munmap_by_an_open_hook_is_detected() {
    with_unmapping_hook("open", |_, _, _| ());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: waiting for Mmap while holding")]
fn c31_munmap_by_a_fault_hook_is_detected() {
    with_unmapping_hook("fault", |process, cpu, _| {
        let _ = process.load::<u64>(cpu, BASE);
    });
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: waiting for Mmap while holding")]
fn c31_munmap_by_a_write_hook_is_detected() {
    with_unmapping_hook("mkwrite", |process, cpu, _| {
        let _ = process.store(cpu, BASE, 1u64);
    });
}

/// No lock is held when a VMA is closed, so a close hook may make any call. This hook unmaps the rest of the
/// mapping.
#[test]
fn close_hook_may_unmap() {
    with_unmapping_hook("close", |process, _, board| {
        process.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!((process.counts().map_count, board.open_vmas()), (0, 0));
    });
    // The VMA is closed because it is replaced, and because it has moved.
    with_unmapping_hook("close", |process, _, board| {
        anon(process, BASE + PAGE, 1);
        assert_eq!((layout(process), board.open_vmas()), (vec![(1, 2)], 0));
    });
    with_unmapping_hook("close", |process, _, board| {
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(BASE + PAGE, PAGE, PAGE, fixed, BASE + 8 * PAGE).unwrap();
        assert_eq!((layout(process), board.open_vmas()), (vec![(8, 9)], 1));
    });
}

/// An open hook runs for a complete VMA that is not published yet. The VMA is closed later, whether the call
/// succeeds or fails.
#[test]
fn every_opened_vma_is_closed() {
    everywhere(|world, process, cpu| {
        let board = Board::new(&world.machine);
        *board.driver_mode() = DriverMode { splits: true, ..DriverMode::default() };
        let file = board.open(world);
        process.mmap(BASE, 8 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        assert_eq!(board.open_vmas(), 1);
        process.munmap(BASE + 2 * PAGE, PAGE).unwrap();
        assert_eq!(board.open_vmas(), 2);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(board.open_vmas(), 4);
        assert_eq!(child.load(cpu, BASE + 7 * PAGE), Ok(Board::number(7)));
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        // The target is split out of a VMA. The source is split off and unmapped.
        process.mremap(BASE, PAGE, PAGE, fixed, BASE + 4 * PAGE).unwrap();
        assert_eq!(layout(process), [(1, 2), (3, 4), (4, 5), (5, 8)]);
        assert_eq!(board.open_vmas(), 6);
        // An old length of zero duplicates a shared mapping.
        let twin = process.mremap(BASE + 5 * PAGE, 0, 2 * PAGE, fixed, BASE + 16 * PAGE).unwrap();
        assert_eq!((process.load(cpu, twin), board.open_vmas()), (Ok(Board::number(5)), 7));
        drop(child);
        assert_eq!(board.open_vmas(), 5);
        process.munmap(BASE, 64 * PAGE).unwrap();
        drop(file);
        board.assert_closed();
        assert_eq!(board.counts.made.load(SeqCst), 1, "one mapping has one object of private data");
    });
}

/// C-30, the double free: many VMAs of one mapping, in several processes, are unmapped in different orders.
#[test]
fn c30_private_data_is_freed_once() {
    everywhere(|world, process, _| {
        let board = Board::new(&world.machine);
        *board.driver_mode() = DriverMode { splits: true, whole: Some(u64::MAX), ..DriverMode::default() };
        let file = board.open(world);
        process.mmap(BASE, 8 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        drop(file);
        let children: Vec<_> = (0..3).map(|_| Process::of(process.fork().unwrap())).collect();
        for (n, child) in (0..).zip(&children) {
            child.munmap(BASE + 2 * n * PAGE, PAGE).unwrap();
        }
        process.munmap(BASE, 8 * PAGE).unwrap();
        assert_eq!(board.counts.dropped.load(SeqCst), 0);
        drop(children);
        board.assert_closed();
    });
}

/// C-31 d: a hook returns a mapping of another file, so the VMA could not be found through its own file.
#[test]
fn c31_hook_cannot_return_a_mapping_of_another_file() {
    /// A driver that returns a special mapping of another file.
    struct Stranger(Counted<Mapping<Machine>>);
    /// Hooks that all have their defaults.
    struct Nothing;
    impl VmOps<Machine> for Nothing {}
    impl Driver<Machine> for Stranger {
        fn mmap(&self, _: &mut MapRequest<'_, Machine>) -> Result<Counted<Special<Machine>>, MmapError> {
            Ok(Special::of_file(Nothing, &self.0)?)
        }
    }
    /// A driver that returns a special mapping of no file.
    struct Nobody;
    impl Driver<Machine> for Nobody {
        fn mmap(
            &self,
            request: &mut MapRequest<'_, Machine>,
        ) -> Result<Counted<Special<Machine>>, MmapError> {
            Ok(Special::new(request.file().mapping().files(), Nothing)?)
        }
    }
    everywhere(|world, process, _| {
        let mapping = || Mapping::new(world.engine(), freehold::file::Zeroes, 0, true).unwrap();
        let access = FileAccess::READ_WRITE;
        let stranger = File::with_driver(&mapping(), Stranger(mapping()), access, "stranger").unwrap();
        let nobody = File::with_driver(&mapping(), Nobody, access, "nobody").unwrap();
        for file in [&stranger, &nobody] {
            assert_eq!(process.mmap(BASE, PAGE, R, SHARED, Some(file), 0), Err(MmapError::Invalid));
            assert_eq!(process.counts().map_count, 0);
        }
    });
}

/// Requests of a driver are checked, and invalid requests are refused. A driver maps private memory
/// completely, or leaves it to faults.
#[test]
fn driver_requests_are_checked() {
    /// A driver that makes invalid requests, and then maps pages 1 and 2.
    struct Greedy(Pfn);
    /// Hooks that all have their defaults.
    struct Nothing;
    impl VmOps<Machine> for Nothing {}
    impl Driver<Machine> for Greedy {
        fn mmap(
            &self,
            request: &mut MapRequest<'_, Machine>,
        ) -> Result<Counted<Special<Machine>>, MmapError> {
            assert_eq!(
                (request.vma().range.addresses(), request.vma().pgoff.get()),
                (BASE..BASE + 4 * PAGE, 3)
            );
            for (page, pages) in [(0, 5), (4, 1), (u64::MAX, 1), (1, u64::MAX >> 12)] {
                assert_eq!(request.map_frames(page, foreign(self.0, pages)), Err(MmapError::Invalid));
            }
            let before = request.vma().clone();
            for wrong in [VmFlags::SHARED, VmFlags::WRITE, VmFlags::LOCKED, VmFlags::SEALED] {
                assert_eq!(request.set_flags(before.flags ^ wrong), Err(MmapError::Invalid));
            }
            assert_eq!(*request.vma(), before);
            request.map_frames(1, foreign(self.0, 2))?;
            assert_eq!(request.map_frames(2, foreign(self.0, 1)), Err(MmapError::Invalid), "twice");
            assert_eq!(request.map_frames(0, foreign(self.0, 1)), Err(MmapError::Invalid), "backwards");
            Ok(Special::of_file(Nothing, request.file().mapping())?)
        }
    }
    everywhere(|world, process, cpu| {
        let board = Board::new(&world.machine);
        let mapping = Mapping::new(world.engine(), freehold::file::Zeroes, 0, true).unwrap();
        let greedy = Greedy(board.frame(6));
        let file = File::with_driver(&mapping, greedy, FileAccess::READ_WRITE, "greedy").unwrap();
        let map = |kind, prot| process.mmap(BASE, 4 * PAGE, prot, kind, Some(&file), 3 * PAGE);
        assert_eq!(map(PRIVATE, RW), Err(MmapError::Invalid), "only a part of private memory was mapped");
        assert_eq!(process.counts().map_count, 0);
        map(SHARED, RW).unwrap();
        for (page, found) in [(0, None), (1, Some(6)), (2, Some(7)), (3, None)] {
            let at = BASE + page * PAGE;
            let expected = found.map(Board::number).ok_or(freehold::fault::FaultError::Bus { addr: at });
            assert_eq!(process.load(cpu, at), expected);
        }
        process.munmap(BASE, 4 * PAGE).unwrap();
    });
}
