//! Tests the reader of strace output (`mod.rs` and the files of this folder) with short outputs.
//!
//! A test passes strace output to the reader. The test then compares the events as lines of `NAME.trace`
//! ([`assert_events`]), single fields of the events ([`parse`]), or the error message. To add a case, copy
//! lines from real output of strace and write down the events in the order in which they took effect.
//! `tests/mutations.rs` tests random damage of whole files.

use super::*;
use crate::{Beside, FileInfo, TraceWriter};

/// Returns the events as lines of `NAME.trace`, without costs. Fails at an unreadable line too.
fn read(text: &str) -> Result<Vec<String>, String> {
    let (events, reader) = parse(text)?;
    if let Some(error) = reader.unread().first().first() {
        return Err(error.to_string());
    }
    Ok(events.iter().map(shown).collect())
}

/// Returns the events in strace output, and the reader at its end.
pub(super) fn parse(text: &str) -> Result<(Vec<Event>, StraceReader), String> {
    let mut lines = Lines::of_text(text);
    assert!(lines.advance().map_err(|error| error.to_string())?);
    let mut reader = StraceReader::new(lines);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().map_err(|error| error.to_string())? {
        events.push(event);
    }
    Ok((events, reader))
}

/// Returns the event as a line of `NAME.trace`, without costs and processor.
fn shown(event: &Event) -> String {
    let mut writer = TraceWriter::new(Vec::new(), "x").unwrap();
    writer.event(&Event { cost: Cost::default(), ..event.clone() }).unwrap();
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    text.lines().nth(1).unwrap().replacen(" - ", " ", 1)
}

#[track_caller]
fn assert_events(text: &str, expected: &[&str]) {
    assert_eq!(read(text).unwrap(), expected);
}

#[test]
fn program_with_one_task_is_read() {
    let text = "\
1795184165.5 execve(\"/bin/sh\", [\"sh\", \"a, b) = 1\"], 0x7ffda6814798 /* 38 vars */) = 0
1795184165.500001 brk(NULL)       = 0x564f86004000
1795184165.500002123 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7ff3442b3000
1795184165.6 madvise(0x7ff3442b3000, 4096, 0x63 /* MADV_??? */) = -1 EINVAL (Invalid argument)
1795184165.7 wait4(-1, 0x7fff8aec051c, 0, NULL) = -1 ECHILD (No child processes)
1795184165.8 --- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=0x10} ---
1795184165.8 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=6557, si_uid=0, si_status=0} ---
1795184165.9 exit_group(0)                     = ?
1795184165.9 +++ exited with 0 +++
";
    assert_events(
        text,
        &[
            "0 1 E -",
            "1000 1 brk 0 = 564f86004000",
            "2123 1 mmap 0 2000 3 22 -1 0 = 7ff3442b3000",
            "100000000 1 madvise 7ff3442b3000 1000 63 = -22",
            "300000000 1 G 11 1",
            "400000000 1 exit_group 0 = ?",
            "400000000 1 X g",
        ],
    );
    let (_, reader) = parse(text).unwrap();
    assert_eq!(reader.skipped(), &BTreeMap::from([("wait4".to_owned(), 1)]));
}

#[test]
fn costs_follow_from_the_times_of_lines() {
    let text = "\
7 1.0 brk(NULL) = 0x1000 <0.000013>
7 1.0 vfork( <unfinished ...>
8 1.000100 brk(NULL <unfinished ...>
8 1.000102 <... brk resumed>) = 0x1000 <0.000001>
8 1.000103 brk(NULL <unfinished ...>
7 1.000104 <... vfork resumed>) = 8
8 1.000105 <... brk resumed>) = 0x1000
";
    let (events, _) = parse(text).unwrap();
    let costs: Vec<_> = events.iter().map(|event| (event.cost.before, event.cost.after)).collect();
    assert_eq!(costs[0], (None, Some(13000)), "one line: from the line's time to the return");
    assert_eq!(costs[1], (Some(100_000), None), "a vfork whose child precedes its return");
    assert_eq!(costs[2], (Some(1000), Some(0)), "two lines: reported at the return");
    assert_eq!(costs[3], (Some(2000), Some(0)), "two lines, without -T");
    assert_eq!(events[1].line, 2);
}

/// The child's first line precedes the return of the clone that creates the child.
#[test]
fn child_is_created_before_its_first_line() {
    let text = "\
29143 1.0 vfork( <unfinished ...>
29144 1.1 execve(\"/usr/bin/rm\", [\"rm\", \"-f\"], 0x564f86004af8 /* 38 vars */ <unfinished ...>
29143 1.2 <... vfork resumed>) = 29144
29144 1.3 <... execve resumed>) = 0
29143 1.4 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7ff3440c4a10) = 29145
29143 1.5 clone3({flags=CLONE_VM|CLONE_THREAD|CLONE_SIGHAND, child_tid=0x7, exit_signal=0, stack=0x5000, stack_size=0x7fff80} <unfinished ...>
29146 1.6 brk(NULL) = 0x1000
29143 1.7 <... clone3 resumed> => {parent_tid=[29146]}, 88) = 29146
29143 1.8 fork() = -1 EAGAIN (Resource temporarily unavailable)
";
    assert_events(
        text,
        &[
            "100000000 1 N 2 2 4100",
            "300000000 2 E -",
            "400000000 1 N 3 3 1200000",
            "600000000 1 N 4 1 10900",
            "600000000 4 brk 0 = 1000",
            "800000000 1 fork  = -11",
        ],
    );
}

/// Two clones are in progress at the child's first line. A later line shows which clone created the child.
#[test]
fn creator_of_a_child_is_found_in_later_lines() {
    let begin = "\
1 1.0 fork() = 2
1 1.1 fork( <unfinished ...>
2 1.1 vfork( <unfinished ...>
3 1.2 brk(NULL) = 0x1000
";
    let expected = |parent: u32, flags: &str| {
        [
            "0 1 N 2 2 0".to_owned(),
            format!("200000000 {parent} N 3 3 {flags}"),
            "200000000 3 brk 0 = 1000".to_owned(),
        ]
    };
    let first = format!("{begin}1 1.3 <... fork resumed>) = 3\n");
    assert_eq!(read(&first).unwrap(), expected(1, "0"));
    let other =
        format!("{begin}3 1.3 exit(0) = ?\n1 1.3 <... fork resumed>) = 4\n2 1.4 <... vfork resumed>) = 3\n");
    assert_eq!(read(&other).unwrap()[..3], expected(2, "4100"));
    // The fork has created another task. The vfork must have created the child, but never returns.
    let excluded = format!("{begin}1 1.3 <... fork resumed>) = 4\n");
    assert_eq!(read(&excluded).unwrap()[..3], expected(2, "4100"));
    // No later line decides: the clone that began first is assumed.
    assert_eq!(read(begin).unwrap(), expected(1, "0"));
}

/// The munmap freed the addresses that the mmap received, but the munmap's resumed line comes later.
#[test]
fn unmapping_call_precedes_the_call_that_reuses_its_addresses() {
    let text = "\
1 1.0 clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 2
1 1.1 munmap(0x10000, 4096 <unfinished ...>
2 1.2 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0 <unfinished ...>
2 1.3 <... mmap resumed>) = 0x10000
1 1.4 <... munmap resumed>) = 0
2 1.5 mremap(0x10000, 4096, 8192, MREMAP_MAYMOVE <unfinished ...>
1 1.6 mmap(0x10000, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0) = 0x10000
1 1.7 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x10000
2 1.8 <... mremap resumed>) = 0x20000
";
    assert_events(
        text,
        &[
            "0 1 N 2 1 10100",
            "300000000 1 munmap 10000 1000 = 0",
            "300000000 2 mmap 0 1000 1 22 -1 0 = 10000",
            "600000000 1 mmap 10000 1000 1 32 -1 0 = 10000",
            "700000000 2 mremap 10000 1000 2000 1 0 = 20000",
            "700000000 1 mmap 0 1000 1 22 -1 0 = 10000",
        ],
    );
    let other_process = text.replace("CLONE_VM|CLONE_THREAD", "CLONE_FS");
    assert_eq!(read(&other_process).unwrap()[1], "300000000 2 mmap 0 1000 1 22 -1 0 = 10000");
}

#[test]
fn execve_by_a_thread_ends_the_other_threads() {
    let text = "\
10 1.0 clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 11
10 1.0 clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 12
12 1.1 execve(\"/bin/true\", [\"true\"], 0x7ffe /* 35 vars */ <unfinished ...>
10 1.2 +++ superseded by execve in pid 12 +++
10 1.3 <... execve resumed>) = 0
11 1.3 <... pause resumed>) = ?
11 1.4 +++ exited with 0 +++
10 1.5 brk(NULL) = 0x1000
10 1.6 +++ killed by SIGKILL (core dumped) +++
";
    assert_events(
        text,
        &[
            "0 1 N 2 1 10100",
            "0 1 N 3 1 10100",
            "200000000 1 X",
            "300000000 2 X",
            "300000000 3 E -",
            "500000000 3 brk 0 = 1000",
            "600000000 3 X g",
        ],
    );
}

/// A PID is used for a second process, with and without a line for the end of the first process (option -qq).
#[test]
fn reused_process_numbers_get_new_serial_numbers() {
    let text = "\
1 1.0 fork() = 2
2 1.1 exit_group(0) = ?
1 1.2 fork() = 2
2 1.3 brk(NULL) = 0x1000
1 1.4 exit_group(0) = ?
";
    let expected = [
        "0 1 N 2 2 0",
        "100000000 2 exit_group 0 = ?",
        "200000000 2 X g",
        "200000000 1 N 3 3 0",
        "300000000 3 brk 0 = 1000",
        "400000000 1 exit_group 0 = ?",
        "400000000 1 X g",
    ];
    assert_events(text, &expected);
    let told = text.replace("1 1.2", "2 1.2 +++ exited with 0 +++\n1 1.2");
    assert_events(&told, &expected);
}

#[test]
fn calls_that_never_returned_have_no_result() {
    let text = "\
1 1.0 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0 <unfinished ...>) = ?
1 1.1 munmap(0x1000, 4096 <unfinished ...>
1 1.2 <... munmap resumed> <unfinished ...>) = ?
1 1.3 mremap(0x1000, 4096, 8192, MREMAP_MAYMOVE) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
1 1.4 brk(NULL <unfinished ...>
1 1.5 +++ killed by SIGKILL +++
";
    assert_events(
        text,
        &[
            "0 1 mmap 0 1000 1 22 -1 0 = ?",
            "200000000 1 munmap 1000 1000 = ?",
            "300000000 1 mremap 1000 1000 2000 1 0 = -512",
            "500000000 1 X g",
        ],
    );
}

#[test]
fn bytes_of_process_vm_calls_are_read() {
    let text = "\
1 1.0 fork() = 2
1 1.1 process_vm_readv(2, [{iov_base=\"a\\\"\\\\\\n\\1237\", iov_len=10}, {iov_base=\"\\x4f\\0\"..., iov_len=100}], 2, \
[{iov_base=0x7f64, iov_len=70}, {iov_base=0x7f80, iov_len=60}], 2, 0) = 110
1 1.2 process_vm_writev(1, [{iov_base=\"WW\", iov_len=2}], 1, [{iov_base=0x10, iov_len=2}], 1, 0) = -1 EFAULT (Bad address)
1 1.3 process_vm_readv(77, [{iov_base=0x7ffd, iov_len=32}], 1, 0x8, 1, 0) = -1 ESRCH (No such process)
1 1.4 process_vm_readv(2, [{iov_base=\"\", iov_len=0}, ...], 70, [{iov_base=0x10, iov_len=0}], 1, 0) = 0
";
    let (events, _) = parse(text).unwrap();
    let transfers: Vec<_> = events[1..]
        .iter()
        .map(|event| match &event.kind {
            Kind::Call(call) => call.transfer.as_deref(),
            _ => panic!("{event:?}"),
        })
        .collect();
    let read = Transfer {
        process: Some(2),
        local: vec![(0, 10), (0, 100)],
        remote: vec![(0x7f64, 70), (0x7f80, 60)],
        shown: vec![b"a\"\\\n\x537".to_vec(), b"\x4f\0".to_vec()],
    };
    assert_eq!(transfers[0], Some(&read));
    let failed = Transfer {
        process: Some(1),
        local: vec![(0, 2)],
        remote: vec![(0x10, 2)],
        shown: vec![b"WW".to_vec()],
    };
    assert_eq!(transfers[1], Some(&failed));
    assert_eq!(transfers[2..], [None, None], "lists that strace shows only in part");
}

#[test]
fn arguments_are_read_as_numbers() {
    let value = |text: &str| value::number(text::Arg { text: text.as_bytes(), at: 0 }).ok();
    let cases = [
        ("NULL", 0),
        ("0x7ff3442b3000", 0x7ff3442b3000),
        ("8192", 8192),
        ("-1", u64::MAX),
        ("IPC_CREAT|0600", 0o1600),
        ("PROT_READ|PROT_WRITE|0x60", 0x63),
        ("MAP_PRIVATE|MAP_HUGETLB|21<<MAP_HUGE_SHIFT", 0x5404_0002),
        ("MAP_FILE|0x800000", 0x800000),
        ("3</etc/passwd>", 3),
        ("5</memfd:a, \\\"b\\\">(deleted)", 5),
        ("AT_FDCWD</tmp>", -100_i64 as u64),
        ("0x63 /* MADV_??? */", 0x63),
        ("0x8 /* MAP_??? */|MAP_ANONYMOUS", 0x28),
        ("MAP_ANONYMOUS|0x8 /* MAP_???*|/ */|0x1", 0x29),
        ("\"text\"...", value::SHOWN),
        ("[1, 1]", value::SHOWN),
    ];
    for (text, number) in cases {
        assert_eq!(value(text), Some(number), "{text}");
    }
    for text in
        ["", "PROT_", "1|", "0x", "0xfffffffffffffffff", "1<<64", "12a", "18446744073709551616", "1 2"]
    {
        assert_eq!(value(text), None, "{text}");
    }
}

/// Mappings of one file get one number, with and without paths (option -y).
#[test]
fn files_of_mappings_are_distinguished() {
    let text = "\
1 1.0 mmap(NULL, 40883, PROT_READ, MAP_PRIVATE, 3, 0) = 0x10000
1 1.0 mmap(NULL, 0x9000, PROT_READ, MAP_PRIVATE|MAP_DENYWRITE, 3, 0) = 0x20000
1 1.0 mmap(0x22000, 4096, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE, 3, 0x1000) = 0x22000
1 1.0 mmap(0x90000, 4096, PROT_READ, MAP_PRIVATE|MAP_FIXED, 3, 0) = 0x90000
1 1.0 memfd_create(\"x\", MFD_CLOEXEC) = 5
1 1.0 ftruncate(5, 8192) = 0
1 1.0 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 5, 0) = 0x30000
1 1.0 fork() = 2
2 1.0 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 5, 0) = 0x40000
2 1.0 execve(\"x\", [], NULL) = 0
2 1.0 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 5, 0) = 0x40000
2 1.0 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 4</lib/a.so>, 0) = 0x50000
1 1.0 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 9</lib/a.so>, 0) = 0x50000
1 1.0 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 5</memfd:x>(deleted), 0) = 0x60000
1 1.0 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 5</lib/a.so>, 0) = 0x60000
";
    let (events, reader) = parse(text).unwrap();
    let files: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            Kind::Call(call) => call.file,
            _ => None,
        })
        .collect();
    assert_eq!(files, [1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6, 4, 6]);
    let file =
        |id: u32, size, path: &str| FileInfo { id, size, huge: None, tmpfs: None, path: path.to_owned() };
    assert_eq!(reader.files().get(1), Some(&file(1, None, "descriptor 3 of line 1")));
    assert_eq!(reader.files().get(4), Some(&file(4, Some(8192), "memfd of line 5")));
    assert_eq!(reader.files().get(6), Some(&file(6, None, "/lib/a.so")));
}

#[test]
fn errors_name_the_expected_text() {
    let first = "1 5.0 brk(NULL) = 0x1000\n";
    let cases = [
        ("1 4.9 brk(NULL) = 0x1000", "out of order: time 4900000000 after 5000000000"),
        ("1 12:00:01 brk(NULL) = 0x1000", "expected a time in seconds since 1970, as option -ttt gives it"),
        ("1 brk(NULL) = 0x1000", "expected a time in seconds since 1970"),
        ("[pid 1] 5.1 brk(NULL) = 0x1000", "expected a task's number or a time"),
        ("2 5.1 brk(NULL) = 0x1000", "task 2 was not created before this line"),
        ("1 5.1 brk(NULL)", "expected `= ` and the result"),
        ("1 5.1 brk(NULL) = ", "column 19: expected the result: a number, `-1 ERROR`, or `?`, found \"\""),
        ("1 5.1 brk(NULL) = zero", "expected the result: a number, `-1 ERROR`, or `?`"),
        ("1 5.1 brk(NULL) = -1 EWHAT (What)", "expected the result"),
        ("1 5.1 brk(NULL = 0", "expected `)` after the arguments"),
        ("1 5.1 brk() = 0", "expected another argument"),
        ("1 5.1 brk(0, 0) = 0", "expected no further argument, found \"0) = 0\""),
        ("1 5.1 brk(what) = 0", "expected a number, or a constant that this program knows, found \"what"),
        (
            "1 5.1 mprotect(0x1000, 4096, PROT_WHAT) = 0",
            "column 30: expected a number, or a constant that this program knows, found \"PROT_WHAT) = 0\"",
        ),
        ("1 5.1 truncate(\"a, 5) = 0", "expected a complete string"),
        ("1 5.1 brk 0 = 0", "expected a call: NAME(ARGUMENTS) = RESULT"),
        ("1 5.1 <... brk resumed>) = 0", "expected the end of a call that this task has begun"),
        ("1 5.1 <... brk", "expected `<... NAME resumed>`"),
        ("1 5.1 +++ gone +++", "expected `+++ exited with CODE +++` or the like"),
        ("1 5.1 +++ superseded by execve in pid 9 +++", "task 9 was not created before this line"),
        ("1 5.1 --- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_WHAT} ---", "expected si_code=CODE"),
        ("1 5.1 --- SIGSEGV {si_signo=SIGSEGV", "expected ` ---` at the end of the line"),
        (
            "1 5.1 brk(0 <unfinished ...>\n1 5.2 brk(0) = 0",
            "expected the end of the call that this task has begun",
        ),
        (
            "1 5.1 brk(0 <unfinished ...>\n1 5.2 <... mmap resumed>) = 0",
            "expected the end of a call that this task",
        ),
        (
            "1 5.1 vfork( <unfinished ...>\n2 5.2 brk(0) = 0\n1 5.3 <... vfork resumed>) = 3",
            "expected the task whose",
        ),
        ("4294967296 5.1 brk(NULL) = 0x1000", "expected a task's number"),
        ("1 18446744073709551615.1 brk(NULL) = 0x1000", "expected a time in seconds since 1970"),
        ("1 5.0123456789 brk(NULL) = 0x1000", "expected a time in seconds since 1970"),
        ("1 5.1 exit_group(0) = ?\n1 5.1 +++ exited with 0 +++\n1 5.2 brk(0) = 0", "task 1 was not created"),
    ];
    for (lines, message) in cases {
        let error = read(&format!("{first}{lines}\n")).unwrap_err();
        let line = 1 + lines.lines().count();
        assert!(error.starts_with(&format!("test:{line}: ")), "{lines}: {error}");
        assert!(error.contains(message), "{lines}: {error}");
    }
}

/// The lines after an unreadable line are read. If the unreadable line may concern memory, the reader returns
/// a loss of events for the task of that line.
#[test]
fn lines_after_an_unreadable_line_are_read() {
    for (lines, expected) in [
        ("1 5.1 brk(NULL) = zero", &["100000000 1 L 1"][..]),
        ("1 5.1 mprotect(0x1000, 4096, PROT_WHAT) = 0", &["100000000 1 L 1"]),
        ("1 5.1 +++ gone +++", &[]),
        ("1 5.1 --- SIGSEGV {si_signo=SIGSEGV", &[]),
        ("1 12:00:01 brk(NULL) = 0x1000", &["0 - L 1"]),
        ("\u{7}what", &["0 - L 1"]),
        // The first call has no end: a loss stands for it, before the next call.
        (
            "1 5.1 brk(0 <unfinished ...>\n1 5.2 munlockall() = 0",
            &["200000000 1 L 1", "200000000 1 munlockall  = 0"],
        ),
        // A task without a creator: its address space is unknown.
        (
            "2 5.1 munlockall() = 0\n2 5.2 munlockall() = 0",
            &[
                "100000000 - L 1",
                "100000000 2 L 1",
                "100000000 2 munlockall  = 0",
                "200000000 2 munlockall  = 0",
            ],
        ),
        // The clock was set back.
        ("1 4.0 munlockall() = 0", &["0 1 munlockall  = 0"]),
        // Unknown flags are ignored, and known flags are used.
        (
            "1 5.1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_NEW|0x20, -1, 0) = 0x7000",
            &["100000000 1 mmap 0 1000 1 22 -1 0 = 7000"],
        ),
    ] {
        let (events, reader) =
            parse(&format!("1 5.0 brk(NULL) = 0x1000\n{lines}\n1 6.0 brk(NULL) = 0x1000\n")).unwrap();
        let events: Vec<String> = events.iter().map(shown).collect();
        assert_eq!(reader.unread().count(), 1, "{lines}");
        assert_eq!(events[1..events.len() - 1], *expected, "{lines}");
        assert_eq!(events.last().unwrap(), "1000000000 1 brk 0 = 1000", "{lines}");
    }
}

/// In a long chain of calls, each of which is reported only after the next, only a few calls are moved.
#[test]
fn long_chain_of_waiting_calls_does_not_exhaust_the_stack() {
    let tasks = 300;
    let mut text = String::new();
    for task in 2..tasks {
        text += &format!("1 1.0 clone3({{flags=CLONE_VM|CLONE_THREAD}}, 88) = {task}\n");
    }
    for task in 2..tasks {
        text += &format!(
            "{task} 1.1 mremap({:#x}, 4096, 4096, MREMAP_MAYMOVE <unfinished ...>\n",
            task * 0x10000
        );
    }
    text += "1 1.2 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x20000\n";
    for task in 2..tasks {
        text += &format!("{task} 1.3 <... mremap resumed>) = {:#x}\n", (task + 1) * 0x10000);
    }
    let events = read(&text).unwrap();
    let at = |part: &str| events.iter().position(|event| event.contains(part)).unwrap();
    assert!(at("mremap 30000 ") < at("mremap 20000 ") && at("mremap 20000 ") < at("mmap "));
    assert_eq!(events.len(), 2 * (tasks - 2) + 1);
}

/// strace does not show the order of calls that overlap in time. Each call is reported with the range that
/// both calls concern.
#[test]
fn overlapping_calls_are_reported_with_their_common_range() {
    let text = "\
1 1.0 clone(child_stack=0x1, flags=CLONE_VM|CLONE_THREAD|CLONE_SIGHAND) = 2
1 1.1 munmap(0x10000, 8192 <unfinished ...>
2 1.2 mprotect(0x11000, 8192, PROT_READ) = 0
2 1.3 madvise(0x20000, 4096, MADV_FREE) = 0
1 1.4 <... munmap resumed>) = 0
2 1.5 mprotect(0x10000, 4096, PROT_READ) = -1 ENOMEM (Cannot allocate memory)
1 1.6 mlockall(MCL_CURRENT <unfinished ...>
2 1.7 msync(0x30000, 4096, MS_INVALIDATE) = 0
1 1.8 <... mlockall resumed>) = 0
1 1.9 mremap(0x40000, 4096, 4096, 0 <unfinished ...>
2 2.0 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x40000
1 2.1 <... mremap resumed>) = 0x40000
";
    let (events, _) = parse(text).unwrap();
    let said = events.iter().filter_map(|event| match &event.kind {
        Kind::Call(call) => Some((call.name, call.beside.clone())),
        _ => None,
    });
    let at = |range, later| vec![Beside { range, later, locks: false }];
    let locks = |later| vec![Beside { range: 0x30000..0x31000, later, locks: true }];
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            (CallName::Mprotect, at(0x11000..0x12000, true)),
            (CallName::Madvise, Vec::new()),
            (CallName::Munmap, at(0x11000..0x12000, false)),
            (CallName::Mprotect, Vec::new()),
            (CallName::Msync, locks(true)),
            (CallName::Mlockall, locks(false)),
            // The mremap did not free the address, because its memory stays there.
            (CallName::Mmap, at(0x40000..0x41000, true)),
            (CallName::Mremap, at(0x40000..0x41000, false)),
        ]
    );
}

/// Only ioctls on userfaultfds are read. The fields of their structures become arguments.
#[test]
fn userfaultfd_ioctls_are_read() {
    let text = "\
1 1.0 userfaultfd(O_CLOEXEC|UFFD_USER_MODE_ONLY) = 3<anon_inode:[userfaultfd]>
1 1.0 ioctl(5</dev/userfaultfd>, USERFAULTFD_IOC_NEW, 0x80000) = 4<anon_inode:[userfaultfd]>
1 1.0 ioctl(4, UFFDIO_API, {api=0xaa, features=UFFD_FEATURE_EVENT_REMAP|UFFD_FEATURE_WP_ASYNC|0x20000 <unfinished ...>
1 1.0 <... ioctl resumed> => features=0, ioctls=1<<_UFFDIO_API}) = -1 EINVAL (Invalid argument)
1 1.0 ioctl(4, UFFDIO_API, NULL)        = -1 EFAULT (Bad address)
1 1.0 ioctl(3<anon_inode:[userfaultfd]>, UFFDIO_API, {api=0xaa, features=0 => features=UFFD_FEATURE_SIGBUS|0x1e000, ioctls=1<<_UFFDIO_API}) = 0
1 1.0 ioctl(3<anon_inode:[userfaultfd]>, UFFDIO_REGISTER, {range={start=0x7f00c3f000, len=0x4000}, mode=UFFDIO_REGISTER_MODE_MISSING|UFFDIO_REGISTER_MODE_WP, ioctls=1<<_UFFDIO_WAKE|0x120}) = 0
1 1.0 ioctl(3, UFFDIO_REGISTER, {range={start=0x7f00c3f005, len=0x4000}, mode=0x8 /* UFFDIO_REGISTER_MODE_??? */}) = -1 EINVAL (Invalid argument)
1 1.0 ioctl(3, UFFDIO_UNREGISTER, {start=0x7f00c3f000, len=0x1000}) = 0
1 1.0 ioctl(3, UFFDIO_REGISTER, 0x1) = -1 EFAULT (Bad address)
1 1.0 ioctl(3, UFFDIO_UNREGISTER, NULL <unfinished ...>
1 1.0 <... ioctl resumed>)              = -1 EFAULT (Bad address)
1 1.0 ioctl(1</dev/pts/0>, TCGETS, {B38400 opost isig icanon echo ...}) = 0
1 1.0 ioctl(3, UFFDIO_REGISTER, {range={start=0x7f00c3f000, len=0x1000}, mode=UFFDIO_REGISTER_MODE_MINOR <unfinished ...>
1 1.0 <... ioctl resumed>, ioctls=1<<_UFFDIO_WAKE}) = 0
";
    assert_events(
        text,
        &[
            "0 1 userfaultfd 80001 = 3",
            "0 1 ioctl 5 aa00 80000 0 0 = 4",
            "0 1 ioctl 4 c018aa3f aa 28004 0 = -22",
            "0 1 ioctl 3 c018aa3f aa 0 0 = 0",
            "0 1 ioctl 3 c020aa00 7f00c3f000 4000 3 = 0",
            "0 1 ioctl 3 c020aa00 7f00c3f005 4000 8 = -22",
            "0 1 ioctl 3 8010aa01 7f00c3f000 1000 0 = 0",
            "0 1 ioctl 3 c020aa00 7f00c3f000 1000 4 = 0",
        ],
    );
    let (_, reader) = parse(text).unwrap();
    assert_eq!(reader.skipped().get("ioctl"), Some(&4));
    let without = "1 1.0 ioctl(3, UFFDIO_REGISTER, {mode=0}) = 0\n";
    assert!(read(without).unwrap_err().contains("expected the range"));
}

/// Before the output of strace, `freehold record` writes the limits of the command. Calls change the limits.
#[test]
fn limits_and_their_changes_are_read() {
    let text = "\
# limits ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 10000
5 1.0 prlimit64(0, RLIMIT_STACK, NULL, {rlim_cur=8192*1024, rlim_max=RLIM64_INFINITY}) = 0
5 1.1 prlimit64(0, RLIMIT_MEMLOCK, {rlim_cur=64*1024, rlim_max=RLIM64_INFINITY}, NULL) = 0
5 1.2 fork() = 6
5 1.3 prlimit64(6, RLIMIT_AS, {rlim_cur=RLIM64_INFINITY, rlim_max=RLIM64_INFINITY}, {rlim_cur=1, rlim_max=2}) = 0
5 1.4 prlimit64(99, RLIMIT_AS, {rlim_cur=1, rlim_max=1}, NULL) = 0
5 1.5 setrlimit(RLIMIT_DATA, {rlim_cur=0, rlim_max=512}) = 0
5 1.6 setrlimit(RLIMIT_NOFILE, {rlim_cur=0, rlim_max=512}) = 0
5 1.7 setrlimit(RLIMIT_DATA, {rlim_cur=2, rlim_max=1}) = -1 EINVAL (Invalid argument)
5 1.8 capset({version=_LINUX_CAPABILITY_VERSION_3, pid=0}, {effective=1<<CAP_CHOWN|1<<CAP_IPC_LOCK, permitted=0, inheritable=0}) = 0
5 1.9 capset({version=_LINUX_CAPABILITY_VERSION_3, pid=0}, {effective=0, permitted=1<<CAP_IPC_LOCK, inheritable=0}) = 0
";
    assert_events(
        text,
        &[
            "0 1 R ffffffffffffffff ffffffffffffffff ffffffffffffffff 800000 10000",
            "100000000 1 prlimit64 0 8 10000 ffffffffffffffff = 0",
            "200000000 1 N 2 2 0",
            "300000000 1 prlimit64 2 9 ffffffffffffffff ffffffffffffffff = 0",
            "500000000 1 setrlimit 2 0 200 = 0",
            "800000000 1 capset 4000 = 0",
            "900000000 1 capset 0 = 0",
        ],
    );
    let damaged = parse("# limits 1 2 3\n1 1.0 brk(NULL) = 0x1000\n").unwrap();
    assert_eq!((damaged.0.len(), damaged.1.unread().count()), (1, 1));
    assert!(!recognises(b"# something else"));
}

/// A note on a descriptor may contain `->`: before an address of a socket, or at the end of a file name that
/// ends in `-`.
#[test]
fn end_of_a_note_on_a_descriptor_is_found() {
    for (line, expected) in [
        ("close(3</etc/group->) = 0", "close 3 = 0"),
        ("dup2(3</etc/group->, 4</etc/shadow->) = 4</etc/group->", "dup2 3 4 = 4"),
        ("close(3<TCP:[127.0.0.1:5432->127.0.0.1:80]>) = 0", "close 3 = 0"),
        ("close(3<UNIX-STREAM:[1->2]>) = 0", "close 3 = 0"),
    ] {
        let (events, reader) = parse(&format!("1 5.0 {line}\n")).unwrap();
        assert_eq!(reader.unread().count(), 0, "{line}: {:?}", reader.unread().first());
        assert!(shown(&events[0]).contains(expected), "{line}: {}", shown(&events[0]));
    }
}
