//! Callers that may release the mmap lock during a munmap. The section Callers of `docs/guide/munmap.md` has
//! a table of the states of the lock. The constants `ATOMIC`, `FREE`, `SECTIONS` and `SPECIAL` are rows of
//! this table; the row of shmdt is in its test. A change of a row needs a change of its test, and a change of
//! a test needs a change of its row. A new caller needs a test that calls `row`.
//!
//! Each test checks the state of the mmap lock during the first flush of the removal. One CPU is held in a
//! walk of the page tables. The flush waits for the end of this walk, and the thread of that CPU tries the
//! lock before it ends the walk. The tests also count the write acquisitions of the whole call. The rows
//! describe one change at a time. The tests at the end check range writers, and the number of flushes.

use crate::support::*;
use freehold::{
    call::{RemapFlags, ShmFlags},
    file::{Frames, Segment, Special},
    platform::{FramePurpose, FrameRequest},
    space::{Unmap, Write},
    vma::flags::VmFlags,
};
use freehold_machine::Task;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// How other tasks hold the mmap lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Writing,
    /// Downgraded: the lock is held by the caller only, for reading.
    Reading,
    Not,
}
use Held::{Not, Reading, Writing};

/// How the lock is held during the first flush, and the total number of write acquisitions.
type Seen = (Held, u64);

/// Exclusive, sectioned, downgraded, released.
const DESIGNS: [Unmap; 4] =
    [Unmap::Exclusive, Unmap::Sectioned { bytes: SECTION }, Unmap::Downgraded, Unmap::Released];
/// Expectation for an atomic caller.
const ATOMIC: [Seen; 4] = [(Writing, 1); 4];
/// Expectation for a caller that may release the lock, and whose removal lies in one section or must not be
/// sectioned.
const FREE: [Seen; 4] = [(Writing, 1), (Writing, 1), (Reading, 1), (Not, 2)];
/// Expectation for a caller that may release the lock and whose removal may be sectioned.
const SECTIONS: [Seen; 4] = [(Writing, 1), (Writing, 4), (Reading, 1), (Not, 2)];
/// Expectation for mappings that step 1 (`Downgraded`) zaps under the write lock, in one section, and for
/// exec.
const SPECIAL: [Seen; 4] = [(Writing, 1), (Writing, 1), (Writing, 1), (Not, 2)];

/// Bytes of a section.
const SECTION: u64 = 2 << 20;
/// Bytes that are removed: four sections.
const LEN: u64 = 4 * SECTION;
const AT: u64 = BASE + (1 << 30);

/// Returns how tasks other than the caller hold the lock. The calling thread must have a fatal signal
/// pending.
fn held(process: &Process) -> Held {
    if process.try_read().is_none() {
        return Writing;
    }
    // If this thread would have to wait, the pending signal ends the wait.
    match process.space().write_killable() {
        Ok(_) => Not,
        Err(_) => Reading,
    }
}

/// Runs `call` on the process, and returns how the lock was held.
fn watched(process: &Process, machine: &Machine, call: impl FnOnce()) -> Seen {
    let holds = || process.lock_stats().unwrap().write.held.count();
    let (begin, over) = (Barrier::new(2), AtomicBool::new(false));
    let before = holds();
    let seen = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            Task::current().kill();
            let mut cpu = machine.cpu(1);
            cpu.run(process.mmu());
            let watch = || {
                let before = machine.flushes();
                begin.wait();
                while machine.flushes() == before {
                    assert!(!over.load(SeqCst), "the call ended without a flush");
                    thread::yield_now();
                }
                held(process)
            };
            cpu.call(|| machine.walk_tables(process.mmu(), || freehold_machine::unchecked(watch))).unwrap()
        });
        begin.wait();
        let called = catch_unwind(AssertUnwindSafe(call));
        over.store(true, SeqCst);
        called.unwrap();
        watcher.join().unwrap()
    });
    // If the lock was free, the watcher has acquired it once.
    let own = u64::from(seen == Not);
    (seen, holds() - before - own)
}

/// Runs `test` on a process that `set_up` has prepared.
fn with_process<R>(
    locking: Locking,
    set_up: impl Fn(&World, &Process, &mut Vcpu),
    test: impl FnOnce(&World, &Process) -> R,
) -> R {
    let world = World::new();
    let config = SpaceConfig::new().locking(locking).lock_stats(true);
    let process = Process::new(world.engine(), &config).unwrap();
    let mut cpu = world.machine.cpu(0);
    set_up(&world, &process, &mut cpu);
    let found = test(&world, &process);
    process.check();
    drop((process, cpu));
    world.end();
    found
}

/// Checks one row on every design: `set_up` prepares the process, and `call` is observed.
fn row(
    name: &str,
    expected: [Seen; 4],
    set_up: impl Fn(&World, &Process, &mut Vcpu),
    call: impl Fn(&World, &Process) + Sync,
) {
    for (unmap, expected) in DESIGNS.into_iter().zip(expected) {
        let locking = Locking::default().unmap(unmap).write(Write::Whole);
        let seen = with_process(locking, &set_up, |world, process| {
            watched(process, &world.machine, || call(world, process))
        });
        assert_eq!(seen, expected, "{name}, {unmap:?}");
    }
}

/// Maps memory with a page in each section.
fn mapped(process: &Process, cpu: &mut Vcpu, at: u64) {
    anon(process, at, LEN / PAGE);
    for page in (at..at + LEN).step_by(SECTION as usize) {
        process.store(cpu, page, 1u64).unwrap();
    }
}

fn set_up(_: &World, process: &Process, cpu: &mut Vcpu) {
    mapped(process, cpu, AT);
}

#[test]
fn munmap_may_release_the_lock() {
    row("munmap", SECTIONS, set_up, |_, process| process.munmap(AT, LEN).unwrap());
}

#[test]
fn munmap_atomic_holds_the_lock() {
    row("munmap_atomic", ATOMIC, set_up, |_, process| process.munmap_atomic(AT, LEN).unwrap());
}

#[test]
fn mmap_over_old_mappings_holds_the_lock() {
    row("mmap FIXED", ATOMIC, set_up, |_, process| {
        anon(process, AT, LEN / PAGE);
    });
}

#[test]
fn shrinking_mremap_may_release_the_lock() {
    row("mremap, shrinking", SECTIONS, set_up, |_, process| {
        assert_eq!(process.mremap(AT, LEN, PAGE, RemapFlags::empty(), 0), Ok(AT));
    });
}

#[test]
fn mremap_over_old_mappings_holds_the_lock() {
    const FROM: u64 = AT + (1 << 30);
    let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
        set_up(world, process, cpu);
        anon(process, FROM, 4);
    };
    row("mremap, the target", ATOMIC, set_up, |_, process| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(process.mremap(FROM, 4 * PAGE, 4 * PAGE, flags, AT), Ok(AT));
    });
}

#[test]
fn mremap_removal_of_the_source_holds_the_lock() {
    row("mremap, the source", ATOMIC, set_up, |_, process| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let target = AT + (1 << 30);
        assert_eq!(process.mremap(AT, LEN, LEN, flags, target), Ok(target));
    });
}

#[test]
fn mremap_removal_of_excess_source_holds_the_lock() {
    row("mremap, the source's excess", ATOMIC, set_up, |_, process| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let target = AT + (1 << 30);
        assert_eq!(process.mremap(AT, LEN, PAGE, flags, target), Ok(target));
    });
}

#[test]
fn shrinking_brk_may_release_the_lock() {
    let set_up = |_: &World, process: &Process, cpu: &mut Vcpu| {
        process.set_heap(AT..AT).unwrap();
        assert_eq!(process.brk(AT + LEN), Ok(AT + LEN));
        process.store(cpu, AT + SECTION, 1u64).unwrap();
    };
    row("brk", FREE, set_up, |_, process| assert_eq!(process.brk(AT), Ok(AT)));
}

#[test]
fn shmdt_may_be_sectioned_but_not_released() {
    let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
        let segment = Segment::new(world.engine(), 1, LEN).unwrap();
        process.shmat(&segment, AT, ShmFlags::empty()).unwrap();
        segment.remove();
        process.store(cpu, AT + SECTION, 1u64).unwrap();
    };
    let expected = [(Writing, 1), (Writing, 4), (Writing, 1), (Writing, 1)];
    row("shmdt", expected, set_up, |_, process| process.shmdt(AT).unwrap());
}

/// Checks a row for a special mapping of foreign frames with these flags.
fn special_row(name: &str, expected: [Seen; 4], flags: VmFlags) {
    let frame = Mutex::new([Pfn::new(0)]);
    let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
        let mut frame = frame.lock().unwrap();
        assert_eq!(world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut *frame), 1);
        let frames = Frames::new("[frames]", &foreign_each(&*frame)).unwrap();
        let special = Special::new(world.engine(), frames).unwrap();
        let flags = flags | VmFlags::READ | VmFlags::MAYREAD;
        assert_eq!(process.install_special(AT, PAGE, flags, &special), Ok(AT));
        process.load::<u64>(cpu, AT).unwrap();
    };
    row(name, expected, set_up, |world, process| {
        process.munmap(AT, PAGE).unwrap();
        // SAFETY: the frames were allocated above, and no mapping of them is left.
        unsafe { world.machine.free_frames(&*frame.lock().unwrap()) };
    });
}

/// The vdso cannot be split, so it is removed in one section. In other respects the vdso is like any other
/// mapping.
#[test]
fn munmap_of_the_vdso_may_release_the_lock() {
    special_row("vdso", FREE, VmFlags::empty());
}

/// munmap of the memory of a crash dump, as /proc/vmcore maps it.
#[test]
fn munmap_of_foreign_frames_falls_back_in_step_1() {
    special_row("PFNMAP", SPECIAL, VmFlags::PFNMAP);
}

/// Step 1 (`Downgraded`) keeps the write lock for text with a breakpoint, but not for text next to a
/// breakpoint.
#[test]
fn munmap_of_probed_text_falls_back_in_step_1() {
    let text = |world: &World, process: &Process, cpu: &mut Vcpu, probe: u64| {
        let file = world.file(8);
        file.mapping().add_probe(probe, &[0xcc]).unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        process.mmap(AT, 4 * PAGE, Prot::READ | Prot::EXEC, flags, Some(&file), 0).unwrap();
        process.load::<u64>(cpu, AT).unwrap();
    };
    for (probe, expected) in [(3 * PAGE, SPECIAL), (4 * PAGE, FREE)] {
        let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| text(world, process, cpu, probe);
        row("probed text", expected, set_up, |_, process| process.munmap(AT, 4 * PAGE).unwrap());
    }
}

#[test]
fn stack_move_of_exec_holds_the_lock() {
    let set_up = |_: &World, process: &Process, cpu: &mut Vcpu| {
        let flags = ANON | MapFlags::GROWSDOWN | MapFlags::FIXED;
        process.mmap(AT, 8 * PAGE, RW, flags, None, 0).unwrap();
        process.store(cpu, AT + 2 * PAGE, 1u64).unwrap();
    };
    row("exec's stack", ATOMIC, set_up, |_, process| process.move_stack(AT, 3 * PAGE).unwrap());
}

#[test]
fn exec_zaps_without_the_lock() {
    row("exec", SPECIAL, set_up, |_, process| process.clear());
}

/// Range writers: during the removal, holders of the mmap lock see the same state as without range writers.
/// The watcher closes the gate, and range writers then take the lock to open it again. Acquisitions are
/// therefore not counted here.
#[test]
fn range_writers_leave_the_lock_state_unchanged() {
    for (unmap, expected) in DESIGNS.into_iter().zip([Writing, Writing, Reading, Not]) {
        let locking = Locking::default().unmap(unmap).write(Write::RangesOnly);
        let (seen, _) = with_process(locking, set_up, |world, process| {
            watched(process, &world.machine, || process.munmap(AT, LEN).unwrap())
        });
        assert_eq!(seen, expected, "{unmap:?}");
    }
}

/// Once the gate is open, a munmap by a range writer takes the mmap lock only in the designs that take the
/// lock for every munmap. The test counts the acquisitions.
#[test]
fn range_writer_munmap_takes_no_mmap_lock() {
    for (unmap, expected) in DESIGNS.into_iter().zip([0, 4, 1, 0]) {
        let locking = Locking::default().unmap(unmap).write(Write::RangesOnly);
        let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
            set_up(world, process, cpu);
            // The first change opens the gate for range writers.
            anon(process, AT + (1 << 30), 1);
        };
        let held = with_process(locking, set_up, |_, process| {
            let holds = || process.lock_stats().unwrap().write.held.count();
            let before = holds();
            process.munmap(AT, LEN).unwrap();
            holds() - before
        });
        assert_eq!(held, expected, "{unmap:?}");
    }
}

/// One gather has room for as many pages as one table has. This number of pages is flushed once, even if the
/// pages lie in two tables.
#[test]
fn removal_across_two_tables_flushes_once() {
    let whole = |locking: &Locking| !matches!(locking.unmap, Unmap::Sectioned { .. });
    for locking in Locking::ALL.into_iter().filter(whole) {
        World::with(32 << 20, Config::default()).live(locking, |world, process, cpu| {
            process.mmap(BASE, 1024 * PAGE, RW, ANON | MapFlags::POPULATE, None, 0).unwrap();
            let before = world.machine.flushes();
            cpu.call(|| process.munmap(BASE + 256 * PAGE, 512 * PAGE)).unwrap();
            assert_eq!(world.machine.flushes() - before, 1, "{locking:?}");
        });
    }
}

/// A flush that interrupts other CPUs covers up to 32 MiB. A flush that interrupts no other CPU covers up to
/// 2 MiB.
#[test]
fn remote_flushes_cover_more_pages_than_local_ones() {
    const PAGES: u64 = 5 * 512;
    let whole = |locking: &Locking| !matches!(locking.unmap, Unmap::Sectioned { .. });
    for locking in Locking::ALL.into_iter().filter(whole) {
        World::with(32 << 20, Config::default()).live(locking, |world, process, cpu| {
            let flushes = |cpu: &mut Vcpu| {
                process.mmap(BASE, PAGES * PAGE, RW, ANON | MapFlags::POPULATE, None, 0).unwrap();
                let before = world.machine.flushes();
                cpu.call(|| process.munmap(BASE, PAGES * PAGE)).unwrap();
                world.machine.flushes() - before
            };
            // One flush for each 2 MiB, and possibly one more before the range is released.
            let alone = flushes(cpu);
            assert!((5..=6).contains(&alone), "{locking:?}: {alone}");
            let mut other = world.machine.cpu(1);
            other.run(process.mmu());
            let shared = flushes(cpu);
            assert!((1..=2).contains(&shared), "{locking:?}: {shared}");
        });
    }
}
