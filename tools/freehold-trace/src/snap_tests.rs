//! Tests the reader and the writer of snapshots (`snap.rs`, `write.rs`).
//!
//! A test reads lines of `NAME.snap` and checks the fields or the whole error message. A new field of the
//! format needs a value in `EXAMPLE` and its invalid forms in `errors_name_the_expected_text`. `EXAMPLE` must
//! be unchanged after it was read and written.

use super::*;
use crate::{SnapWriter, Why};

fn reader(text: &str) -> SnapReader {
    SnapReader::new(Lines::of_text(format!("{text}\n")))
}

const FIRST: &str = "@ 0 exec 1 566098 772284 1 sh | /usr/bin/dash | VmPeak:512;VmRSS:12";

/// Returns the snapshot that consists of `FIRST` and `lines`, or the message of the error.
fn one(lines: &str) -> Result<Snapshot, String> {
    let found = reader(&format!("{FIRST}\n{lines}")).snapshot(0);
    found.map(Option::unwrap).map_err(|error| error.to_string())
}

const EXAMPLE: &str = "\
@ 0 exec 1 566098 772284 1 sh | /usr/bin/dash | VmPeak:512;VmRSS:12
00400000-00401000 r--p 0 /usr/bin/a | b | c | 0 | rdmrmwme
5650c8a8d000-5650c8a90000 rw-p 1c000 /usr/bin/dash | 4,,,,4,4,4,, | rdwrmrmwmeac!
5650c8a90000-5650c8a92000 rw-s 0 - | 0 | 
7ffede594000-7ffede5b5000 -wxp 0 [stack]
P 5650c8a8f 1 8
P 0 1 c
P 2960f54ad 1 44
@ 1 exit 2 1 2 0  |  | 
";

#[test]
fn snapshots_are_read_and_written_again() {
    let mut reader = reader(EXAMPLE.trim_end_matches('\n'));
    let mut writer = SnapWriter::new(Vec::new(), "test").unwrap();
    let first = reader.snapshot(0).unwrap().unwrap();
    writer.snapshot(&first).unwrap();
    writer.snapshot(&reader.snapshot(1).unwrap().unwrap()).unwrap();
    let written = String::from_utf8(writer.finish().unwrap()).unwrap();
    assert_eq!(written, format!("# fhsnap 1 test\n{EXAMPLE}"));

    assert_eq!((first.id, first.line, first.why, first.process), (0, 1, Why::Exec, 1));
    assert_eq!((first.taken, first.threads), ((566098, 772284), 1));
    assert_eq!((first.comm.as_str(), first.exe.as_str()), ("sh", "/usr/bin/dash"));
    assert_eq!(first.status, [("VmPeak".to_owned(), 512), ("VmRSS".to_owned(), 12)]);
    assert_eq!(first.areas[0].name, "/usr/bin/a | b | c");
    assert_eq!((first.areas[1].prot, first.areas[1].shared, first.areas[1].offset), (3, false, 0x1c000));
    assert_eq!(first.areas[1].sizes, Some([4, 0, 0, 0, 4, 4, 4, 0, 0]));
    assert_eq!(first.areas[1].flags.as_ref().unwrap()[5..], [*b"ac"]);
    assert!(first.areas[1].thp_eligible && !first.areas[2].thp_eligible);
    assert_eq!((first.areas[2].name.as_str(), first.areas[2].shared), ("", true));
    assert_eq!((first.areas[3].prot, first.areas[3].sizes, &first.areas[3].flags), (6, None, &None));
    assert_eq!(first.pages[2], Pages { first: 0x5650c8a91 + 0x2960f54ad, count: 1, categories: 0x44 });
}

#[test]
fn each_snapshot_is_returned_once_in_any_order() {
    let text: Vec<String> = (0..4).map(|id| FIRST.replacen('0', &id.to_string(), 1)).collect();
    let mut reader = reader(&text.join("\n"));
    let mut ask = |id| reader.snapshot(id).unwrap().map(|snapshot| (snapshot.id, snapshot.line));
    assert_eq!(ask(2), Some((2, 3)));
    assert_eq!(ask(2), None);
    assert_eq!(ask(3), Some((3, 4)));
    assert_eq!(ask(0), Some((0, 1)));
    assert_eq!(ask(9), None);
    assert_eq!(ask(1), Some((1, 2)));
    assert_eq!(ask(1), None);
}

/// A list of pages need not ascend, and may contain a page more than once.
#[test]
fn page_that_is_listed_twice_occurs_once() {
    let found = one("P 10 4 8\nP 2 2 c\nP -8 4 8\nP 2 2 c\nP 1 1 8").unwrap();
    let runs: Vec<(u64, u64)> = found.pages.iter().map(|run| (run.first, run.count)).collect();
    assert_eq!(runs, [(0x10, 4), (0x16, 2), (0x19, 1)]);
}

#[test]
fn errors_name_the_expected_text() {
    let cases = [
        ("1000-2000", "expected permissions"),
        ("1000-2000 rwx 0 -", "expected `s` or `p`"),
        ("1000-2000 r?xp 0 -", "expected permissions such as r-xp"),
        ("1000-2000 r-xp 0", "expected a name, or `-`"),
        ("1000-2000 r-xp 0 ", "expected a name, or `-`"),
        ("1000-1000 r-xp 0 -", "expected whole pages after those of the previous VMA"),
        ("1000-1800 r-xp 0 -", "expected whole pages after those of the previous VMA"),
        ("1000-10000000000000000 r-xp 0 -", "expected the VMA's end, hexadecimal"),
        ("1000-3000 r-xp 0 -\n2000-4000 r-xp 0 -", "expected whole pages after those of the previous VMA"),
        ("P 1 1 8\n2000-4000 r-xp 0 -", "expected no VMA after the first `P`"),
        ("1000-2000 r-xp 0 - | 0", "expected NAME | SIZES | FLAGS"),
        ("1000-2000 r-xp 0 - | 1,2 | rd", "expected nine sizes in kB, or `0`"),
        ("1000-2000 r-xp 0 - | 1,2,3,4,5,6,7,8,9,10 | rd", "expected nine sizes in kB, or `0`"),
        ("1000-2000 r-xp 0 - | 4294967296,,,,,,,, | rd", "expected nine sizes in kB, or `0`"),
        ("1000-2000 r-xp 0 - | 0 | rdm", "expected two-letter codes of flags"),
        ("P 1 0 8", "expected at least one page, and only pages of the address space"),
        ("P 10000000000000 1 8", "expected at least one page, and only pages of the address space"),
        ("P 1 fffffffffffff 8\nP 1 1 8", "expected at least one page, and only pages of the address space"),
        (
            "P ffffffffffffffff ffffffffffffffff 8",
            "expected at least one page, and only pages of the address space",
        ),
        ("P -1 1 8", "expected at least one page, and only pages of the address space"),
        ("P 1 1", "expected categories"),
        ("P 1 1 100000000", "expected categories, hexadecimal"),
        ("hello", "expected `@`, `P`, or the first address of a VMA"),
        ("@ 1 lunch 1 0 0 1 a | b | ", "expected exec, freeze, exit or midexec"),
        ("@ 1 exec 1 0 0 1 a | b", "expected COMMAND | EXECUTABLE | SIZES"),
        ("@ 1 exec 1 0 0 1 a | b | VmPeak", "expected sizes such as VmPeak:512;VmRSS:12"),
        ("@ 0 exec 1 0 0 1 a | b | ", "snapshot 0 occurs a second time"),
        ("# fhsnap 1 other", "expected no second header"),
    ];
    for (lines, message) in cases {
        let error = one(lines).unwrap_err();
        let line = 1 + lines.lines().count();
        assert!(error.starts_with(&format!("test:{line}: ")), "{lines}: {error}");
        assert!(error.contains(message), "{lines}: {error}");
    }
}

#[test]
fn snapshot_must_begin_with_its_first_line() {
    let error = reader("1000-2000 r-xp 0 -").snapshot(0).unwrap_err().to_string();
    assert!(error.contains("expected `@`, the beginning of a snapshot"), "{error}");
}
