//! Recordings that are well formed but meaningless: numbers at their limits, areas at invalid addresses,
//! tasks that violate the order of events. The replay refuses such a recording with its file and line, or
//! reports its differences. No recording may make the replay panic, hang or exhaust memory.
//!
//! The recording in `tests/data/hostile.trace`, with its snapshots, is correct. A test changes it, or adds
//! events after an exec (`after_exec`), and runs every operation of the crate on the result
//! (`Recording::all`). The last test makes random changes: it prints each seed, and the variables
//! `FREEHOLD_SEED` and `FREEHOLD_ROUNDS` repeat a seed. A new kind of event needs a line in `ANYWHERE`.

use freehold_replay::outcome::Outcome;
use freehold_replay::picture;
use freehold_replay::report;
use freehold_replay::{Options, ReplayError, Source, maps_at, page, replay};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const SNAPSHOTS: &str = include_str!("data/hostile.snap");
const EVENTS: &str = include_str!("data/hostile.trace");

/// A recording in its own folder.
struct Recording(TempDir);

impl Recording {
    fn new(trace: &str, snapshots: &str) -> Recording {
        let recording = Recording(tempfile::tempdir().expect("a folder"));
        fs::write(recording.path(), trace).expect("written");
        fs::write(recording.path().with_extension("snap"), snapshots).expect("written");
        recording
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("t.trace")
    }

    /// Runs every operation on the recording.
    fn all(&self, options: &Options) -> Result<Outcome, ReplayError> {
        let outcome = replay(&self.path(), options, &());
        // The contents of the picture and the maps are not checked, but making them must not hang or panic.
        let drawn = picture::of_recording(&self.path());
        let _ = maps_at(&self.path(), u64::MAX / 2, None, options);
        if let Ok(outcome) = &outcome {
            assert!(drawn.is_ok(), "the recording is replayed, but not drawn");
            let outcomes = std::slice::from_ref(outcome);
            let words =
                report::single(outcome) + &report::compare(outcomes) + &report::json(outcomes, &[], &[]);
            assert!(words.contains("recordings"));
            assert!(page::html(&Source::from(&self.path()), outcomes, None).is_ok());
        }
        outcome
    }
}

/// Returns the error message of a recording that could not be read.
fn complaint(outcome: Result<Outcome, ReplayError>) -> String {
    match outcome {
        Err(error) => error.to_string(),
        Ok(outcome) => outcome.cut_off.or(outcome.unread_lines.into_iter().next()).unwrap_or_default(),
    }
}

/// Returns a recording with these events after its exec.
fn after_exec(events: &str) -> Recording {
    Recording::new(&format!("# fhtrace 1 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n{events}"), SNAPSHOTS)
}

#[test]
fn unchanged_recording_matches_linux() {
    let outcome = Recording::new(EVENTS, SNAPSHOTS).all(&Options::default());
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((outcome.difference_count, outcome.snapshots.all), (0, 1), "{:#?}", outcome.differences);
}

/// Numbers at their limits do not stop the replay. An event that Linux cannot have produced is reported as a
/// difference.
#[test]
fn events_with_numbers_at_their_limits_are_replayed() {
    for (events, differences) in [
        // Faults above all user addresses, resolved or not.
        ("10 0 1 F ffffffffffffffff 6 x1\n", 1),
        ("10 0 1 F ffffffffffffffff 6\n11 0 1 G 11 1\n", 0),
        ("10 0 1 F 800000000000 4 x1\n", 1),
        ("10 0 1 F 7ffffffffffff000 7 x1\n", 1),
        // Times whose sum overflows, and a freeze that is longer than the recording.
        (
            "10 0 1 F 12008 7 x18446744073709551615\n11 0 1 F 12008 7 x18446744073709551615\n\
             11 0 1 munmap 20000 1000 = 0 e18446744073709551615 x18446744073709551615 w18446744073709551615\n",
            0,
        ),
        (
            "10 - - Z 18446744073709551615\n11 - - Z 18446744073709551615\n12 0 1 F 12008 7 x1\n\
             13 0 1 N 2 2 0\n14 0 2 F 12008 7 x1\n15 0 2 X g\n",
            0,
        ),
    ] {
        let outcome = after_exec(events).all(&Options { cpus: 2, ..Options::default() });
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}: {events}"));
        assert_eq!(outcome.difference_count, differences, "{events}: {:#?}", outcome.differences);
    }
}

/// Tasks and snapshots that no kernel writes.
#[test]
fn events_that_violate_the_order_of_tasks_are_refused() {
    for (events, said) in [
        ("10 0 9 E 0\n", "t.trace:4: task 9 was not created before this line"),
        ("10 0 1 N 1 1 0\n", "t.trace:4: task 1 occurs a second time"),
        ("10 0 1 N 2 9 10100\n", "t.trace:4: task 9 was not created before this line"),
        ("10 0 1 N 4294967295 4294967295 0\n", "t.trace:4: more than 16777216 tasks"),
        (
            "10 0 1 N 2 2 0\n10 0 2 X g\n10 0 1 X\n11 0 2 X g\n",
            "t.trace:7: the exit of task 2 occurs a second time",
        ),
        (
            "10 0 1 E 0\n",
            "t.trace:4: snapshot 0 is missing: the snapshot file does not contain it, or an earlier line refers to it",
        ),
        ("10 0 1 munmap 0 1000 = 0\n9 0 1 X g\n", "t.trace:5: out of order: time 9 after 10"),
    ] {
        let error = complaint(after_exec(events).all(&Options { cpus: 2, ..Options::default() }));
        assert!(error.ends_with(said), "{events}: {error}");
    }
}

/// Events of a task after its exit, or an exec of a task that has exited, do not stop the replay.
#[test]
fn exited_task_may_occur_in_later_events() {
    for events in [
        "10 0 1 X g\n11 0 1 exit_group 0 = ?\n12 0 1 F 12008 7 x1\n13 0 1 munmap 0 1000 = 0\n14 0 1 N 2 2 0\n15 0 2 F 12008 7 x1\n",
        "10 0 1 N 2 2 4100\n10 0 1 X g\n12 0 2 F 12008 7 x1\n13 0 1 E -\n13 0 1 E -\n14 0 2 X g\n15 0 2 E -\n",
    ] {
        let outcome = after_exec(events).all(&Options { cpus: 2, ..Options::default() });
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}: {events}"));
        assert_eq!(outcome.difference_count, 0, "{events}: {:#?}", outcome.differences);
    }
}

/// The snapshot of an exec that no program can have.
#[test]
fn impossible_areas_are_refused_or_reported() {
    let areas =
        |from: &str, to: &str| Recording::new("# fhtrace 1 t\n5 0 1 E 0\n", &SNAPSHOTS.replace(from, to));
    let options = Options { cpus: 2, ..Options::default() };
    // An area that overlaps another area, and an area that ends in the middle of a page.
    for (to, line) in
        [("11000-13000 rw-p 2000", 4), ("12000-12800 rw-p 2000", 4), ("12000-12000 rw-p 2000", 4)]
    {
        let error = complaint(areas("12000-13000 rw-p 2000", to).all(&options));
        assert!(error.contains(&format!("t.snap:{line}: column 1: expected whole pages after")), "{error}");
    }
    // Addresses of the kernel, and more memory than the machine has.
    for to in ["ffff800000000000-ffff800000010000", "7ffffffdd000-fffffffffffff000"] {
        let outcome =
            areas("7ffffffdd000-7ffffffff000", to).all(&options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.differences[0].what, "exec", "{to}: {:#?}", outcome.differences);
    }
    // Pages outside every area are ignored.
    let outcome = areas("P 12 1 8\nP 7ffffffcb 1 8", "P 0 fffffffffffff 8").all(&options);
    assert_eq!(outcome.unwrap_or_else(|error| panic!("{error}")).difference_count, 0);
    let wide = SNAPSHOTS.replace("12000-13000 rw-p 2000 /bin/t", "20000-700000000000 rw-p 0 -");
    let outcome =
        Recording::new("# fhtrace 1 t\n5 0 1 E 0\n", &wide.replacen("P 12 1 8", "P 20 40000000 8", 1));
    let outcome = outcome.all(&options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        outcome.differences[0].freehold,
        "the snapshot has 1073741824 present pages, more than the machine"
    );
}

/// Hexadecimal addresses, lengths and flags at the limits of calls.
const HEXADECIMAL: &[&str] = &[
    "0",
    "1",
    "fff",
    "1000",
    "1001",
    "10000",
    "12000",
    "12fff",
    "13000",
    "200000",
    "5000000",
    "5001000",
    "40000000",
    "7e0000000000",
    "7f0000000000",
    "7f0000001000",
    "7ffffffdd000",
    "7fffffffe000",
    "7ffffffff000",
    "7fffffffffff",
    "800000000000",
    "7fffffffffffffff",
    "8000000000000000",
    "ffff800000000000",
    "fffffffffffff000",
    "fffffffffffff001",
    "ffffffffffffffff",
    "11",
    "22",
    "32",
    "4022",
    "8022",
    "100022",
    "2",
    "3",
    "4",
    "7",
    "e",
    "17",
];
/// Decimal numbers at their limits: times, tasks, signals and codes.
const DECIMAL: &[&str] =
    &["0", "1", "2", "3", "9", "77", "16777215", "4294967295", "18446744073709551615", "-1", "-"];
/// Events that may occur anywhere. `*` stands for any number.
const ANYWHERE: &[&str] = &[
    "F * 6 x1",
    "F * 14 x1",
    "F * 7 x1",
    "F * 6",
    "F * 4",
    "f * 6 x1",
    "G 11 1",
    "G 7 2",
    "X",
    "X g",
    "E 0",
    "E 1",
    "E -",
    "N 4 4 0",
    "N 5 1 10100",
    "N 6 3 10100",
    "N 7 7 4100",
    "N 16777215 16777215 0",
    "D 1",
    "S 1 exit 3",
    "S 0 freeze 1",
    "S 1 freeze 3",
    "Z *",
    "mmap * * 3 22 -1 0 = *",
    "mmap * * 3 32 -1 0 = *",
    "mmap * * 7 11 3 * = * f1",
    "mmap * * 3 1 3 * = * f1",
    "mmap * * 3 21 -1 0 = *",
    "mmap * * 3 122 -1 0 = *",
    "mmap * * * * * * = * f1",
    "munmap * * = 0",
    "munmap * * = -22",
    "mprotect * * 1 = 0",
    "mprotect * * 1000003 = 0",
    "mprotect * * 7 = -12",
    "pkey_mprotect * * 3 1 = 0",
    "mremap * * * 1 0 = *",
    "mremap * * * 3 * = *",
    "mremap * * * 5 0 = *",
    "mremap * * * 3 * = -512",
    "mremap * * * * * = *",
    "madvise * * 4 = 0",
    "madvise * * e = 0",
    "madvise * * 17 = 0",
    "madvise * * 12 = 0",
    "madvise * * a = 0",
    "madvise * * * = *",
    "brk * = *",
    "brk * = *",
    "mlock * 1001 = 0",
    "mlock2 * * 1 = 0",
    "munlock * * = 0",
    "mlockall 3 = 0",
    "mlockall * = 0",
    "munlockall  = 0",
    "msync * * 4 = 0",
    "mincore * 1000 0 = 0",
    "mincore * * * = *",
    "mbind * * 2 * * * = 0",
    "mseal * * 0 = 0",
    "shmget * * * = *",
    "shmat * * * = *",
    "shmat 1 0 0 = *",
    "shmget 0 * 0 = 1",
    "shmdt * = 0",
    "userfaultfd 0 = 3",
    "remap_file_pages * * * * * = 0",
    "process_madvise * * * * * = 0",
    "exit_group 0 = ?",
    "munmap * * = ?",
];

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }

    fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    /// Returns another number in place of `field`. Keeps the letters in front of the digits.
    fn instead_of(&mut self, field: &str, hexadecimal: bool) -> String {
        let letters = field.len() - field.trim_start_matches(|c: char| !c.is_ascii_hexdigit()).len();
        let (front, digits) = field.split_at(letters);
        match u64::from_str_radix(digits, if hexadecimal { 16 } else { 10 }) {
            Ok(number) if self.below(3) == 0 => {
                let step = [1, 0xfff, 0x1000, 0x20_0000, 1 << 40][self.below(5)];
                let near =
                    if self.below(2) == 0 { number.wrapping_add(step) } else { number.wrapping_sub(step) };
                if hexadecimal { format!("{front}{near:x}") } else { format!("{front}{near}") }
            }
            Ok(_) => front.to_owned() + self.one_of(if hexadecimal { HEXADECIMAL } else { DECIMAL }),
            Err(_) => field.to_owned(),
        }
    }

    /// Returns the line with one field changed.
    fn change(&mut self, line: &str) -> String {
        let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let at = self.below(fields.len());
        let decimal =
            at < 3 || (fields.len() > 3 && ["N", "S", "E", "G", "Z", "D"].contains(&fields[3].as_str()));
        fields[at] = match fields[at].split_once('-') {
            // The start and end of a VMA.
            Some((start, end)) if !start.is_empty() => {
                let (start, end) = (start.to_owned(), end.to_owned());
                match self.below(3) {
                    0 => format!("{}-{end}", self.instead_of(&start, true)),
                    1 => format!("{start}-{}", self.instead_of(&end, true)),
                    _ => format!("{}-{}", self.instead_of(&start, true), self.instead_of(&end, true)),
                }
            }
            _ => {
                let field = fields[at].clone();
                self.instead_of(&field, !decimal)
            }
        };
        fields.join(" ")
    }

    /// Returns an event at the time of `line`.
    fn event(&mut self, line: &str) -> String {
        let time = line.split(' ').next().unwrap_or("0");
        let mut event = format!("{time} 0 {} ", 1 + self.below(3));
        for part in self.one_of(ANYWHERE).split_inclusive('*') {
            event += part.trim_end_matches('*');
            if part.ends_with('*') {
                event += self.one_of(HEXADECIMAL);
            }
        }
        event
    }

    /// Returns `text` after some changes that mostly keep its form.
    fn changed(&mut self, text: &str, events: bool) -> String {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for _ in 0..1 + self.below(5) {
            let at = 1 + self.below(lines.len() - 1);
            match self.below(10) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 if !lines[at].starts_with(['#', '@']) => {
                    let other = 1 + self.below(lines.len() - 1);
                    lines.insert(at, lines[other].clone());
                }
                3..6 if events && !lines[at].starts_with('#') => {
                    let event = self.event(&lines[at]);
                    lines.insert(at + 1, event);
                }
                _ => lines[at] = self.change(&lines[at]),
            }
            if lines.len() < 2 {
                break;
            }
        }
        lines.join("\n") + "\n"
    }
}

/// Runs every operation on one meaningless recording. Returns true if the whole recording could be read.
fn survives(seed: u64) -> bool {
    // Shows the seed if the test panics or takes long.
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut trace, mut snapshots) = (EVENTS.to_owned(), SNAPSHOTS.to_owned());
    if random.below(4) == 0 {
        snapshots = random.changed(&snapshots, false);
    } else {
        trace = random.changed(&trace, true);
    }
    let recording = Recording::new(&trace, &snapshots);
    let cpus = 1 + random.below(3);
    let options = Options { cpus, oracles: true, ..Options::default() };
    match recording.all(&options) {
        Ok(outcome) => {
            let all = [outcome.calls, outcome.faults, outcome.snapshots];
            let differs = all.iter().any(|tally| tally.all != tally.as_linux);
            assert!(!differs || !outcome.is_as_linux(), "seed {seed}: {outcome:?}");
            let said = outcome.unread_lines.iter().chain(&outcome.cut_off);
            said.for_each(|message| assert_says_where(message, seed));
            outcome.is_whole()
        }
        Err(ReplayError::Read(error)) => {
            assert_says_where(&error.to_string(), seed);
            false
        }
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Checks that the message names a file and a line.
fn assert_says_where(message: &str, seed: u64) {
    let place = message.split_once("/t.").and_then(|(_, rest)| rest.split(':').nth(1));
    assert!(place.is_some_and(|line| line.parse::<u32>().is_ok()), "seed {seed}: {message}");
}

/// Runs as many rounds as `FREEHOLD_ROUNDS` says, starting at seed `FREEHOLD_SEED`.
#[test]
fn random_recordings_are_refused_or_reported() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("FREEHOLD_ROUNDS").unwrap_or(freehold_machine::Effort::of(40, 150, 150));
    let first = number("FREEHOLD_SEED").unwrap_or(0);
    let survivors = (first..first + rounds).filter(|seed| survives(*seed)).count() as u64;
    assert!(rounds < 100 || (rounds / 5..rounds * 9 / 10).contains(&survivors), "{survivors} of {rounds}");
}
