//! Counts of pages (C-11, `src/space/accounting.rs`).
//!
//! The bugs in Linux: locked pages were counted in 32 bits. A part that was split off was counted after it
//! had been unmapped. A change of rights left the pages in the wrong count. In these tests, `check` recounts
//! everything after each step, with more than 2^31 pages in each count.
//!
//! Each test maps 2^33 pages, for which no memory is reserved. It splits, moves or unmaps the pages, and
//! compares the counts of total, locked, data and executable pages. A new count is one more number of
//! `sizes`.

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

/// Changes the resource limits of the process.
fn limited(process: &Process, change: impl FnOnce(&mut Limits)) {
    let mut limits = process.limits().get().may_lock(true);
    change(&mut limits);
    process.limits().set(&limits);
}

/// Returns the counts of total, locked, data and executable pages.
fn sizes(process: &Process) -> (u64, u64, u64, u64) {
    process.check();
    let counts = process.counts();
    (counts.total_vm, counts.locked_vm, counts.data_vm, counts.exec_vm)
}

#[test]
fn c11_more_than_2_pow_32_pages_are_counted() {
    everywhere(|_, process, cpu| {
        limited(process, |_| ());
        process.mmap(AT, HUGE * PAGE, RW, LAZY, None, 0).unwrap();
        assert_eq!(sizes(process), (HUGE, 0, HUGE, 0));
        process.mlock2(AT, HUGE * PAGE, LockFlags::ONFAULT).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE, HUGE, 0));
        // The mapping is split in the middle, and split again by a change of rights around the middle.
        process.munlock(AT + HUGE / 2 * PAGE, PAGE).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE - 1, HUGE, 0));
        process.mprotect(AT + HUGE / 4 * PAGE, HUGE / 2 * PAGE, Prot::READ | Prot::EXEC).unwrap();
        assert_eq!(sizes(process), (HUGE, HUGE - 1, HUGE / 2, HUGE / 2));
        process.store(cpu, AT, 1u64).unwrap();
        // A child has the same counts, except that no page is locked.
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
fn c11_moves_of_more_than_2_pow_32_pages_are_counted() {
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
fn c11_limits_beyond_32_bits_are_exact() {
    everywhere(|_, process, _| {
        limited(process, |limits| limits.address_space = (HUGE + 1) * PAGE);
        let map = |at, pages| process.mmap(at, pages * PAGE, RW, LAZY, None, 0);
        assert_eq!(map(AT, HUGE + 2), Err(MmapError::Limit));
        map(AT, HUGE).unwrap();
        map(AT + (HUGE + 1) * PAGE, 1).unwrap();
        assert_eq!(map(AT + (HUGE + 3) * PAGE, 1), Err(MmapError::Limit));
        // A replaced mapping does not count against the limit.
        map(AT, HUGE).unwrap();
        limited(process, |limits| {
            (limits.may_lock, limits.memlock, limits.address_space) = (false, HUGE * PAGE, u64::MAX);
        });
        process.mlock2(AT, HUGE * PAGE, LockFlags::ONFAULT).unwrap();
        assert!(process.mlock2(AT + (HUGE + 1) * PAGE, PAGE, LockFlags::ONFAULT).is_err());
        assert_eq!(sizes(process), (HUGE + 1, HUGE, HUGE + 1, 0));
    });
}
