//! Tests the order in which overlapping events of one address space take effect (`effect.rs`, `overlaps.rs`).
//!
//! A test writes a small recording of three threads whose events overlap, plans it, and checks the waits of
//! single lines and the unsure pages. The fields `e`, `x`, `r`, `w` and `h` of a line are the times that
//! decide (`docs/reference/trace-format.md`).

use crate::plan::tests::{planner, waits};
use crate::plan::{Segment, StepKind, Unsure};

/// Returns the plan of task 1 and two threads, 2 and 3. The first of `events` is line 5. Task 1 has taken
/// steps 0 to 2.
fn threads(events: &str) -> Segment {
    let mut planner = planner(&format!("6 0 1 N 2 1 10100\n7 0 1 N 3 1 10100\n{events}"));
    let segment = planner.next_segment().expect("something");
    assert!(planner.next_segment().is_none());
    segment
}

/// Returns the unsure pages of all steps, each list with the task that has them.
fn unsure(segment: &Segment) -> Vec<(u32, Vec<(u64, u64)>)> {
    let mut all = Vec::new();
    for task in &segment.tasks {
        for step in &task.steps {
            match &step.what {
                StepKind::Clone { child, unsure, .. } if !unsure.is_empty() => {
                    all.push((*child, unsure.iter().map(|range| (range.start, range.end)).collect()));
                }
                StepKind::Unsure(Unsure::Pages(range)) => {
                    all.push((task.task, vec![(range.start, range.end)]))
                }
                _ => {}
            }
        }
    }
    all
}

/// The fork holds the mmap lock from 10 to 30.
#[test]
fn fault_under_vma_lock_precedes_fork_and_waiting_fault_follows_it() {
    let segment = threads(
        "10 0 1 N 4 4 0 e1 x30 w1 h20
12 0 2 F 11000 4 x9
13 0 3 F 12000 4 x25 r18 h2
40 0 4 F 11000 4 x1
",
    );
    assert_eq!(waits(&segment, 5), [(2, 0)]);
    assert_eq!(waits(&segment, 6), []);
    assert_eq!(waits(&segment, 7), [(1, 3)]);
    assert_eq!(unsure(&segment), []);
}

#[test]
fn discard_under_vma_lock_precedes_the_fork() {
    let segment = threads("10 0 1 N 4 4 0 e1 x30 w1 h20\n12 0 2 madvise 11000 1000 4 = 0 x9\n");
    assert_eq!(waits(&segment, 5), [(2, 0)]);
    assert_eq!(waits(&segment, 6), []);
}

#[test]
fn fault_that_got_the_lock_after_a_fork_follows_it() {
    let segment = threads(
        "8 0 2 F 11000 4 x30 r23 h2
9 0 3 F 12000 4 x1
10 0 1 N 4 4 0 e1 x30 w1 h20
45 0 2 F 13000 4 x1
",
    );
    assert_eq!(waits(&segment, 7), [(3, 0)]);
    assert_eq!(waits(&segment, 5), [(1, 3)]);
    assert_eq!(unsure(&segment), []);
}

/// The rule for a fork also holds for every other call that holds the mmap lock for writing.
#[test]
fn fault_under_vma_lock_precedes_the_mprotect() {
    let segment = threads("10 0 1 mprotect 11000 1000 1 = 0 e1 x30 w1 h20\n12 0 2 F 11000 4 x9\n");
    assert_eq!(waits(&segment, 5), [(2, 0)]);
    assert_eq!(waits(&segment, 6), []);
}

#[test]
fn fault_that_outlasts_a_fork_leaves_its_page_unsure() {
    for (fault, open) in [
        ("25 0 2 F 11000 4 x9", true),
        // The fault ends before the release of the lock, or begins after the release.
        ("25 0 2 F 11000 4 x4", false),
        ("31 0 2 F 11000 4 x9", false),
        // The fault waited for the lock.
        ("25 0 2 F 11000 4 x9 r6 h1", false),
    ] {
        let segment = threads(&format!("10 0 1 N 4 4 0 e1 x30 w1 h20\n{fault}\n"));
        let expected = if open { vec![(4, vec![(0x11000, 0x12000)])] } else { Vec::new() };
        assert_eq!(unsure(&segment), expected, "{fault}");
    }
}

/// Without locks in the recording, the fork may have copied the address space at any time between the call's
/// entry and the event.
#[test]
fn without_recorded_locks_all_overlaps_with_a_fork_are_unsure() {
    let segment = threads(
        "10 0 2 F 11000 4 e1 x0
14 0 2 F 12000 4 e3 x0
16 0 1 N 4 4 0 e5 x0
18 0 3 madvise 13000 2000 4 = 0 e4 x0
19 0 3 F 15000 4 e1 x0
20 0 4 F 11000 4 e1 x0
",
    );
    assert_eq!(unsure(&segment), [(4, vec![(0x12000, 0x13000)]), (4, vec![(0x13000, 0x15000)])]);
}

#[test]
fn single_task_process_has_no_unsure_pages() {
    let mut planner = planner("10 0 1 N 2 2 0 e5 x0\n11 0 1 F 11000 4 e5 x0\n12 0 2 F 12000 4 e5 x0\n");
    let segment = planner.next_segment().expect("something");
    assert_eq!(unsure(&segment), []);
}

#[test]
fn waiting_event_is_planned_at_the_end_or_at_the_next_event_of_its_task() {
    let segment = threads("10 0 2 F 11000 4 x90 r80\n11 0 3 F 12000 4 x90 r80\n12 0 2 F 13000 4 x1\n");
    let lines: Vec<Vec<u32>> =
        segment.tasks.iter().map(|task| task.steps.iter().map(|step| step.line).collect()).collect();
    assert_eq!(lines[1..], [vec![5, 7], vec![6]]);
    assert_eq!(segment.events, 6);
}
