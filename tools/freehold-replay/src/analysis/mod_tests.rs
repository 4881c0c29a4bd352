//! Analyses of small recordings with known answers. A recording is a text here; `analysis` writes it with its
//! snapshots to a folder and reads it like `freehold replay`.
//!
//! `locks` has one hold behind which three operations wait, and a downgraded hold. `memory` has one mapping
//! of each fate.

use super::faults::FaultCounts;
use super::mappings::Kind as Memory;
use super::waits::Sum;
use super::*;
use std::fs;

/// The snapshot of the exec, which every recording here begins with.
const SNAP: &str = "# fhsnap 1 small\n\
    @ 0 exec 1 0 0 1 prog | /bin/prog | \n\
    400000-404000 r-xp 0 /bin/prog\n\
    7ffffff00000-7ffffff10000 rw-p 0 [stack]\n\
    P 400 1 c\n\
    P 7fffffaff 1 8\n";

/// Returns the analysis of these lines, after the header and the exec.
fn analysis(lines: &str) -> Analysis {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("small.trace");
    fs::write(folder.path().join("small.snap"), SNAP).expect("a file");
    fs::write(&trace, format!("# fhtrace 3 small\n0 0 1 E 0 x1\n{lines}")).expect("a file");
    of_recording(&trace).expect("a recording")
}

/// Threads 2, 3 and 4 wait while task 1 maps. Then task 1 unmaps, and holds the lock for reading at the end.
fn locks() -> Waits {
    let found = analysis(
        "10 0 1 N 2 1 10100\n\
         11 0 1 N 3 1 10100\n\
         12 0 1 N 4 1 10100\n\
         1000 0 1 mmap 0 100000 3 22 -1 0 = 7f0000000000 e20 x60000 w20 h50000\n\
         10000 0 3 F 400010 14 x43000 r42000 h500\n\
         11000 0 4 F 400020 14 x43000 r41500 h500\n\
         52500 0 2 munmap 7f0000000000 1000 = 0 e45500 x600 w45500 h500\n\
         100000 0 1 munmap 7f0000001000 80000 = 0 e10 x20200 w10 h100 d20000 l2\n\
         105000 0 3 F 401010 14 x5000 r1500 h500\n\
         121000 0 2 mmap 0 1000 3 22 -1 0 = 7f0000200000 e19000 x600 w19000 h500\n",
    );
    found.waits.expect("the recording has locks")
}

#[test]
fn each_wait_has_the_conflicting_hold_that_overlaps_most() {
    let waits = locks();
    let pairs: Vec<_> = waits
        .longest
        .iter()
        .map(|wait| {
            let holder = wait.holder.as_ref();
            let holder = holder.map(|holder| (holder.task, holder.operation.as_str(), holder.ns));
            (wait.task, wait.waiter.as_str(), wait.ns, holder)
        })
        .collect();
    assert_eq!(
        pairs,
        [
            (2, "munmap", 45_500, Some((1, "mmap", 50_000))),
            (3, "fault", 42_000, Some((1, "mmap", 50_000))),
            (4, "fault", 41_500, Some((1, "mmap", 50_000))),
            (2, "mmap", 19_000, Some((1, "munmap", 20_000))),
            // A reader does not wait for a reader.
            (3, "fault", 1_500, None),
        ]
    );
}

#[test]
fn groups_have_tasks_count_total_and_longest() {
    let waits = locks();
    let group = waits.groups.iter().find(|group| group.waiter == "fault").expect("faults waited");
    assert_eq!((group.process, group.command.as_str()), (1, "prog"));
    assert_eq!((&group.waiter_tasks, &group.holder_tasks), (&vec![3, 4], &vec![1]));
    assert_eq!(group.sum, Sum { count: 2, total_ns: 83_500, longest_ns: 42_000 });
    assert_eq!(waits.groups[0].waiter, "fault", "the largest total is first");
    assert_eq!(waits.not_recorded, 2);
}

#[test]
fn three_waits_behind_one_hold_are_a_convoy() {
    let waits = locks();
    let [convoy] = waits.convoys.as_slice() else { panic!("{:?}", waits.convoys) };
    assert_eq!((convoy.holder.task, convoy.holder.operation.as_str()), (1, "mmap"));
    assert_eq!((convoy.waiters["fault"], convoy.waiters["munmap"]), (2, 1));
    assert_eq!(convoy.sum, Sum { count: 3, total_ns: 129_000, longest_ns: 45_500 });
}

#[test]
fn every_acquisition_is_counted_once() {
    let waits = locks();
    assert_eq!(waits.all, Sum { count: 7, total_ns: 149_530, longest_ns: 45_500 });
    assert_eq!(waits.at_once, Sum { count: 2, total_ns: 30, longest_ns: 20 });
    let groups = waits.groups.iter().map(|group| group.sum);
    let parts = groups.chain(waits.without_holder.iter().map(|waits| waits.sum)).chain([waits.at_once]);
    let (count, total) = parts.fold((0, 0), |all, sum| (all.0 + sum.count, all.1 + sum.total_ns));
    assert_eq!((count, total), (waits.all.count, waits.all.total_ns));
}

#[test]
fn processes_do_not_wait_for_each_other() {
    let found = analysis(
        "10 0 1 N 2 2 0\n\
         1000 0 1 mmap 0 100000 3 22 -1 0 = 7f0000000000 x60000 w20 h50000\n\
         52500 0 2 munmap 7f0000000000 1000 = 0 e45500 x600 w45500 h500\n",
    );
    let waits = found.waits.expect("locks");
    assert!(waits.groups.is_empty() && waits.convoys.is_empty());
    assert_eq!(waits.without_holder[0].sum.count, 1);
}

#[test]
fn madvise_is_named_with_its_advice() {
    let found =
        analysis("1000 0 1 madvise 400000 1000 4 = 0 x700\n2000 0 1 madvise 400000 1000 2 = 0 x300\n");
    let names: Vec<_> = found.operations.iter().map(|sum| (sum.operation.as_str(), sum.total_ns)).collect();
    assert_eq!(names, [("madvise(DONTNEED)", 700), ("madvise(SEQUENTIAL)", 300), ("exec", 1)]);
    assert_eq!(found.waits, None);
}

/// Maps four ranges: one is unmapped, one is never touched, one is reserved, and one stays with two pages.
fn memory() -> Analysis {
    analysis(
        "1000 0 1 mmap 0 10000 3 22 -1 0 = 7f0000000000 x1\n\
         2000 0 1 mmap 0 20000 3 22 -1 0 = 7f0000100000 x1\n\
         3000 0 1 mmap 0 30000 0 22 -1 0 = 7f0000200000 x1\n\
         4000 0 1 mmap 0 40000 3 22 -1 0 = 7f0000300000 x1\n\
         5000 0 1 F 7f0000000000 6 x1\n\
         5001 0 1 F 7f0000001000 6 x1\n\
         5002 0 1 F 7f0000002000 4 x1\n\
         5003 0 1 F 7f0000002000 7 x1\n\
         5004 0 1 F 7f0000300000 6 x1\n\
         5005 0 1 F 7f0000301000 6 x1\n\
         5006 0 1 F 7f0000900000 6\n\
         6000 0 1 munmap 7f0000000000 10000 = 0 x1 i3\n\
         100000 0 1 X g\n",
    )
}

#[test]
fn faults_are_counted_by_kind_and_over_time() {
    let faults = memory().faults.expect("faults");
    let counts = FaultCounts { first_touch: 5, copy_on_write: 1, refused: 1, ..FaultCounts::default() };
    assert_eq!(faults.counts, counts);
    assert_eq!(faults.over_time.iter().map(FaultCounts::sum).sum::<u64>(), 7);
    assert_eq!((faults.interrupts[0].operation.as_str(), faults.interrupts[0].count), ("munmap", 3));
}

#[test]
fn peak_has_its_kinds_and_mappings() {
    let resident = memory().resident.expect("faults");
    // A page of the program, a page of the stack, three pages and two pages; the page of zeroes is not
    // counted.
    let peak = &resident.peak;
    let pages = |kind: Memory| peak.by_kind.get(&kind).copied().unwrap_or(0) / 4096;
    assert_eq!([Memory::Anonymous, Memory::Stack, Memory::FilePrivate].map(pages), [5, 1, 1]);
    // The program, the stack, and the two ranges in different regions of 2 MiB.
    assert_eq!(pages(Memory::PageTables), 4);
    assert_eq!((peak.at_ns, peak.bytes), (5_005, 11 * 4096));
    let largest = &peak.mappings[0];
    assert_eq!((largest.line, largest.start, largest.bytes), (3, 0x7f00_0000_0000, 3 * 4096));
    assert_eq!(resident.processes[0].peak_bytes, peak.bytes);
    let most = resident.processes[0].over_time.iter().max();
    assert_eq!(most, Some(&peak.bytes));
}

#[test]
fn mappings_have_their_fate() {
    let mappings = memory().mappings;
    let lines =
        |listed: &summary::Listed| listed.largest.iter().map(|mapping| mapping.line).collect::<Vec<_>>();
    assert_eq!(lines(&mappings.never_touched), [4]);
    assert_eq!(mappings.never_touched.bytes, 0x20000);
    assert_eq!(lines(&mappings.never_unmapped), [6]);
    assert_eq!(mappings.never_unmapped.bytes, 2 * 4096);
    let unmapped = mappings.most_faults.iter().find(|mapping| mapping.line == 3).expect("it has faults");
    assert!(unmapped.unmapped && unmapped.to_ns == 6_000);
    assert_eq!(unmapped.faults.sum(), 4);
}

#[test]
fn moved_mapping_stays_one_mapping() {
    let found = analysis(
        "1000 0 1 mmap 0 2000 3 22 -1 0 = 7f0000000000 x1\n\
         2000 0 1 F 7f0000001000 6 x1\n\
         3000 0 1 mremap 7f0000000000 2000 4000 1 0 = 7f0000100000 x1\n\
         4000 0 1 F 7f0000101000 6 x1\n\
         5000 0 1 X g\n",
    );
    let mapping = &found.mappings.most_faults[0];
    assert_eq!((mapping.line, mapping.unmapped, mapping.left_bytes), (3, false, 4096));
    // The page moved, so the second fault finds it present.
    assert_eq!((mapping.faults.first_touch, mapping.faults.spurious), (1, 1));
}

#[test]
fn impossible_values_do_not_panic() {
    let most = u64::MAX;
    let found = analysis(&format!(
        "1 0 1 mmap 0 {most:x} 3 22 -1 0 = {most:x} x1 w{most} h{most} d{most}\n\
         2 0 1 F {most:x} 6 x{most} r{most} h{most}\n\
         3 0 1 mremap {most:x} {most:x} {most:x} 7 0 = fffffffffff000 e{most} x{most} w5\n\
         {most} 0 1 madvise 0 {most:x} 4 = 0 e1 x1\n"
    ));
    assert_eq!(found.end_ns, most);
}
