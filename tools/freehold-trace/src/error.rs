//! Errors in recordings, and the places where they occur.
//!
//! Parsers of lines return a [`Bad`], which contains only the offset in the line. The reader adds the file
//! and the line ([`Bad::at`]); the result is the public [`ReadError`]. Errors of a single line
//! ([`ReadError::is_of_a_line`]) are counted in `unread.rs`, and reading continues; all other errors end the
//! reading. Messages are one line that begins with `FILE:LINE: `. Tests of the readers (`trace_tests.rs`,
//! `snap_tests.rs`, `strace/tests.rs`) compare the messages. A new error of a line is a variant of [`Bad`]
//! and of [`ReadError`], and is listed in [`ReadError::is_of_a_line`] unless it must end the reading.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// Line number, from 1; 0 before the first line.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The reason why a recording cannot be read. Each message names the file and, except for
/// [`Open`](Self::Open), the line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read, or its contents cannot be decompressed.
    #[error("{place}: cannot read further: {source}")]
    Io {
        /// The last line that was read.
        place: Place,
        /// The error of the system or of the decompressor.
        source: io::Error,
    },
    /// The file ends in the middle of a line, or its compressed stream in the middle of a block.
    #[error("{place}: the file is cut off here: {how}")]
    Truncated {
        /// The last line of the file.
        place: Place,
        /// Description of what is missing.
        how: &'static str,
    },
    /// The file begins neither like a recording nor like strace output.
    #[error("{place}: not a recording: expected `# fhtrace 1 NAME` or strace output, found {found:?}")]
    NotARecording {
        /// The first line.
        place: Place,
        /// Beginning of the first line.
        found: String,
    },
    /// The file is strace output without times.
    #[error("{place}: cannot read strace output without times: use strace option -ttt; found {found:?}")]
    NoTimes {
        /// The first line.
        place: Place,
        /// Beginning of the first line.
        found: String,
    },
    /// The file contains the snapshots of a recording, and not the recording's events.
    #[error("{place}: cannot replay a snapshot file; {}", wanted(name, trace.as_deref()))]
    OnlySnapshots {
        /// The first line.
        place: Place,
        /// The name of the recording.
        name: String,
        /// The recording next to the snapshot file, if there is one.
        trace: Option<PathBuf>,
    },
    /// The file has a version of the format that this reader does not support.
    #[error("{place}: {format} version {found:?}; this program reads up to version {known}")]
    Version {
        /// The first line.
        place: Place,
        /// `fhtrace` or `fhsnap`.
        format: &'static str,
        /// The version in the file.
        found: String,
        /// The highest supported version.
        known: u32,
    },
    /// A line does not have the required form.
    #[error("{place}: column {column}: expected {expected}, found {found:?}")]
    Line {
        /// The line.
        place: Place,
        /// Offset of the byte in the line, from 1.
        column: usize,
        /// Description of what is valid there.
        expected: &'static str,
        /// The text in the line.
        found: String,
    },
    /// A line is longer than the longest line that a recorder writes.
    #[error("{place}: the line is longer than {limit} bytes")]
    TooLong {
        /// The line.
        place: Place,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A line has an earlier time than the line before.
    #[error("{place}: out of order: time {time} after {before}")]
    OutOfOrder {
        /// The line.
        place: Place,
        /// The time of the line, in nanoseconds.
        time: u64,
        /// The time of the line before.
        before: u64,
    },
    /// A line belongs to a task that no earlier line created.
    #[error("{place}: task {task} was not created before this line")]
    UnknownTask {
        /// The line.
        place: Place,
        /// The serial number of the task.
        task: u32,
    },
    /// A line maps a file that no earlier line defines.
    #[error("{place}: file {id} is not defined before this line")]
    UnknownFile {
        /// The line.
        place: Place,
        /// The number of the file.
        id: u32,
    },
    /// A number is used a second time.
    #[error("{place}: {what} {id} occurs a second time")]
    Duplicate {
        /// The line.
        place: Place,
        /// The kind of object that has the number: task, file, snapshot.
        what: &'static str,
        /// The number.
        id: u32,
    },
    /// The recording contains more objects of a kind than this reader keeps in memory.
    #[error("{place}: more than {limit} {what}")]
    TooMany {
        /// The line.
        place: Place,
        /// The kind of object.
        what: &'static str,
        /// Maximum number of objects.
        limit: u64,
    },
    /// A line refers to a snapshot that does not exist.
    #[error("{place}: snapshot {id} is missing: {why}")]
    NoSnapshot {
        /// The line.
        place: Place,
        /// The number of the snapshot.
        id: u32,
        /// The reason why the snapshot was not found.
        why: &'static str,
    },
    /// The snapshot file next to the recording belongs to another recording.
    #[error("{place}: these are the snapshots of {found:?}, not of {expected:?}")]
    ForeignSnapshots {
        /// The first line of the snapshot file.
        place: Place,
        /// The name in the snapshot file.
        found: String,
        /// The name of the recording.
        expected: String,
    },
}

impl ReadError {
    /// Returns true if the error concerns one line, and the following lines can be read without that line.
    pub(crate) fn is_of_a_line(&self) -> bool {
        matches!(
            self,
            ReadError::Line { .. }
                | ReadError::OutOfOrder { .. }
                | ReadError::UnknownTask { .. }
                | ReadError::UnknownFile { .. }
                | ReadError::Duplicate { .. }
        )
    }
}

/// Returns the second half of a message: the file to replay instead of the snapshot file of recording `name`.
fn wanted(name: &str, trace: Option<&Path>) -> String {
    match trace {
        Some(trace) => format!("replay {} instead", trace.display()),
        None => format!("the events of recording {name:?} are in a file NAME.trace, which is missing"),
    }
}

/// An error in a line, as the parser of lines reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The text at this byte of the line (from 0) is not valid there. The first field describes the valid
    /// text.
    Expected(&'static str, usize),
    /// The time of the line, given first, is lower than the time of the line before, given second.
    OutOfOrder(u64, u64),
    /// No earlier line creates this task.
    UnknownTask(u32),
    /// No earlier line defines this file.
    UnknownFile(u32),
    /// A second object of this kind has this number.
    Duplicate(&'static str, u32),
    /// The file has more objects of this kind than this maximum.
    TooMany(&'static str, u64),
}

/// Maximum number of bytes of a line that a message quotes.
const SHOWN: usize = 60;

impl Bad {
    /// Converts an error about a part of a line into an error about the whole line. The part begins at byte
    /// `at` of the line.
    pub(crate) fn behind(self, at: usize) -> Bad {
        match self {
            Bad::Expected(expected, within) => Bad::Expected(expected, at + within),
            other => other,
        }
    }

    /// Returns the error about `line` at `place`.
    pub(crate) fn at(self, place: Place, line: &[u8]) -> ReadError {
        match self {
            Bad::Expected(expected, at) => {
                let found = excerpt(line.get(at..).unwrap_or_default());
                ReadError::Line { place, column: at + 1, expected, found }
            }
            Bad::OutOfOrder(time, before) => ReadError::OutOfOrder { place, time, before },
            Bad::UnknownTask(task) => ReadError::UnknownTask { place, task },
            Bad::UnknownFile(id) => ReadError::UnknownFile { place, id },
            Bad::Duplicate(what, id) => ReadError::Duplicate { place, what, id },
            Bad::TooMany(what, limit) => ReadError::TooMany { place, what, limit },
        }
    }
}

/// Returns the beginning of `bytes` as text.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    String::from_utf8_lossy(shown).into_owned()
}
