//! Small recordings of programs whose memory changes in ways that recordings, or only old recordings, do not
//! show. The effect of each change matches Linux, or is left unchecked for the expected reason. Everything
//! else is compared.
//!
//! The name of a test states the effect of the change. Each test replays a few lines (`outcome`, or `text`
//! for strace output), and checks how many answers the replay left unchecked for each reason
//! (`assert_as_linux`, with reasons from `freehold_trace::plan::aside`). Most tests then change a line, and
//! check that the replay reports a difference.

use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use freehold_trace::plan::aside;
use std::fs;

/// The snapshot of an exec: a file's text and data, a stack.
const PROGRAM: &str = "10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
";
const STACK: &str = "7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac\n";
/// The pages of the snapshot.
const PAGES: &str = "P 12 1 8\nP 7ffffffcb 1 8\n";

/// Replays a recording of this version. Task 1 does its exec at time 5, and `events` follow. The final
/// snapshot has `areas` between program and stack, `pages`, and this number of anonymous kilobytes.
fn outcome(version: u32, events: &str, (process, areas, pages, anon): (u32, &str, &str, u32)) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    let machine: String = events.lines().filter(|line| line.starts_with("# machine")).collect();
    let trace = format!("# fhtrace {version} t\n{machine}\n# file 1 8192 /bin/t\n5 0 1 E 0\n{events}");
    let trace = trace.replacen("\n\n", "\n", 1);
    let snap = format!(
        "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
{PROGRAM}{STACK}{PAGES}@ 1 exit {process} 90 90 0 t | /bin/t | VmRSS:{anon};RssAnon:{anon}
{PROGRAM}{areas}{STACK}{pages}"
    );
    fs::write(&path, trace).expect("written");
    fs::write(folder.path().join("t.snap"), snap).expect("written");
    let [_, outcome] = [1, 3].map(|cpus| {
        let outcome = replay(&path, &Options { cpus, ..Options::default() }, &());
        outcome.unwrap_or_else(|error| panic!("{error}"))
    });
    assert!(outcome.is_whole(), "{:?}", outcome.unread_lines);
    outcome
}

/// Replays strace output.
fn text(lines: &str) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.strace");
    fs::write(&path, format!("7 1.0 execve(\"./t\", [], NULL) = 0\n{lines}")).expect("written");
    let outcome = replay(&path, &Options::default(), &()).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.is_whole(), "{:?}", outcome.unread_lines);
    outcome
}

/// Returns how often something was not checked for this reason.
fn count(outcome: &Outcome, why: &str) -> u64 {
    outcome.set_aside.iter().filter(|(other, _)| other == why).map(|(_, count)| count).sum()
}

#[track_caller]
fn assert_as_linux(outcome: &Outcome, aside: &[(&str, u64)]) {
    assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
    for (why, expected) in aside {
        assert_eq!(count(outcome, why), *expected, "{why}: {:?}", outcome.set_aside);
    }
}

#[test]
fn segment_is_named_by_its_key_after_a_refused_attachment() {
    let events = "10 0 1 mmap 0 1000 3 22 -1 0 = 7f0000001000
11 0 1 shmget 4711 1000 380 = 3
12 0 1 shmat 3 7f0000001000 0 = -22
# file 2 - /SYSV00004711 (deleted)
13 0 1 shmat 3 0 0 = 7f0000000000 f2
90 - 1 S 1 exit 1
";
    let areas = "7f0000000000-7f0000001000 rw-s 0 /SYSV00004711 (deleted) | 0 | rdwrshmrmwmems
7f0000001000-7f0000002000 rw-p 0 - | 0 | rdwrmrmwmeac
";
    assert_as_linux(&outcome(2, events, (1, areas, PAGES, 8)), &[]);
    let other = areas.replace("4711", "4712");
    assert!(outcome(2, events, (1, &other, PAGES, 8)).difference_count > 0);
}

/// An execve that fails after the point of no return ends the process in a partly built address space. A new
/// recording shows that the call never returned. An old recording shows the teardown of the old address
/// space.
#[test]
fn process_that_ends_inside_execve_is_not_compared() {
    let events = |inside: &str| {
        format!(
            "10 0 1 N 2 2 0\n11 0 2 munmap 12001 1 = -22\n{inside}90 - 2 S 1 exit 2\n91 0 2 X g\n92 0 1 X g\n"
        )
    };
    let late = ("20000-21000 r-xp 0 /bin/late | 0 | rdexmrmwme\n", PAGES);
    let (torn, fault, signal) = ("13 0 2 D 2\n", "12 0 2 f 12000 0 x1\n", "14 0 2 G 11 128\n");
    for inside in [
        "15 0 2 execve 1 2 3 = ?\n",
        &format!("{fault}{torn}15 0 2 execve 1 2 3 = ?\n"),
        &format!("{torn}{signal}"),
        &format!("{fault}{torn}"),
    ] {
        let outcome = outcome(2, &events(inside), (2, late.0, late.1, 8));
        assert_as_linux(&outcome, &[(aside::DIES_IN_EXEC, 1)]);
        assert_eq!((outcome.calls.all, outcome.snapshots.all), (1, 0), "{inside}");
    }
    // An execve that fails earlier has changed nothing. A signal alone, or the teardown of an address space
    // alone, shows no failed execve.
    for inside in ["15 0 2 execve 1 2 3 = -2\n", signal, torn] {
        let same = outcome(2, &events(inside), (2, "", PAGES, 8));
        assert_as_linux(&same, &[(aside::DIES_IN_EXEC, 0)]);
        assert_eq!((same.calls.all, same.snapshots.all), (1, 1), "{inside}");
        assert!(outcome(2, &events(inside), (2, late.0, late.1, 8)).difference_count > 0, "{inside}");
    }
}

/// The kernel's own accesses are not recorded as faults. A later call or snapshot shows how far memory has
/// grown.
#[test]
fn growth_by_the_kernel_follows_later_events() {
    let events = "10 0 1 mmap 7f0000010000 1000 3 132 -1 0 = 7f0000010000
11 0 1 F 7f0000010000 6 x1
12 0 1 mprotect 7f000000c000 1000 1 = 0
13 0 1 mprotect 7f0000030000 1000 1 = -12
90 - 1 S 1 exit 1
";
    let areas = "7f000000a000-7f000000d000 r--p 0 - | 4,,,,4,4,4,, | rdmrmwmegdac
7f000000d000-7f0000011000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmegdac
";
    let pages = "P 12 1 8\nP 7effffff7 1 8\nP 5 1 8\nP fffffcd 1 8\n";
    let linux = outcome(2, events, (1, areas, pages, 16));
    assert_as_linux(&linux, &[(aside::GROWN, 2), (aside::KERNEL, 1)]);
    assert_eq!((linux.calls.all, linux.snapshots.all), (3, 1));
    // Memory that does not grow stays as it is.
    let fixed = outcome(2, &events.replace(" 132 ", " 32 "), (1, areas, pages, 16));
    assert!(fixed.difference_count > 0 && count(&fixed, aside::GROWN) == 0);
}

/// Memory that the kernel has grown has a hole, and a part with other rights. Only the snapshot shows both.
#[test]
fn growth_by_the_kernel_keeps_holes() {
    let events = |hole: &str| {
        format!(
            "10 0 1 mmap 7f0000010000 1000 3 132 -1 0 = 7f0000010000
11 0 1 F 7f0000010000 6 x1
12 0 1 munmap {hole} 1000 = 0
13 0 1 F 7f000000c000 6 x1
14 0 1 mprotect 7f000000c000 1000 1 = 0
15 0 1 N 2 2 0
90 - 2 S 1 exit 2
"
        )
    };
    let areas = "7f000000a000-7f000000c000 rw-p 0 - | 0 | rdwrmrmwmegdac
7f000000c000-7f000000d000 r--p 0 - | 4,,,,4,4,4,, | rdmrmwmegdac
7f000000d000-7f000000e000 rw-p 0 - | 0 | rdwrmrmwmegdac
7f000000f000-7f0000011000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmegdac
";
    let pages = "P 12 1 8\nP 7effffff9 1 8\nP 3 1 8\nP fffffcd 1 8\n";
    assert_as_linux(&outcome(2, &events("7f000000e000"), (2, areas, pages, 16)), &[(aside::GROWN, 2)]);
    // No call unmapped this range.
    assert!(outcome(2, &events("7f000000b000"), (2, areas, pages, 16)).difference_count > 0);
}

/// A child inherits registrations of a userfaultfd with UFFD_FEATURE_EVENT_FORK. The inherited registrations
/// last until the userfaultfd of the child is closed. Only the fork event contains the descriptor of that
/// userfaultfd.
#[test]
fn registrations_that_a_fork_copies_are_not_compared() {
    let events = |features: &str, to: &str| {
        format!(
            "10 0 1 mmap 0 4000 3 22 -1 0 = 7f0000000000
11 0 1 userfaultfd 80001 = 3
12 0 1 ioctl 3 c018aa3f aa {features} 0 = 0
13 0 1 ioctl 3 c020aa00 7f0000000000 2000 1 = 0
14 0 1 N 2 2 0
15 0 2 N 3 3 0
16 0 {to} F 7f0000000000 6 x1
17 0 {to} F 7f0000001000 4
18 0 {to} G 7 2
90 - {to} S 1 exit {to}
"
        )
    };
    let areas = "7f0000000000-7f0000002000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmeacum
7f0000002000-7f0000004000 rw-p 0 - | 0 | rdwrmrmwmeac
";
    let pages = "P 12 1 8\nP 7efffffed 1 8\nP fffffdd 1 8\n";
    for to in ["2", "3"] {
        let process = to.parse().expect("a number");
        let linux = outcome(2, &events("2", to), (process, areas, pages, 12));
        assert_as_linux(&linux, &[(aside::COPIED, 2)]);
        assert_eq!((linux.faults.all, linux.snapshots.all), (1, 1));
        let without = outcome(2, &events("0", to), (process, areas, pages, 12));
        assert!(without.difference_count > 1 && count(&without, aside::COPIED) == 0);
    }
}

/// With UFFD_FEATURE_EVENT_REMAP moved memory stays registered, including the part by which it grows.
#[test]
fn moved_memory_stays_registered_with_event_remap() {
    let events = |features: &str| {
        format!(
            "10 0 1 mmap 0 4000 3 22 -1 0 = 7f0000000000
11 0 1 userfaultfd 80001 = 3
12 0 1 ioctl 3 c018aa3f aa {features} 0 = 0
13 0 1 ioctl 3 c020aa00 7f0000000000 2000 1 = 0
14 0 1 mremap 7f0000000000 2000 3000 3 7f0000010000 = 7f0000010000
15 0 1 F 7f0000011000 6 x1
90 - 1 S 1 exit 1
"
        )
    };
    let areas = |registered: &str| {
        format!(
            "7f0000002000-7f0000004000 rw-p 0 - | 0 | rdwrmrmwmeac
7f0000010000-7f0000013000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmeac{registered}
"
        )
    };
    let pages = "P 12 1 8\nP 7effffffe 1 8\nP fffffcc 1 8\n";
    for (features, other, registered, unregistered) in [("4", "0", "um", ""), ("0", "4", "", "um")] {
        let linux = outcome(2, &events(features), (1, &areas(registered), pages, 12));
        assert_as_linux(&linux, &[]);
        assert!(outcome(2, &events(features), (1, &areas(unregistered), pages, 12)).difference_count > 0);
        assert!(outcome(2, &events(other), (1, &areas(registered), pages, 12)).difference_count > 0);
    }
}

/// A recording lacks the setting of huge pages if the setting changed during the run.
#[test]
fn huge_pages_are_not_compared_where_their_setting_changed() {
    let events = |setting: &str| {
        format!(
            "# machine {setting}
10 0 1 mmap 7f0000000000 200000 3 32 -1 0 = 7f0000000000
11 0 1 F 7f0000000000 6 x1
90 - 1 S 1 exit 1
"
        )
    };
    let areas = "7f0000000000-7f0000200000 rw-p 0 - | 2048,,,,2048,2048,2048,2048, | rdwrmrmwmeac\n";
    let pages = "P 12 1 8\nP 7efffffed 200 48\nP ffffdde 1 8\n";
    let untold = outcome(2, &events("kernel 6.18.0"), (1, areas, pages, 2056));
    assert_as_linux(&untold, &[(aside::HUGE_SETTING, 1)]);
    assert!(outcome(2, &events("thp madvise"), (1, areas, pages, 2056)).difference_count > 0);
}

/// A program resizes a pool of huge pages and restores its size, so an old recording shows the same size
/// before and after. As soon as Linux has more pages than the recorded size, the size counts as unknown.
#[test]
fn pool_that_was_resized_during_the_run_has_an_unknown_size() {
    let events = |pool: &str| {
        format!(
            "# machine pool-2048kB {pool}
10 0 1 mmap 0 400000 3 40022 -1 0 = 7f0000000000
11 0 1 mmap 0 200000 3 40022 -1 0 = -12
12 0 1 F 7f0000000000 6 x1
13 0 1 N 2 2 0
14 0 1 F 7f0000000000 7 x1
15 0 2 F 7f0000000000 4
16 0 2 G 7 2
90 - 2 S 1 exit 2
"
        )
    };
    let areas = "7f0000000000-7f0000400000 rw-p 0 /anon_hugepage (deleted) | 0 | rdwrmrmwmedeht\n";
    let linux = outcome(2, &events("0 0"), (2, areas, PAGES, 8));
    assert_as_linux(&linux, &[(aside::POOL, 1), (aside::FILE_ENDS, 1), (aside::STOLEN, 512)]);
    assert_eq!((linux.calls.all, linux.faults.all, linux.snapshots.all), (1, 2, 1));
    // A pool of this recorded size has enough pages, so the refusal is a difference.
    assert!(outcome(2, &events("9 0"), (2, areas, PAGES, 8)).difference_count > 0);
}

/// Under READ_IMPLIES_EXEC, readable memory is executable.
const PERSONALITY: &str = "10 0 1 mmap 0 3000 1 22 -1 0 = 7f0000000000
11 0 1 brk 0 = 5000000
12 0 1 brk 5001000 = 5001000
13 0 1 personality 400000 = 0
14 0 1 personality ffffffff = 400000
15 0 1 mprotect 7f0000001000 1000 1 = 0
16 0 1 brk 5002000 = 5002000
17 0 1 mmap 0 1000 2 22 -1 0 = 7f0000010000
18 0 1 shmget 0 1000 380 = 3
19 0 1 shmat 3 0 0 = 7f0000020000
20 0 1 N 2 2 0
21 0 2 mmap 0 1000 1 22 -1 0 = 7f0000030000
22 0 2 F 7f0000030008 14 x1
23 0 2 personality 0 = 400000
24 0 2 mmap 0 1000 1 22 -1 0 = 7f0000040000
90 - 2 S 1 exit 2
";
const EXECUTABLE: &str = "5000000-5001000 rw-p 0 [heap] | 0 | rdwrmrmwmeac
5001000-5002000 rwxp 0 [heap] | 0 | rdwrexmrmwmeac
7f0000000000-7f0000001000 r--p 0 - | 0 | rdmrmwme
7f0000001000-7f0000002000 r-xp 0 - | 0 | rdexmrmwme
7f0000002000-7f0000003000 r--p 0 - | 0 | rdmrmwme
7f0000010000-7f0000011000 -w-p 0 - | 0 | wrmrmwmeac
7f0000020000-7f0000021000 rwxs 0 /SYSV00000000 (deleted) | 0 | rdwrexshmrmwmems
7f0000030000-7f0000031000 r-xp 0 - | 0 | rdexmrmwme
7f0000040000-7f0000041000 r--p 0 - | 0 | rdmrmwme
";

#[test]
fn personality_gives_execute_rights_until_it_is_reset() {
    let pages = "P 12 1 8\nP 7f000001d 1 28\nP fffffad 1 8\n";
    let linux = outcome(3, PERSONALITY, (2, EXECUTABLE, pages, 8));
    assert_as_linux(&linux, &[(aside::EXECUTED, 0)]);
    assert_eq!((linux.faults.all, linux.snapshots.all), (1, 1));
    let without: String =
        PERSONALITY.lines().filter(|line| !line.contains("personality")).collect::<Vec<_>>().join("\n")
            + "\n";
    // Without the call that resets the personality, the last mapping is executable, unlike in the snapshot.
    let exec = PERSONALITY.replace("23 0 2 personality 0 = 400000\n", "");
    assert!(outcome(3, &exec, (2, EXECUTABLE, pages, 8)).difference_count > 0);
    // A recording of version 3 shows each call of personality, so this program has made none. In an older
    // recording, the program may have made such a call.
    assert!(outcome(3, &without, (2, EXECUTABLE, pages, 8)).difference_count > 1);
    assert_as_linux(&outcome(2, &without, (2, EXECUTABLE, pages, 8)), &[(aside::EXECUTED, 4)]);
}

/// A fetch from an absent page brings in the page. The right to execute is checked only at the next fault.
#[test]
fn fetch_without_execute_right_faults_twice() {
    let events = |second: &str| {
        format!(
            "10 0 1 mmap 0 1000 3 22 -1 0 = 7f0000000000
11 0 1 F 7f0000000000 14 x1
12 0 1 F 7f0000000000 {second}
90 - 1 S 1 exit 1
"
        )
    };
    let areas = "7f0000000000-7f0000001000 rw-p 0 - | 0 | rdwrmrmwmeac\n";
    let pages = "P 12 1 8\nP 7efffffed 1 28\nP fffffdd 1 8\n";
    assert_as_linux(&outcome(2, &events("15\n13 0 1 G 11 2"), (1, areas, pages, 8)), &[]);
    assert_eq!(outcome(2, &events("15 x1"), (1, areas, pages, 8)).difference_count, 1);
}

/// strace output does not show which pages were present, so it does not determine the result of a collapse.
#[test]
fn collapse_in_strace_output_is_not_checked_when_it_differs() {
    let lines = "7 1.1 mmap(0x7f0000000000, 4194304, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
7 1.2 madvise(0x7f0000000000, 2097152, MADV_COLLAPSE) = 0
7 1.3 madvise(0x7f0000000000, 2097152, MADV_COLLAPSE) = -1 EAGAIN (Resource temporarily unavailable)
7 1.4 madvise(0x7f0000200000, 2097152, MADV_COLLAPSE) = -1 EINVAL (Invalid argument)
7 1.5 madvise(0x7f0000200000, 2097152, MADV_HUGEPAGE) = 0
";
    let outcome = text(lines);
    assert_as_linux(&outcome, &[(aside::COLLAPSED, 2)]);
    assert_eq!(outcome.calls.all, 3);
    assert!(
        text(&lines.replace("MADV_HUGEPAGE) = 0", "MADV_HUGEPAGE) = -1 EINVAL (x)")).difference_count == 1
    );
}

/// An old strace does not show mseal, so memory may be sealed where Linux refused a call. If strace output
/// shows one mseal, it shows every mseal.
#[test]
fn eperm_is_not_checked_in_strace_output_without_mseal() {
    let text = |sealed: &str| {
        text(&format!(
            "7 1.1 mmap(NULL, 12288, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000\n{sealed}\
             7 1.3 mprotect(0x7f0000000000, 4096, PROT_NONE) = -1 EPERM (Operation not permitted)
7 1.4 munmap(0x7f0000000000, 4096) = -1 EPERM (Operation not permitted)
7 1.5 mmap(0x7f0000000000, 4096, PROT_NONE, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = -1 EPERM (x)
7 1.6 madvise(0x7f0000000000, 4096, MADV_DONTNEED) = -1 EPERM (Operation not permitted)
7 1.7 mremap(0x7f0000000000, 4096, 8192, MREMAP_MAYMOVE) = -1 EPERM (Operation not permitted)
7 1.8 munmap(0x7f0000001000, 4096) = 0
"
        ))
    };
    let lacks = text("");
    assert_as_linux(&lacks, &[(aside::SEALED, 5)]);
    assert_eq!(lacks.calls.all, 2);
    for sealed in [
        "7 1.2 mseal(0x7f0000000000, 4096, 0) = 0\n",
        "7 1.2 syscall_0x1ce(0x7f0000000000, 0x1000, 0, 0x5, 0x7ffd, 0x10) = 0\n",
        "7 1.2 syscall_0x1ce(0x7f0000000000, 0x1000, 0, 0x5, 0x7ffd, 0x10 <unfinished ...>\n\
         7 1.2 <... syscall_0x1ce resumed>) = 0\n",
    ] {
        let shown = text(sealed);
        assert_as_linux(&shown, &[(aside::SEALED, 0)]);
        // The mremap should have extended this page, and it is unknown what is mapped behind the page.
        assert_eq!(shown.calls.all, 7, "{sealed}");
    }
    let elsewhere = text("7 1.2 mseal(0x7f0000002000, 4096, 0) = 0\n");
    assert!(elsewhere.difference_count > 1 && count(&elsewhere, aside::SEALED) == 0);
}

/// Linux drops a lazily freed page when it needs memory: at MADV_PAGEOUT, or at any other time.
#[test]
fn lazily_freed_page_may_be_gone() {
    let events = |advice: &str| {
        format!(
            "10 0 1 mmap 7f0000000000 2000 3 22 -1 0 = 7f0000000000
11 0 1 F 7f0000000000 6 x1
12 0 1 F 7f0000001000 6 x1
13 0 1 madvise 7f0000000000 1000 {advice} = 0
14 0 1 madvise 7f0000000000 1000 15 = 0
90 - 1 S 1 exit 1
"
        )
    };
    let area = "7f0000000000-7f0000002000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmeac\n";
    let pages = |others: &str| format!("P 12 1 8\n{others}");
    // The second page was not freed. The first page is still present in one snapshot, and dropped in the
    // other.
    let (both, second) = ("P 7efffffed 2 8\nP fffffdc 1 8\n", "P 7efffffee 1 8\nP fffffdc 1 8\n");
    let stays = outcome(2, &events("8"), (1, area, &pages(both), 16));
    assert_as_linux(&stays, &[(aside::DROPPED, 0)]);
    let goes = outcome(2, &events("8"), (1, area, &pages(second), 12));
    assert_as_linux(&goes, &[(aside::DROPPED, 1)]);
    let (cold, first) = (events("14"), "P 7efffffed 1 8\nP fffffdd 1 8\n");
    assert!(outcome(2, &cold, (1, area, &pages(second), 12)).difference_count > 0);
    assert!(outcome(2, &events("8"), (1, area, &pages(first), 12)).difference_count > 0);
}
