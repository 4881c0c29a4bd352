//! Tests the order of steps in address spaces that share huge pages after a fork (`kin.rs`).
//!
//! A test adds events after the fork of [`forked`], plans them, and checks which earlier steps the step of a
//! line waits for ([`waits`]), or the pages whose size is unsure ([`unsure`]). Waits are pairs of a task and
//! the number of a step of that task, both as the planner counts them. `tests.rs` has the fixtures.
//!
//! An event is a line `TIME CPU TASK OPERATION ...` (`docs/reference/trace-format.md`). The operations here:
//!
//! | operation | meaning |
//! | --- | --- |
//! | `F ADDRESS CODE` | a fault; code 5 is a read and 7 a store to a present page, 6 a store to an absent page |
//! | `N CHILD CHILD 0` | fork |
//! | `X g`, `E SNAPSHOT`, `D PROCESS` | an exit of a process, an execve, the teardown of an address space |
//! | `munmap ADDRESS LENGTH = 0` | a system call with its arguments and its result |
//! | `x1`, `e2` at the end | 1 ns from TIME to the end of the operation; 2 ns from its begin to TIME |
//!
//! Task 1 has stored to 0x7e0000000000, in a VMA of two blocks of 2 MiB, before the fork. Recordings of
//! version 1 without a huge-page setting permit huge pages everywhere. A missing wait is a defect, and an
//! unneeded wait loses concurrency, so the tests check both.

use crate::plan::tests::{planner_of, waits};
use crate::plan::{Segment, StepKind, Unsure};

/// Returns a plan in which task 1 stores to memory that may have huge pages, and forks task 2. Task 1 has
/// taken steps 0 to 3 by then. The first of `events` is line 6.
fn forked(events: &str) -> Segment {
    let begin = "6 0 1 mmap 0 400000 3 22 -1 0 = 7e0000000000\n7 0 1 F 7e0000000000 6 x1\n8 0 1 N 2 2 0\n";
    let exec = "@ 1 exec 2 9 9 1 t | /t | VmRSS:0\n10000-20000 rw-p 0 - | 0 | rdwrmrmwmeac\n";
    let mut planner = planner_of(1, &format!("{begin}{events}"), exec);
    let segment = planner.next_segment().expect("something");
    assert!(planner.next_segment().is_none());
    segment
}

/// Returns the addresses of pages whose size is unsure, each with its task.
fn unsure(segment: &Segment) -> Vec<(u32, u64)> {
    let steps = segment.tasks.iter().flat_map(|task| task.steps.iter().map(|step| (task.task, step)));
    let open = steps.filter_map(|(task, step)| match &step.what {
        StepKind::Unsure(Unsure::Size(range)) => Some((task, range.start)),
        _ => None,
    });
    open.collect()
}

#[test]
fn store_to_a_huge_page_waits_for_store_and_exit_of_the_child() {
    let segment = forked(
        "9 0 2 F 7e0000001000 7 x1
10 0 2 X g
11 0 1 F 7e0000002000 7 x1
12 0 1 F 7e0000003000 7 x1
",
    );
    assert_eq!(waits(&segment, 8), [(2, 0), (2, 1)]);
    assert_eq!(waits(&segment, 9), []);
}

#[test]
fn exit_of_the_child_waits_for_a_store_of_the_parent() {
    let segment = forked("9 0 1 F 7e0000001000 7 x1\n10 0 2 X g\n");
    assert_eq!(waits(&segment, 7), [(1, 4)]);
}

#[test]
fn store_waits_for_the_exec_of_a_child() {
    let segment = forked("9 0 2 E 1\n10 0 1 F 7e0000001000 7 x1\n");
    assert_eq!(waits(&segment, 7), [(2, 0)]);
}

#[test]
fn store_waits_for_the_munmap_of_a_grandchild() {
    let segment = forked(
        "9 0 2 N 3 3 0
10 0 3 munmap 7e0000000000 400000 = 0
11 0 1 F 7e0000001000 7 x1
",
    );
    assert_eq!(waits(&segment, 8), [(3, 0)]);
}

#[test]
fn moved_memory_is_still_shared() {
    let segment = forked(
        "9 0 2 mremap 7e0000000000 400000 400000 3 7d0000000000 = 7d0000000000
10 0 2 F 7d0000001000 7 x1
11 0 1 F 7e0000001000 7 x1
12 0 1 F 7e0000201000 7 x1
",
    );
    assert_eq!(waits(&segment, 8), [(2, 1)]);
    assert_eq!(waits(&segment, 9), []);
}

/// The cases: a fault on an absent page, a read, memory that is too small for a huge page, memory that was
/// never written.
#[test]
fn other_faults_do_not_wait_for_another_address_space() {
    for events in [
        "9 0 2 F 7e0000001000 6 x1\n10 0 2 X g\n11 0 1 F 7e0000001000 6 x1\n",
        "9 0 2 F 7e0000001000 5 x1\n10 0 2 X g\n11 0 1 F 7e0000001000 5 x1\n",
        "9 0 2 F 11000 7 x1\n10 0 2 X g\n11 0 1 F 11000 7 x1\n",
        "9 0 2 F 7f0000000000 7 x1\n10 0 2 X g\n11 0 1 F 7f0000000000 7 x1\n",
    ] {
        let segment = forked(events);
        assert_eq!(waits(&segment, 8), [], "{events}");
    }
}

#[test]
fn store_during_the_exit_of_another_process_leaves_the_page_size_unsure() {
    for (events, open) in [
        // The exit lasts from 20 to 30.
        ("20 0 2 X g\n25 0 1 F 7e0000001000 7 x1\n30 0 2 D 2\n", true),
        ("19 0 1 F 7e0000001000 7 x5\n20 0 2 X g\n30 0 2 D 2\n", true),
        ("20 0 2 X g\n30 0 2 D 2\n31 0 1 F 7e0000001000 7 x1\n", false),
        ("18 0 1 F 7e0000001000 7 x1\n20 0 2 X g\n30 0 2 D 2\n", false),
        // The execve lasts from 18 to 20.
        ("17 0 1 F 7e0000001000 7 x2\n20 0 2 E 1 e2\n", true),
        ("17 0 1 F 7e0000001000 7 x1\n20 0 2 E 1 e2\n", false),
    ] {
        let segment = forked(&format!("9 0 1 D 1\n{events}"));
        let expected = if open { vec![(1, 0x7e00_0000_0000)] } else { Vec::new() };
        assert_eq!(unsure(&segment), expected, "{events}");
    }
}
