//! Tests the steps for the ends of userfaultfds (`userfaultfds.rs`), with small recordings. To add a case,
//! write events that use descriptors, and state the lines and numbers of the steps.

use super::super::tests::second;
use crate::plan::{Step, StepKind};

/// A userfaultfd ends with its last descriptor. The step belongs to the task that closes the descriptor.
#[test]
fn userfaultfd_ends_with_its_last_descriptor() {
    let segment = second(
        "6 0 1 userfaultfd 80001 = 3
6 0 1 userfaultfd 80001 = 4
7 0 1 ioctl 3 c020aa00 10000 1000 1 = 0
7 0 1 ioctl 4 c020aa00 11000 1000 1 = 0
8 0 1 ioctl 5 c020aa00 11000 1000 1 = 0
8 0 1 N 2 2 0
9 0 2 ioctl 3 c020aa00 12000 1000 1 = 0
10 0 1 dup2 4 3 = 3
11 0 2 X g
12 0 1 close 4 = 0
13 0 1 close_range 0 ffffffff 0 = 0
",
    );
    let show = |step: &Step| match &step.what {
        StepKind::Call(planned) => Some(format!("{} {:?}", step.line, planned.userfaultfd)),
        StepKind::EndUserfaultfd { userfaultfd, task } => {
            Some(format!("{} ends {userfaultfd} of {task}", step.line))
        }
        _ => None,
    };
    let shown: Vec<_> = segment.tasks.iter().flat_map(|task| &task.steps).filter_map(show).collect();
    assert_eq!(shown, ["8 Some(1)", "9 Some(2)", "16 ends 2 of 1", "14 ends 1 of 1"]);
}
