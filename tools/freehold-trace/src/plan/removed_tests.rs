//! Tests the order of a removal of a System V segment among the calls that use the segment (`removed.rs`,
//! `removals.rs`).
//!
//! A test adds events to `ATTACHED`, plans the recording, and compares the names of the steps in their order.
//! The results of the recorded calls are those that Linux gives in that order.

use crate::plan::tests::{planner, waits};
use crate::plan::{Planner, Segment, StepKind, aside};

/// The first events of a recording. Afterwards task 1 has a thread (task 2), and has attached segment 5,
/// which has one page. The first event of a test is line 7.
const ATTACHED: &str = "6 0 1 N 2 1 10100
7 0 1 shmget 0 1000 3c0 = 5
8 0 1 shmat 5 0 0 = 30000 e1 x1
9 0 1 mprotect 10000 1000 3 = 0 e1 x1
";

/// Returns the planner and the plan of `ATTACHED` and `events`.
fn attached(events: &str) -> (Planner, Segment) {
    let mut planner = planner(&format!("{ATTACHED}{events}"));
    let segment = planner.next_segment().expect("something");
    assert!(planner.next_segment().is_none());
    (planner, segment)
}

/// Returns the calls of task 1 and the removals by any task, in order. A question mark follows a call that is
/// not compared.
fn steps(segment: &Segment) -> Vec<String> {
    let mut steps: Vec<_> = segment.tasks.iter().flat_map(|task| &task.steps).collect();
    steps.retain(|step| step.line > 6 || matches!(step.what, StepKind::Remove { .. }));
    let show = |what: &StepKind| match what {
        StepKind::Call(planned) if planned.unsure => format!("{}?", planned.call.name.as_str()),
        StepKind::Call(planned) => planned.call.name.as_str().to_owned(),
        StepKind::Remove { .. } => "remove".to_owned(),
        StepKind::Exit => "exit".to_owned(),
        _ => "other".to_owned(),
    };
    steps.iter().map(|step| show(&step.what)).collect()
}

#[test]
fn overlapping_calls_are_ordered_by_their_results() {
    let refused = "shmdt 30000 = -22";
    for (events, order) in [
        // The removal begins before or after the call, and overlaps the call. The result of the call decides
        // the order.
        ("20 0 2 shmctl 5 0 0 = 0 x10\n25 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x9\n", true),
        ("20 0 2 shmctl 5 0 0 = 0 x10\n25 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e1 x9\n", false),
        ("20 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x20\n25 0 2 shmctl 5 100 0 = 0 x2\n", true),
        ("20 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e1 x20\n25 0 2 shmctl 5 100 0 = 0 x2\n", false),
        // The call begins before the removal returns, but acquires the lock only later.
        ("20 0 2 shmctl 5 0 0 = 0 x10\n50 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e21 x9\n", false),
        // The calls do not overlap: the order is known, whatever the result is.
        ("20 0 2 shmctl 5 0 0 = 0 x2\n25 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e1 x9\n", true),
        ("20 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x2\n25 0 2 shmctl 5 0 0 = 0 x2\n", false),
    ] {
        let detached = if events.contains("-22") { refused } else { "shmdt 30000 = 0" };
        let (_, segment) = attached(&format!("{events}60 0 1 {detached} e1 x1\n"));
        let expected = match order {
            true => ["remove", "remap_file_pages", "shmdt"],
            false => ["remap_file_pages", "remove", "shmdt"],
        };
        assert_eq!(steps(&segment), expected, "{events}");
    }
}

/// The call unmaps the segment, the removal then finds no mapping and frees the segment, and the call cannot
/// map it again (EIDRM).
#[test]
fn result_of_a_call_with_a_removal_in_it_is_not_compared() {
    let (planner, segment) = attached(
        "20 0 1 remap_file_pages 30000 1000 0 0 0 = -43 e1 x20
25 0 2 shmctl 5 0 0 = 0 x2
60 0 1 shmdt 30000 = -22
",
    );
    assert_eq!(steps(&segment), ["remove", "remap_file_pages?", "shmdt"]);
    assert_eq!(planner.set_aside().get(aside::IN_TWO), Some(&1));
}

/// A refusal that another mapping explains is no sign of a removal.
#[test]
fn refusal_for_another_reason_does_not_wait_for_a_removal() {
    let (_, segment) = attached(
        "10 0 1 shmat 5 0 0 = 40000 x1
20 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x20
25 0 2 shmctl 5 0 0 = 0 x2
60 0 1 shmdt 30000 = 0
",
    );
    assert_eq!(steps(&segment), ["shmat", "remap_file_pages", "remove", "shmdt"]);
}

#[test]
fn attach_is_ordered_by_its_result_relative_to_the_removal() {
    let gone = "10 0 1 shmdt 30000 = 0 x1\n20 0 2 shmctl 5 0 0 = 0 x10\n";
    for (attach, expected) in [
        (
            "50 0 1 shmat 5 0 0 = 30000 e25 x1\n60 0 1 shmdt 30000 = 0 x1\n",
            &["shmdt", "shmat", "remove", "shmdt"][..],
        ),
        ("25 0 1 shmat 5 0 0 = -22 x1\n", &["shmdt", "remove", "shmat"]),
        ("50 0 1 shmat 5 0 0 = -22 x1\n", &["shmdt", "remove", "shmat"]),
        // An unrecorded process has kept the segment attached.
        (
            "50 0 1 shmat 5 0 0 = 30000 x1\n60 0 1 shmdt 30000 = 0 x1\n",
            &["shmdt", "remove", "shmat?", "shmdt"],
        ),
    ] {
        let (_, segment) = attached(&format!("{gone}{attach}"));
        assert_eq!(steps(&segment), expected, "{attach}");
    }
    // The segment was never attached. The plan creates it, so that it can be removed.
    let (_, segment) = attached(
        "10 0 1 shmget 0 1000 3c0 = 6
20 0 1 shmctl 6 0 0 = 0 x2
30 0 1 shmat 6 0 0 = -22 x1
",
    );
    assert_eq!(steps(&segment), ["remove", "shmat"]);
    assert_eq!(segment.files.iter().filter(|file| file.segment).count(), 2);
}

#[test]
fn reused_identifier_is_a_new_segment() {
    let (_, segment) = attached(
        "10 0 1 shmdt 30000 = 0 x1
20 0 1 shmctl 5 0 0 = 0 x2
30 0 1 shmget 0 3000 3c0 = 5 x1
40 0 1 shmat 5 0 0 = 30000 x1
",
    );
    assert_eq!(steps(&segment), ["shmdt", "remove", "shmat"]);
    let sizes: Vec<_> = segment.files.iter().filter(|file| file.segment).map(|file| file.size).collect();
    assert_eq!(sizes, [Some(0x1000), Some(0x3000)]);
}

/// Before the removal, steps that use the segment have no order. After the removal, each such step waits for
/// the previous such step, in other address spaces too.
#[test]
fn removed_segment_keeps_the_order_of_its_users() {
    let (_, segment) = attached(
        "10 0 1 N 3 3 0 x1
11 0 1 N 4 4 0 x1
20 0 2 shmctl 5 0 0 = 0 x2
30 0 3 munmap 30000 1000 = 0 e1 x1
40 0 4 X g
50 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x1
",
    );
    // The removal is planned as a step of task 3, and waits for the second fork.
    assert_eq!(waits(&segment, 9), [(1, 5)]);
    assert_eq!(waits(&segment, 10), [], "after the removal, which is a step of the same task");
    assert_eq!(waits(&segment, 11), [(3, 1)]);
    assert_eq!(waits(&segment, 12), [(4, 0)]);
}

#[test]
fn no_segment_is_removed_after_a_loss() {
    let (_, segment) = attached(
        "10 0 1 shmat 5 0 0 = 40000 x1
15 - 2 L 3
20 0 2 shmctl 5 0 0 = 0 x2
30 0 1 X g
",
    );
    assert_eq!(steps(&segment), ["shmat", "exit"]);
}
