//! Tests the command as a user runs it: its output, its files and its exit status.
//!
//! Each test writes small recordings into a folder of its own ([`Folder`]), runs the built `freehold` on
//! them, and checks text, files and exit status. Exit status: 0 without differences, 1 with differences, 2
//! for bad arguments or unusable recordings. A new option needs a test here that shows its effect, and a
//! refused value in `bad_arguments_exit_with_2`. The recordings are too small to test the replay itself,
//! which `freehold-replay/tests` tests. `reproduce.rs` and `record.rs` test those subcommands.

use assert_cmd::assert::Assert;
use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The snapshots of `TRACE`: a program with code, data and a stack.
const SNAPSHOTS: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7ffffffcb 1 8
";

/// A recording of two calls and three faults that matches Linux.
const TRACE: &str = "# fhtrace 1 t
# file 1 8192 /bin/t
5 0 1 E 0
10 0 1 F 10000 14 x1
15 0 1 mmap 0 3000 3 22 -1 0 = 7f0000000000
16 0 1 F 7f0000000000 6 x1
19 0 1 munmap 7f0000001000 1000 = 0
26 0 1 N 3 3 0
30 0 3 F 12008 7 x1
35 0 3 X g
40 0 1 X g
";

/// A folder with recordings: `t` matches Linux, `odd` contains an answer that Linux never gives, `cut`
/// contains a damaged line.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        let odd = TRACE.replace("1000 = 0", "1000 = -22");
        let cut = TRACE.replace("munmap 7f0000001000 1000", "munmap seven");
        for (name, trace) in [("t", TRACE), ("odd", &odd), ("cut", &cut)] {
            fs::write(folder.path(&format!("{name}.trace")), trace).expect("written");
            fs::write(folder.path(&format!("{name}.snap")), SNAPSHOTS).expect("written");
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `freehold` in this folder.
    fn run(&self, arguments: &str) -> Assert {
        cargo_bin_cmd!("freehold").current_dir(self.0.path()).args(arguments.split_whitespace()).assert()
    }
}

fn stdout(run: &Assert) -> String {
    String::from_utf8(run.get_output().stdout.clone()).expect("text")
}

fn stderr(run: &Assert) -> String {
    String::from_utf8(run.get_output().stderr.clone()).expect("text")
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("it was written");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn replay_without_differences_exits_with_0() {
    let run = Folder::new().run("replay t.trace").code(0);
    let text = stdout(&run);
    assert!(text.starts_with("t: 2 calls, 3 faults, 0 snapshots: all match Linux\n"), "{text}");
    assert_eq!(stderr(&run), "", "progress is shown only on a terminal");
}

#[test]
fn replay_with_a_difference_exits_with_1() {
    let run = Folder::new().run("replay odd.trace --cpus 1").code(1);
    let text = stdout(&run);
    assert!(text.starts_with("t: 2 calls, 3 faults, 0 snapshots: 1 call with differences\n"), "{text}");
    assert!(text.contains("t, line 7, task 1: munmap"), "{text}");
    assert!(text.contains("Linux     ") && text.contains("Freehold  "), "{text}");
    assert_eq!(stderr(&run), "");
}

#[test]
fn unreadable_recording_is_reported_in_one_line() {
    let folder = Folder::new();
    for (recording, said) in [
        ("nowhere.trace", "error: cannot open nowhere.trace: "),
        (".", "error: cannot open .: "),
        ("t.snap", "error: t.snap:1: cannot replay a snapshot file; replay t.trace instead\n"),
    ] {
        let run = folder.run(&format!("replay {recording}")).code(2);
        let said_there = stderr(&run);
        assert!(said_there.starts_with(said), "{recording}: {said_there}");
        assert_eq!(said_there.lines().count(), 1, "{said_there}");
        assert_eq!(stdout(&run), "");
    }
}

/// strace output without the times of `-ttt` is refused, even with other times. The message names `-ttt`.
#[test]
fn strace_output_without_times_is_refused_with_the_missing_option() {
    let folder = Folder::new();
    for front in [
        "",
        "12 ",
        "12    ",
        "[pid 12] ",
        "10:11:12 ",
        "12 10:11:12.345678 ",
        "     0.000000 ",
        "12      0.000000 ",
    ] {
        for call in
            ["execve(\"./t\", [], NULL) = 0", "brk(NULL)    = 0x1000 <0.1>", "wait4(-1,  <unfinished ...>"]
        {
            fs::write(folder.path("text"), format!("{front}{call}\n")).expect("written");
            let said = stderr(&folder.run("replay text").code(2));
            assert!(
                said.starts_with("error: text:1: cannot read strace output without times: "),
                "{front}{call}: {said}"
            );
            assert!(said.contains("strace option -ttt"), "{said}");
        }
    }
    for other in ["hello (world)", "int main(void) { return x = 0; }", "12 years (of them) = 3"] {
        fs::write(folder.path("text"), format!("{other}\n")).expect("written");
        let said = stderr(&folder.run("replay text").code(2));
        assert!(said.contains("not a recording"), "{other}: {said}");
    }
}

#[test]
fn snapshot_file_is_refused_with_the_name_of_its_recording() {
    let folder = Folder::new();
    fs::rename(folder.path("t.trace"), folder.path("u.trace")).expect("moved");
    let said = stderr(&folder.run("replay t.snap").code(2));
    let why = "cannot replay a snapshot file; the events of recording \"t\" are in a file NAME.trace, which is missing\n";
    assert_eq!(said, format!("error: t.snap:1: {why}"));
    fs::rename(folder.path("u.trace"), folder.path("t.trace.xz")).expect("moved");
    let said = stderr(&folder.run("replay t.snap").code(2));
    assert!(said.contains("replay t.trace.xz instead"), "{said}");
}

/// Each case is a file that is not a recording, or that contains only a part of a recording.
#[test]
fn damaged_files_are_refused_with_their_line() {
    let folder = Folder::new();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path(name), bytes).expect("written");
    let middle = TRACE.find("munmap").expect("a munmap");
    write("half.trace", &TRACE.as_bytes()[..middle]);
    write("half.snap", SNAPSHOTS.as_bytes());
    write("empty.trace", b"");
    write("bad.trace.xz", b"\xfd7zXZ\0 and no more");
    write("bad.trace.zst", b"\x28\xb5\x2f\xfd and no more");
    let packed = zstd_of(TRACE.as_bytes());
    write("cut.trace.zst", &packed[..packed.len() / 2]);
    write("alone.trace", TRACE.as_bytes());
    write("void.trace", TRACE.as_bytes());
    write("void.snap", b"");
    write("torn.trace", TRACE.as_bytes());
    write("torn.snap", &SNAPSHOTS.as_bytes()[..SNAPSHOTS.len() - 3]);
    write("less.trace", TRACE.as_bytes());
    write("less.snap", b"# fhsnap 1 t\n");
    for (recording, said) in [
        ("empty.trace", "empty.trace:0: not a recording"),
        ("bad.trace.xz", "bad.trace.xz:0: cannot read further: "),
        ("bad.trace.zst", "bad.trace.zst:0: cannot read further: "),
        (
            "alone.trace",
            "alone.trace:3: snapshot 0 is missing: there is no snapshot file next to the recording",
        ),
        ("less.trace", "less.trace:3: snapshot 0 is missing: the snapshot file does not contain it"),
        ("void.trace", "void.snap:0: the file is cut off here: it is empty"),
        ("torn.trace", "torn.snap:7: the file is cut off here"),
    ] {
        let run = folder.run(&format!("replay {recording} --json {recording}.json")).code(2);
        let words = stderr(&run);
        assert!(words.starts_with(&format!("error: {said}")), "{recording}: {words}");
        assert_eq!((words.lines().count(), stdout(&run).as_str()), (1, ""), "{words}");
        let all = json(&folder.path(&format!("{recording}.json")));
        assert_eq!(all["recordings"].as_array().map(Vec::len), Some(0));
        assert_eq!(all["unusable"][0]["recording"], recording);
        // An unwritable output is reported before the replay starts. For an unreadable recording, no picture
        // is written.
        folder.run(&format!("replay {recording} --picture x.svg --maps-at 1s")).code(2);
        assert!(!folder.path("x.svg").exists());
    }
    // A recording that is cut off is replayed up to the cut.
    for (recording, said) in [
        ("half.trace", "half.trace:7: the file is cut off here: the last line has no line end"),
        ("cut.trace.zst", "cut.trace.zst:4: the file is cut off here: the compressed stream is incomplete"),
    ] {
        let text = stdout(&folder.run(&format!("replay {recording}")).code(2));
        assert!(text.contains("all match Linux, as far as the recording could be read"), "{text}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&format!("reading stopped: {said}")), "{text}");
        let all = stdout(&folder.run(&format!("replay {recording} --json -")).code(2));
        let all: Value = serde_json::from_str(&all).expect("JSON");
        assert_eq!(all["recordings"][0]["cut_off"], said);
    }
}

/// Returns `bytes` as a zstd file with one uncompressed block.
fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    // The frame has a single segment, whose size takes four bytes. The last block is raw.
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    packed.extend(length.to_le_bytes());
    packed.extend(&(length << 3 | 1).to_le_bytes()[..3]);
    packed.extend(bytes);
    packed
}

#[test]
fn compression_is_detected_from_the_content_not_the_name() {
    let folder = Folder::new();
    fs::write(folder.path("u.trace.xz"), zstd_of(TRACE.as_bytes())).expect("written");
    fs::write(folder.path("u.snap"), zstd_of(SNAPSHOTS.as_bytes())).expect("written");
    let text = stdout(&folder.run("replay u.trace.xz").code(0));
    assert!(text.starts_with("t: 2 calls, 3 faults, 0 snapshots: all match Linux\n"), "{text}");
}

#[test]
fn full_disk_is_reported() {
    let folder = Folder::new();
    for option in ["--json /dev/full", "--picture /dev/full"] {
        let run = folder.run(&format!("replay t.trace {option}")).code(2);
        assert!(stderr(&run).starts_with("error: cannot write /dev/full: "), "{}", stderr(&run));
    }
    folder.run("replay odd.trace --json /dev/null").code(1);
}

#[test]
fn damaged_recording_does_not_prevent_the_replay_of_others() {
    let folder = Folder::new();
    let run = folder.run("replay cut.trace t.trace odd.trace --json all.json").code(2);
    let text = stdout(&run);
    assert!(text.contains("all match Linux") && text.contains("3 recordings: 1 with differences"), "{text}");
    assert!(text.contains("cut.trace:7: "), "{text}");
    let all = json(&folder.path("all.json"));
    let differences = |index: usize| all["recordings"][index]["differences"].as_array().map(Vec::len);
    assert_eq!((differences(0), differences(1), differences(2)), (Some(0), Some(0), Some(1)));
    let unread = |index: usize| all["recordings"][index]["unread_lines"].as_u64();
    assert_eq!((unread(0), unread(1)), (Some(1), Some(0)), "{all}");
}

/// The report covers every readable recording, even if other recordings cannot be read.
#[test]
fn unreadable_recordings_do_not_affect_the_others() {
    let folder = Folder::new();
    fs::write(folder.path("empty.trace"), "").expect("written");
    // Reading /proc/self/mem begins at address 0, which is unmapped, so even root cannot read the file.
    let bad = ["nowhere.trace", ".", "/proc/self/mem", "void.trace", "empty.trace"];
    fs::write(folder.path("void.trace"), TRACE).expect("written");
    fs::write(folder.path("void.snap"), "").expect("written");
    let run = folder.run(&format!(
        "replay {} t.trace {} odd.trace --json all.json",
        bad[..3].join(" "),
        bad[3..].join(" ")
    ));
    let (text, said) = (stdout(&run), stderr(&run.code(2)));
    assert!(text.contains("\n2 recordings: 1 with differences; 0 events not checked\n"), "{text}");
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), bad.len(), "{said:?}");
    for (line, name) in said.iter().zip(bad) {
        let name = name.replace("void.trace", "void.snap");
        assert!(line.starts_with("error: ") && line.contains(&format!("{name}:")), "{line}");
    }
    let all = json(&folder.path("all.json"));
    let names: Vec<&Value> =
        all["unusable"].as_array().into_iter().flatten().map(|one| &one["recording"]).collect();
    assert_eq!(names, bad);
    let listed = folder.run(&format!("replay --tasks {} t.trace", bad.join(" "))).code(2);
    assert!(stdout(&listed).contains("t: 2 tasks of 2 processes, 40ns\n"), "{}", stdout(&listed));
    assert_eq!(stderr(&listed).lines().count(), bad.len());
}

/// The report and the JSON count unchecked events, for each recording and in total.
#[test]
fn unchecked_events_are_counted() {
    let folder = Folder::new();
    let prctl = TRACE.replace("26 0 1 N", "26 0 1 prctl 26 0 0 0 0 = 0\n26 0 1 N");
    fs::write(folder.path("some.trace"), prctl).expect("written");
    fs::write(folder.path("some.snap"), SNAPSHOTS).expect("written");
    let text = stdout(&folder.run("replay some.trace t.trace some.trace --json all.json").code(0));
    let all = json(&folder.path("all.json"));
    let each: Vec<u64> =
        (0..3).filter_map(|index| all["recordings"][index]["not_checked"].as_u64()).collect();
    assert_eq!((each.as_slice(), &all["not_checked"]), ([1, 0, 1].as_slice(), &2.into()), "{text}");
    assert!(
        text.contains("  not checked, 1 in all:\n") && text.contains("; 2 events not checked\n"),
        "{text}"
    );
}

/// A recording on standard input may be plain or compressed, and may be read more than once.
#[test]
fn standard_input_is_read_like_a_file() {
    let folder = Folder::new();
    let fed = |input: &[u8], arguments: &str| {
        let mut run = cargo_bin_cmd!("freehold");
        run.current_dir(folder.0.path()).args(arguments.split_whitespace()).write_stdin(input).assert()
    };
    let trace = TRACE.as_bytes();
    for input in [trace, &zstd_of(trace)] {
        let text = stdout(&fed(input, "replay - --snap t.snap --picture in.svg").code(0));
        assert!(text.starts_with("t: 2 calls, 3 faults, 0 snapshots: all match Linux\n"), "{text}");
        assert!(folder.path("in.svg").exists());
    }
    let text = stdout(&fed(trace, "replay - odd.trace --json -").code(2));
    let all: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&all["unusable"][0]["recording"], &all["recordings"][0]["name"]), (&"-".into(), &"t".into()));
    let text = stdout(&fed(trace, "replay --compare - --snap t.snap").code(0));
    assert!(text.contains("on 16 designs: all match Linux"), "{text}");
    let maps = stdout(&fed(trace, "replay --maps-at 17ns - --snap t.snap").code(0));
    assert!(maps.contains("7f0000000000-7f0000003000 rw-p"), "{maps}");
    assert!(stdout(&fed(trace, "replay --tasks -").code(0)).contains("t: 2 tasks"));
    let missing = fed(trace, "replay -").code(2);
    let said = "error: standard input:3: snapshot 0 is missing: ";
    assert!(
        stderr(&missing).starts_with(said) && stderr(&missing).contains("--snap FILE"),
        "{}",
        stderr(&missing)
    );
    assert!(stderr(&fed(b"", "replay -").code(2)).starts_with("error: standard input:0: not a recording"));
    for (arguments, said) in [
        ("replay - -", "standard input (-) can be given only once"),
        ("replay t.trace odd.trace --snap t.snap", "--snap takes one recording"),
        ("replay --tasks --json x t.trace", "cannot be used with"),
    ] {
        assert!(stderr(&fed(trace, arguments).code(2)).contains(said), "{arguments}");
    }
}

/// Output of strace, which contains only calls. All other figures are unknown, not zero.
const STRACE: &str = "\
7 1.000000 execve(\"/bin/t\", [\"t\"], 0x1 /* 1 var */) = 0 <0.000300>
7 1.001000 mmap(NULL, 12288, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000 <0.000020>
7 1.002000 munmap(0x7f0000000000, 4096) = 0 <0.000010>
7 1.003000 +++ exited with 0 +++
";

#[test]
fn figures_that_strace_does_not_record_are_unknown() {
    let folder = Folder::new();
    let untimed = STRACE.replace(" <0.000300>", "").replace(" <0.000020>", "").replace(" <0.000010>", "");
    for (text, linux) in [(STRACE, Some(20_000)), (&untimed, None)] {
        fs::write(folder.path("x.strace"), text).expect("written");
        let report = stdout(&folder.run("replay x.strace --json x.json").code(0));
        assert!(report.starts_with("x: 2 calls: all match Linux\n"), "{report}");
        assert!(!report.contains("as fast"), "{report}");
        assert!(report.contains("; the program took 3 ms under strace\n"), "{report}");
        assert!(report.contains("faults served by  not recorded by strace\n"), "{report}");
        assert!(report.contains("pages of files    not recorded by strace\n"), "{report}");
        assert_eq!(report.contains("total, Linux"), linux.is_some(), "{report}");
        let found = &json(&folder.path("x.json"))["recordings"][0];
        for key in [
            "faults",
            "faults_as_linux",
            "snapshots",
            "snapshots_as_linux",
            "file_vmas",
            "file_vmas_as_linux",
        ] {
            assert!(found[key].is_null(), "{key}: {}", found[key]);
        }
        let kinds = found["kinds"].as_array().expect("kinds");
        let mmap = kinds.iter().find(|kind| kind["name"] == "mmap").expect("mmap");
        assert_eq!((mmap["linux_ns"].as_u64(), mmap["linux_count"].as_u64()), (linux, linux.map(|_| 1)));
        let summary = stdout(&folder.run("replay x.strace t.trace").code(0));
        let line: Vec<&str> = summary
            .lines()
            .rfind(|line| line.starts_with("x "))
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        assert_eq!(
            (&line[..6], line.last()),
            (["x", "2", "-", "-", "none", "0"].as_slice(), Some(&"-")),
            "{summary}"
        );
        let list = stdout(&folder.run("replay --tasks x.strace").code(0));
        assert!(
            list.lines().any(|line| line.split_whitespace().eq([
                "1",
                "1",
                "-",
                "0.000us",
                "3000.000us",
                "2",
                "-"
            ])),
            "{list}"
        );
    }
}

#[test]
fn json_report_has_all_figures() {
    let folder = Folder::new();
    folder.run("replay t.trace --json one.json").code(0);
    let one = &json(&folder.path("one.json"))["recordings"][0];
    assert_eq!((&one["name"], &one["calls"], &one["calls_as_linux"]), (&"t".into(), &2.into(), &2.into()));
    assert_eq!((&one["faults"], &one["faults_as_linux"]), (&3.into(), &3.into()));
    assert_eq!((&one["snapshots"], &one["snapshots_as_linux"]), (&0.into(), &0.into()));
    for times in ["exclusive_hold_ns", "mmap_lock_wait_ns"] {
        for key in ["p50", "p99", "max"] {
            assert!(one[times][key].is_u64(), "{times}.{key}");
        }
    }
    assert!(one["wall_ns"].is_u64() && one["differences"].is_array());
    let run = folder.run("replay odd.trace --json -").code(1);
    let out: Value = serde_json::from_str(&stdout(&run)).expect("only JSON");
    assert_eq!(out["recordings"][0]["calls_as_linux"], 1);
}

#[test]
fn unwritable_output_prevents_the_replay() {
    let folder = Folder::new();
    for option in ["--json nowhere/x.json", "--picture nowhere/x.svg", "--json ."] {
        let run = folder.run(&format!("replay t.trace {option}")).code(2);
        assert_eq!(stdout(&run), "", "{option}");
        let said = stderr(&run);
        assert!(said.starts_with("error: ") && said.contains("cannot write"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn compare_replays_on_every_design() {
    let run = Folder::new().run("replay t.trace --compare").code(0);
    let text = stdout(&run);
    assert!(
        text.starts_with("t: 2 calls, 3 faults, 0 snapshots, on 16 designs: all match Linux\n"),
        "{text}"
    );
    for (design, times) in [("exclusive ", 3), ("sectioned ", 3), ("downgraded ", 3), ("released ", 4)] {
        let lines = text.lines().filter(|line| line.trim_start().starts_with(design));
        assert_eq!(lines.count(), times, "{text}");
    }
    for heading in ["write       whole", "write       ranges"] {
        assert_eq!(text.lines().filter(|line| line.trim() == heading).count(), 1, "{text}");
    }
    assert_eq!(Folder::new().run("replay odd.trace --compare").get_output().status.code(), Some(1));
}

#[test]
fn picture_is_written_as_svg() {
    let folder = Folder::new();
    folder.run("replay t.trace --picture t.svg").code(0);
    let picture = fs::read_to_string(folder.path("t.svg")).expect("it was drawn");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    folder.run("replay cut.trace --picture cut.svg").code(2);
}

#[test]
fn maps_at_prints_the_address_space_at_that_time() {
    let folder = Folder::new();
    let maps =
        |arguments: &str| stdout(&folder.run(&format!("replay t.trace --maps-at {arguments}")).code(0));
    let (before, after) = (maps("17ns"), maps("20ns"));
    assert!(before.contains("7f0000000000-7f0000003000 rw-p"), "{before}");
    assert!(after.contains("7f0000000000-7f0000001000 rw-p"), "{after}");
    assert!(maps("32ns --task 3").contains("/bin/t"));
    // The cases: a task that never existed, an exited task, a time before the exec, a time after the end.
    for (arguments, said) in [
        (
            "17ns --task 9",
            "no task 9 with a known address space at 17ns; the recording has no task 9; task 1 has a known address space at that time",
        ),
        (
            "30ns --task 4294967295",
            "no task 4294967295 with a known address space at 30ns; the recording has no task 4294967295; tasks 1, 3 have known address spaces at that time",
        ),
        (
            "36ns --task 3",
            "no task 3 with a known address space at 36ns; it lived from 26ns to 35ns; task 1 has a known address space at that time",
        ),
        ("0", "no task with a known address space at 0ns; no task has a known address space at that time"),
        (
            "4ns --task 1",
            "no task 1 with a known address space at 4ns; its address space is known from 5ns on; no task has a known address space at that time",
        ),
        (
            "100s",
            "no task with a known address space at 100.000000s; no task has a known address space at that time",
        ),
    ] {
        let run = folder.run(&format!("replay t.trace --maps-at {arguments}")).code(2);
        assert_eq!(stderr(&run), format!("error: t.trace: {said}; the recording lasts 40ns\n"));
        assert_eq!(stdout(&run), "");
    }
}

#[test]
fn bad_arguments_exit_with_2() {
    let folder = Folder::new();
    for (arguments, said) in [
        ("", "Usage: freehold"),
        ("replay", "RECORDING"),
        (
            "replay t.trace --locking unmap=quick",
            "expected exclusive, sectioned[:BYTES], downgraded, released",
        ),
        ("replay t.trace --cpus none", "--cpus"),
        ("replay t.trace --maps-at 1.2.3s", "expected for example 1.5s, 200ms, or seconds"),
        ("replay t.trace odd.trace --picture x.svg", "--picture takes one recording"),
        ("replay t.trace odd.trace --maps-at 1s", "--maps-at takes one recording"),
    ] {
        let run = folder.run(arguments).code(2);
        assert!(stderr(&run).contains(said), "{arguments}: {}", stderr(&run));
        assert_eq!(stdout(&run), "");
    }
}

#[test]
fn long_help_has_examples_and_exit_status() {
    let folder = Folder::new();
    let long = stdout(&folder.run("replay --help").code(0));
    for taught in ["Examples:", "docs/reference/trace-format.md", "Exit status: 0", "strace -f -ttt"] {
        assert!(long.contains(taught), "{taught} is not in\n{long}");
    }
    assert!(stdout(&folder.run("replay -h").code(0)).contains("freehold replay --help"));
    let version = stdout(&folder.run("--version").code(0));
    assert_eq!(version, format!("freehold {}\n", env!("CARGO_PKG_VERSION")));
}

/// Two replays with one seed on one CPU have equal findings. Only times differ.
#[test]
fn equal_seeds_give_equal_findings() {
    let folder = Folder::new();
    let findings = || {
        let run = folder.run("replay odd.trace --cpus 1 --seed 7 --json -").code(1);
        let mut all: Value = serde_json::from_str(&stdout(&run)).expect("JSON");
        let one = all["recordings"][0].take();
        ["calls", "faults", "differences", "rungs", "tlb_flushes", "seed"].map(|key| one[key].clone())
    };
    assert_eq!(findings(), findings());
}

/// The completions of every shell know the subcommands and options. The completions of bash and zsh also know
/// the experiments.
#[test]
fn completions_cover_subcommands_and_options() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = stdout(&folder.run(&format!("completions {shell}")).code(0));
        for word in ["reproduce", "maps-at", "calls-only"] {
            assert!(text.contains(word), "{shell} does not know {word}");
        }
        let values = matches!(shell, "bash" | "zsh");
        assert!(!values || text.contains("munmap-stall"), "{shell} does not know the experiments");
    }
    assert!(stderr(&folder.run("completions tcsh").code(2)).contains("[possible values: bash,"));
    // If bash is installed, run the script and complete a word.
    let script = folder.path("freehold.bash");
    fs::write(&script, stdout(&folder.run("completions bash").code(0))).expect("written");
    let complete = format!(
        "source {}; COMP_WORDS=(freehold replay --maps); COMP_CWORD=2; _freehold freehold --maps replay; echo ${{COMPREPLY[@]}}",
        script.display()
    );
    if let Ok(bash) = std::process::Command::new("bash").args(["-c", &complete]).output() {
        assert_eq!(String::from_utf8_lossy(&bash.stdout).trim(), "--maps-at", "{bash:?}");
    }
}

#[test]
fn manual_pages_are_generated_for_all_subcommands() {
    let folder = Folder::new();
    let page = stdout(&folder.run("man").code(0));
    assert!(page.contains(".TH freehold 1") && page.contains("freehold\\-replay(1)"), "{page}");
    assert_eq!(stdout(&folder.run("man --dir pages/man1").code(0)), "");
    let mut names: Vec<_> = fs::read_dir(folder.path("pages/man1"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    let jobs = ["-completions", "-man", "-record", "-replay", "-reproduce", ""];
    assert_eq!(names, jobs.map(|job| format!("freehold{job}.1")));
    let replay = fs::read_to_string(folder.path("pages/man1/freehold-replay.1")).expect("written");
    for part in ["freehold replay", "\\-\\-maps\\-at", "Exit status: 0 if", "Examples:"] {
        assert!(replay.contains(part), "{part} is not in\n{replay}");
    }
    fs::write(folder.path("file"), "").expect("written");
    assert!(stderr(&folder.run("man --dir file").code(2)).starts_with("error: cannot write file"));
}
