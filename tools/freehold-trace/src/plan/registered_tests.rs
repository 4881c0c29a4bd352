//! Tests which registrations with a userfaultfd the plan knows, and which refused moves are set aside because
//! registrations are doubtful (`registered.rs`, `userfaultfds.rs`).
//!
//! A test writes a small recording of version 2, in which descriptors can be followed, and counts the moves
//! that are set aside, or reads the planned steps.

use super::super::aside;
use super::super::tests::second_planner;

/// Returns the number of moves that are set aside because registrations are doubtful.
fn unchecked(events: &str) -> u64 {
    let mut planner = second_planner(events);
    while planner.next_segment().is_some() {}
    planner.set_aside().get(aside::USERFAULTFD).copied().unwrap_or_default()
}

/// In a process with a userfaultfd, a refused move is checked only if all registrations are known.
#[test]
fn refused_moves_are_checked_if_registrations_are_known() {
    let made = "6 0 1 userfaultfd 80001 = 3\n";
    let refused = "9 0 1 mremap 10000 8000 8000 3 20000 = -14\n";
    assert_eq!(unchecked(refused), 0);
    assert_eq!(unchecked(&format!("{made}{refused}")), 1, "the recording may lack registrations");
    let api = |features: u64| format!("6 0 1 ioctl 3 c018aa3f aa {features:x} 0 = 0\n");
    assert_eq!(unchecked(&format!("{made}{}{refused}", api(0))), 0);
    let register = "7 0 1 ioctl 3 c020aa00 11000 1000 1 = 0\n";
    let moved = "8 0 1 mremap 11000 1000 1000 3 30000 = 30000\n";
    for (features, expected) in [(None, 1), (Some(0), 0), (Some(2), 0), (Some(4), 0)] {
        let api = features.map_or(String::new(), api);
        let events = format!("{made}{api}{register}{moved}{refused}");
        assert_eq!(unchecked(&events), expected, "moved, {features:?}");
    }
    let child = "8 0 1 N 2 2 0\n9 0 2 mremap 10000 8000 8000 3 20000 = -14\n";
    for (features, expected) in [(None, 1), (Some(0), 0), (Some(2), 1), (Some(4), 0)] {
        let api = features.map_or(String::new(), api);
        let events = format!("{made}{api}{register}{child}");
        assert_eq!(unchecked(&events), expected, "forked, {features:?}");
    }
}

/// A userfaultfd that an ioctl of /dev/userfaultfd has created is treated like one that userfaultfd(2) has
/// created: its features and its end are planned.
#[test]
fn userfaultfd_of_the_device_has_its_features() {
    let made = "6 0 1 openat ffffff9c 1 2 0 = 5\n7 0 1 ioctl 5 aa00 80000 0 0 = 6\n";
    let end = "7 0 1 ioctl 6 c020aa00 11000 1000 1 = 0\n8 0 1 close 6 = 0\n";
    let mut planner = second_planner(&format!("{made}7 0 1 ioctl 6 c018aa3f aa 4 0 = 0\n{end}"));
    let segment = planner.next_segment().expect("something");
    let mut seen = Vec::new();
    for step in segment.tasks.iter().flat_map(|task| &task.steps) {
        match &step.what {
            crate::plan::StepKind::Call(planned) => seen.push((planned.userfaultfd, planned.features)),
            crate::plan::StepKind::EndUserfaultfd { userfaultfd, .. } => {
                seen.push((Some(*userfaultfd), None))
            }
            _ => {}
        }
    }
    assert_eq!(seen, [(Some(1), Some(4)), (Some(1), None)]);
}
