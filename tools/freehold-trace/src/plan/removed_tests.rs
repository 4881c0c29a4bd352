use crate::plan::tests::{planner, waits};
use crate::plan::{Planner, Segment, StepKind, aside};

/// A thread, 2, and a segment of one page that task 1 has attached; then what `events` says. Its first event
/// is line 7.
const ATTACHED: &str = "6 0 1 N 2 1 10100
7 0 1 shmget 0 1000 3c0 = 5
8 0 1 shmat 5 0 0 = 30000 e1 x1
9 0 1 mprotect 10000 1000 3 = 0 e1 x1
";

fn attached(events: &str) -> (Planner, Segment) {
    let mut planner = planner(&format!("{ATTACHED}{events}"));
    let segment = planner.next_segment().expect("something");
    assert!(planner.next_segment().is_none());
    (planner, segment)
}

/// What task 1 does, and removals by any task, in order; a call that is not compared has a question mark.
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
fn calls_that_overlap_are_in_the_order_that_their_answers_tell() {
    let refused = "shmdt 30000 = -22";
    for (events, order) in [
        // It has begun before the call and after it; the answer is what counts.
        ("20 0 2 shmctl 5 0 0 = 0 x10\n25 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x9\n", true),
        ("20 0 2 shmctl 5 0 0 = 0 x10\n25 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e1 x9\n", false),
        ("20 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x20\n25 0 2 shmctl 5 100 0 = 0 x2\n", true),
        ("20 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e1 x20\n25 0 2 shmctl 5 100 0 = 0 x2\n", false),
        // Entered before it had returned, though it had the lock only later.
        ("20 0 2 shmctl 5 0 0 = 0 x10\n50 0 1 remap_file_pages 30000 1000 0 0 0 = 0 e21 x9\n", false),
        // One after the other: the order is known, whatever the answer is.
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

/// The removal found nothing attached and took the segment, before the call could map it anew.
#[test]
fn a_removal_in_the_middle_of_a_call_leaves_its_answer_open() {
    let (planner, segment) = attached(
        "20 0 1 remap_file_pages 30000 1000 0 0 0 = -43 e1 x20
25 0 2 shmctl 5 0 0 = 0 x2
60 0 1 shmdt 30000 = -22
",
    );
    assert_eq!(steps(&segment), ["remove", "remap_file_pages?", "shmdt"]);
    assert_eq!(planner.set_aside().get(aside::IN_TWO), Some(&1));
}

/// What another mapping explains, is no sign of a removal.
#[test]
fn a_refusal_for_another_reason_waits_for_nothing() {
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
fn an_attach_beside_a_removal_and_after_it() {
    let gone = "10 0 1 shmdt 30000 = 0 x1\n20 0 2 shmctl 5 0 0 = 0 x10\n";
    for (attach, expected) in [
        (
            "50 0 1 shmat 5 0 0 = 30000 e25 x1\n60 0 1 shmdt 30000 = 0 x1\n",
            &["shmdt", "shmat", "remove", "shmdt"][..],
        ),
        ("25 0 1 shmat 5 0 0 = -22 x1\n", &["shmdt", "remove", "shmat"]),
        ("50 0 1 shmat 5 0 0 = -22 x1\n", &["shmdt", "remove", "shmat"]),
        // Somebody who is not recorded has kept it.
        (
            "50 0 1 shmat 5 0 0 = 30000 x1\n60 0 1 shmdt 30000 = 0 x1\n",
            &["shmdt", "remove", "shmat?", "shmdt"],
        ),
    ] {
        let (_, segment) = attached(&format!("{gone}{attach}"));
        assert_eq!(steps(&segment), expected, "{attach}");
    }
    // Never attached: the plan makes it, so that it can be removed.
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
fn a_number_that_is_given_again_is_another_segment() {
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

/// Before the removal, its last user matters to nobody; after it, everybody waits for the one before, in
/// other address spaces too.
#[test]
fn a_removed_segment_keeps_the_order_of_its_users() {
    let (_, segment) = attached(
        "10 0 1 N 3 3 0 x1
11 0 1 N 4 4 0 x1
20 0 2 shmctl 5 0 0 = 0 x2
30 0 3 munmap 30000 1000 = 0 e1 x1
40 0 4 X g
50 0 1 remap_file_pages 30000 1000 0 0 0 = -22 e1 x1
",
    );
    // The removal is planned as a step of task 3: it waits for the second fork.
    assert_eq!(waits(&segment, 9), [(1, 5)]);
    assert_eq!(waits(&segment, 10), [], "behind the removal, which the same task has planned");
    assert_eq!(waits(&segment, 11), [(3, 1)]);
    assert_eq!(waits(&segment, 12), [(4, 0)]);
}

#[test]
fn after_losses_nothing_is_removed() {
    let (_, segment) = attached(
        "10 0 1 shmat 5 0 0 = 40000 x1
15 - 2 L 3
20 0 2 shmctl 5 0 0 = 0 x2
30 0 1 X g
",
    );
    assert_eq!(steps(&segment), ["shmat", "exit"]);
}
