//! Tests of the waits of a replay. The plan is that of a small recording; the tests write the logs of the
//! workers, so that every wait and its holder are known.

use super::*;
use crate::source::Source;
use freehold_sync::Rank;
use freehold_trace::plan::Planner;
use std::fs;

/// Task 1 creates the thread 2, and the process 3 by a fork; both map and unmap memory.
const EVENTS: &str = "# fhtrace 2 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n10 0 1 N 2 1 10100\n20 0 1 N 3 3 0\n\
30 0 1 mmap 20000 1000 3 32 -1 0 = 20000\n40 0 2 mmap 30000 1000 3 32 -1 0 = 30000\n\
50 0 2 munmap 30000 1000 = 0\n60 0 1 madvise 20000 1000 4 = 0\n70 0 3 mmap 40000 1000 3 32 -1 0 = 40000\n";
const SNAPSHOTS: &str = "# fhsnap 1 t\n@ 0 exec 1 5 6 1 worker | /bin/t | VmRSS:8;RssAnon:8\n\
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme\n7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac\n";

/// Lines of the recording.
const MMAP_1: u32 = 6;
const MMAP_2: u32 = 7;
const MUNMAP_2: u32 = 8;
const MADVISE_1: u32 = 9;
const MMAP_3: u32 = 10;

fn segment() -> Segment {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("t.trace"), EVENTS).expect("a file");
    fs::write(folder.path().join("t.snap"), SNAPSHOTS).expect("a file");
    let source = Source::from(folder.path().join("t.trace").as_path());
    Planner::new(source.open().expect("a recording")).next_segment().expect("a segment")
}

/// Returns a log: for each use its line, whether it is a wait, and its time.
fn log(segment: &Segment, space: usize, uses: &[(u32, bool, u64, u64)]) -> StepLocks {
    let of_line = |line| {
        let steps = segment.tasks.iter().flat_map(|of| of.steps.iter().map(|step| (of.task, step)));
        steps.into_iter().find(|(_, step)| step.line == line).expect("a step of the line")
    };
    let mut locks = StepLocks::default();
    for (line, waited, from_ns, to_ns) in uses.iter().copied() {
        let (task, step) = of_line(line);
        let used = LockUse { lock: space, rank: Rank::Mmap, waited, write: true, from_ns, to_ns };
        locks.logged.push(used);
        locks.step(task, step);
    }
    locks
}

/// Returns the waits of a replay with these logs of workers.
fn waits(segment: &Segment, mut logs: Vec<StepLocks>) -> Waits {
    let mut waits = LockWaits::default();
    waits.segment(segment, logs.iter_mut(), (1_000, Duration::from_nanos(50)));
    assert!(logs.iter().all(|log| log.uses.is_empty()));
    waits.finish()
}

#[test]
fn wait_names_the_step_that_held_the_lock() {
    let segment = segment();
    let first = log(&segment, 8, &[(MMAP_1, false, 1_000, 1_700), (MADVISE_1, false, 1_700, 1_720)]);
    let second = log(&segment, 8, &[(MUNMAP_2, true, 1_100, 1_700), (MUNMAP_2, false, 1_700, 1_900)]);
    let found = waits(&segment, vec![first, second]);
    let [group] = found.groups.as_slice() else { panic!("{found:?}") };
    assert_eq!((group.process, group.command.as_str()), (1, "worker"));
    assert_eq!((group.waiter.as_str(), group.waiter_tasks.as_slice()), ("munmap", [2].as_slice()));
    assert_eq!((group.holder.as_str(), group.holder_tasks.as_slice()), ("mmap", [1].as_slice()));
    assert_eq!((group.sum.count, group.sum.total_ns, found.all.total_ns), (1, 600, 600));
    // Times count from the beginning of the segment, after the time of earlier segments.
    assert_eq!((found.longest[0].line, found.longest[0].from_ns), (MUNMAP_2, 150));
    let holder = found.longest[0].holder.as_ref().expect("a holder");
    assert_eq!((holder.line, holder.from_ns, holder.ns), (MMAP_1, 50, 700));
    assert_eq!(found.at_once.count, 0, "a short wait is a wait");
}

#[test]
fn lock_of_another_address_space_is_no_holder() {
    let segment = segment();
    let first = log(&segment, 8, &[(MMAP_1, false, 1_000, 1_700)]);
    let third = log(&segment, 16, &[(MMAP_3, true, 1_100, 1_700)]);
    let found = waits(&segment, vec![first, third]);
    assert!(found.groups.is_empty());
    assert_eq!((found.without_holder[0].waiter.as_str(), found.without_holder[0].sum.count), ("mmap", 1));
    assert_eq!(found.longest[0].process, 3);
}

#[test]
fn waits_behind_one_hold_are_a_convoy() {
    let segment = segment();
    let holder = log(&segment, 8, &[(MADVISE_1, false, 2_000, 9_000)]);
    let waiters =
        [(MMAP_2, true, 2_100, 9_000), (MUNMAP_2, true, 2_200, 9_100), (MMAP_2, true, 8_000, 9_200)];
    let found = waits(&segment, vec![holder, log(&segment, 8, &waiters)]);
    let [convoy] = found.convoys.as_slice() else { panic!("{found:?}") };
    assert_eq!((convoy.holder.operation.as_str(), convoy.command.as_str()), ("madvise(DONTNEED)", "worker"));
    assert_eq!((convoy.waiters["mmap"], convoy.waiters["munmap"], convoy.sum.count), (2, 1, 3));
}
