//! Lengths at the edges of arithmetic: zero, the end of user space, the end of 64 bits, and beyond. `ROWS`
//! has one row for each call, with the expected answer to each of `LENGTHS`. The answers are those of Linux
//! 6.18 for three pages followed by a hole; a new row needs the answers of that kernel.

use crate::support::*;
use freehold::error::Errno;
use freehold::remote::IoVec;
use freehold::{
    call::{Advice, LockFlags, RemapFlags, SyncFlags},
    space::Limits,
};

/// Address of the first of the three pages.
const AT: u64 = 1 << 36;

/// A call with a length, and the answer of Linux to each of [`LENGTHS`] as an errno number or 0.
struct Row {
    name: &'static str,
    call: fn(&Process, u64) -> Result<(), Errno>,
    answers: [i32; LENGTHS.len()],
}

const LENGTHS: [u64; 14] = [
    0,
    1,
    TASK_SIZE - AT,
    TASK_SIZE - AT + 1,
    TASK_SIZE - AT + PAGE,
    1 << 63,
    AT.wrapping_neg(),
    AT.wrapping_neg() - 1,
    AT.wrapping_neg() - PAGE,
    AT.wrapping_neg() + PAGE,
    u64::MAX,
    u64::MAX - PAGE + 1,
    u64::MAX - PAGE + 2,
    u64::MAX - PAGE,
];

const ROWS: &[Row] = &[
    Row {
        name: "mbind to the default",
        call: |process, len| process.set_policy(AT, len, 0).map_err(|error| error.errno()),
        answers: [0, 0, 0, 0, 0, 0, 22, 22, 0, 22, 0, 22, 0, 22],
    },
    Row {
        name: "mbind",
        call: |process, len| process.set_policy(AT, len, 7).map_err(|error| error.errno()),
        answers: [0, 0, 14, 14, 14, 14, 22, 22, 14, 22, 0, 22, 0, 22],
    },
    Row {
        name: "msync",
        call: |process, len| process.msync(AT, len, SyncFlags::SYNC).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 12, 12, 12, 12, 0, 12, 0, 12],
    },
    Row {
        name: "mlock",
        call: |process, len| process.mlock2(AT, len, LockFlags::empty()).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 22, 22, 12, 22, 0, 22, 0, 22],
    },
    Row {
        name: "munlock",
        call: |process, len| process.munlock(AT, len).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 22, 22, 12, 22, 0, 22, 0, 22],
    },
    Row {
        name: "mseal",
        call: |process, len| process.mseal(AT, len, 0).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 22, 22, 12, 22, 22, 22, 22, 22],
    },
    Row {
        name: "mprotect",
        call: |process, len| process.mprotect(AT, len, R).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12],
    },
    Row {
        name: "madvise, a flag",
        call: |process, len| process.madvise(AT, len, Advice::Normal).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 22, 22, 12, 22, 22, 22, 22, 22],
    },
    Row {
        name: "madvise, pages",
        call: |process, len| process.madvise(AT, len, Advice::PopulateRead).map_err(|error| error.errno()),
        answers: [0, 0, 12, 12, 12, 12, 22, 22, 12, 22, 22, 22, 22, 22],
    },
    Row {
        name: "remap_file_pages",
        call: |process, len| {
            let remapped = process.remap_file_pages(AT, len, Prot::empty(), 0, MapFlags::empty());
            remapped.map_err(|error| error.errno())
        },
        answers: [22; LENGTHS.len()],
    },
    Row {
        name: "process_madvise of one range",
        call: |process, len| cold(process, &[IoVec { base: AT, len }]),
        answers: [0, 0, 12, 12, 12, 22, 22, 22, 22, 22, 22, 22, 22, 22],
    },
    Row {
        name: "process_madvise of two ranges",
        call: |process, len| cold(process, &[IoVec { base: AT, len: PAGE }, IoVec { base: AT, len }]),
        answers: [0, 0, 0, 14, 14, 22, 22, 22, 22, 22, 22, 22, 22, 22],
    },
    Row {
        name: "mremap to a length",
        call: |process, len| {
            process.mremap(AT, PAGE, len, RemapFlags::MAYMOVE, 0).map(|_| ()).map_err(|error| error.errno())
        },
        answers: [22, 0, 12, 12, 12, 22, 22, 22, 22, 22, 22, 22, 22, 22],
    },
];

/// Calls process_madvise with MADV_COLD.
fn cold(process: &Process, ranges: &[IoVec]) -> Result<(), Errno> {
    process.process_madvise(ranges, Advice::Cold, true).map(|_| ()).map_err(|error| error.errno())
}

#[test]
fn overflowing_lengths_get_the_answers_of_linux() {
    let world = World::new();
    for row in ROWS {
        for (len, answer) in LENGTHS.into_iter().zip(row.answers) {
            let process = world.process(Locking::default());
            process.limits().set(&Limits::new().may_lock(true));
            process.mmap(AT, 3 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            let wanted = if answer == 0 { Ok(()) } else { Err(Errno(answer)) };
            assert_eq!((row.call)(&process, len), wanted, "{} of {len:#x} bytes", row.name);
        }
    }
    world.end();
}

#[test]
fn empty_ranges_of_process_madvise_get_the_answers_of_linux() {
    let world = World::new();
    let process = world.process(Locking::default());
    process.mmap(AT, 3 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let advise = |ranges: &[(u64, u64)]| {
        let ranges: Vec<IoVec> = ranges.iter().map(|&(base, len)| IoVec { base, len }).collect();
        process.process_madvise(&ranges, Advice::Cold, true).map_err(|error| error.errno())
    };
    let (odd, page) = ((AT + 1, 0), (AT, PAGE));
    assert_eq!(advise(&[odd]), Ok(0));
    assert_eq!(advise(&[odd, odd]), Ok(0));
    assert_eq!(advise(&[odd, page]), Err(Errno::EINVAL));
    assert_eq!(advise(&[(AT, 0), odd, page]), Ok(PAGE));
    assert_eq!(advise(&[page, odd, page]), Ok(2 * PAGE));
    assert_eq!(advise(&[(TASK_SIZE, 0), page]), Ok(PAGE));
    assert_eq!(advise(&[page, (TASK_SIZE + 1, 0)]), Err(Errno::EFAULT));
    assert_eq!(advise(&[(u64::MAX, PAGE), (AT, u64::MAX)]), Err(Errno::EINVAL));
    drop(process);
    world.end();
}
