//! Sizes that are counted wrongly (C-11).
//!
//! Pages of locked memory were counted in 32 bits; what split off was counted after it had gone; rights
//! changed, and the pages stayed in the wrong sum. `check` recounts everything after each step here, with
//! more than 2^31 pages in each.

use super::*;
use freehold::{
    call::{LockFlags, RemapFlags},
    error::MmapError,
    space::Limits,
};

/// 2^33 pages.
const HUGE: u64 = 1 << 33;
const AT: u64 = 1 << 44;
const LAZY: MapFlags = ANON.union(MapFlags::NORESERVE).union(MapFlags::FIXED);

fn limited(process: &Process, change: impl FnOnce(&mut Limits)) {
    let mut limits = Limits { may_lock: true, ..process.limits().get() };
    change(&mut limits);
    process.limits().set(&limits);
}

/// (total, locked, data, exec)
fn sizes(process: &Process) -> (u64, u64, u64, u64) {
    process.check();
    let counts = process.counts();
    (counts.total_vm, counts.locked_vm, counts.data_vm, counts.exec_vm)
}

#[test]
fn more_pages_than_32_bits_count() {
    everywhere(|_, process, cpu| {
        limited(process, |_| ());
        process.mmap(AT, HUGE * PAGE, RW, LAZY, None, 0).unwrap();
        assert_eq!(sizes(process), (HUGE, 0, HUGE, 0));
        process.mlock2(AT, HUGE * PAGE, LockFlags::ONFAULT).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE, HUGE, 0));
        // Cut in the middle, and cut again by what changes there.
        process.munlock(AT + HUGE / 2 * PAGE, PAGE).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE - 1, HUGE, 0));
        process.mprotect(AT + HUGE / 4 * PAGE, HUGE / 2 * PAGE, Prot::READ | Prot::EXEC).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE - 1, HUGE / 2, HUGE / 2));
        process.store(cpu, AT, 1u64).unwrap();
        // A fork counts all of it again, unlocked.
        let child = Process::of(process.fork().unwrap());
        assert_eq!(sizes(&child), (HUGE, 0, HUGE / 2, HUGE / 2));
        drop(child);
        process.munmap(AT + PAGE, (HUGE / 2 - 2) * PAGE).unwrap();
        let left = HUGE / 2 + 2;
        assert_eq!(sizes(process), (left, left - 1, HUGE / 4 + 1, HUGE / 4 + 1));
        process.mmap(AT + HUGE / 2 * PAGE, HUGE / 2 * PAGE, R, LAZY, None, 0).unwrap();
        assert_eq!(sizes(process), (left, 2, 1, 1));
        process.munmap(AT, HUGE * PAGE).unwrap();
        assert_eq!(sizes(process), (0, 0, 0, 0));
        assert_eq!(process.rss().total(), 0);
    });
}

#[test]
fn moves_of_more_pages_than_32_bits_count() {
    everywhere(|_, process, cpu| {
        limited(process, |_| ());
        process.mmap(AT, HUGE * PAGE, RW, LAZY, None, 0).unwrap();
        process.mlock2(AT, HUGE * PAGE, LockFlags::ONFAULT).unwrap();
        process.store(cpu, AT + (HUGE - 1) * PAGE, 7u64).unwrap();
        let to = AT + HUGE * PAGE;
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(process.mremap(AT, HUGE * PAGE, HUGE * PAGE, flags, to), Ok(to));
        assert_eq!(process.load::<u64>(cpu, to + (HUGE - 1) * PAGE), Ok(7));
        assert_eq!(sizes(process), (HUGE, HUGE, HUGE, 0));
        assert_eq!(process.mremap(to, HUGE * PAGE, PAGE, RemapFlags::empty(), 0), Ok(to));
        assert_eq!(sizes(process), (1, 1, 1, 0));
        assert_eq!(process.mremap(to, PAGE, HUGE * PAGE, RemapFlags::empty(), 0), Ok(to));
        assert_eq!(sizes(process), (HUGE, HUGE, HUGE, 0));
        assert_eq!(process.mremap(to, HUGE * PAGE, HUGE * PAGE, flags | RemapFlags::DONTUNMAP, AT), Ok(AT));
        assert_eq!(sizes(process), (2 * HUGE, HUGE, 2 * HUGE, 0));
    });
}

#[test]
fn limits_beyond_32_bits_hold_to_the_page() {
    everywhere(|_, process, _| {
        limited(process, |limits| limits.address_space = (HUGE + 1) * PAGE);
        let map = |at, pages| process.mmap(at, pages * PAGE, RW, LAZY, None, 0);
        assert_eq!(map(AT, HUGE + 2), Err(MmapError::Limit));
        map(AT, HUGE).unwrap();
        map(AT + (HUGE + 1) * PAGE, 1).unwrap();
        assert_eq!(map(AT + (HUGE + 3) * PAGE, 1), Err(MmapError::Limit));
        // What is replaced makes room.
        map(AT, HUGE).unwrap();
        limited(process, |limits| {
            (limits.may_lock, limits.memlock, limits.address_space) = (false, HUGE * PAGE, u64::MAX);
        });
        process.mlock2(AT, HUGE * PAGE, LockFlags::ONFAULT).unwrap();
        assert!(process.mlock2(AT + (HUGE + 1) * PAGE, PAGE, LockFlags::ONFAULT).is_err());
        assert_eq!(sizes(process), (HUGE + 1, HUGE, HUGE + 1, 0));
    });
}
