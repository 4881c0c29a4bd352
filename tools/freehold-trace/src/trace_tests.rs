//! Tests the reader of events (`trace.rs`): lines, fields, and errors in them.
//!
//! A test reads lines of `NAME.trace`, after lines that define file 7 and task 2 (`one`). A new operation or
//! field needs a line in `LINES` and its invalid forms in `errors_name_the_expected_text`. Each line in
//! `LINES` must be unchanged after it was read and written.

use super::*;
use crate::TraceWriter;

/// Returns the events in the lines of `text`, or the error in the first unreadable line.
fn read(text: &str) -> Result<Vec<Event>, String> {
    let (events, wrong) = read_all(text)?;
    wrong.into_iter().next().map_or(Ok(events), Err)
}

/// Returns the events in the lines of `text`, and the errors in the unreadable lines.
fn read_all(text: &str) -> Result<(Vec<Event>, Vec<String>), String> {
    let mut reader = TraceReader::new(Lines::of_text(format!("{text}\n")), VERSION);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().map_err(|error| error.to_string())? {
        events.push(event);
    }
    let wrong = reader.unread().first().iter().map(ToString::to_string).collect();
    Ok((events, wrong))
}

/// Returns the event of `line`, which follows lines that define file 7 and task 2.
fn one(line: &str) -> Result<Event, String> {
    let text = format!("# file 7 - /lib\n0 0 1 N 2 2 0\n{line}");
    read(&text).map(|mut events| events.pop().unwrap())
}

/// One line of each kind, as recorders write them.
const LINES: &[&str] = &[
    "5 1 1 F 7fb5991c80b0 14 x8843",
    "5 1 1 F 7fb5991c80b0 6 x8843 M r441 h2413 i2",
    "5 1 2 f 5650c8a8f240 2 x22353 r370 h22674",
    "5 1 1 E 0 e479890 x226467 w1022 h2413 l20",
    "5 1 1 E -",
    "5 - 1 S 0 exec 1",
    "5 - 1 S 3 midexec 2",
    "5 1 1 N 3 1 3d0f00 x5",
    "5 1 1 N 3 3 4100",
    "5 1 2 X g",
    "5 1 2 X",
    "5 1 1 D 2",
    "5 - 1 R ffffffffffffffff 10000000 ffffffffffffffff 800000 800000",
    "5 - 2 R ffffffffffffffff 0 ffffffffffffffff 800000 800000 c",
    "5 1 1 prlimit64 2 9 10000 ffffffffffffffff = 0",
    "5 1 1 setrlimit 8 0 800000 = 0 e1 x2",
    "5 1 1 capset 4000 = 0",
    "5 1 1 G 11 1",
    "5 1 1 G 7 -6",
    "5 - - Z 5404056",
    "5 - - L 1200",
    "5 1 1 openat ffffff9c 7f80 80000 0 = 6 e30 x0",
    "5 1 1 close 6 = 0",
    "5 1 1 ioctl 3 c020aa00 7fb1bdef5000 4000 3 = 0 e120 x0",
    "5 1 1 ioctl 3 8010aa01 7fb1bdef5000 4000 0 = -22",
    "5 1 1 ioctl 3 aa00 80000 0 0 = 4",
    "5 1 1 ioctl 4 c018aa3f aa 6 0 = 0",
    "5 1 1 process_madvise ffffd8f0 7ffc40 2 4 0 = 2000 v7fb1bdef5000+1000,7fb1bdef9000+1000 e120 x0",
    "5 1 1 process_madvise 3 0 0 15 0 = 0 v",
    "5 1 1 process_madvise 3 7ffc40 11 15 0 = 11000 x9",
    "5 1 1 mmap 0 9fb3 1 2 6 0 = 7fb1bdef5000 f7 e1272 x6289 w360 h5799",
    "5 1 1 mmap 0 2000 3 22 -1 0 = -12 e1052",
    "5 1 1 munlockall  = 0 x9",
    "5 1 1 exit_group 0 = ? e599779 r1853 h3004 l3 i1",
    "18446744073709551615 65535 1 munmap ffffffffffffffff 0 = ffffffffffffffff x1 w2 h3 d4 l5 i6",
];

#[test]
fn written_lines_equal_the_lines_that_were_read() {
    for line in LINES {
        let event = one(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut writer = TraceWriter::new(Vec::new(), "test").unwrap();
        writer.event(&event).unwrap();
        let written = String::from_utf8(writer.finish().unwrap()).unwrap();
        assert_eq!(written, format!("# fhtrace 3 test\n{line}\n"));
        assert_eq!(event.line, 3);
    }
}

#[test]
fn fields_of_a_line_are_read_into_the_event() {
    let event =
        one("9 1 2 mmap 7fb1bdd39000 156000 5 812 -1 26000 = 7fb1bdd39000 f7 e851 x13871 w320 h13470")
            .unwrap();
    let call = Call {
        name: CallName::Mmap,
        args: [0x7fb1bdd39000, 0x156000, 5, 0x812, u64::MAX, 0x26000],
        returned: Returned::Value(0x7fb1bdd39000),
        file: Some(7),
        transfer: None,
        beside: Vec::new(),
    };
    let cost = Cost {
        before: Some(851),
        after: Some(13871),
        write_wait: Some(320),
        held: Some(13470),
        ..Cost::default()
    };
    assert_eq!(
        event,
        Event { line: 3, time: 9, cpu: Some(1), task: 2, kind: Kind::Call(Box::new(call)), cost }
    );
    let kind = |line| one(line).unwrap().kind;
    assert_eq!(kind("9 1 2 F 10 17 x1"), Kind::Fault { address: 16, code: FaultCode(0x17), in_exec: false });
    assert_eq!(kind("9 1 2 N 3 2 10100"), Kind::Clone { child: 3, process: 2, flags: 0x10100 });
    assert_eq!(kind("9 - - Z 10"), Kind::Frozen { ns: 10 });
}

/// A process_madvise concerns the caller if its descriptor denotes the caller, or if Linux accepted advice
/// that it does not accept for another process.
#[test]
fn advice_for_the_caller_is_recognised() {
    const COLD: u32 = 20;
    for (descriptor, advice, result, process) in [
        ("ffffd8f0", 4, "-22", Some(2)),
        ("ffffffffffffd8ef", COLD, "0", Some(2)),
        ("3", 4, "1000", Some(2)),
        ("3", 4, "0", None),
        ("3", COLD, "1000", None),
    ] {
        let line = format!("9 1 2 process_madvise {descriptor} 10 1 {advice:x} 0 = {result} v7000+1000");
        let Kind::Call(call) = one(&line).unwrap().kind else { panic!("{line}") };
        let about = call.transfer.unwrap();
        assert_eq!((about.process, about.remote), (process, vec![(0x7000, 0x1000)]), "{line}");
    }
}

#[test]
fn comments_and_files_are_not_events() {
    let text = "# a remark\n# file 1 40883 /etc/ld so.cache\n# file 4000000000 - [x]\n1 0 1 X";
    let mut reader = TraceReader::new(Lines::of_text(format!("{text}\n")), VERSION);
    let event = reader.next_event().unwrap().unwrap();
    assert_eq!((event.line, event.time), (4, 1));
    let file =
        FileInfo { id: 1, size: Some(40883), huge: None, tmpfs: None, path: "/etc/ld so.cache".to_owned() };
    assert_eq!(reader.files().get(1), Some(&file));
    assert_eq!(reader.files().all().len(), 2);
    assert_eq!(reader.files().get(2), None);
}

/// The lines `# huge` and `# tmpfs` after the definition of a file are written and read.
#[test]
fn page_properties_of_files_are_read() {
    let told = [(Some(2 << 20), None), (None, Some(TmpfsHuge::WithinSize)), (None, Some(TmpfsHuge::Never))];
    let files = [1, 2, 3].map(|id| {
        let (huge, tmpfs) = told[id as usize - 1];
        FileInfo { id, size: None, huge, tmpfs, path: format!("/dev/shm/{id}") }
    });
    let mut writer = TraceWriter::new(Vec::new(), "t").unwrap();
    files.iter().for_each(|file| writer.file(file).unwrap());
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    let (_, lines) = text.split_once('\n').unwrap();
    let mut reader = TraceReader::new(Lines::of_text(lines.to_owned()), VERSION);
    assert_eq!(reader.next_event().unwrap(), None);
    assert_eq!(reader.files().all(), files);
}

/// Each case is an invalid line, and a part of the message after the file and the line.
#[test]
fn errors_name_the_expected_text() {
    let cases = [
        ("", "column 1: expected a time in nanoseconds, found \"\""),
        ("x", "column 1: expected a time in nanoseconds, found \"x\""),
        ("5", "column 2: expected a processor, found \"\""),
        ("5 65536 1 X", "column 3: expected a processor's number below 65536"),
        ("5 1  X", "column 5: expected a task's serial number, found \" X\""),
        ("5 1 1", "column 6: expected an operation"),
        ("# tmpfs 1 never", "file 1 is not defined"),
        ("# tmpfs 1 perhaps", "column 11: expected a value of tmpfs's option huge, found \"perhaps\""),
        ("5 1 1 getpid = 1", "column 7: expected an operation or call of the format, found \"getpid"),
        (
            "5 1 1 ioctl 3 5401 0 0 0 = 0",
            "expected c020aa00, 8010aa01, c018aa3f or aa00: UFFDIO_REGISTER, _UNREGISTER, _API, or USERFAULTFD_IOC_NEW",
        ),
        ("5 1 1 prlimit64 3 9 0 0 = 0", "task 3 was not created before this line"),
        ("5 1 1 setrlimit 7 0 0 = 0", "expected 2, 3, 8 or 9: RLIMIT_DATA, _STACK, _MEMLOCK or _AS"),
        ("5 1 1 R 1 2 3 4", "expected a limit in bytes, hexadecimal, found \"\""),
        ("5 1 1 R 1 2 3 4 5 d", "expected the end of the line"),
        ("5 1 1 ioctl 3 c020aa00 7000 1000 = 0", "expected an argument, hexadecimal, found \"= 0\""),
        (
            "5 1 1 process_madvise 3 10 2 4 0 = 0 v7000+1000",
            "expected as many ranges as the third argument gives, found \"7000+1000\"",
        ),
        ("5 1 1 process_madvise 3 10 1 4 0 = 0 v7000 x1", "expected `+` and the range's length"),
        ("5 1 1 process_madvise 3 10 1 4 0 = 0 v7000+1000+1", "expected a comma, or a blank"),
        ("5 1 1 madvise 7000 1000 4 = 0 v7000+1000", "expected one of the letters"),
        ("5 1 - X", "expected `Z` or `L`, the only operations without a task"),
        ("5 1 3 X", "task 3 was not created before this line"),
        ("5 1 1 D 9", "task 9 was not created before this line"),
        ("5 1 1 N 2 2 0", "task 2 occurs a second time"),
        ("5 1 1 N 0 0 0", "expected a serial number above 0"),
        ("5 1 1 N 3 1 0", "expected the new task itself, or its creator's process for CLONE_THREAD"),
        ("5 1 1 N 3 3 10000", "expected the new task itself, or its creator's process for CLONE_THREAD"),
        ("5 1 1 N 16777216 16777216 0", "more than 16777216 tasks"),
        ("5 1 1 mmap 0 1000 3 22 6 0 = 7000 f8", "file 8 is not defined before this line"),
        ("5 1 1 mmap 0 1000 3 22 18446744073709551616 0 = 7000", "expected a descriptor, decimal"),
        ("5 1 1 mmap 0 1000 3 22 -1 = 7000", "expected an argument, hexadecimal, found \"= 7000\""),
        ("5 1 1 brk 0 0 = 7000", "expected `=` after the last argument"),
        ("5 1 1 brk 10000000000000000 = 7000", "expected an argument, hexadecimal"),
        ("5 1 1 brk 0", "expected `=` after the last argument, found \"\""),
        ("5 1 1 brk 0 = ", "expected the result"),
        ("5 1 1 brk 0 = -0", "expected an error number from 1 to 4095"),
        ("5 1 1 brk 0 = -4096", "expected an error number from 1 to 4095"),
        ("5 1 1 brk 0 = 0 q1", "expected one of the letters e x w r h d l i M, found \"q1\""),
        ("5 1 1 brk 0 = 0 x1 x2", "expected each letter once, found \"x2\""),
        ("5 1 1 brk 0 = 0 x18446744073709551616", "expected nanoseconds, decimal"),
        ("5 1 1 brk 0 = 0x", "expected a blank, or the end of the line, found \"x\""),
        ("5 1 1 F 10 100", "expected error-code bits below 100"),
        ("5 1 1 F 10", "expected error-code bits, found \"\""),
        ("5 1 1 G 9 1", "expected 7 or 11"),
        ("5 1 1 G 11 2147483648", "expected the signal's code"),
        ("5 1 1 S 1 lunch 1", "expected exec, freeze, exit or midexec, found \"lunch 1\""),
        ("5 1 1 X h", "expected `g`"),
        ("5 1 1 X x5", "expected `g`"),
        ("5 1 1 D 1 x5", "expected the end of the line"),
        ("18446744073709551616 1 1 X", "column 1: expected a time in nanoseconds"),
        ("5 1 1 X\r", "column 7: expected an operation or call of the format, found \"X\\r\""),
        ("# file 7 - /other", "file 7 occurs a second time"),
        ("# file 8 -", "expected its path"),
        ("# file 8 12k /other", "expected its path, found \"k /other\""),
        ("# fhtrace 1 other", "expected no second header"),
    ];
    for (line, message) in cases {
        let error = one(line).unwrap_err();
        assert!(error.starts_with("test:3: "), "{line}: {error}");
        assert!(error.contains(message), "{line}: {error}");
    }
}

#[test]
fn decreasing_time_is_refused() {
    assert_eq!(read("5 0 1 G 7 2\n5 0 1 X\n4 0 1 X").unwrap_err(), "test:3: out of order: time 4 after 5");
}

#[test]
fn second_exit_of_a_task_is_refused() {
    let twice = read("5 0 1 N 2 2 0\n6 0 1 X\n6 0 1 exit_group 0 = ?\n6 0 2 X g\n7 0 1 X g");
    assert_eq!(twice.unwrap_err(), "test:5: the exit of task 1 occurs a second time");
}

#[test]
fn path_must_be_utf8() {
    let mut reader = TraceReader::new(Lines::of_text(*b"# file 1 - /\xff\n"), VERSION);
    assert_eq!(reader.next_event().unwrap(), None);
    let error = reader.unread().first()[0].to_string();
    assert!(error.starts_with("test:1: column 13: expected text in UTF-8"), "{error}");
}

/// The lines after an unreadable line are read. If the unreadable line may concern memory, the reader returns
/// a loss of events for the task of that line.
#[test]
fn lines_after_an_unreadable_line_are_read() {
    let lost = |task| (task, Kind::Lost { events: 1 });
    for (line, expected) in [
        ("5 1 2 mmap 0 2000 3 22 -1 0", Some(lost(2))),
        ("5 1 2 warp 0 = 0", Some(lost(2))),
        ("5 1 9 munmap 0 0 = 0", Some(lost(0))),
        ("4 1 2 munmap 0 0 = 0", Some(lost(2))),
        ("5 1 2 N 2 2 0", Some(lost(2))),
        ("\u{7}\u{0}what", Some(lost(0))),
        ("", Some(lost(0))),
        ("5 - 2 S 7 whyever 1", None),
        ("# file 7 8 /again", None),
        ("4 - 2 X", None),
    ] {
        let text = format!("# file 7 - /lib\n0 0 1 N 2 2 0\n5 0 1 X\n{line}\n6 0 2 X g");
        let (events, wrong) = read_all(&text).unwrap();
        assert_eq!(wrong.len(), 1, "{line}");
        assert!(wrong[0].starts_with("test:4: "), "{line}: {wrong:?}");
        let found = events.iter().find(|event| event.line == 4).map(|event| (event.task, event.kind.clone()));
        assert_eq!(found, expected, "{line}");
        let last = events.last().unwrap();
        assert_eq!((last.line, last.task, &last.kind), (5, 2, &Kind::Exit { last: true }));
    }
}

#[test]
fn errors_of_only_the_first_unreadable_lines_are_kept() {
    let mut reader = TraceReader::new(Lines::of_text("what\n".repeat(1000)), VERSION);
    while reader.next_event().unwrap().is_some() {}
    assert_eq!((reader.unread().count(), reader.unread().first().len()), (1000, 10));
}

#[test]
fn descriptor_is_truncated_to_an_int() {
    for (text, number) in
        [("7", 7), ("-4294967289", 7), ("4294967303", 7), ("-1", u64::MAX), ("4294967295", u64::MAX)]
    {
        let event = one(&format!("5 1 1 mmap 0 1000 3 2 {text} 0 = 7000")).unwrap();
        let Kind::Call(call) = event.kind else { panic!("{event:?}") };
        assert_eq!(call.args[4], number, "{text}");
    }
}
