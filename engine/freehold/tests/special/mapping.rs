//! Device memory as programs see it: mapped as a whole by mmap, or page by page by faults; private copies;
//! merging, moving and splitting; and the calls that device memory refuses. `on_board` runs a scenario on
//! every design with a driver in the given mode ([`whole`] or [`by_faults`]). The tests check the loaded
//! words, the VMAs and the counts of hooks.

use super::*;
use freehold::{
    call::{Advice, LockAllFlags, RemapFlags},
    error::{AccessError, MadviseError, MmapError, MremapError},
    fault::FaultError,
    remote::AccessMode,
    vma::flags::VmFlags,
};
use std::sync::{Arc, atomic::Ordering::SeqCst};

const WHOLE: Option<u64> = Some(u64::MAX);

/// Returns the fault of an access that raises SIGBUS.
fn bus<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Bus { addr })
}

/// Runs `scenario` on every design, with a board whose driver behaves as `driver_mode` says.
fn on_board(
    driver_mode: DriverMode,
    scenario: impl Fn(&World, &Process, &mut Vcpu, &Arc<Board>, &Counted<File<Machine>>),
) {
    everywhere(|world, process, cpu| {
        let board = Board::new(&world.machine);
        *board.driver_mode() = driver_mode.clone();
        let file = board.open(world);
        scenario(world, process, cpu, &board, &file);
        process.check();
        process.munmap(BASE, 64 * PAGE).unwrap();
        drop(file);
        board.assert_closed();
    });
}

/// Returns the mode in which mmap maps the whole device at once.
fn whole() -> DriverMode {
    DriverMode { whole: WHOLE, splits: true, ..DriverMode::default() }
}

/// Returns the mode in which each fault maps one page.
fn by_faults() -> DriverMode {
    DriverMode { splits: true, ..DriverMode::default() }
}

fn flags_at(process: &Process, at: u64) -> VmFlags {
    process.maps(at).next().unwrap().flags
}

#[test]
fn device_mapped_as_a_whole_takes_no_faults() {
    on_board(whole(), |_, process, cpu, board, file| {
        assert_eq!(process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 2 * PAGE), Ok(BASE));
        let wanted = VmFlags::IO | VmFlags::PFNMAP | VmFlags::DONTEXPAND | VmFlags::DONTDUMP;
        assert!(flags_at(process, BASE).contains(wanted));
        for page in 0..4 {
            assert_eq!(process.load(cpu, BASE + page * PAGE), Ok(Board::number(2 + page)));
        }
        process.store(cpu, BASE + PAGE, 9u64).unwrap();
        assert_eq!(board.word(3), 9);
        assert_eq!(board.counts.faults.load(SeqCst), 0, "the device took a fault");
        // Frames of a device are not counted.
        assert_eq!(process.rss().total(), 0);
        assert_eq!(process.maps(0).next().unwrap().name.as_str(), "/dev/board");
        assert_eq!(process.maps(0).next().unwrap().offset, 2 * PAGE);
        process.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!(layout(process), [(0, 1), (2, 4)]);
        assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(Board::number(4)));
        assert_eq!(board.open_vmas(), 2);
    });
}

#[test]
fn device_mapped_by_faults_maps_each_touched_page() {
    on_board(by_faults(), |_, process, cpu, board, file| {
        process.mmap(BASE, (PAGES + 1) * PAGE, RW, SHARED, Some(file), 0).unwrap();
        for page in [3, 0, 3] {
            assert_eq!(process.load(cpu, BASE + page * PAGE), Ok(Board::number(page)));
        }
        assert_eq!(board.counts.faults.load(SeqCst), 2);
        process.store(cpu, BASE + 5 * PAGE, 8u64).unwrap();
        assert_eq!((board.word(5), board.counts.faults.load(SeqCst)), (8, 3));
        let beyond = BASE + PAGES * PAGE;
        assert_eq!(process.load::<u64>(cpu, beyond), bus(beyond));
    });
}

/// A private mapping copies a page on a store, whether the device is mapped as a whole or by faults, also in
/// a child.
#[test]
fn private_store_to_device_memory_copies() {
    for driver_mode in [whole(), by_faults()] {
        on_board(driver_mode, |_, process, cpu, board, file| {
            process.mmap(BASE, 4 * PAGE, RW, PRIVATE, Some(file), 0).unwrap();
            assert_eq!(process.load(cpu, BASE), Ok(Board::number(0)));
            process.store(cpu, BASE + PAGE, 7u64).unwrap();
            assert_eq!((board.word(1), process.rss().anon), (Board::number(1), 1));
            let child = Process::of(process.fork().unwrap());
            child.store(cpu, BASE + PAGE, 8u64).unwrap();
            child.store(cpu, BASE + 2 * PAGE, 9u64).unwrap();
            assert_eq!(process.load(cpu, BASE + PAGE), Ok(7u64));
            assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(Board::number(2)));
            assert_eq!((child.load(cpu, BASE), child.rss().anon), (Ok(Board::number(0)), 2));
            assert_eq!(board.word(2), Board::number(2));
            child.check();
        });
    }
}

/// A driver may change flags of its VMA within limits. A forbidden change fails the call, which then has no
/// effect (C-31 d, e).
#[test]
fn c31_driver_may_only_change_allowed_flags() {
    let driver_mode =
        DriverMode { add: VmFlags::MIXEDMAP | VmFlags::DONTCOPY, take: VmFlags::MAYWRITE, ..by_faults() };
    on_board(driver_mode, |_, process, cpu, board, file| {
        process.mmap(BASE, 2 * PAGE, R, SHARED, Some(file), 0).unwrap();
        assert_eq!(process.load(cpu, BASE), Ok(Board::number(0)));
        assert!(process.mprotect(BASE, PAGE, RW).is_err());
        let child = Process::of(process.fork().unwrap());
        assert_eq!((child.counts().map_count, board.open_vmas()), (0, 1));
        // The driver cannot take away a right that the call requests.
        let mapped = process.mmap(BASE + 4 * PAGE, PAGE, RW, SHARED, Some(file), 0);
        assert_eq!(mapped, Err(MmapError::Invalid));
        assert_eq!(layout(process), [(0, 2)]);
    });
    for wrong in [VmFlags::LOCKED, VmFlags::GROWSDOWN, VmFlags::SEALED, VmFlags::EXEC, VmFlags::HUGETLB] {
        on_board(DriverMode { add: wrong, ..by_faults() }, |_, process, _, board, file| {
            assert_eq!(process.mmap(BASE, PAGE, R, SHARED, Some(file), 0), Err(MmapError::Invalid));
            assert_eq!((process.counts().map_count, board.counts.opened.load(SeqCst)), (0, 0));
        });
    }
}

/// The mmap hook runs before merging, and merging depends on the flags and private data that the hook sets.
/// Two mappings merge only if they have the same private data. A VMA with hooks may grow by a merge, but is
/// not absorbed by another VMA.
#[test]
fn mappings_merge_only_with_equal_private_data() {
    for (one_for_all, add, expected) in [
        (true, VmFlags::empty(), vec![(0, 4)]),
        (false, VmFlags::empty(), vec![(0, 2), (2, 4)]),
        (true, VmFlags::MIXEDMAP, vec![(0, 2), (2, 4)]),
    ] {
        on_board(DriverMode { one_for_all, add, ..by_faults() }, |_, process, cpu, board, file| {
            process.mmap(BASE, 2 * PAGE, RW, SHARED, Some(file), 0).unwrap();
            process.mmap(BASE + 2 * PAGE, 2 * PAGE, RW, SHARED, Some(file), 2 * PAGE).unwrap();
            assert_eq!(layout(process), expected);
            assert_eq!(board.open_vmas(), expected.len() as u64);
            assert_eq!(process.load(cpu, BASE + 3 * PAGE), Ok(Board::number(3)));
        });
    }
    on_board(by_faults(), |_, process, _, board, file| {
        process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
        process.mprotect(BASE + PAGE, 3 * PAGE, R).unwrap();
        assert_eq!((layout(process), board.open_vmas()), (vec![(0, 1), (1, 4)], 2));
        process.mprotect(BASE + PAGE, PAGE, RW).unwrap();
        assert_eq!((layout(process), board.open_vmas()), (vec![(0, 2), (2, 4)], 2));
        process.mprotect(BASE + 2 * PAGE, 2 * PAGE, RW).unwrap();
        // The driver counts VMAs, so no VMA is absorbed by a merge before it is unmapped.
        assert_eq!((layout(process), board.open_vmas()), (vec![(0, 2), (2, 4)], 2));
    });
}

/// The driver is notified once of the first store to each page, and can refuse the store. mprotect does not
/// bypass the notification.
#[test]
fn driver_is_notified_of_first_stores() {
    for driver_mode in [whole(), by_faults()] {
        on_board(DriverMode { notified: true, ..driver_mode }, |_, process, cpu, board, file| {
            process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
            let writes = || board.counts.writes.load(SeqCst);
            assert_eq!((process.load(cpu, BASE), writes()), (Ok(Board::number(0)), 0));
            for value in 1..3u64 {
                process.store(cpu, BASE, value).unwrap();
                assert_eq!((board.word(0), writes()), (value, 1));
            }
            process.mprotect(BASE, 4 * PAGE, R).unwrap();
            process.mprotect(BASE, 4 * PAGE, RW).unwrap();
            process.store(cpu, BASE + PAGE, 5u64).unwrap();
            assert_eq!(writes(), 2);
            board.driver_mode().gone.insert(2);
            assert_eq!(process.load(cpu, BASE + 3 * PAGE), Ok(Board::number(3)));
            board.driver_mode().gone.insert(3);
            assert!(matches!(process.store(cpu, BASE + 3 * PAGE, 1u64), Err(FaultError::Segv { .. })));
            assert_eq!(board.word(3), Board::number(3));
        });
    }
}

/// A device mapping does not grow and does not leave its source mapped. It moves as a whole, or in parts if
/// the driver allows splits.
#[test]
fn device_mapping_moves_but_does_not_grow() {
    on_board(whole(), |_, process, cpu, board, file| {
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let to = BASE + 16 * PAGE;
        process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
        let remap = |len, flags, to| process.mremap(BASE, 4 * PAGE, len, flags, to);
        assert_eq!(remap(5 * PAGE, RemapFlags::MAYMOVE, 0), Err(MremapError::NotExpandable));
        assert_eq!(remap(4 * PAGE, fixed | RemapFlags::DONTUNMAP, to), Err(MremapError::Invalid));
        board.driver_mode().stays = true;
        assert_eq!(remap(4 * PAGE, fixed, to), Err(MremapError::NotMapped), "the hook refuses");
        assert_eq!((layout(process), process.load(cpu, BASE)), (vec![(0, 4)], Ok(Board::number(0))));
        board.driver_mode().stays = false;
        assert_eq!(remap(4 * PAGE, fixed, to), Ok(to));
        assert_eq!(board.counts.moved_to.load(SeqCst), to);
        assert_eq!(process.load(cpu, to + 3 * PAGE), Ok(Board::number(3)));
        board.driver_mode().splits = false;
        assert_eq!(process.mremap(to, PAGE, PAGE, fixed, BASE), Err(MremapError::Invalid));
        assert_eq!(process.mremap(to, 4 * PAGE, PAGE, RemapFlags::empty(), 0), Err(MremapError::Invalid));
        assert_eq!((layout(process), board.open_vmas()), (vec![(16, 20)], 1));
        board.driver_mode().splits = true;
        assert_eq!(process.mremap(to + PAGE, PAGE, PAGE, fixed, BASE), Ok(BASE));
        assert_eq!(process.load(cpu, BASE), Ok(Board::number(1)));
        assert_eq!((layout(process), board.open_vmas()), (vec![(0, 1), (16, 17), (18, 20)], 3));
    });
}

/// Calls that device memory refuses, and calls that skip device memory.
#[test]
fn device_memory_refuses_locks_and_remote_access() {
    on_board(whole(), |_, process, cpu, board, file| {
        process.mlockall(LockAllFlags::FUTURE).unwrap();
        process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
        assert_eq!(
            (process.counts().locked_vm, flags_at(process, BASE) & VmFlags::LOCKED),
            (0, VmFlags::empty())
        );
        process.mlock(BASE, 4 * PAGE).unwrap();
        assert_eq!(process.counts().locked_vm, 0);
        for advice in [
            Advice::DontNeed,
            Advice::DontNeedLocked,
            Advice::Free,
            Advice::Cold,
            Advice::GuardInstall,
            Advice::GuardRemove,
            Advice::DoFork,
            Advice::DoDump,
            Advice::PopulateRead,
        ] {
            assert_eq!(process.madvise(BASE, PAGE, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        let mut bytes = [0; 8];
        assert_eq!(process.read_memory(BASE, &mut bytes, AccessMode::Forced), Err(AccessError::BadAddress));
        assert_eq!(process.write_memory(BASE, &bytes, AccessMode::Plain), Err(AccessError::BadAddress));
        assert_eq!(process.load(cpu, BASE), Ok(Board::number(0)));
        assert_eq!(board.word(0), Board::number(0));
        process.munlockall().unwrap();
    });
    // Device memory that is mapped by faults has neither the flag IO nor the flag PFNMAP. Remote access to it
    // is also refused, because the device may revoke its frames during the access.
    on_board(by_faults(), |_, process, cpu, board, file| {
        process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
        process.store(cpu, BASE, 3u64).unwrap();
        assert_eq!(process.read_memory(BASE, &mut [0; 8], AccessMode::Plain), Err(AccessError::BadAddress));
        assert_eq!(process.write_memory(BASE, &[0; 8], AccessMode::Plain), Err(AccessError::BadAddress));
        process.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load(cpu, BASE), Ok(3u64));
        assert_eq!(board.counts.faults.load(SeqCst), 2);
    });
}

/// C-30: makes every call that would split a VMA whose hook forbids splits.
#[test]
fn c30_unsplittable_vma_is_never_split() {
    on_board(DriverMode { splits: false, ..whole() }, |_, process, cpu, board, file| {
        process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
        for (first, pages) in [(0, 1), (1, 2), (3, 1)] {
            let (at, len) = (BASE + first * PAGE, pages * PAGE);
            assert!(process.munmap(at, len).is_err());
            assert!(process.mprotect(at, len, R).is_err());
            assert!(process.mseal(at, len, 0).is_err());
            assert!(process.madvise(at, len, Advice::DontFork).is_err());
            assert!(process.set_policy(at, len, 3).is_err());
            assert!(process.mmap(at, len, RW, ANON | MapFlags::FIXED, None, 0).is_err());
            assert!(process.mmap(at, len, RW, SHARED, Some(file), 0).is_err());
            let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            assert!(process.mremap(at, len, len, fixed, BASE + 16 * PAGE).is_err());
            assert_eq!((layout(process), board.open_vmas()), (vec![(0, 4)], 1), "{first} {pages}");
        }
        for page in 0..4 {
            assert_eq!(process.load(cpu, BASE + page * PAGE), Ok(Board::number(page)));
        }
        process.mprotect(BASE, 4 * PAGE, R).unwrap();
        assert!(process.store(cpu, BASE, 1u64).is_err());
    });
}

/// A file that was opened read-only cannot be mapped writable, and the driver is not called.
#[test]
fn mmap_of_a_device_checks_the_descriptor_first() {
    everywhere(|world, process, _| {
        let board = Board::new(&world.machine);
        let file = board.open_as(world, FileAccess::READ);
        assert_eq!(process.mmap(BASE, PAGE, RW, SHARED, Some(&file), 0), Err(MmapError::AccessDenied));
        assert_eq!(board.counts.made.load(SeqCst), 0);
        process.mmap(BASE, PAGE, R, SHARED, Some(&file), 0).unwrap();
        assert!(process.mprotect(BASE, PAGE, RW).is_err());
    });
}
