//! Which callers may let go of the mmap lock half-way through a munmap: a test for each row of the table of
//! callers in `docs/guide/munmap.md`.
//!
//! The lock is looked at while the removal runs, from the middle of its first flush: one processor is held in
//! a walk of the tables, which a flush waits for, and its thread tries the lock. And the write holds of the
//! whole call are counted. The rows are about one change at a time; what is held with changes side by side is
//! at the end.

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

/// How the mmap lock is held by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Writing,
    /// Downgraded, that is: nobody but the caller is there.
    Reading,
    Not,
}
use Held::{Not, Reading, Writing};

/// How the lock is held during the first flush, and how often it was held for writing in all.
type Seen = (Held, u64);

/// Exclusive, sectioned, downgraded, released.
const DESIGNS: [Unmap; 4] =
    [Unmap::Exclusive, Unmap::Sectioned { bytes: SECTION }, Unmap::Downgraded, Unmap::Released];
/// Of an atomic caller.
const ATOMIC: [Seen; 4] = [(Writing, 1); 4];
/// Of one that may let go, and has a part in one section alone or takes it in one piece.
const FREE: [Seen; 4] = [(Writing, 1), (Writing, 1), (Reading, 1), (Not, 2)];
/// The same, and may be sectioned.
const SECTIONS: [Seen; 4] = [(Writing, 1), (Writing, 4), (Reading, 1), (Not, 2)];
/// Of what step 1 falls back for, in one section.
const SPECIAL: [Seen; 4] = [(Writing, 1), (Writing, 1), (Writing, 1), (Not, 2)];

/// Bytes of a section.
const SECTION: u64 = 2 << 20;
/// What is removed: four sections.
const LEN: u64 = 4 * SECTION;
const AT: u64 = BASE + (1 << 30);

/// How the lock is held, by others than the calling thread, which is about to be killed.
fn held(process: &Process) -> Held {
    if process.try_read().is_none() {
        return Writing;
    }
    // If this thread would have to wait, it is killed instead.
    match process.space().write_killable() {
        Ok(_) => Not,
        Err(_) => Reading,
    }
}

/// Runs `call` on the process, which has something mapped for it.
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
                    assert!(!over.load(SeqCst), "it was over without a flush");
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
    // The watcher's own.
    let own = u64::from(seen == Not);
    (seen, holds() - before - own)
}

/// A process for which something is set up, and a test of it.
fn with_process<R>(
    locking: Locking,
    set_up: impl Fn(&World, &Process, &mut Vcpu),
    test: impl FnOnce(&World, &Process) -> R,
) -> R {
    let world = World::new();
    let config = SpaceConfig { locking, lock_stats: true, ..SpaceConfig::default() };
    let process = Process::new(world.engine(), &config).unwrap();
    let mut cpu = world.machine.cpu(0);
    set_up(&world, &process, &mut cpu);
    let found = test(&world, &process);
    process.check();
    drop((process, cpu));
    world.end();
    found
}

/// One row: what is set up, and the call; under every design.
fn row(
    name: &str,
    expected: [Seen; 4],
    set_up: impl Fn(&World, &Process, &mut Vcpu),
    call: impl Fn(&World, &Process) + Sync,
) {
    for (unmap, expected) in DESIGNS.into_iter().zip(expected) {
        let locking = Locking { unmap, write: Write::Whole, ..Locking::default() };
        let seen = with_process(locking, &set_up, |world, process| {
            watched(process, &world.machine, || call(world, process))
        });
        assert_eq!(seen, expected, "{name}, {unmap:?}");
    }
}

/// Memory with a page in each section.
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
fn munmap() {
    row("munmap", SECTIONS, set_up, |_, process| process.munmap(AT, LEN).unwrap());
}

#[test]
fn munmap_in_one_piece() {
    row("munmap_atomic", ATOMIC, set_up, |_, process| process.munmap_atomic(AT, LEN).unwrap());
}

#[test]
fn mmap_over_old_mappings() {
    row("mmap FIXED", ATOMIC, set_up, |_, process| {
        anon(process, AT, LEN / PAGE);
    });
}

#[test]
fn mremap_shrinking_in_place() {
    row("mremap, shrinking", SECTIONS, set_up, |_, process| {
        assert_eq!(process.mremap(AT, LEN, PAGE, RemapFlags::empty(), 0), Ok(AT));
    });
}

#[test]
fn mremap_over_old_mappings() {
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
fn mremap_leaving_the_source() {
    row("mremap, the source", ATOMIC, set_up, |_, process| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let target = AT + (1 << 30);
        assert_eq!(process.mremap(AT, LEN, LEN, flags, target), Ok(target));
    });
}

#[test]
fn mremap_moving_a_part_and_dropping_the_rest() {
    row("mremap, the source's excess", ATOMIC, set_up, |_, process| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let target = AT + (1 << 30);
        assert_eq!(process.mremap(AT, LEN, PAGE, flags, target), Ok(target));
    });
}

#[test]
fn brk_shrinking() {
    let set_up = |_: &World, process: &Process, cpu: &mut Vcpu| {
        process.set_heap(AT).unwrap();
        assert_eq!(process.brk(AT + LEN), Ok(AT + LEN));
        process.store(cpu, AT + SECTION, 1u64).unwrap();
    };
    row("brk", FREE, set_up, |_, process| assert_eq!(process.brk(AT), Ok(AT)));
}

#[test]
fn shmdt() {
    let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
        let segment = Segment::new(world.engine(), 1, LEN).unwrap();
        process.shmat(&segment, AT, ShmFlags::empty()).unwrap();
        segment.remove();
        process.store(cpu, AT + SECTION, 1u64).unwrap();
    };
    let expected = [(Writing, 1), (Writing, 4), (Writing, 1), (Writing, 1)];
    row("shmdt", expected, set_up, |_, process| process.shmdt(AT).unwrap());
}

/// A row for frames of somebody else, mapped with these flags.
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
        // SAFETY: allocated above, and mapped nowhere any more.
        unsafe { world.machine.free_frames(&*frame.lock().unwrap()) };
    });
}

/// Unsplittable, so it lies in one section; else like any other mapping.
#[test]
fn the_vdso() {
    special_row("vdso", FREE, VmFlags::empty());
}

/// A crash dump's memory.
#[test]
fn frames_of_somebody_else() {
    special_row("PFNMAP", SPECIAL, VmFlags::PFNMAP);
}

/// Text in which somebody has put a breakpoint; beside it, where none is, step 1 does not fall back.
#[test]
fn probed_text() {
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
fn execs_stack_move() {
    let set_up = |_: &World, process: &Process, cpu: &mut Vcpu| {
        let flags = ANON | MapFlags::GROWSDOWN | MapFlags::FIXED;
        process.mmap(AT, 8 * PAGE, RW, flags, None, 0).unwrap();
        process.store(cpu, AT + 2 * PAGE, 1u64).unwrap();
    };
    row("exec's stack", ATOMIC, set_up, |_, process| process.move_stack(AT, 3 * PAGE).unwrap());
}

#[test]
fn exec_and_exit() {
    row("exec", ATOMIC, set_up, |_, process| process.clear());
}

/// With changes side by side: for holders of the mmap lock all is as ever while pages go. The watcher closes
/// the gate for others, who then take the lock to open it; so holds are not counted here.
#[test]
fn side_by_side() {
    for (unmap, expected) in DESIGNS.into_iter().zip([Writing, Writing, Reading, Not]) {
        let locking = Locking { unmap, write: Write::RangesOnly, ..Locking::default() };
        let (seen, _) = with_process(locking, set_up, |world, process| {
            watched(process, &world.machine, || process.munmap(AT, LEN).unwrap())
        });
        assert_eq!(seen, expected, "{unmap:?}");
    }
}

/// How often changes side by side hold the mmap lock themselves, once the gate is open: not at all, but where
/// the design takes it for the whole.
#[test]
fn holds_side_by_side() {
    for (unmap, expected) in DESIGNS.into_iter().zip([0, 4, 1, 0]) {
        let locking = Locking { unmap, write: Write::RangesOnly, ..Locking::default() };
        let set_up = |world: &World, process: &Process, cpu: &mut Vcpu| {
            set_up(world, process, cpu);
            // Opens the gate.
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

/// What one table has room for is flushed once, wherever it lies.
#[test]
fn two_tables_share_a_flush() {
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

/// A flush that interrupts other processors does for up to 32 MiB; of one's own, for 2 MiB.
#[test]
fn beside_other_processors_flushes_are_few() {
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
            // One more goes before the release of the range.
            let alone = flushes(cpu);
            assert!((5..=6).contains(&alone), "{locking:?}: {alone}");
            let mut other = world.machine.cpu(1);
            other.run(process.mmu());
            let beside = flushes(cpu);
            assert!((1..=2).contains(&beside), "{locking:?}: {beside}");
        });
    }
}
