//! Tests the list of a recording's tasks (`tasks.rs`): the printed list, the rounding of times, and the
//! errors for a missing task. A case is a recording of a few lines (`TRACE`, in the format of
//! docs/reference/trace-format.md), which `tasks` writes to a temporary folder and reads.

use super::*;

/// A shell forks. The child execs. A thread of the child execs again, which ends the other thread.
const TRACE: &str = "# fhtrace 1 t
0 0 1 brk 0 = 1000
1000 0 1 E 0
2000 0 1 mmap 0 3000 3 22 -1 0 = 7f0000000000
2500 0 1 F 7f0000000000 6 x1
3000 0 1 N 2 2 0
4000 0 2 f 7f0000000000 6 x1
4500 0 2 E 1
5000 0 2 N 3 2 10900
5100 0 3 F 7f0000000000 6 x1
6000 0 3 E -
7000 0 3 X g
1234567 0 - Z 5
";

const SNAPSHOTS: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 sh | /bin/sh | VmRSS:8
@ 1 exec 2 5 6 1 cat | /bin/cat | VmRSS:8
";

fn tasks(trace: &str) -> Tasks {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    std::fs::write(&path, trace).expect("written");
    std::fs::write(path.with_extension("snap"), SNAPSHOTS).expect("written");
    Tasks::of(&path).expect("a recording")
}

#[test]
fn list_has_one_line_per_task() {
    let text = tasks(TRACE).text();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(text.lines().next(), Some("t: 3 tasks of 2 processes, 1234.567us"));
    assert_eq!(rows[2], ["task", "process", "command", "from", "to", "calls", "faults"]);
    assert_eq!(rows[3], ["1", "1", "sh", "0.000us", "-", "2", "1"]);
    assert_eq!(rows[4], ["2", "2", "-", "3.000us", "6.000us", "0", "0"], "{text}");
    assert_eq!(rows[5], ["3", "2", "-", "5.000us", "7.000us", "0", "1"], "{text}");
    assert_eq!(rows.len(), 6);
}

/// After an exec without a snapshot the name of the task is not known. A fork copies the name.
#[test]
fn commands_come_from_snapshots_and_forks() {
    let text = tasks(&TRACE.replace("6000 0 3 E -\n", "")).text();
    assert!(text.contains(" 2        2      cat ") && text.contains(" 3        2      cat "), "{text}");
    let text = tasks(&TRACE.replace("4500 0 2 E 1\n", "").replace("6000 0 3 E -\n", "")).text();
    assert!(text.contains(" 2        2       sh "), "{text}");
}

/// A printed time is valid for `--maps-at` and lies within the lifetime of the task.
#[test]
fn times_are_rounded_into_the_lifetime() {
    let of = |length| Tasks { length, ..Tasks::default() };
    for (length, time, from, to) in [
        (9_999, 1234, "1234ns", "1234ns"),
        (10_000, 1234, "1.234us", "1.234us"),
        (10_000_000, 1_234_567, "1.235ms", "1.234ms"),
        (10_000_000_000, 1_234_567_890, "1.234568s", "1.234567s"),
        (10_000_000_000, 1_999_999_999, "2.000000s", "1.999999s"),
    ] {
        assert_eq!((of(length).at(time, true), of(length).at(time, false)), (from.to_owned(), to.to_owned()));
    }
}

#[test]
fn error_explains_why_no_task_is_found() {
    for (task, time, said) in [
        (
            None,
            500,
            "no task with a known address space at 0.500us; no task has a known address space at that time; the recording lasts",
        ),
        (
            Some(1),
            500,
            "no task 1 with a known address space at 0.500us; its address space is known from 1.000us on; no task has a known address space at that time;",
        ),
        (
            Some(9),
            3500,
            "no task 9 with a known address space at 3.500us; the recording has no task 9; tasks 1, 2 have known address spaces at that time;",
        ),
        (
            Some(2),
            6000,
            "at 6.000us; it lived from 3.000us to 6.000us; tasks 1, 3 have known address spaces at that time; the recording lasts 1234.567us",
        ),
        (
            Some(3),
            2000,
            "at 2.000us; its address space is known from 5.000us on; task 1 has a known address space at that time",
        ),
    ] {
        let why = NoTask { task, time, tasks: tasks(TRACE) }.to_string();
        assert!(why.contains(said), "{why}\ninstead of\n{said}");
    }
    let unknown =
        NoTask { task: Some(1), time: 10, tasks: tasks("# fhtrace 1 t\n0 0 1 brk 0 = 1000\n9 0 1 X g\n") };
    assert!(unknown.to_string().contains("; it has not called execve, so its address space is not known; no task has a known address space at that time; the recording lasts 9ns"), "{unknown}");
}

/// The message stays on one line if the recording has many tasks.
#[test]
fn message_names_a_limited_number_of_tasks() {
    let mut trace = "# fhtrace 1 t\n0 0 1 E 0\n".to_owned();
    (2..40).for_each(|child| trace += &format!("5 0 1 N {child} {child} 0\n"));
    let why = NoTask { task: Some(99), time: 5, tasks: tasks(&trace) }.to_string();
    assert!(
        why.contains(
            "tasks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 27 more have known address spaces at that time"
        ),
        "{why}"
    );
}
