//! Tests the assembly of events from reports of the kernel (`assemble.rs`, `op.rs`).
//!
//! A test lists the reports of some threads as (time, thread, report), and the expected lines of the
//! recording ([`lines`]). The recording begins with thread `ROOT`, which has serial number 1. To add a case,
//! write reports in the order in which the kernel makes them, and the lines ordered by the time at which they
//! take effect.

use super::*;
use crate::raw::LockStep;
use freehold_trace::TraceWriter;

const ROOT: i32 = 700;

/// Returns the lines of the recording that is assembled from the reports, without the header.
fn lines(reports: &[(u64, i32, RawKind)], snapshots: &mut [Snapshot]) -> Vec<String> {
    let mut assembler = Assembler::new(ROOT, snapshots);
    for (time, thread, what) in reports {
        assembler.report(Raw { time: *time, cpu: Some(1), thread: *thread, what: what.clone() });
    }
    let mut ops = assembler.finish().ops;
    ops.sort_by_key(|op| op.time);
    let mut out = TraceWriter::new(Vec::new(), "t").unwrap();
    for event in ops.into_iter().filter_map(|op| op.event(0)) {
        out.event(&event).unwrap();
    }
    let text = String::from_utf8(out.finish().unwrap()).unwrap();
    text.lines().skip(1).map(str::to_owned).collect()
}

fn snapshot(why: Why) -> Snapshot {
    let (comm, exe) = Default::default();
    let (status, areas, pages) = Default::default();
    Snapshot { id: 4, line: 0, why, process: 0, taken: (0, 0), threads: 1, comm, exe, status, areas, pages }
}

fn enter(name: CallName, args: &[u64]) -> RawKind {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    RawKind::Enter(name, all)
}

fn lock(step: LockStep, write: bool) -> RawKind {
    RawKind::Lock { step, space: 0xabc, write }
}

const MAPPED: u64 = 0x7000;

fn file() -> RawKind {
    let (start, len) = (MAPPED - 0x1000, 0x4000);
    RawKind::Mapped(Box::new(Mapped { start, len, inode: (8, 1, 99), path: "/lib/x".to_owned() }))
}

/// If an ioctl is not watched, only its end is reported, and the recording leaves the ioctl out. If the
/// structure of a registration could not be read and the call succeeded, the call is recorded as a loss.
#[test]
fn ioctls_end_with_the_kernels_result() {
    let register = enter(CallName::Ioctl, &[3, 0xc020_aa00, 0x7000, 0x1000, 1]);
    let leave = |value| RawKind::Leave(CallName::Ioctl, value);
    let story = [
        (10, ROOT, leave(0)),
        (20, ROOT, register),
        (22, ROOT, lock(LockStep::Taken(true), true)),
        (25, ROOT, leave(-22)),
        (27, ROOT, leave(0)),
        (30, ROOT, RawKind::Unread(CallName::Ioctl)),
        (35, ROOT, leave(-14)),
        (40, ROOT, RawKind::Unread(CallName::Ioctl)),
        (45, ROOT, leave(0)),
        (50, ROOT, RawKind::Unread(CallName::Ioctl)),
    ];
    let expected = ["22 1 1 ioctl 3 c020aa00 7000 1000 1 = -22 e2 x3 w0", "40 1 1 L 1"];
    assert_eq!(lines(&story, &mut []), expected);
}

/// The report of a call's ranges may have an earlier time than the report of its start, because the two
/// reports come from different sources. The report of the ranges is never earlier than the end of the
/// previous call.
#[test]
fn ranges_belong_to_the_call_that_ends_next() {
    let advise = |count| enter(CallName::ProcessMadvise, &[0xffff_d8f0, 0x5000, count, 4, 0]);
    let leave = |value| RawKind::Leave(CallName::ProcessMadvise, value);
    let story = [
        (10, ROOT, RawKind::Ranges(vec![(0x7000, 0x1000), (0x9000, 0x1000)])),
        (11, ROOT, advise(2)),
        (15, ROOT, leave(0x2000)),
        (20, ROOT, advise(1)),
        (21, ROOT, RawKind::Ranges(vec![(0x7000, 0x1000)])),
        (25, ROOT, leave(-22)),
        // The call has more ranges than the recorder reads.
        (30, ROOT, advise(17)),
        (35, ROOT, leave(0x11000)),
        (40, ROOT, RawKind::Ranges(vec![(0x7000, 0x1000)])),
        (41, ROOT, enter(CallName::Madvise, &[0x7000, 0x1000, 4])),
        (45, ROOT, RawKind::Leave(CallName::Madvise, 0)),
        (50, ROOT, advise(1)),
        (55, ROOT, leave(0x1000)),
    ];
    let expected = [
        "11 1 1 process_madvise ffffd8f0 5000 2 4 0 = 2000 v7000+1000,9000+1000 x4",
        "20 1 1 process_madvise ffffd8f0 5000 1 4 0 = -22 v7000+1000 x5",
        "30 1 1 process_madvise ffffd8f0 5000 11 4 0 = 11000 x5",
        "41 1 1 madvise 7000 1000 4 = 0 x4",
        "50 1 1 process_madvise ffffd8f0 5000 1 4 0 = 1000 x5",
    ];
    assert_eq!(lines(&story, &mut []), expected);
}

#[test]
fn call_takes_effect_when_it_acquires_the_lock() {
    let story = [
        (10, ROOT, enter(CallName::Mmap, &[0, 0x2000, 1, 2, 3, 0])),
        (12, ROOT, lock(LockStep::Wanted, true)),
        (20, ROOT, lock(LockStep::Taken(true), true)),
        (23, ROOT, file()),
        (25, ROOT, lock(LockStep::Released, true)),
        (30, ROOT, RawKind::Leave(CallName::Mmap, MAPPED as i64)),
    ];
    let expected = "20 1 1 mmap 0 2000 1 2 3 0 = 7000 f1 e10 x10 w8 h5";
    assert_eq!(lines(&story, &mut []), [expected]);
}

#[test]
fn downgrade_and_second_lock_are_distinguished() {
    let story = [
        (10, ROOT, enter(CallName::Munmap, &[0x1000, 0x1000])),
        (11, ROOT, lock(LockStep::Wanted, true)),
        (12, ROOT, lock(LockStep::Taken(true), true)),
        (15, ROOT, lock(LockStep::Taken(true), false)),
        (19, ROOT, lock(LockStep::Released, false)),
        (20, ROOT, lock(LockStep::Wanted, false)),
        (21, ROOT, lock(LockStep::Taken(false), false)),
        (22, ROOT, lock(LockStep::Wanted, false)),
        (23, ROOT, lock(LockStep::Taken(true), false)),
        (24, ROOT, lock(LockStep::Released, false)),
        (26, ROOT, RawKind::Interrupt),
        (30, ROOT, RawKind::Leave(CallName::Munmap, 0)),
    ];
    assert_eq!(lines(&story, &mut []), ["12 1 1 munmap 1000 1000 = 0 e2 x18 w1 h3 d4 l1 i1"]);
}

#[test]
fn fault_is_resolved_only_by_its_own_report() {
    let story = [
        (10, ROOT, RawKind::Fault { address: 0x5000, code: 6 }),
        (11, ROOT, lock(LockStep::Wanted, false)),
        (12, ROOT, lock(LockStep::Taken(true), false)),
        (14, ROOT, lock(LockStep::Released, false)),
        (15, ROOT, RawKind::Resolved { address: 0x5000, major: true }),
        (20, ROOT, RawKind::Fault { address: 0x6000, code: 4 }),
        (21, ROOT, RawKind::Resolved { address: 0x9000, major: false }),
        (22, ROOT, RawKind::Signal { signal: 11, code: 1 }),
    ];
    assert_eq!(lines(&story, &mut []), ["10 1 1 F 5000 6 x5 M r1 h2", "20 1 1 F 6000 4", "22 1 1 G 11 1"]);
}

#[test]
fn fault_within_a_call_does_not_take_the_calls_lock() {
    let story = [
        (10, ROOT, enter(CallName::Mincore, &[0x1000, 0x1000, 0x5000])),
        (11, ROOT, RawKind::Fault { address: 0x5000, code: 2 }),
        (12, ROOT, lock(LockStep::Wanted, false)),
        (13, ROOT, lock(LockStep::Taken(true), false)),
        (14, ROOT, lock(LockStep::Released, false)),
        (15, ROOT, RawKind::Resolved { address: 0x5000, major: false }),
        (20, ROOT, RawKind::Leave(CallName::Mincore, -12)),
        (21, ROOT, lock(LockStep::Wanted, true)),
    ];
    let expected = ["10 1 1 mincore 1000 1000 5000 = -12 x10", "11 1 1 F 5000 2 x4 r1 h1"];
    assert_eq!(lines(&story, &mut []), expected);
}

#[test]
fn fork_takes_effect_under_the_lock_and_thread_at_creation() {
    let story = [
        (10, ROOT, enter(CallName::Fork, &[])),
        (11, ROOT, lock(LockStep::Wanted, true)),
        (12, ROOT, lock(LockStep::Taken(true), true)),
        (18, ROOT, lock(LockStep::Released, true)),
        (20, ROOT, RawKind::NewTask { thread: 800, flags: 0x0120_0000 }),
        (22, 800, RawKind::Fault { address: 0x5000, code: 7 }),
        (30, ROOT, RawKind::Leave(CallName::Fork, 800)),
        (40, 800, enter(CallName::Clone3, &[0x100, 0x58])),
        (45, 800, RawKind::NewTask { thread: 801, flags: 0x1_0100 }),
        (50, 800, RawKind::Leave(CallName::Clone3, 801)),
        (60, ROOT, enter(CallName::Fork, &[])),
        (61, ROOT, RawKind::Leave(CallName::Fork, -11)),
        (70, 800, RawKind::Exit { last: None }),
        (71, 801, RawKind::Exit { last: None }),
        (72, 801, RawKind::TornDown),
    ];
    let expected = [
        "12 1 1 N 2 2 1200000 e2 x18 w1 h6",
        "22 1 2 F 5000 7",
        "45 1 2 N 3 2 10100 e5 x5",
        "60 1 1 fork  = -11 x1",
        "70 1 2 X",
        "71 1 3 X g",
        "72 1 3 D 2",
    ];
    assert_eq!(lines(&story, &mut []), expected);
}

#[test]
fn exec_has_its_snapshot() {
    let mut snapshots = [snapshot(Why::Exec)];
    let story = [
        (5, ROOT, RawKind::NewTask { thread: 701, flags: 0x1_0100 }),
        (10, 701, enter(CallName::Execve, &[1, 2, 3])),
        (12, ROOT, RawKind::Exit { last: Some(false) }),
        // The thread that called execve continues as the process's first thread.
        (14, ROOT, RawKind::Exec { thread: ROOT, before: 701 }),
        (15, ROOT, RawKind::Fault { address: 0x7f00, code: 2 }),
        (20, ROOT, RawKind::Snapshot(0)),
        (30, ROOT, RawKind::Leave(CallName::Execve, 0)),
    ];
    let expected =
        ["5 1 1 N 2 1 10100", "12 1 1 X", "15 1 2 f 7f00 2", "19 1 2 E 4 e9 x11", "20 - 2 S 4 exec 1"];
    assert_eq!(lines(&story, &mut snapshots), expected);
    assert_eq!(snapshots[0].process, 1);
}

/// Faults that the kernel takes during a failed execve belong to the program that continues. An execve that
/// fails after the point of no return, at which the old address space is torn down, never returns.
#[test]
fn failed_exec_is_kept_if_it_touched_memory() {
    let signal = RawKind::Signal { signal: 11, code: 128 };
    let story = [
        (10, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (11, ROOT, RawKind::Leave(CallName::Execve, -2)),
        (20, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (21, ROOT, RawKind::Fault { address: 0x7000, code: 0 }),
        (22, ROOT, RawKind::Leave(CallName::Execve, -8)),
        (30, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (31, ROOT, RawKind::TornDown),
        (32, ROOT, RawKind::Leave(CallName::Execve, -22)),
        (40, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (41, ROOT, signal.clone()),
        (42, ROOT, RawKind::Leave(CallName::Execve, -12)),
        (50, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (51, ROOT, RawKind::Exit { last: Some(true) }),
    ];
    let expected = [
        "21 1 1 f 7000 0",
        "22 1 1 execve 1 2 3 = -8 e2 x0",
        "31 1 1 D 1",
        "32 1 1 execve 1 2 3 = ? e2 x0",
        "41 1 1 G 11 128",
        "42 1 1 execve 1 2 3 = ? e2 x0",
        "50 1 1 execve 1 2 3 = ?",
        "51 1 1 X g",
    ];
    assert_eq!(lines(&story, &mut []), expected);
}

#[test]
fn calls_unrelated_to_memory_are_left_out() {
    let story = [
        (10, ROOT, enter(CallName::Prctl, &[15, 1])),
        (11, ROOT, RawKind::Leave(CallName::Prctl, 0)),
        (12, ROOT, enter(CallName::Prctl, &[41, 1])),
        (13, ROOT, RawKind::Leave(CallName::Prctl, 0)),
        (14, ROOT, enter(CallName::Prctl, &[67, 1])),
        (15, ROOT, RawKind::Leave(CallName::Prctl, 0)),
        (16, ROOT, enter(CallName::Execve, &[1, 2, 3])),
        (17, ROOT, RawKind::Leave(CallName::Execve, -2)),
        (18, 999, RawKind::Fault { address: 1, code: 4 }),
    ];
    assert_eq!(lines(&story, &mut []), ["12 1 1 prctl 29 1 0 0 0 = 0 x1", "14 1 1 prctl 43 1 0 0 0 = 0 x1"]);
}

#[test]
fn calls_that_never_return_are_kept() {
    let story = [
        (10, ROOT, RawKind::NewTask { thread: 701, flags: 0x1_0100 }),
        (11, 701, enter(CallName::Madvise, &[0x1000, 0x1000, 4])),
        (12, ROOT, enter(CallName::ExitGroup, &[3])),
    ];
    let expected = ["10 1 1 N 2 1 10100", "11 1 2 madvise 1000 1000 4 = ?", "12 1 1 exit_group 3 = ?"];
    assert_eq!(lines(&story, &mut []), expected);
}

/// Limits are recorded only for recorded processes. Refused calls, and calls for other processes, change no
/// limit.
#[test]
fn limits_are_recorded_only_for_recorded_processes() {
    let call = |time, name, args: &[u64], value| {
        [(time, ROOT, enter(name, args)), (time + 1, ROOT, RawKind::Leave(name, value))]
    };
    let limits = freehold_trace::Limits {
        address_space: u64::MAX,
        data: u64::MAX,
        data_hard: u64::MAX,
        stack: 0x80_0000,
        memlock: 0x1_0000,
        may_lock: false,
    };
    let story = [
        vec![
            (1, ROOT, RawKind::Limits(Box::new(limits))),
            (2, ROOT, RawKind::NewTask { thread: 701, flags: 0 }),
        ],
        call(10, CallName::Setrlimit, &[8, 0, 0x1_0000], 0).into(),
        call(20, CallName::Setrlimit, &[8, 2, 1], -22).into(),
        call(30, CallName::Prlimit64, &[0, 9, 0x2000, u64::MAX], 0).into(),
        call(40, CallName::Prlimit64, &[701, 9, 0x3000, u64::MAX], 0).into(),
        call(50, CallName::Prlimit64, &[1, 9, 0x3000, u64::MAX], 0).into(),
        call(60, CallName::Capset, &[0x4000], 0).into(),
        vec![
            (70, ROOT, RawKind::Unread(CallName::Setrlimit)),
            (75, ROOT, RawKind::Leave(CallName::Setrlimit, 0)),
        ],
    ];
    let expected = [
        "1 1 1 R ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 10000",
        "2 1 1 N 2 2 0",
        "10 1 1 setrlimit 8 0 10000 = 0 x1",
        "30 1 1 prlimit64 0 9 2000 ffffffffffffffff = 0 x1",
        "40 1 1 prlimit64 2 9 3000 ffffffffffffffff = 0 x1",
        "60 1 1 capset 4000 = 0 x1",
        "70 1 1 L 1",
    ];
    assert_eq!(lines(&story.concat(), &mut []), expected);
}

/// If an operation is in progress when a loss begins, its end is unknown: an end that is reported after the
/// loss may belong to a later call, fault or fork.
#[test]
fn operations_in_progress_at_a_loss_have_no_known_end() {
    let mut snapshots = [snapshot(Why::Exec)];
    let fault = || RawKind::Fault { address: 0x5000, code: 6 };
    let story = [
        (1, ROOT, RawKind::NewTask { thread: 701, flags: 0x1_0100 }),
        (2, ROOT, RawKind::NewTask { thread: 702, flags: 0x1_0100 }),
        (3, ROOT, RawKind::NewTask { thread: 703, flags: 0 }),
        (4, ROOT, RawKind::NewTask { thread: 704, flags: 0 }),
        (5, ROOT, fault()),
        (6, ROOT, RawKind::Signal { signal: 11, code: 1 }),
        (10, ROOT, enter(CallName::Mmap, &[0, 0x2000, 1, 0x22, u64::MAX, 0])),
        (11, 701, fault()),
        (12, 702, enter(CallName::Fork, &[])),
        (13, 702, lock(LockStep::Wanted, true)),
        (14, 702, lock(LockStep::Taken(true), true)),
        (15, 703, enter(CallName::Execve, &[1, 2, 3])),
        (16, 704, enter(CallName::Execve, &[1, 2, 3])),
        (20, 0, RawKind::Lost(9)),
        // These are the ends of another mmap, of a later fault at the same address, of a later fork, and of a
        // later execve.
        (30, ROOT, RawKind::Leave(CallName::Mmap, 0x7000)),
        (31, 701, RawKind::Resolved { address: 0x5000, major: false }),
        (32, 702, RawKind::NewTask { thread: 705, flags: 0 }),
        (33, 702, RawKind::Leave(CallName::Fork, 705)),
        (34, 703, RawKind::Leave(CallName::Execve, -2)),
        (35, ROOT, RawKind::Resolved { address: 0x5000, major: false }),
        (40, 0, RawKind::Lost(0)),
        // These reports follow the end of the loss, so they are assigned with certainty.
        (50, 704, RawKind::Snapshot(0)),
        (60, ROOT, enter(CallName::Brk, &[0])),
        (62, ROOT, RawKind::Leave(CallName::Brk, 0x8000)),
    ];
    let expected = [
        "1 1 1 N 2 1 10100",
        "2 1 1 N 3 1 10100",
        "3 1 1 N 4 4 0",
        "4 1 1 N 5 5 0",
        "5 1 1 F 5000 6",
        "6 1 1 G 11 1",
        "10 1 1 L 1",
        "11 1 2 L 1",
        "20 - - L 9",
        "32 1 3 N 6 6 0",
        "40 - - L 0",
        "49 1 5 E 4 e33",
        "50 - 5 S 4 exec 5",
        "60 1 1 brk 0 = 8000 x2",
    ];
    assert_eq!(lines(&story, &mut snapshots), expected);
}
