//! Replays of strace output: bytes that process_vm_readv and process_vm_writev show, all kinds of tasks, and
//! files that are not strace output.
//!
//! A test writes strace output to a file and replays the file with one and with three CPUs (`try_replay`).
//! `assert_as_linux` checks the number of compared calls, which must all match. `arena` replays calls in a
//! range that an earlier line has unmapped, so that the plan knows the range to be free. `counts` returns how
//! many calls were compared and how many were not checked. A line that cannot be read must be reported with
//! its number and column.

use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use std::fs;

/// Returns the outcome of replaying strace output, or the error of the replay or of the first unreadable
/// line.
fn try_replay(text: &str) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.strace");
    fs::write(&path, text).expect("written");
    let outcomes = [1, 3].map(|cpus| replay(&path, &Options { cpus, ..Options::default() }, &()));
    let [one, outcome] = outcomes.map(|outcome| outcome.map_err(|error| error.to_string()));
    assert_eq!(one.is_ok(), outcome.is_ok());
    let outcome = outcome?;
    match outcome.unread_lines.first().or(outcome.cut_off.as_ref()) {
        Some(wrong) => Err(wrong.clone()),
        None => Ok(outcome),
    }
}

/// An unreadable line does not end the replay. The lines after it are replayed. The replay does not check any
/// state that the unreadable line may have changed.
#[test]
fn lines_after_an_unreadable_line_are_replayed() {
    let text = |odd: &str| {
        format!(
            "7 1.0 execve(\"./t\", [], NULL) = 0\n\
             7 1.1 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000\n{odd}\n\
             7 1.3 munmap(0x7f0000000001, 4096) = 0\n\
             7 1.4 execve(\"./t\", [], NULL) = 0\n\
             7 1.5 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000\n\
             7 1.6 munmap(0x7f0000000000, 4096) = 0\n"
        )
    };
    let outcome = |text: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.strace");
        fs::write(&path, text).expect("written");
        replay(&path, &Options::default(), &()).unwrap_or_else(|error| panic!("{error}"))
    };
    // Linux refuses a munmap at an address within a page, so the first munmap is a difference if it is
    // checked.
    let plain = outcome(&text("7 1.2 uname(odd"));
    assert_eq!((plain.calls.all, plain.difference_count, plain.unread), (4, 1, 0));
    let odd = outcome(&text("7 1.2 munmap(odd"));
    assert_eq!((odd.calls.all, odd.difference_count, odd.unread), (3, 0, 1), "{:?}", odd.differences);
    assert!(odd.unread_lines[0].contains("t.strace:3: column 17: expected `)`"), "{:?}", odd.unread_lines);
    assert!(!odd.is_whole() && odd.cut_off.is_none());
    // The last line is incomplete. The other lines are replayed.
    let whole = text("7 1.2 uname(odd");
    let cut = outcome(whole.trim_end());
    assert_eq!((cut.calls.all, cut.unread), (3, 0));
    assert!(
        cut.cut_off.as_ref().is_some_and(|why| why.contains("the file is cut off here")),
        "{:?}",
        cut.cut_off
    );
}

#[track_caller]
fn replayed(text: &str) -> Outcome {
    try_replay(text).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn assert_as_linux(text: &str, calls: u64) {
    let outcome = replayed(text);
    assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
    assert_eq!((outcome.calls.all, outcome.calls.as_linux), (calls, calls));
}

/// Advice about several ranges of the caller itself. strace output does not show to which process a pidfd
/// refers. For advice that a process may give only about itself, success shows that the pidfd refers to the
/// caller.
const ADVISED: &str = r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.1 mmap(NULL, 12288, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
7 1.2 process_madvise(3<anon_inode:[pidfd]>, [{iov_base=0x7f0000000000, iov_len=4096}, {iov_base=0x7f0000002000, iov_len=100}], 2, MADV_DONTFORK, 0) = 4196
7 1.3 process_madvise(-10000, [{iov_base=0x7f0000000000, iov_len=4096}, {iov_base=0x7f0000002001, iov_len=4096}], 2, MADV_DONTNEED, 0) = 4096
7 1.4 process_madvise(-10001, [{iov_base=0x7f0000000000, iov_len=4096}], 1, MADV_DONTNEED, 0x1) = -1 EINVAL (Invalid argument)
7 1.5 process_madvise(-10000, [{iov_base=0x7f0000000000, iov_len=4096}, {iov_base=0xffff800000000000, iov_len=4096}], 2, MADV_DONTNEED, 0) = -1 EFAULT (Bad address)
7 1.6 process_madvise(-10000, [{iov_base=0x7ffd00000000, iov_len=4096}], 1, MADV_COLD, 0) = 4096
7 1.7 process_madvise(3<anon_inode:[pidfd]>, [{iov_base=0x7f0000000000, iov_len=4096}], 1, MADV_COLD, 0) = 4096
7 1.8 process_madvise(3<anon_inode:[pidfd]>, [{iov_base=0x7f0000000000, iov_len=4096}], 1, MADV_DONTNEED, 0) = -1 EINVAL (Invalid argument)
7 1.81 process_madvise(-10000, NULL, 1, MADV_DONTNEED, 0) = -1 EFAULT (Bad address)
7 1.82 process_madvise(-10000, [{iov_base=0x7f0000000000, iov_len=4096}, ...], 70, MADV_DONTNEED, 0) = 4096
7 1.85 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7faf51144a10) = 8
8 1.86 mprotect(0x7f0000001000, 4096, PROT_READ) = 0
8 1.87 madvise(0x7f0000000000, 12288, MADV_NORMAL) = -1 ENOMEM (Cannot allocate memory)
8 1.9 exit_group(0) = ?
8 1.91 +++ exited with 0 +++
7 1.92 exit_group(0) = ?
7 1.93 +++ exited with 0 +++
"#;

#[test]
fn process_madvise_on_the_caller_itself_is_replayed() {
    assert_as_linux(ADVISED, 7);
    let outcome = replayed(ADVISED);
    let aside: u64 = outcome.set_aside.iter().map(|(_, count)| *count).sum();
    assert_eq!(aside, 5, "the process, the ranges or the mappings are unknown: {:?}", outcome.set_aside);
    let lie = ADVISED.replace("= 4196", "= 4195");
    assert_eq!(replayed(&lie).difference_count, 1);
}

/// A child is forked. Its memory and the parent's are written and read in pieces.
const MOVES: &str = r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.1 mmap(NULL, 12288, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
7 1.2 process_vm_writev(7, [{iov_base="before", iov_len=6}], 1, [{iov_base=0x7f0000000ffd, iov_len=6}], 1, 0) = 6
7 1.3 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7faf51144a10) = 8
7 1.4 process_vm_writev(8, [{iov_base="a\0\"\\\n\t\1772", iov_len=8}, {iov_base="\x00\xff\x41"..., iov_len=7}], 2, [{iov_base=0x7f0000000010, iov_len=5}, {iov_base=0x7f0000000100, iov_len=10}], 2, 0) = 15
7 1.5 process_vm_readv(8, [{iov_base="a\0\"\\\n", iov_len=5}], 1, [{iov_base=0x7f0000000010, iov_len=5}], 1, 0) = 5
7 1.6 process_vm_readv(8, [{iov_base="\t\1772\0", iov_len=4}, {iov_base="\377Aown", iov_len=5}], 2, [{iov_base=0x7f0000000100, iov_len=9}], 1, 0) = 9
7 1.7 process_vm_readv(8, [{iov_base="before", iov_len=6}], 1, [{iov_base=0x7f0000000ffd, iov_len=6}], 1, 0) = 6
7 1.8 process_vm_readv(7, [{iov_base="\0\0\0\0\0", iov_len=5}], 1, [{iov_base=0x7f0000000010, iov_len=5}], 1, 0) = 5
8 1.805 munmap(0x7f0000002000, 4096) = 0
8 1.81 madvise(0x7f0000000000, 4096, MADV_DONTNEED) = 0
7 1.82 process_vm_readv(8, [{iov_base="\0\0\0ore", iov_len=6}], 1, [{iov_base=0x7f0000000ffd, iov_len=6}], 1, 0) = 6
7 1.83 process_vm_readv(8, [{iov_base="ore", iov_len=8}], 1, [{iov_base=0x7f0000001000, iov_len=3}, {iov_base=0x7f0000002000, iov_len=5}], 2, 0) = 3
7 1.84 process_vm_readv(8, [{iov_base=0x7ffd788dc590, iov_len=32}], 1, [{iov_base=0x10, iov_len=16}], 1, 0) = -1 EFAULT (Bad address)
7 1.85 process_vm_writev(8, [{iov_base="stack", iov_len=5}], 1, [{iov_base=0x7ffd00000ffe, iov_len=5}], 1, 0) = 5
7 1.86 process_vm_readv(8, [{iov_base="stack", iov_len=5}], 1, [{iov_base=0x7ffd00000ffe, iov_len=5}], 1, 0) = 5
7 1.865 process_vm_readv(8, [{iov_base=0x7f0000009000, iov_len=5}], 1, [{iov_base=0x7ffd00000ffe, iov_len=5}], 1, 0) = -1 EFAULT (Bad address)
7 1.87 process_vm_readv(1, [{iov_base=0x7ffd788dc590, iov_len=32}], 1, [{iov_base=0x10, iov_len=16}], 1, 0) = -1 EPERM (Operation not permitted)
8 1.9 exit_group(0) = ?
8 1.91 +++ exited with 0 +++
7 1.92 exit_group(0) = ?
7 1.93 +++ exited with 0 +++
"#;

#[test]
fn transferred_bytes_match_strace_output() {
    assert_as_linux(MOVES, 15);
    let outcome = replayed(MOVES);
    assert!(outcome.backed, "the strace output shows bytes to compare");
    // The piece that was cut short contained bytes that strace does not show.
    let own = outcome.set_aside.iter().find(|(why, _)| why.contains("a program's own stores"));
    assert_eq!(own.map(|(_, count)| *count), Some(1), "{:?}", outcome.set_aside);
}

/// Each case changes one byte or one result. The difference is found at the line that reads the byte, with
/// the address of the byte.
#[test]
fn wrong_bytes_are_reported_with_their_address() {
    for (truth, lie, line, linux) in [
        (
            r#"[{iov_base="a\0\"\\\n", iov_len=5}]"#,
            r#"[{iov_base="a\0\"\\\t", iov_len=5}]"#,
            6,
            "byte 0x09 at 0x7f0000000014",
        ),
        (
            r#"[{iov_base="a\0\"\\\n", iov_len=5}]"#,
            r#"[{iov_base="aX\"\\\n", iov_len=5}]"#,
            6,
            "byte 0x58 at 0x7f0000000011",
        ),
        (r#"[{iov_base="\t\1772\0""#, r#"[{iov_base="\t\1762\0""#, 7, "byte 0x7e at 0x7f0000000101"),
        (r#"{iov_base="\377Aown""#, r#"{iov_base="\377Bown""#, 7, "byte 0x42 at 0x7f0000000105"),
        // The other direction: the written bytes differ from the bytes read later.
        (
            r#"{iov_base="\x00\xff\x41"..."#,
            r#"{iov_base="\x00\xfe\x41"..."#,
            7,
            "byte 0xff at 0x7f0000000104",
        ),
        (
            r#"_writev(7, [{iov_base="before""#,
            r#"_writev(7, [{iov_base="beford""#,
            8,
            "byte 0x65 at 0x7f0000001002",
        ),
        (
            r#"_writev(8, [{iov_base="stack""#,
            r#"_writev(8, [{iov_base="smack""#,
            16,
            "byte 0x74 at 0x7ffd00000fff",
        ),
        // The effect of a fork, an MADV_DONTNEED and an unmapped page.
        (
            r#"[{iov_base="before", iov_len=6}], 1, [{iov_base=0x7f0000000ffd, iov_len=6}], 1, 0) = 6
7 1.8"#,
            r#"[{iov_base="beforf", iov_len=6}], 1, [{iov_base=0x7f0000000ffd, iov_len=6}], 1, 0) = 6
7 1.8"#,
            8,
            "byte 0x66 at 0x7f0000001002",
        ),
        (r#""\0\0\0ore""#, r#""\0\0\0\0re""#, 12, "byte 0x00 at 0x7f0000001000"),
        ("iov_len=5}], 2, 0) = 3", "iov_len=5}], 2, 0) = 8", 13, "0x8"),
    ] {
        assert_eq!(MOVES.matches(truth).count(), 1, "{truth}");
        let outcome = replayed(&MOVES.replace(truth, lie));
        let found = outcome.differences.first().unwrap_or_else(|| panic!("not found: {lie}"));
        assert_eq!(found.line, line, "{lie}: {found:#?}");
        assert!(found.linux.contains(linux), "{lie}: {found:#?}");
        assert_ne!(found.linux, found.freehold);
    }
}

/// Calls in two parts, threads, vfork, a kill, a signal, and lines that do not concern memory.
#[test]
fn all_kinds_of_tasks_match_linux() {
    assert_as_linux(
        r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.01 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0 <unfinished ...>
7 1.02 <... mmap resumed>) = 0x7f0000000000
7 1.1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD, stack=0x7f00100, stack_size=0x7ffd80} => {parent_tid=[8]}, 88) = 8
8 1.2 munmap(0x7f0000000000, 4096 <unfinished ...>
7 1.21 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0 <unfinished ...>
7 1.22 <... mmap resumed>) = 0x7f0000000000
8 1.23 <... munmap resumed>) = 0
7 1.3 vfork( <unfinished ...>
9 1.31 munmap(0x7f0000001000, 4096) = 0
9 1.32 execve("./u", ["./u"], 0x7ffe00000000 /* 3 vars */ <unfinished ...>
7 1.33 <... vfork resumed>) = 9
9 1.34 <... execve resumed>) = 0
9 1.35 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000001000
7 1.36 munmap(0x7f0000001000, 4096) = 0
8 1.4 getpid() = 7
8 1.41 --- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_TKILL, si_pid=7, si_uid=0} ---
8 1.42 fork() = 10
10 1.43 munmap(0x7f0000000000, 4096) = 0
7 1.44 mprotect(0x7f0000000000, 4096, PROT_READ|PROT_WRITE) = 0
10 1.45 --- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=0x7f0000000000} ---
10 1.46 +++ killed by SIGSEGV (core dumped) +++
8 1.47 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>
7 1.48 exit_group(3 <unfinished ...>
8 1.49 <... clone resumed>) = ?
7 1.5 <... exit_group resumed>) = ?
8 1.51 +++ exited with 3 +++
7 1.52 +++ exited with 3 +++
9 1.6 --- SIGKILL {si_signo=SIGKILL, si_code=SI_USER, si_pid=1, si_uid=0} ---
9 1.61 +++ killed by SIGKILL +++
"#,
        8,
    );
}

/// Files that are not strace output, or are damaged. The message begins with the file and the line.
#[test]
fn unreadable_strace_output_is_refused_with_its_line() {
    let begin = "7 1.0 execve(\"./t\", [\"./t\"], 0x7ffe00000000 /* 3 vars */) = 0\n";
    for (line, said) in [
        ("hello", "column 1: expected a task's number or a time"),
        ("7 1.1", "expected a blank after the time"),
        ("7 1.1 mmap(NULL, 8192", "expected `)` after the arguments"),
        ("7 1.1 mmap(NULL, 8192, PROT_ODD, MAP_PRIVATE, -1, 0) = 0", "a constant that this program knows"),
        ("7 1.1 munmap(0x7f0000000000, 4096) = what", "the result: a number"),
        ("7 1.1 munmap(0x7f0000000000) = 0", "expected another argument"),
        ("7 1.1 munmap(0x1ffffffffffffffff, 1) = 0", "expected a number"),
        ("7 1.1 <... munmap resumed>) = 0", "expected the end of a call that this task has begun"),
        (
            "7 1.1 munmap(0x1000, 1 <unfinished ...>\n7 1.2 brk(NULL) = 0",
            "expected the end of the call that this task",
        ),
        ("8 1.1 munmap(0x1000, 1) = 0", "task 8 was not created before this line"),
        ("7 0.9 munmap(0x1000, 1) = 0", "out of order"),
        (
            "7 1.1 process_vm_readv(7, [{iov_base=\"abc, iov_len=5}], 1, [{iov_base=0x10, iov_len=5}], 1, 0) = 5",
            "a complete string",
        ),
        (
            "7 1.1 process_vm_readv(7, [{iov_len=5}], 1, [{iov_base=0x10, iov_len=5}], 1, 0) = 5",
            "iov_base and iov_len",
        ),
        ("7 1.1 --- SIGSEGV {si_signo=SIGSEGV} ---", "si_code=CODE"),
        ("7 1.1 --- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR}", "` ---` at the end of the line"),
        ("7 1.1 +++ vanished +++", "+++ exited with CODE +++"),
    ] {
        let error = try_replay(&format!("{begin}{line}\n")).expect_err(line);
        let number = 1 + line.lines().count();
        assert!(error.contains(&format!("t.strace:{number}: ")) && error.contains(said), "{line}: {error}");
    }
}

/// Sums and ends that overflow, and lists that are too long.
#[test]
fn calls_with_numbers_at_their_limits_are_replayed() {
    for line in [
        "process_vm_readv(7, [{iov_base=\"a\", iov_len=18446744073709551615}], 1, [{iov_base=0xffffffffffffffff, iov_len=18446744073709551615}], 1, 0) = 18446744073709551615",
        "process_vm_writev(7, [{iov_base=\"a\", iov_len=1}, {iov_base=\"b\", iov_len=18446744073709551615}], 2, [{iov_base=0xffffffffffffffff, iov_len=1}, {iov_base=0, iov_len=18446744073709551615}], 2, 0) = 18446744073709551615",
        "process_vm_writev(7, [{iov_base=\"abcdef\", iov_len=6}], 1, [{iov_base=0xfffffffffffffffe, iov_len=6}], 1, 0) = 6",
        "process_vm_readv(7, [{iov_base=\"abcdef\", iov_len=6}], 1, [{iov_base=0x7ffffffffffe, iov_len=6}], 1, 0) = 600",
        "mremap(0xfffffffffffff000, 18446744073709551615, 18446744073709551615, MREMAP_MAYMOVE) = 0xfffffffffffff000",
        "munmap(0xffffffffffffffff, 18446744073709551615) = 0",
        "mmap(NULL, 18446744073709551615, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0xfffffffffffff001",
        "brk(0xffffffffffffffff) = 0xffffffffffffffff",
        "shmat(4294967295, NULL, 0) = 0xfffffffffffff000",
    ] {
        let text = format!(
            "7 1.0 execve(\"./t\", [\"./t\"], 0x7ffe0000 /* 3 vars */) = 0\n7 1.1 {line}\n7 1.2 {line}\n7 1.3 fork() = 8\n"
        );
        replayed(&text);
    }
}

/// Replaces the numbers in strace output, one at a time, by numbers at the limits of integer types. The
/// output is replayed, or is refused with the number of a line.
#[test]
fn any_number_may_be_at_its_limits() {
    const LIMITS: [&str; 8] = [
        "0",
        "1",
        "4097",
        "0x7f0000000ffd",
        "0x7fffffffffff",
        "0xfffffffffffff000",
        "18446744073709551615",
        "-1",
    ];
    let digit = |at: usize| MOVES.as_bytes().get(at).is_some_and(|byte| byte.is_ascii_alphanumeric());
    let begins = |at: &usize| MOVES.as_bytes()[*at].is_ascii_digit() && !digit(at.wrapping_sub(1));
    let (mut refused, mut replayed) = (0, 0);
    for (number, at) in (0..MOVES.len()).filter(begins).enumerate() {
        let end = (at..).find(|at| !digit(*at)).expect("the strace output ends in a newline");
        for limit in LIMITS.iter().skip(number % 3).step_by(3) {
            match try_replay(&format!("{}{limit}{}", &MOVES[..at], &MOVES[end..])) {
                Ok(_) => replayed += 1,
                Err(error) => {
                    let line = error.split_once("t.strace:").and_then(|(_, rest)| rest.split(':').next());
                    assert!(line.is_some_and(|line| line.parse::<u32>().is_ok()), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 50 && replayed > 50, "{refused} refused, {replayed} replayed");
}

/// A descriptor refers to the file that was last assigned to it. The first memfd is sealed, so a mapping of
/// it would be refused.
#[test]
fn copied_descriptor_refers_to_its_new_file() {
    assert_as_linux(
        r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.1 memfd_create("a", MFD_ALLOW_SEALING) = 3</memfd:a (deleted)>
7 1.2 memfd_create("b", 0) = 4</memfd:b (deleted)>
7 1.3 fcntl(3</memfd:a (deleted)>, F_ADD_SEALS, F_SEAL_WRITE) = 0
7 1.4 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3</memfd:a (deleted)>, 0) = -1 EPERM (Operation not permitted)
7 1.5 dup2(4</memfd:b (deleted)>, 3</memfd:a (deleted)>) = 3</memfd:b (deleted)>
7 1.6 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3</memfd:b (deleted)>, 0) = 0x7f0000000000
7 1.7 exit_group(0) = ?
7 1.8 +++ exited with 0 +++
"#,
        3,
    );
}

/// Registered memory is not moved together with other memory, and faults on it do not wait in the replay.
/// After the last descriptor of the userfaultfd is closed, no memory is registered.
#[test]
fn registrations_with_a_userfaultfd_are_replayed() {
    assert_as_linux(
        r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.1 mmap(NULL, 65536, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000100000
7 1.1 mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
7 1.2 userfaultfd(O_CLOEXEC) = 3<anon_inode:[userfaultfd]>
7 1.2 userfaultfd(O_CLOEXEC) = 4<anon_inode:[userfaultfd]>
7 1.3 ioctl(3<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000100000, len=0x4000}, mode=UFFDIO_REGISTER_MODE_MISSING, ioctls=1<<_UFFDIO_WAKE}) = 0
7 1.3 ioctl(4<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000103000, len=0x2000}, mode=UFFDIO_REGISTER_MODE_WP}) = -1 EBUSY (Device or resource busy)
7 1.3 ioctl(4<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000104000, len=0x2000}, mode=UFFDIO_REGISTER_MODE_WP}) = 0
7 1.3 ioctl(3<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000108000, len=0x2000}, mode=0}) = -1 EINVAL (Invalid argument)
7 1.4 mremap(0x7f0000100000, 65536, 65536, MREMAP_MAYMOVE|MREMAP_FIXED, 0x7f0000000000) = -1 EFAULT (Bad address)
7 1.5 mlock(0x7f0000100000, 8192) = 0
7 1.5 munlock(0x7f0000100000, 8192) = 0
7 1.6 madvise(0x7f0000102000, 8192, MADV_POPULATE_READ) = 0
7 1.6 dup(3<anon_inode:[userfaultfd]>) = 5<anon_inode:[userfaultfd]>
7 1.6 close(3<anon_inode:[userfaultfd]>) = 0
7 1.7 ioctl(5<anon_inode:[userfaultfd]>, UFFDIO_UNREGISTER, {start=0x7f0000100000, len=0x2000}) = 0
7 1.7 ioctl(5<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000100000, len=0x1000}, mode=UFFDIO_REGISTER_MODE_MISSING}) = 0
7 1.8 close(5<anon_inode:[userfaultfd]>) = 0
7 1.8 close_range(4, 4, 0) = 0
7 1.9 mremap(0x7f0000100000, 65536, 65536, MREMAP_MAYMOVE|MREMAP_FIXED, 0x7f0000000000) = 0x7f0000000000
7 2.0 exit_group(0) = ?
7 2.1 +++ exited with 0 +++
"#,
        13,
    );
}

/// The registrations of a userfaultfd that the strace output does not show are unknown. Calls that Linux
/// refused because of such registrations are not checked.
#[test]
fn effects_of_unknown_registrations_are_not_checked() {
    let text = |operation: &str| {
        format!(
            r#"7 1.0 execve("./t", ["./t"], 0x7ffe00000000 /* 3 vars */) = 0
7 1.1 mmap(NULL, 65536, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000100000
7 1.1 mprotect(0x7f0000104000, 4096, PROT_READ) = 0
7 1.1 mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
{operation}
7 1.4 mremap(0x7f0000100000, 65536, 65536, MREMAP_MAYMOVE|MREMAP_FIXED, 0x7f0000000000) = -1 EFAULT (Bad address)
7 2.0 exit_group(0) = ?
7 2.1 +++ exited with 0 +++
"#
        )
    };
    let unknown = "7 1.2 ioctl(9<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f0000100000, len=0x4000}, mode=UFFDIO_REGISTER_MODE_MISSING}) = 0";
    assert_as_linux(&text(unknown), 3);
    assert_as_linux(&text("7 1.2 userfaultfd(O_CLOEXEC) = 3<anon_inode:[userfaultfd]>"), 3);
    let elsewhere = "7 1.2 userfaultfd(O_CLOEXEC) = 3
7 1.2 ioctl(3, UFFDIO_REGISTER, {range={start=0x7f0000000000, len=0x4000}, mode=UFFDIO_REGISTER_MODE_MISSING}) = 0";
    let outcome = replayed(&text(elsewhere));
    assert_eq!((outcome.calls.all, outcome.difference_count), (5, 1), "{:#?}", outcome.differences);
}

/// Replays `calls`, one per line, in a range that an earlier line has unmapped.
fn arena(calls: &str) -> Outcome {
    let mut text =
        String::from("7 1.0 execve(\"./t\", [], NULL) = 0\n7 1.1 munmap(0x10000000, 16777216) = 0\n");
    let lines = calls.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate();
    lines.for_each(|(number, line)| text += &format!("7 1.2{number:02} {line}\n"));
    replayed(&text)
}

/// Returns the number of compared calls and the number of calls that were not checked.
fn counts(outcome: &Outcome) -> (u64, u64) {
    assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
    (outcome.calls.all, outcome.not_checked())
}

/// The gaps between VMAs that were moved together stay free, and memory may grow into them.
#[test]
fn gaps_between_moved_vmas_are_free() {
    let moved = "mmap(0x10100000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = 0x10100000
        mremap(0x10100000, 16384, 16384, MREMAP_MAYMOVE|MREMAP_FIXED, 0x10200000) = 0x10200000
        mmap(0x10208000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS|MAP_GROWSDOWN, -1, 0) = 0x10208000";
    // Page faults have grown the stack into the target range of the move, in which only the first page was
    // mapped.
    let found = "madvise(0x10202000, 8192, MADV_DONTDUMP) = 0";
    assert_eq!(counts(&arena(&format!("{moved}\n{found}"))), (4, 1));
    let free = "madvise(0x10000000, 8192, MADV_DONTDUMP) = -1 ENOMEM (Cannot allocate memory)";
    assert_eq!(counts(&arena(&format!("{moved}\n{free}"))), (5, 0));
}

/// Linux could populate the mapping, so an event that strace does not show has made the file longer. The
/// mapping of the file is the second of two VMAs that were moved together.
#[test]
fn moved_file_mappings_are_known_at_their_new_address() {
    let outcome = arena(
        "memfd_create(\"m\", MFD_CLOEXEC) = 3
        ftruncate(3, 4096) = 0
        mmap(0x10100000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = 0x10100000
        mmap(0x10101000, 4096, PROT_READ, MAP_SHARED|MAP_FIXED, 3, 0x1000) = 0x10101000
        mremap(0x10100000, 8192, 8192, MREMAP_MAYMOVE|MREMAP_FIXED, 0x10200000) = 0x10200000
        madvise(0x10200000, 8192, MADV_POPULATE_READ) = 0",
    );
    assert_eq!(counts(&outcome), (6, 0));
}

/// Linux keeps a gap below memory that grows downwards. If Linux nevertheless chose an address near such
/// memory, the memory was unmapped, or another VMA lies between the memory and the address.
#[test]
fn chosen_address_reveals_the_vmas_near_growing_memory() {
    let stack = "mmap(0x10800000, 16384, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS|MAP_GROWSDOWN, -1, 0) = 0x10800000";
    // It is not known if this call unmapped the first page before it failed.
    let hidden =
        "mremap(0x20000000, 8192, 4096, MREMAP_MAYMOVE|MREMAP_FIXED, 0x10800000) = -1 EFAULT (Bad address)";
    let place = "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x10700000";
    let first = counts(&arena(&format!("{stack}\n{hidden}\n{place}")));
    assert_eq!(first, (2, 2));
    // The chosen address determines whether the call unmapped the page.
    let next = "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x106ff000
        madvise(0x106ff000, 8192, MADV_DONTDUMP) = 0";
    assert_eq!(counts(&arena(&format!("{stack}\n{hidden}\n{place}\n{next}"))), (4, 2));
    // Page faults may have grown the memory, and an munmap of some grown pages may have left a separate VMA
    // below. Therefore the addresses below the memory may be mapped.
    assert_eq!(counts(&arena(&format!("{stack}\n{place}"))), (2, 1));
}

/// An mmap of huge pages that Linux refused because of its offset has still unmapped the range.
#[test]
fn refused_mapping_of_huge_pages_unmaps_its_range() {
    let outcome = arena(
        "mmap(0x10200000, 8192, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = 0x10200000
        mmap(0x10200000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS|MAP_HUGETLB, -1, 0x1000) = -1 EINVAL (Invalid argument)
        mprotect(0x10200000, 8192, PROT_READ) = -1 ENOMEM (Cannot allocate memory)
        mmap(0x10201000, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE, -1, 0) = 0x10201000",
    );
    assert_eq!(counts(&outcome), (4, 1));
}

/// Memory that may be unmapped does not stop growth.
#[test]
fn memory_grows_through_vmas_that_may_be_unmapped() {
    let outcome = arena(
        "mmap(0x10500000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0) = 0x10500000
        mmap(0x10510000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS|MAP_GROWSDOWN, -1, 0) = 0x10510000
        mremap(0x20000000, 8192, 4096, MREMAP_MAYMOVE|MREMAP_FIXED, 0x10500000) = -1 EFAULT (Bad address)
        mprotect(0x104f0000, 4096, PROT_READ) = 0",
    );
    assert_eq!(counts(&outcome), (3, 2));
}
