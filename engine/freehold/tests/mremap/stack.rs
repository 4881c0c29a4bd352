//! exec's stack move (`src/call/stack_move.rs`). The stack moves downwards, and the new range may overlap the
//! old one. A call that fails has no effect. Every second page of a stack contains its number (`fill_half`),
//! so that a page at a wrong address is detected (`assert_half`). `support/failure.rs` injects the failures
//! of the last test. A new condition for a move belongs in `only_a_whole_stack_moves_to_free_addresses`.

use super::*;
use freehold::{call::Advice, error::StackMoveError, space::Limits};
use support::{
    failure::{Failure, at_every_allocation},
    scarce::ScarceWorld,
};

const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN);
/// Start of the stack, a few pages below the end of the span of a page table. The stack extends beyond that
/// end.
const START: u64 = BASE + (4 << 20) - 3 * PAGE;

/// Maps a stack.
fn stack(process: &Process, start: u64, pages: u64) {
    process.mmap(start, pages * PAGE, RW, STACK | MapFlags::FIXED, None, 0).unwrap();
}

/// Stores to every second page.
fn fill_half(process: &Process, cpu: &mut Vcpu, start: u64, pages: u64) {
    for n in (0..pages).step_by(2) {
        process.store(cpu, start + n * PAGE, 100 + n).unwrap();
    }
}

/// Checks that every second page has its number and that the other pages are zero.
#[track_caller]
fn assert_half(process: &Process, cpu: &mut Vcpu, start: u64, pages: u64) {
    for n in 0..pages {
        let expected = if n % 2 == 0 { 100 + n } else { 0 };
        assert_eq!(process.load(cpu, start + n * PAGE), Ok(expected), "page {n}");
    }
}

/// Moves stacks by less than their length, by their length and by more: within a page table, into another
/// table, and by whole tables.
#[test]
fn stack_moves_with_its_pages() {
    const TABLE: u64 = 512;
    for pages in [1, 7, TABLE + 5] {
        for shift in [1, 2, 6, 7, 8, TABLE - 1, TABLE, TABLE + 1, 2 * TABLE, 900] {
            World::new().live(Locking::default(), |world, process, cpu| {
                stack(process, START, pages);
                fill_half(process, cpu, START, pages);
                let before = (process.counts(), process.rss());
                let frame = process.frame_at(START);
                process.move_stack(START, shift * PAGE).unwrap();
                let start = START - shift * PAGE;
                assert_eq!((process.counts(), process.rss()), before);
                assert_eq!(process.frame_at(start), frame);
                let lines: Vec<_> = process.maps(0).map(|line| (line.start, line.end)).collect();
                assert_eq!(lines, [(start, start + pages * PAGE)]);
                process.check();
                assert!(process.load::<u64>(cpu, start + pages * PAGE).is_err());
                assert_half(process, cpu, start, pages);
                // The reverse map finds the pages at their new addresses.
                let moved = world.engine().migrate(frame.unwrap()).unwrap();
                assert_eq!(process.frame_at(start), Some(moved));
                assert_half(process, cpu, start, pages);
                // The stack grows from its new start.
                process.store(cpu, start - PAGE, 1u64).unwrap();
                process.munmap(start - PAGE, (pages + 1) * PAGE).unwrap();
                assert_eq!(world.machine.accounting().tables, 1);
            });
        }
    }
}

#[test]
fn only_a_whole_stack_moves_to_free_addresses() {
    everywhere(|_, process, cpu| {
        stack(process, START, 4);
        anon(process, BASE, 1);
        fill_half(process, cpu, START, 4);
        for (start, shift) in [
            (START + PAGE, PAGE),
            (START - PAGE, PAGE),
            (BASE, PAGE),
            (START, 5),
            (START, START),
            (START, !(PAGE - 1)),
        ] {
            assert_eq!(
                process.move_stack(start, shift),
                Err(StackMoveError::Invalid),
                "{start:#x} {shift:#x}"
            );
        }
        assert_eq!(process.move_stack(START, START - BASE), Err(StackMoveError::Occupied));
        assert_eq!(process.move_stack(START, START - BASE + PAGE), Err(StackMoveError::Occupied));
        assert_eq!(process.move_stack(START, 0), Ok(()));
        process.mprotect(START, PAGE, R).unwrap();
        assert_half(process, cpu, START, 4);
        process.move_stack(START, START - PAGE - BASE).unwrap();
        assert_eq!(process.load(cpu, BASE + PAGE), Ok(100u64));
    });
}

/// Guards, pinned pages and pages shared with a child move, too.
#[test]
fn stack_move_keeps_guards_pins_and_shared_pages() {
    everywhere(|_, process, cpu| {
        stack(process, START, 6);
        fill_half(process, cpu, START, 6);
        let child = Process::of(process.fork().unwrap());
        process.madvise(START + PAGE, PAGE, Advice::GuardInstall).unwrap();
        let pins = process.pin_user_pages(START + 4 * PAGE, 1, freehold::remote::PinFlags::WRITE).unwrap();
        process.move_stack(START, 2 * PAGE).unwrap();
        let start = START - 2 * PAGE;
        assert!(process.load::<u64>(cpu, start + PAGE).is_err(), "the guard stayed behind");
        assert_eq!(process.frame_at(start + 4 * PAGE), Some(pins.frames()[0]));
        process.store(cpu, start, 7u64).unwrap();
        assert_half(&child, cpu, START, 6);
        child.check();
    });
}

/// If an allocation fails at any point, nothing has moved.
#[test]
fn failed_stack_move_changes_nothing() {
    let mut points = 0;
    for spare in 0..2 {
        points += at_every_allocation(&Failure::ALL, |point| {
            let mut scarce = ScarceWorld::new(World::new());
            let world = &scarce.world;
            let limits = Limits::default();
            let config = SpaceConfig::new().limits(limits);
            let process = Process::new(world.engine(), &config).unwrap();
            let mut cpu = world.machine.cpu(0);
            stack(&process, START, 7);
            fill_half(&process, &mut cpu, START, 7);
            scarce.use_up(spare);
            let moved = point.fail(|| process.move_stack(START, 1 << 30));
            process.check();
            match moved {
                Ok(()) => assert_half(&process, &mut cpu, START - (1 << 30), 7),
                Err(error) => {
                    assert!(point.reached());
                    assert_eq!(error, StackMoveError::OutOfMemory);
                    assert_half(&process, &mut cpu, START, 7);
                }
            }
            drop((process, cpu));
            scarce.end();
        });
    }
    assert!(points > 2, "{points}");
}
