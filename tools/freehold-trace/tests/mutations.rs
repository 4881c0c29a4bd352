//! Damaged recordings: reading a damaged file gives either an error that names the place, or events that can
//! be written and read again.
//!
//! Each round damages one of the files in `tests/data` at random places, and reads the damaged file. The
//! number of the round is the seed of the random places. Three things are checked: no panic, a short message
//! with a valid line number, and equality after writing and reading again. `survivors` counts the files that
//! could still be read: the tests fail if the damage is too light or too heavy to test anything. To add a
//! kind of damage, extend `PIECES` or `damaged`.

use freehold_trace::{Event, Kind, ReadError, Recording, SnapWriter, Snapshot, TraceWriter};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use std::io::{BufRead, Cursor};
use std::path::Path;

const TRACE: &str = include_str!("data/small.trace");
const SNAP: &str = include_str!("data/small.snap");
const TEXTS: [&str; 3] = [
    include_str!("data/flags.strace"),
    include_str!("data/threads.strace"),
    include_str!("data/transfer.strace"),
];

/// Pieces of text that are inserted into a file, because a field or line with them may be invalid.
const PIECES: &[&str] = &[
    "",
    " ",
    "-",
    "-1",
    "0",
    "?",
    "=",
    "f1",
    "18446744073709551615",
    "18446744073709551616",
    "ffffffffffffffff",
    "16777216",
    "4294967295",
    "\n",
    "\"",
    "\\",
    "[",
    "{",
    ")",
    "|",
    "<<",
    "<unfinished ...>",
    "<... mmap resumed>",
    "\0",
    "\u{e9}",
    "N 3 3 0",
    "# file 1 0 x\n",
    "@ 9 exec 1 0 0 1 a | b | \n",
    "P -1 1 8\n",
];

fn below(random: &mut Pcg64Mcg, limit: usize) -> usize {
    (random.next_u64() % limit.max(1) as u64) as usize
}

/// Returns a part of `text` with one to three random changes.
fn damaged(text: &str, random: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    // A part is read faster than the whole text. Some parts begin with the header, others at any line.
    let lines: Vec<usize> =
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    let from = if below(random, 4) == 0 { lines[below(random, lines.len())] } else { 0 };
    let to = from + 200 + below(random, 8000);
    let to = lines.iter().copied().find(|end| *end >= to).unwrap_or(bytes.len());
    bytes = bytes[from..to].to_vec();
    for _ in 0..1 + below(random, 3) {
        let at = below(random, bytes.len());
        let end = (at + below(random, 40)).min(bytes.len());
        match below(random, 6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(random, 8),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let again = bytes[at..end].to_vec();
                let place = below(random, bytes.len());
                bytes.splice(place..place, again);
            }
            3 => {
                let piece = PIECES[below(random, PIECES.len())];
                bytes.splice(at..end, piece.bytes());
            }
            4 => {
                let piece = PIECES[below(random, PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            _ if below(random, 4) == 0 => bytes.truncate(at.max(bytes.len() / 2)),
            _ => {}
        }
    }
    if below(random, 8) != 0 && bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    bytes
}

/// Returns all events, and the snapshots to which they refer.
fn read(events: &[u8], snapshots: Option<&[u8]>) -> Result<(Vec<Event>, Vec<Snapshot>), ReadError> {
    let boxed = |bytes: &[u8]| Box::new(Cursor::new(bytes.to_vec())) as Box<dyn BufRead + Send>;
    let mut recording = Recording::read(Path::new("x.trace"), boxed(events), snapshots.map(boxed))?;
    let (mut found, mut lists) = (Vec::new(), Vec::new());
    while let Some(event) = recording.next_event()? {
        if let Kind::Snapshot { id, .. } = event.kind {
            lists.extend(recording.snapshot(id)?);
        }
        found.push(event);
    }
    lists.extend(recording.snapshot(u32::MAX)?);
    // Errors in unreadable lines also name their place.
    let unread = recording.unread();
    assert_eq!(unread.first().len() as u64, unread.count().min(10));
    unread.first().iter().for_each(|error| assert_says_where(error, lines(events)));
    match unread.count() {
        0 => Ok((found, lists)),
        _ => Ok((Vec::new(), Vec::new())),
    }
}

/// Checks that the message begins with a file and a valid line number.
fn assert_says_where(error: &ReadError, lines: usize) {
    let message = error.to_string();
    let mut parts = message.splitn(3, ':');
    assert!(matches!(parts.next(), Some("x.trace" | "x.snap")), "{message}");
    let line: usize = parts.next().unwrap().parse().unwrap_or_else(|_| panic!("{message}"));
    assert!(line <= lines + 1, "{message}: the file has {lines} lines");
    assert!(message.len() < 400, "{message}");
}

fn lines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').count()
}

/// Damages `text` in `rounds` rounds, and returns the number of rounds in which it could still be read.
fn survivors(rounds: u64, text: &str, snapshots: bool) -> u64 {
    let mut survivors = 0;
    for seed in 0..rounds {
        let mut random = Pcg64Mcg::new(u128::from(seed) << 1 | 1);
        let (trace, snap) = match (snapshots, seed % 2) {
            (false, _) => (damaged(text, &mut random), None),
            (true, 0) => (damaged(TRACE, &mut random), Some(SNAP.as_bytes().to_vec())),
            (true, _) => (TRACE.as_bytes().to_vec(), Some(damaged(SNAP, &mut random))),
        };
        match read(&trace, snap.as_deref()) {
            Err(error) => assert_says_where(&error, lines(&trace).max(snap.as_deref().map_or(0, lines))),
            // A line could not be read, so there is nothing to compare.
            Ok((events, _)) if events.is_empty() => {}
            Ok((events, lists)) => {
                survivors += 1;
                read_again(&events, &lists);
            }
        }
    }
    survivors
}

/// Writes events and snapshots, reads them again, and compares.
fn read_again(events: &[Event], lists: &[Snapshot]) {
    let mut trace = TraceWriter::new(Vec::new(), "x").unwrap();
    let mut snap = SnapWriter::new(Vec::new(), "x").unwrap();
    // Leave out the numbers of files, because the definitions of files are not events.
    let plain: Vec<Event> = events.iter().cloned().map(with_written_fields_only).collect();
    plain.iter().for_each(|event| trace.event(event).unwrap());
    lists.iter().for_each(|list| snap.snapshot(list).unwrap());
    let (again, lists_again) = read(&trace.finish().unwrap(), Some(&snap.finish().unwrap())).unwrap();
    assert_eq!(again.len(), plain.len());
    for (again, event) in again.into_iter().zip(&plain) {
        assert_eq!(&with_written_fields_only(again), event);
    }
    for (again, list) in lists_again.iter().zip(lists) {
        assert_eq!((&again.areas, &again.pages, again.id), (&list.areas, &list.pages, list.id));
    }
}

/// Clears the number of the file, and the fields for which the format has no place.
fn with_written_fields_only(mut event: Event) -> Event {
    event.line = 0;
    if let Kind::Call(call) = &mut event.kind {
        call.file = None;
        call.transfer = None;
        call.beside.clear();
    }
    event
}

#[test]
fn damaged_recordings_are_refused_or_read() {
    let rounds = 6000;
    let survivors = survivors(rounds, TRACE, true);
    assert!(
        (rounds / 50..rounds * 9 / 10).contains(&survivors),
        "{survivors}: the damage is too light or too heavy"
    );
}

#[test]
fn damaged_strace_output_is_refused_or_read() {
    for text in TEXTS {
        let rounds = 3000;
        let survivors = survivors(rounds, text, false);
        assert!(
            (rounds / 50..rounds * 9 / 10).contains(&survivors),
            "{survivors}: the damage is too light or too heavy"
        );
    }
}
