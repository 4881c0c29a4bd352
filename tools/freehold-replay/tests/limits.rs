//! Resource limits in a recording. If the limits are recorded, the replay checks the calls that Linux refused
//! for a limit (`src/refused.rs`).
//!
//! Each test writes a recording with calls that change limits or fail for a limit, replays it, and checks the
//! counts of compared and set-aside answers. A line `R` gives the limits of a process, in bytes: address
//! space, data, data (hard), stack, locked memory.

use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use std::fs;

/// An exec leaves 37 pages: a file's text and data, and a stack.
const SNAP: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7ffffffcb 1 8
";

fn outcome(events: &str) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    let begin = "# fhtrace 2 t\n# machine overcommit 0\n# file 1 8192 /bin/t\n5 0 1 E 0\n";
    fs::write(&path, format!("{begin}{events}")).expect("written");
    fs::write(folder.path().join("t.snap"), SNAP).expect("written");
    replay(&path, &Options { cpus: 2, ..Options::default() }, &()).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that everything is compared and matches Linux.
#[track_caller]
fn as_linux(events: &str) {
    let outcome = outcome(events);
    assert_eq!((outcome.difference_count, outcome.not_checked()), (0, 0), "{:#?}", outcome.differences);
}

/// Two more pages may be mapped, one page may be locked, and the stack may not grow.
const LIMITS: &str = "6 0 1 R 27000 ffffffffffffffff ffffffffffffffff 22000 1000\n";
/// No limits, except for locked memory.
const NONE: &str = "6 0 1 R ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 1000\n";

#[test]
fn calls_beyond_a_limit_are_refused() {
    as_linux(&format!(
        "{LIMITS}10 0 1 mmap 0 3000 3 22 -1 0 = -12
11 0 1 mmap 7f0000000000 2000 3 32 -1 0 = 7f0000000000
12 0 1 mremap 7f0000000000 2000 3000 1 0 = -12
13 0 1 mlock 7f0000000000 2000 = -12
14 0 1 mlock 7f0000000000 1000 = 0
15 0 1 mmap 7f0000002000 1000 3 2032 -1 0 = -11
16 0 1 mlockall 1 = -12
17 0 1 F 7ffffffdcff8 6
18 0 1 G 11 1
19 0 1 munmap 7f0000001000 1000 = 0
20 0 1 setrlimit 3 800000 ffffffffffffffff = 0
21 0 1 F 7ffffffdcff8 6 x1
"
    ));
}

#[test]
fn calls_change_limits_of_the_caller_and_of_others() {
    as_linux(&format!(
        "{NONE}7 0 1 mmap 7f0000000000 2000 3 32 -1 0 = 7f0000000000
8 0 1 N 2 2 0
10 0 1 prlimit64 2 9 0 ffffffffffffffff = 0
11 0 1 mmap 7f0000010000 1000 3 32 -1 0 = 7f0000010000
12 0 2 mmap 7f0000010000 1000 3 32 -1 0 = -12
13 0 2 prlimit64 0 9 ffffffffffffffff ffffffffffffffff = 0
14 0 2 mmap 7f0000010000 1000 3 32 -1 0 = 7f0000010000
15 0 2 setrlimit 8 0 1000 = 0
16 0 2 mlock 7f0000000000 1000 = -1
17 0 1 mlock 7f0000000000 1000 = 0
18 0 2 setrlimit 2 1000 2000 = 0
19 0 2 mmap 7f0000012000 1000 1 32 -1 0 = 7f0000012000
20 0 2 mprotect 7f0000012000 1000 3 = -12
21 0 1 capset 4000 = 0
22 0 1 mlock 7f0000000000 2000 = 0
23 0 1 N 3 3 4100
24 0 3 setrlimit 9 0 ffffffffffffffff = 0
25 0 3 mmap 7f0000012000 1000 3 32 -1 0 = -12
26 0 3 X g
27 0 1 mmap 7f0000012000 1000 3 32 -1 0 = 7f0000012000
"
    ));
}

/// Calls that Linux refused although no limit forbids them.
#[test]
fn refusal_that_no_limit_explains_is_a_difference() {
    for refused in [
        "mmap 0 3000 3 22 -1 0 = -12",
        "mmap 0 1000 3 2022 -1 0 = -11",
        "mlock 7f0000000000 1000 = -12",
        "mlock 7f0000000000 1000 = -1",
        "mlockall 2 = -1",
        "mremap 7f0000000000 1000 1000 3 7f0000001000 = -12",
    ] {
        let events = format!("7 0 1 mmap 7f0000000000 2000 3 32 -1 0 = 7f0000000000\n10 0 1 {refused}\n");
        let known = outcome(&format!("{NONE}{events}"));
        assert_eq!((known.difference_count, known.not_checked()), (1, 0), "{refused}");
        // In the first case no limit is known. In the second case it is unknown whether the process has
        // CAP_IPC_LOCK.
        for unknown in ["", "6 0 1 setrlimit 8 1000 1000 = 0\n"] {
            let unknown = outcome(&format!("{unknown}{events}"));
            assert_eq!((unknown.difference_count, unknown.not_checked()), (0, 1), "{refused}");
        }
    }
    // The call needs more memory than the smallest recorded machine may have.
    let large = outcome(&format!("{NONE}10 0 1 mmap 0 40000000 3 22 -1 0 = -12\n"));
    assert_eq!((large.difference_count, large.not_checked()), (0, 1));
    // The process once had the right to lock more.
    let lifted = outcome(&format!("{NONE}8 0 1 capset 4000 = 0\n10 0 1 mlock 10000 1000 = -1\n"));
    assert_eq!((lifted.difference_count, lifted.not_checked()), (0, 1));
}

/// Capabilities that a process has only in its own user namespace do not lift its limits.
#[test]
fn limit_applies_in_a_new_user_namespace() {
    as_linux(&format!(
        "{NONE}7 0 1 mmap 7f0000000000 2000 3 32 -1 0 = 7f0000000000
8 0 1 capset 4000 = 0
9 0 1 N 2 2 10000000
10 0 2 mlock 7f0000000000 2000 = -12
11 0 1 mlock 7f0000000000 2000 = 0
"
    ));
}

/// strace output does not show the size of an address space. Limits apply to calls that Linux refused, and do
/// not forbid calls that succeeded on Linux.
#[test]
fn limits_in_strace_output_apply_only_to_refused_calls() {
    let text = "# limits 3000 ffffffffffffffff ffffffffffffffff 800000 1000
5 1.0 execve(\"/bin/t\", [\"t\"], NULL) = 0
5 1.1 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
5 1.2 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = -1 ENOMEM (Cannot allocate memory)
5 1.3 mlock(0x7f0000000000, 8192) = -1 ENOMEM (Cannot allocate memory)
5 1.4 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = -1 ENOMEM (Cannot allocate memory)
5 1.5 mmap(NULL, 16384, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000010000
";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.strace");
    fs::write(&path, text).expect("written");
    let outcome = replay(&path, &Options::default(), &()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((outcome.difference_count, outcome.calls.all), (0, 4), "{:#?}", outcome.differences);
    assert_eq!(
        outcome.set_aside.len(),
        1,
        "the call refused for a reason that strace does not show: {:?}",
        outcome.set_aside
    );
}

/// After a move with MREMAP_DONTUNMAP, Linux still counts the memory that the move unlocked at the source. In
/// that address space, later refusals for the limit are not checked.
#[test]
fn lock_limit_is_not_checked_after_mremap_dontunmap() {
    let events = |flags: &str, moved: &str| {
        format!(
            "6 0 1 R ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 3000
7 0 1 mmap 7f0000000000 1000 3 {flags} -1 0 = 7f0000000000
{moved}9 0 1 munlockall  = 0
10 0 1 mmap 7f0000020000 3000 3 2032 -1 0 = -11
11 0 1 N 2 2 0
12 0 2 mmap 7f0000020000 3000 3 2032 -1 0 = 7f0000020000
13 0 2 mmap 7f0000030000 1000 3 2032 -1 0 = -11
"
        )
    };
    let moved = "8 0 1 mremap 7f0000000000 1000 1000 7 7f0000010000 = 7f0000010000\n";
    let counts = |events: &str| {
        let outcome = outcome(events);
        (outcome.difference_count, outcome.not_checked())
    };
    assert_eq!(counts(&events("2032", moved)), (0, 1));
    assert_eq!(counts(&events("32", moved)), (1, 0), "nothing was locked");
    assert_eq!(counts(&events("2032", "")), (1, 0));
}
