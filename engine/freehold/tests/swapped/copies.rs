//! Private copies of pages of files that are swapped out and come back.

use super::Swapped;
use crate::support::*;
use freehold::{
    call::Advice,
    fault::{Access, FaultError},
    file::File,
};

const PAGES: u64 = 4;

/// The bytes of a breakpoint.
const TRAP: [u8; 1] = [0xcc];

/// Runs a scenario on every design, with a file on a [`Disk`] that a process maps privately at [`BASE`], and of
/// which it has copies: page `n` has the word `n + 1`.
fn with_copies(scenario: impl Fn(&Swapped, &Process, &Counted<File<Machine>>, &mut Vcpu)) {
    for locking in Locking::ALL {
        let swapped = Swapped::new(64);
        let (process, file) = (swapped.process(locking), swapped.world.file(PAGES));
        let mut cpu = swapped.world.machine.cpu(0);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        process.mmap(BASE, PAGES * PAGE, RW, flags, Some(&file), 0).unwrap();
        fill(&process, &mut cpu, BASE, PAGES, 1);
        scenario(&swapped, &process, &file, &mut cpu);
        process.check();
        drop((process, file, cpu));
        swapped.end();
    }
}

/// Swaps all copies out.
fn swap_out(swapped: &Swapped, process: &Process) {
    while swapped.reclaim().freed > 0 {}
    assert_eq!((process.rss().anon, process.rss().swap), (0, PAGES as i64));
    process.check();
}

#[test]
fn copies_come_back_with_their_contents() {
    with_copies(|swapped, process, file, cpu| {
        for round in 2..10 {
            swap_out(swapped, process);
            assert_filled(process, cpu, BASE, PAGES, round - 1);
            fill(process, cpu, BASE, PAGES, round);
        }
        let mut bytes = [0; 8];
        file.mapping().read_at(0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), Disk::number(0), "the file has not changed");
    });
}

#[test]
fn copy_full_of_zeroes_stays_a_copy() {
    with_copies(|swapped, process, file, cpu| {
        process.write_memory(BASE, &[0; PAGE as usize], freehold::remote::AccessMode::Plain).unwrap();
        swap_out(swapped, process);
        assert_eq!(swapped.used(), PAGES, "the page of zeroes would count as a page of the file");
        file.mapping().punch(0..PAGE).unwrap();
        file.mapping().write_at(0, &[7; 8]).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
    });
}

#[test]
fn holes_keep_copies_and_truncation_removes_them() {
    with_copies(|swapped, process, file, cpu| {
        swap_out(swapped, process);
        file.mapping().punch(0..PAGES * PAGE).unwrap();
        assert_eq!(swapped.used(), PAGES);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
        file.mapping().truncate(2 * PAGE).unwrap();
        assert_eq!((swapped.used(), process.rss().swap), (1, 1));
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(2));
        let beyond = BASE + 2 * PAGE;
        assert_eq!(process.load::<u64>(cpu, beyond), Err(FaultError::Bus { addr: beyond }));
    });
}

#[test]
fn fork_shares_the_slots() {
    with_copies(|swapped, process, _, cpu| {
        swap_out(swapped, process);
        let child = Process::of(process.fork().unwrap());
        assert_eq!((child.rss().swap, swapped.used()), (PAGES as i64, PAGES));
        child.store(cpu, BASE, 50u64).unwrap();
        assert_filled(process, cpu, BASE, PAGES, 1);
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(50));
        assert_filled(&child, cpu, BASE + PAGE, PAGES - 1, 2);
        child.check();
    });
}

#[test]
fn advice_swaps_copies_out() {
    with_copies(|swapped, process, _, cpu| {
        let child = Process::of(process.fork().unwrap());
        child.store(cpu, BASE, 50u64).unwrap();
        child.madvise(BASE, PAGES * PAGE, Advice::PageOut).unwrap();
        assert_eq!((child.rss().swap, swapped.used()), (1, 1), "only its own copy");
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(50));
        drop(child);
        process.madvise(BASE, PAGES * PAGE, Advice::PageOut).unwrap();
        assert_eq!(process.rss().swap, PAGES as i64);
        assert_filled(process, cpu, BASE, PAGES, 1);
    });
}

/// Reads the first byte of a page, as a debugger does.
fn byte(process: &Process, page: u64) -> u8 {
    let mut byte = [0];
    process.read_memory(BASE + page * PAGE + 64, &mut byte, freehold::remote::AccessMode::Forced).unwrap();
    byte[0]
}

#[test]
fn copy_with_a_probe_stays() {
    with_copies(|swapped, process, file, _| {
        process.mprotect(BASE, PAGES * PAGE, R | Prot::EXEC).unwrap();
        file.mapping().add_probe(PAGE + 64, &TRAP).unwrap();
        let original = byte(process, 0);
        while swapped.reclaim().freed > 0 {}
        assert_eq!((process.rss().anon, byte(process, 1)), (1, TRAP[0]));
        file.mapping().remove_probe(PAGE + 64).unwrap();
        assert_eq!(byte(process, 1), original);
        swap_out(swapped, process);
        assert_eq!(byte(process, 1), original);
    });
}

#[test]
fn probe_appears_in_a_copy_that_comes_back() {
    with_copies(|swapped, process, file, cpu| {
        process.mprotect(BASE, PAGES * PAGE, R | Prot::EXEC).unwrap();
        let original = byte(process, 1);
        let child = Process::of(process.fork().unwrap());
        swap_out(swapped, process);
        // The probe needs the page of the file, and no copy.
        file.mapping().add_probe(PAGE + 64, &TRAP).unwrap();
        assert_eq!(swapped_of([process, &child]), [4, 4]);
        process.handle_fault(BASE + PAGE, Access::READ).unwrap();
        assert_eq!((byte(process, 1), byte(&child, 1)), (TRAP[0], TRAP[0]));
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(2), "the rest is that of the copy");
        process.check();
        file.mapping().remove_probe(PAGE + 64).unwrap();
        assert_eq!((byte(process, 1), byte(&child, 1)), (original, original));
        child.check();
    });
}

fn swapped_of(processes: [&Process; 2]) -> [i64; 2] {
    processes.map(|process| process.rss().swap)
}

#[test]
fn probe_appears_when_memory_loses_write_permission() {
    with_copies(|swapped, process, file, _| {
        file.mapping().add_probe(PAGE + 64, &TRAP).unwrap();
        while swapped.reclaim().freed > 0 {}
        assert_eq!(process.rss().anon, 1, "a copy with a probe stays also while it is writable");
        process.mprotect(BASE, PAGES * PAGE, R | Prot::EXEC).unwrap();
        assert_eq!((byte(process, 1), byte(process, 0)), (TRAP[0], byte(process, 2)));
        file.mapping().remove_probe(PAGE + 64).unwrap();
    });
}
