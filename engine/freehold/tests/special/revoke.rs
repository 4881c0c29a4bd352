//! A device that revokes its frames (`unmap_mapping_range`, `src/file/change/revoke.rs`): after the call no
//! process maps the frames any more. The tests revoke frames between calls, inside a hook that has already
//! chosen its answer, and concurrently with threads that use the memory. A page with revoked contents, an
//! access that should have raised SIGBUS, or a call that repeats forever is a failure. A new hook that
//! returns frames belongs in the lists of hooks in the second and the third test.

use super::*;
use freehold::{
    call::RemapFlags,
    error::MmapError,
    fault::{Access, FaultError},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

/// Returns the fault of an access that raises SIGBUS.
fn bus<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Bus { addr })
}

/// Revocation unmaps the frames in every process at every address, whether they were mapped as a whole or by
/// faults. Private copies stay or are unmapped, as requested.
#[test]
fn revoke_unmaps_frames_in_all_processes() {
    for whole in [Some(u64::MAX), None] {
        for copies in [false, true] {
            everywhere(|world, process, cpu| {
                let board = Board::new(&world.machine);
                *board.driver_mode() = DriverMode { whole, splits: true, ..DriverMode::default() };
                let file = board.open(world);
                process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
                let private = BASE + 16 * PAGE;
                process.mmap(private, 4 * PAGE, RW, PRIVATE, Some(&file), 0).unwrap();
                process.store(cpu, private + PAGE, 7u64).unwrap();
                let child = Process::of(process.fork().unwrap());
                let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                process.mremap(BASE, 4 * PAGE, 4 * PAGE, fixed, BASE + 8 * PAGE).unwrap();
                let moved = BASE + 8 * PAGE;
                for at in [moved, private] {
                    assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(Board::number(2)));
                }
                assert_eq!(child.load(cpu, BASE + 2 * PAGE), Ok(Board::number(2)));
                board.driver_mode().gone.extend([1, 2]);
                file.mapping().revoke((1..3).into(), copies);
                for (space, at) in [(process, moved), (&child, BASE), (process, private)] {
                    for page in [1, 2] {
                        let at = at + page * PAGE;
                        let found = space.load::<u64>(cpu, at);
                        let copy = at == private + PAGE && !copies;
                        assert_eq!(found, if copy { Ok(7) } else { bus(at) }, "{whole:?} {copies}");
                    }
                    assert_eq!(space.load(cpu, at + 3 * PAGE), Ok(Board::number(3)));
                }
                // Later faults map the frames again.
                board.driver_mode().gone.clear();
                assert_eq!(process.load(cpu, moved + 2 * PAGE), Ok(Board::number(2)));
                process.store(cpu, moved + 2 * PAGE, 5u64).unwrap();
                assert_eq!(child.load(cpu, BASE + 2 * PAGE), Ok(5u64));
                child.check();
                file.mapping().check();
                drop((child, file));
                process.munmap(BASE, 64 * PAGE).unwrap();
                board.assert_closed();
            });
        }
    }
}

/// The device revokes its frames inside a hook, after the hook has chosen its answer. The engine calls the
/// hook again and never maps the outdated answer.
#[test]
fn outdated_hook_answer_is_never_mapped() {
    for hook in ["fault", "mkwrite", "mmap", "mapped"] {
        everywhere(|world, process, cpu| {
            let board = Board::new(&world.machine);
            let whole = ["mmap", "mapped"].contains(&hook).then_some(u64::MAX);
            *board.driver_mode() =
                DriverMode { whole, splits: true, notified: true, ..DriverMode::default() };
            let file = board.open(world);
            // The replaced mapping must not reappear, and must not prevent the second attempt from mapping
            // the address.
            anon(process, BASE, 4);
            let (mapping, weak) = (file.mapping().clone(), Arc::downgrade(&board));
            board.inside(hook, move || {
                weak.upgrade().unwrap().driver_mode().exchanged = 4;
                mapping.revoke((0..PAGES).into(), true);
            });
            process.mmap(BASE, 4 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
            process.store(cpu, BASE + PAGE, 9u64).unwrap();
            assert_eq!((board.word(1), board.word(5)), (Board::number(1), 9), "{hook}");
            assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(Board::number(6)), "{hook}");
            process.check();
            process.munmap(BASE, 4 * PAGE).unwrap();
            drop(file);
            board.assert_closed();
        });
    }
}

/// A driver that revokes every answer makes the call retry indefinitely. The call ends with a fatal signal.
#[test]
fn fatal_signal_ends_retries_of_outdated_answers() {
    for hook in ["fault", "mmap"] {
        everywhere(|world, process, cpu| {
            let board = Board::new(&world.machine);
            let whole = (hook == "mmap").then_some(u64::MAX);
            *board.driver_mode() =
                DriverMode { whole, splits: true, notified: true, ..DriverMode::default() };
            let file = board.open(world);
            let map = || process.mmap(BASE, 4 * PAGE, RW, SHARED | MapFlags::FIXED, Some(&file), 0);
            if hook != "mmap" {
                map().unwrap();
            }
            always_old(&board, hook, file.mapping().clone(), 0);
            match hook {
                "mmap" => assert_eq!(killed(map), Err(MmapError::Killed)),
                _ => {
                    let stored = killed(|| process.space().handle_fault(BASE + PAGE, Access::WRITE));
                    assert_eq!(stored, Err(FaultError::Killed), "{hook}");
                }
            }
            board.inside("nothing", || ());
            // The call succeeds if no signal is pending and the frames are not revoked during the hook.
            map().unwrap();
            process.store(cpu, BASE + PAGE, 9u64).unwrap();
            process.check();
            process.munmap(BASE, 4 * PAGE).unwrap();
            drop(file);
            board.assert_closed();
        });
    }
}

/// Revokes the frames inside the next hook of this name, and inside every later hook of this name.
fn always_old(board: &Arc<Board>, hook: &'static str, mapping: Counted<Mapping<Machine>>, round: u64) {
    let weak = Arc::downgrade(board);
    board.inside(hook, move || {
        assert!(round < 10_000, "the call does not check for a fatal signal");
        mapping.revoke((0..PAGES).into(), true);
        always_old(&weak.upgrade().unwrap(), hook, mapping.clone(), round + 1);
    });
}

/// No thread sees a revoked frame, although threads map, fault, fork, move and unmap concurrently.
#[test]
fn no_thread_sees_a_revoked_frame() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 60 } else { 400 };
    for whole in [Some(u64::MAX), None] {
        everywhere(|world, process, _| {
            let board = Board::new(&world.machine);
            *board.driver_mode() = DriverMode { whole, splits: true, ..DriverMode::default() };
            let file = board.open(world);
            let (over, loads) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let user = |number: usize, change: &dyn Fn(u64)| {
                    let mut cpu = world.machine.cpu(number);
                    let at = BASE + number as u64 * 1024 * PAGE;
                    while !over.load(SeqCst) {
                        change(at);
                        for page in 0..4 {
                            if let Ok(found) = process.load::<u64>(&mut cpu, at + page * PAGE) {
                                assert!(found != u64::MAX, "page {page} is a revoked frame");
                                loads.fetch_add(1, SeqCst);
                            }
                        }
                    }
                };
                let file = &file;
                let map = move |at| {
                    process.mmap(at, 4 * PAGE, RW, SHARED, Some(file), 0).unwrap();
                };
                scope.spawn(move || user(1, &map));
                scope.spawn(move || {
                    user(2, &|at| {
                        map(at);
                        drop(process.fork());
                        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                        process.mremap(at, 4 * PAGE, 4 * PAGE, fixed, at + 8 * PAGE).unwrap();
                        process.mremap(at + 8 * PAGE, 4 * PAGE, 4 * PAGE, fixed, at).unwrap();
                    });
                });
                // The driver switches between two sets of frames. Frames that are not in use hold a mark.
                for round in 1..=ROUNDS {
                    let (now, old) = (round % 2 * PAGES, (round + 1) % 2 * PAGES);
                    for page in 0..4 {
                        world.machine.write_frame(board.frame(now + page), 0, &page.to_le_bytes());
                    }
                    board.driver_mode().exchanged = now;
                    file.mapping().revoke((0..PAGES).into(), true);
                    for page in 0..4 {
                        world.machine.write_frame(board.frame(old + page), 0, &[0xff; 8]);
                    }
                    std::thread::yield_now();
                }
                over.store(true, SeqCst);
            });
            process.check();
            process.munmap(BASE, 4096 * PAGE).unwrap();
            drop(file);
            board.assert_closed();
        });
    }
}
