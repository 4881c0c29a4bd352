//! Tests the order that plans keep, with small recordings.
//!
//! A test writes the events of a recording as lines of `NAME.trace` (`docs/reference/trace-format.md`), plans
//! them, and checks the steps with `waits`, which returns the waits of the step of one line. To add a case,
//! write the events, and state which earlier steps must be among the waits: a missing wait is a defect, and
//! an unneeded wait loses concurrency. `vmas_of_the_model_equal_those_of_snapshots` compares the planner's
//! model with recorded snapshots. The other test files of the folder use the fixtures `planner`,
//! `planner_of`, `second_planner` and `waits`. Addresses are in pages of 0x1000.

use super::*;
use crate::Recording;
use std::fs;

/// The snapshot of the exec with which each recording begins. Task 1 then has two anonymous VMAs: 0x10000 to
/// 0x20000, and one of 4 MiB at 0x7f0000000000.
const SNAP: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /t | VmRSS:0
10000-20000 rw-p 0 - | 0 | rdwrmrmwmeac
7f0000000000-7f0000400000 rw-p 0 - | 0 | rdwrmrmwmeacnh
";

/// Returns a planner of a recording of version 1 with these events after the exec. The first event is line 3
/// of the file.
pub(super) fn planner(events: &str) -> Planner {
    planner_of(1, events, "")
}

/// Returns a planner of a recording of this version, with these events after the exec, and with further
/// snapshots.
pub(super) fn planner_of(version: u32, events: &str, snapshots: &str) -> Planner {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    fs::write(&path, format!("# fhtrace {version} t\n5 0 1 E 0\n{events}")).expect("written");
    fs::write(folder.path().join("t.snap"), format!("{SNAP}{snapshots}")).expect("written");
    // The open files stay readable after the folder is removed.
    Planner::new(Recording::open(&path).expect("a recording"))
}

/// Returns the waits of the step at `line`, as (task, number of the step).
pub(super) fn waits(segment: &Segment, line: u32) -> Vec<(u32, u32)> {
    let steps = segment.tasks.iter().flat_map(|task| &task.steps);
    let step = steps.into_iter().find(|step| step.line == line).expect("a step of that line");
    let waits = &segment.waits[step.waits.start as usize..step.waits.end as usize];
    waits.iter().map(|stamp| (stamp.task, stamp.index)).collect()
}

/// Returns the plan of a recording that fits into one segment.
fn whole(events: &str) -> Segment {
    let mut planner = planner(events);
    let segment = planner.next_segment().expect("something");
    assert!(planner.next_segment().is_none());
    segment
}

/// Returns a plan in which tasks 2 and 3 are threads of task 1. The first event of a test is line 5 of the
/// file. Task 1 has taken steps 0 to 2 by then.
fn threads(events: &str) -> Segment {
    whole(&format!("6 0 1 N 2 1 10100\n7 0 1 N 3 1 10100\n{events}"))
}

#[test]
fn faults_in_a_vma_wait_only_for_its_first_write() {
    let segment = threads(
        "8 0 2 F 10000 6 x1
9 0 3 F 11000 4 x1
10 0 3 F 12000 6 x1
11 0 1 F 13000 6 x1
12 0 3 F 7f0000000000 6 x1
",
    );
    assert_eq!(waits(&segment, 5), []);
    // A read does not depend on the family of anonymous pages.
    assert_eq!(waits(&segment, 6), []);
    assert_eq!(waits(&segment, 7), [(2, 0)]);
    assert_eq!(waits(&segment, 8), [(2, 0)]);
    assert_eq!(waits(&segment, 9), []);
}

#[test]
fn munmap_waits_for_faults_in_its_range_and_later_mmaps_wait_for_it() {
    let segment = threads(
        "8 0 2 F 7f0000000000 4 x1
9 0 3 F 7f0000200000 4 x1
10 0 1 munmap 7f0000200000 1000 = 0
11 0 2 mmap 7f0000200000 1000 3 32 -1 0 = 7f0000200000
12 0 3 F 7f0000200000 6 x1
13 0 2 F 7f0000300000 4 x1
",
    );
    // Only the fault of task 3 is in the chunk of the munmap.
    assert_eq!(waits(&segment, 7), [(3, 0)]);
    // Faults are remembered per chunk, so the fault in the chunk of the munmap still counts.
    assert_eq!(waits(&segment, 8), [(1, 3), (3, 0)]);
    // The fault of task 3 waits only for the mmap of task 2, which has waited for the munmap.
    assert_eq!(waits(&segment, 9), [(2, 1)]);
    assert_eq!(waits(&segment, 10), []);
}

/// A fault in a file may map up to 15 pages before its page and up to 15 pages after it.
///
/// ```text
/// the file's pages      7  8 ........... 17 ........... 26  27
/// DONTNEED of task 2                     #
/// reads that wait          #                            #
/// reads that do not     #                                   #
/// ```
#[test]
fn file_fault_waits_for_changes_in_the_pages_around_it() {
    for (page, waits_for) in [
        ("07", vec![(1, 3)]),
        ("08", vec![(1, 3), (2, 0)]),
        ("26", vec![(2, 0), (1, 3)]),
        ("27", vec![(1, 3)]),
    ] {
        let segment = threads(&format!(
            "# file 1 262144 /f
8 0 1 mmap 0 40000 1 2 3 0 = 7e0000000000 f1
9 0 2 madvise 7e0000017000 1000 4 = 0
10 0 3 F 7e00000{page}000 4 x1
"
        ));
        assert_eq!(waits(&segment, 8), waits_for, "page {page}");
    }
}

#[test]
fn only_calls_that_touch_the_same_vma_keep_their_order() {
    let segment = threads(
        "8 0 2 mmap 0 1000 3 22 -1 0 = 20000
9 0 3 mmap 0 1000 3 22 -1 0 = f000
10 0 2 mmap 0 1000 3 22 -1 0 = 30000
11 0 3 madvise 7f0000000000 1000 4 = 0
",
    );
    // Both mappings merge with the VMA between them.
    assert_eq!(waits(&segment, 6), [(2, 0)]);
    assert_eq!(waits(&segment, 7), []);
    assert_eq!(waits(&segment, 8), []);
}

#[test]
fn fork_waits_for_all_tasks_and_all_tasks_wait_for_the_fork() {
    let segment = threads(
        "8 0 2 F 10000 4 x1
9 0 3 F 7f0000000000 4 x1
10 0 1 N 4 4 0
11 0 2 F 11000 4 x1
12 0 4 F 11000 4 x1
",
    );
    assert_eq!(waits(&segment, 7), [(2, 0), (3, 0)]);
    assert_eq!(waits(&segment, 8), [(1, 3)]);
    // The fork creates the child with its own address space, so the child's first step waits for nothing.
    assert_eq!(waits(&segment, 9), []);
    let child = segment.tasks.iter().find(|task| task.task == 4).expect("the child has steps");
    assert!(!child.runs);
}

#[test]
fn last_task_waits_once_for_the_tasks_that_left() {
    let segment = threads(
        "8 0 2 F 10000 4 x1
9 0 2 X
10 0 3 X
11 0 1 munmap 10000 1000 = 0
12 0 1 munmap 11000 1000 = 0
",
    );
    assert_eq!(waits(&segment, 8), [(2, 1), (3, 0)]);
    assert_eq!(waits(&segment, 9), []);
}

#[test]
fn unresolved_fault_gets_the_signal_that_follows() {
    let mut planner = planner(
        "8 0 1 F 0 4
9 0 1 G 11 1
10 0 1 F 1000 6
11 0 1 F 10000 6 x1
12 0 1 F 2000 0
",
    );
    let segment = planner.next_segment().expect("something");
    let ends: Vec<Ends> = segment.tasks[0]
        .steps
        .iter()
        .filter_map(|step| match step.what {
            StepKind::Fault { ends, .. } => Some(ends),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [Ends::Signal(11, 1), Ends::Interrupted, Ends::Resolved]);
    let aside: Vec<u64> = planner.set_aside().values().copied().collect();
    assert_eq!(aside, [1, 1], "{:?}", planner.set_aside());
}

#[test]
fn segments_are_bounded_and_end_at_a_freeze() {
    let events: String = (0..10).map(|n| format!("{} 0 1 F 1{n}000 6 x1\n", 10 + n)).collect();
    let frozen = format!("{events}30 - - Z 5\n31 - 1 S 1 freeze 1\n40 0 1 F 20000 6 x1\n");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    fs::write(&path, format!("# fhtrace 1 t\n5 0 1 E 0\n{frozen}")).expect("written");
    let second = SNAP.lines().skip(1).collect::<Vec<_>>().join("\n").replace("@ 0 exec", "@ 1 freeze");
    fs::write(folder.path().join("t.snap"), format!("{SNAP}{second}\n")).expect("written");
    let mut planner = Planner::new(Recording::open(&path).expect("a recording")).with_segments_of(4);
    let mut lengths = Vec::new();
    let (mut firsts, mut times) = (Vec::new(), Vec::new());
    while let Some(segment) = planner.next_segment() {
        lengths.push((segment.tasks[0].steps.len(), segment.frozen.len()));
        firsts.push(segment.tasks[0].first);
        times.extend(segment.tasks[0].steps.iter().map(|step| step.time));
        assert!(segment.tasks[0].runs && segment.waits.is_empty());
    }
    // The exec and the first ten faults fill three segments, and the freeze ends the third. The last fault is
    // in the fourth.
    assert_eq!(lengths, [(4, 0), (4, 0), (3, 1), (1, 0)]);
    assert_eq!(firsts, [0, 4, 8, 11]);
    assert_eq!(times, [5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 40]);
    assert_eq!(planner.recorded().active, 35);
}

#[test]
fn whole_space_step_waits_only_for_recently_active_tasks() {
    let segment = threads(
        "8 0 2 F 10000 6 x1
9 0 3 mseal 0 0 0 = 0
10 0 2 F 11000 4 x1
11 0 1 mseal 0 0 0 = 0
12 0 3 mseal 0 0 0 = 0
",
    );
    // Task 3 begins after the last step of task 1, which created it.
    assert_eq!(waits(&segment, 6), [(2, 0)]);
    let mut since = waits(&segment, 8);
    since.sort_unstable();
    assert_eq!(since, [(2, 1), (3, 0)]);
    assert_eq!(waits(&segment, 9), [(1, 3)]);
}

/// With many tasks that each wait for all others, the number of waits grows linearly with the number of
/// steps.
#[test]
fn waits_of_many_tasks_grow_linearly() {
    let many = 2000;
    let made = (2..many).map(|task| format!("6 0 1 N {task} 1 10100\n6 0 {task} F 10000 4 x1\n"));
    let wait = (0..2 * many).map(|n| format!("8 0 {} mseal 0 0 0 = 0\n", 2 + n % (many - 2)));
    let segment = whole(&made.chain(wait).collect::<String>());
    assert!(segment.waits.len() as u64 <= 2 * segment.events, "{} waits", segment.waits.len());
}

/// If a task has waited for thousands of tasks and then creates thousands of tasks, the planner does not copy
/// its list of waits to each new task.
#[test]
fn inherited_waits_of_many_tasks_are_bounded() {
    let many = 2000;
    let made = (2..many).map(|task| format!("6 0 1 N {task} 1 10100\n6 0 {task} F 10000 4 x1\n"));
    let more = (many..2 * many).map(|task| format!("9 0 1 N {task} 1 10100\n"));
    let mut planner =
        planner(&format!("{}8 0 1 mseal 0 0 0 = 0\n{}", made.collect::<String>(), more.collect::<String>()));
    while let Some(event) = planner.recording.next_event().expect("readable") {
        planner.event(event).expect("readable");
    }
    let known: usize = planner.processes.tasks.values().map(|task| task.known.len()).sum();
    assert!(known <= 4 * 2 * many, "{known}");
}

/// The planner's model has the VMAs of every snapshot of a frozen program.
#[test]
fn vmas_of_the_model_equal_those_of_snapshots() {
    let mut compared = 0;
    for path in recordings() {
        let mut planner = Planner::new(Recording::open(&path).expect("a recording"));
        while let Some(segment) = planner.next_segment() {
            for Frozen { task, snapshot, .. } in &segment.frozen {
                let number = planner.space_of(*task).expect("a space");
                let ours: Vec<(u64, u64, u8, bool)> = planner.processes.spaces[&number]
                    .areas
                    .iter()
                    .map(|(start, area)| (start, area.end, area.prot, area.shared))
                    .collect();
                let shown = snapshot.areas.iter();
                let theirs: Vec<(u64, u64, u8, bool)> =
                    shown.map(|area| (area.start, area.end, area.prot, area.shared)).collect();
                assert_eq!(ours, theirs, "{}, snapshot {}", path.display(), snapshot.id);
                compared += 1;
            }
        }
    }
    assert!(compared > 0 || recordings().is_empty());
}

/// Returns the small recordings in the folder `recordings`, and those in `../shared/traces` if that folder
/// exists.
fn recordings() -> Vec<std::path::PathBuf> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("recordings"), root.join("../shared/traces")];
    let mut found: Vec<_> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().contains(".trace."))
        .filter(|path| fs::metadata(path).is_ok_and(|data| data.len() < 1_200_000))
        .collect();
    found.sort();
    found
}

/// Returns a planner of a recording with descriptors (version 2). The first event is line 6 of the file.
pub(super) fn second_planner(events: &str) -> Planner {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    let head = "# fhtrace 2 t\n# file 1 - /memfd:m (deleted)\n# file 2 8192 /f\n# file 3 - /memfd:m (deleted)\n5 0 1 E 0\n";
    fs::write(&path, format!("{head}{events}")).expect("written");
    let again = SNAP.lines().skip(1).collect::<Vec<_>>().join("\n").replace("@ 0 exec 1", "@ 1 exec 2");
    fs::write(folder.path().join("t.snap"), format!("{SNAP}{again}\n")).expect("written");
    Planner::new(Recording::open(&path).expect("a recording"))
}

/// Returns the first segment of a plan made by `second_planner`.
pub(super) fn second(events: &str) -> Segment {
    second_planner(events).next_segment().expect("something")
}

/// Returns the planned calls, each with its file and the access mode (read, write), and the lengths that the
/// plan sets.
fn on_files(segment: &Segment) -> Vec<String> {
    let show = |step: &Step| match &step.what {
        StepKind::Call(planned) => {
            let access = planned.access.map(|access| (access.read, access.write));
            Some(format!("{} {:?} {access:?}", planned.call.name.as_str(), planned.file))
        }
        StepKind::Length { file, bytes } => Some(format!("length {file} {bytes:?}")),
        _ => None,
    };
    segment.tasks.iter().flat_map(|task| &task.steps).filter_map(show).collect()
}

#[test]
fn opens_of_a_file_differ_and_copied_descriptors_are_equal() {
    let mut events = "6 0 1 open 100 2 0 = 3\n6 0 1 open 100 2 0 = 4\n7 0 1 dup 3 = 5\n".to_owned();
    for descriptor in 3..6 {
        events += &format!("8 0 1 mmap 0 2000 1 1 {descriptor} 0 = {descriptor}0000 f2\n");
    }
    let segment = second(&events);
    let planned = segment.tasks.iter().flat_map(|task| &task.steps).filter_map(|step| match &step.what {
        StepKind::Call(planned) => Some(planned.access.and_then(|access| access.open).expect("by an open")),
        _ => None,
    });
    let opens: Vec<u32> = planned.collect();
    assert!(opens.len() == 3 && opens[0] == opens[2] && opens[0] != opens[1], "{opens:?}");
}

#[test]
fn memfds_are_distinguished_by_descriptor_and_not_by_name() {
    let segment = second(
        "6 0 1 memfd_create 100 2 = 3
6 0 1 memfd_create 100 2 = 4
7 0 1 ftruncate 3 2000 = 0
8 0 1 dup2 3 9 = 9
9 0 1 close 3 = 0
10 0 1 mmap 0 2000 3 1 9 0 = 30000 f1
11 0 1 mmap 0 2000 1 1 4 0 = 40000 f3
12 0 1 fcntl 9 409 8 = -16
",
    );
    assert_eq!(
        on_files(&segment),
        [
            "ftruncate Some(1) None",
            "mmap Some(1) Some((true, true))",
            "mmap Some(2) Some((true, true))",
            "fcntl Some(1) None",
        ]
    );
    // The file has its name from its first mapping on.
    let files: Vec<_> = segment.files.iter().map(|file| (file.id, file.path.as_str(), file.length)).collect();
    assert_eq!(
        files,
        [
            (1, "/memfd:", Some(0)),
            (2, "/memfd:", Some(0)),
            (1, "/memfd:m", Some(0)),
            (2, "/memfd:m", Some(0)),
        ]
    );
}

#[test]
fn access_and_length_set_before_the_mmap_are_planned() {
    let segment = second(
        "6 0 1 openat ffffff9c 100 2 1b6 = 3
7 0 1 ftruncate 3 1000 = 0
8 0 1 mmap 0 2000 1 1 3 0 = 30000 f2
9 0 1 F 31000 6
9 0 1 G 7 2
10 0 1 openat ffffff9c 100 0 0 = 4
11 0 1 mmap 0 2000 3 1 4 0 = -13
12 0 1 close 4 = 0
13 0 1 mmap 0 2000 1 1 4 0 = 50000 f2
14 0 1 F 31000 6 x1
",
    );
    assert_eq!(
        on_files(&segment),
        [
            "length 1 Some(4096)",
            "mmap Some(1) Some((true, true))",
            "mmap Some(2) Some((true, false))",
            // The open of this descriptor is not recorded.
            "mmap Some(1) None",
            // The fault was resolved, so an unrecorded write must have extended the file.
            "length 1 None",
        ]
    );
}

#[test]
fn truncation_and_faults_of_other_address_spaces_keep_their_order() {
    let segment = second(
        "6 0 1 memfd_create 100 0 = 3
7 0 1 ftruncate 3 2000 = 0
8 0 1 mmap 0 2000 3 1 3 0 = 30000 f1
9 0 1 N 2 2 0
10 0 2 F 31000 6 x1
11 0 1 ftruncate 3 1000 = 0
12 0 2 F 31000 6
12 0 2 G 7 2
",
    );
    assert_eq!(waits(&segment, 11), [(2, 0)]);
    assert_eq!(waits(&segment, 12), [(1, 4)]);
}

#[test]
fn process_is_unknown_after_a_loss_until_an_exec() {
    let segment = second(
        "6 0 1 N 2 2 0
7 0 1 brk 0 = 70000
8 - - L 12
9 0 1 brk 0 = 70000
10 - - L 0
10 0 2 N 3 3 0
11 0 3 brk 0 = 70000
12 0 2 E 1
13 0 2 brk 0 = 70000
",
    );
    let calls: Vec<_> = segment.tasks.iter().map(|task| (task.task, task.steps.len())).collect();
    // Task 1 has an exec, a fork and a brk; task 2 has a fork, an exec and a brk; task 3 has no steps.
    assert_eq!(calls, [(1, 3), (2, 3)]);
}

/// The calls in the first list have results that only a machine with protection keys gives.
#[test]
fn results_of_a_machine_with_protection_keys_are_detected() {
    let uses_keys = |call: &str| {
        let mut planner = planner(&format!("6 0 1 {call}\n"));
        planner.next_segment();
        assert!(planner.recording().unread().count() == 0, "{call}");
        planner.uses_keys()
    };
    for call in [
        "pkey_alloc 0 0 = 1",
        "pkey_free 1 = 0",
        "pkey_mprotect 10000 1000 1 0 = 0",
        "pkey_mprotect 90000 1000 1 0 = -12",
        "pkey_mprotect 10000 1000 1 3 = -13",
        "pkey_mprotect 10000 1000 1 0 = -1",
    ] {
        assert!(uses_keys(call), "{call}");
    }
    for call in [
        "pkey_alloc 0 0 = -28",
        "pkey_free 0 = -22",
        "pkey_mprotect 10000 1000 1 0 = -22",
        "pkey_mprotect 10000 1000 1 ffffffffffffffff = 0",
        "pkey_mprotect 10000 0 1 0 = 0",
        "pkey_mprotect 10000 fffffffffffff000 1 0 = -12",
        "pkey_mprotect 10000 ffffffffffffffff 1 0 = -12",
    ] {
        assert!(!uses_keys(call), "{call}");
    }
}

/// Events of a program may be missing if the program starts during a loss. Its address space is unknown until
/// an exec after the end of the last overlapping loss.
#[test]
fn exec_during_a_loss_leaves_the_process_unknown() {
    let is_known = |before: &str, between: &str| {
        let segment = second(&format!("6 0 1 N 2 2 0\n{before}9 0 2 E 1\n{between}10 0 2 brk 0 = 70000\n"));
        let steps = segment.tasks.iter().filter(|task| task.task == 2).flat_map(|task| &task.steps);
        steps.into_iter().any(|step| matches!(step.what, StepKind::Call(_)))
    };
    assert!(is_known("", ""));
    assert!(!is_known("6 - - L 9\n", ""));
    assert!(!is_known("6 - - L 9\n", "9 - - L 0\n"), "the exec precedes the end of the loss");
    assert!(is_known("6 - - L 9\n7 - - L 0\n", ""));
    // The first end may belong to either loss, so the other loss may continue.
    assert!(!is_known("6 - - L 9\n7 - - L 3\n8 - - L 0\n", ""));
    assert!(is_known("6 - - L 9\n7 - - L 3\n8 - - L 0\n8 - - L 0\n", ""));
    // A loss of one task, and an unreadable line, end at once.
    assert!(is_known("6 - 2 L 9\n", ""));
    assert!(is_known("what\n", ""));
    assert!(!is_known("what\n6 - - L 9\nwhat\n", ""));
}

/// A memfd_create is not a step, so no step waits for it.
#[test]
fn mmap_of_a_memfd_does_not_wait_for_its_creator() {
    let segment = second(
        "6 0 1 N 2 1 10500
7 0 1 memfd_create 100 0 = 3
8 0 2 mmap 0 2000 3 1 3 0 = 30000 f1
9 0 1 munmap 30000 2000 = 0
",
    );
    assert!(waits(&segment, 8).iter().all(|(task, _)| *task != 1), "{:?}", waits(&segment, 8));
    assert_eq!(waits(&segment, 9), [(2, 0)]);
}

#[test]
fn descriptors_opened_before_an_exec_are_unknown_after_it() {
    let segment = second(
        "6 0 1 openat ffffff9c 100 2 1b6 = 3
7 0 1 N 2 2 0
8 0 2 E 1
9 0 2 mmap 0 2000 1 1 3 0 = 30000 f2
10 0 1 mmap 0 2000 1 1 3 0 = 30000 f2
",
    );
    assert_eq!(on_files(&segment), ["mmap Some(1) Some((true, true))", "mmap Some(1) None"]);
}

/// If a prctl with valid arguments was refused, the recorded kernel does not know the operation. A refused
/// prctl with invalid arguments is planned, because every kernel refuses it.
#[test]
fn prctl_operations_unknown_to_the_recorded_kernel_are_set_aside() {
    let asked = |events: &str| {
        let mut planner = planner(events);
        let segment = planner.next_segment().expect("something");
        let steps = segment.tasks.iter().flat_map(|task| &task.steps);
        let calls = steps.filter(|step| matches!(step.what, StepKind::Call(_))).count();
        (calls as u64, planner.set_aside().get(aside::PRCTL).copied().unwrap_or_default())
    };
    let unknown = ["43 1 0 0 0", "43 0 0 0 0", "44 0 0 0 0", "29 1 2 0 0", "41 3 0 0 0", "42 0 0 0 0"];
    let senseless = ["43 1 1 0 0", "44 1 0 0 0", "29 1 1 0 0", "29 0 2 0 0", "41 2 0 0 0", "2a 1 0 0 0"];
    for (call, made) in unknown.map(|call| (call, 0)).into_iter().chain(senseless.map(|call| (call, 1))) {
        assert_eq!(asked(&format!("6 0 1 prctl {call} = -22\n")), (made, 1 - made), "{call}");
    }
    assert_eq!(asked("6 0 1 prctl 43 1 0 0 0 = 0\n7 0 1 prctl 2a 0 0 0 0 = 1\n"), (2, 0));
    assert_eq!(asked("6 0 1 prctl f 1 0 0 0 = 0\n"), (0, 1), "an operation that does not concern memory");
}

/// A change of limits becomes a step only if a limit differs. The step comes before the next use of the
/// process's memory, and later steps of all tasks wait for the step.
#[test]
fn limits_are_set_before_the_first_step_that_needs_them() {
    let limits = "ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 1000";
    let segment = threads(&format!(
        "8 0 2 F 10000 4 x1
9 0 1 R {limits}
10 0 3 F 11000 4 x1
11 0 2 F 12000 4 x1
12 0 1 setrlimit 9 1000000 1000000 = 0
13 0 1 setrlimit 9 ffffffffffffffff ffffffffffffffff = 0
14 0 2 mlock 12000 1000 = -12
15 0 1 mlock 13000 1000 = -12
"
    ));
    let limited = |task: &TaskSteps| {
        let steps = task.steps.iter().filter(|step| matches!(step.what, StepKind::Limits(_)));
        steps.map(|step| step.line).collect::<Vec<_>>()
    };
    let all: Vec<_> = segment.tasks.iter().map(limited).collect();
    assert_eq!(all, [vec![], vec![], vec![7]]);
    assert_eq!(waits(&segment, 7), [(2, 0)]);
    assert_eq!(waits(&segment, 8), [(3, 0)]);
    assert!(waits(&segment, 12).contains(&(2, 2)));
}
