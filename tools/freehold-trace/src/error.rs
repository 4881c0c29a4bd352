//! What can be wrong with a recording, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// The line, from 1; 0 before the first.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Why a recording cannot be read. Each message begins with the file and the line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("{}: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Reading failed, or what was read cannot be decompressed.
    #[error("{place}: reading failed: {source}")]
    Io {
        /// Behind this line.
        place: Place,
        /// What the system, or the decompressor, said.
        source: io::Error,
    },
    /// The file ends in the middle of a line, or its compressed stream in the middle of a block.
    #[error("{place}: the file is cut off here: {how}")]
    Truncated {
        /// The last line there is.
        place: Place,
        /// What is missing.
        how: &'static str,
    },
    /// The beginning is neither that of a recording nor that of a text by strace.
    #[error("{place}: not a recording: expected `# fhtrace 1 NAME` or a line by strace, found {found:?}")]
    NotARecording {
        /// The first line.
        place: Place,
        /// How it begins.
        found: String,
    },
    /// A text by strace whose lines do not say when they were.
    #[error(
        "{place}: cannot read this text by strace: its lines have no times, which option -ttt gives; found {found:?}"
    )]
    NoTimes {
        /// The first line.
        place: Place,
        /// How it begins.
        found: String,
    },
    /// The file holds the snapshots of a recording, not its events.
    #[error("{place}: cannot replay snapshots alone: {}", wanted(name, trace.as_deref()))]
    OnlySnapshots {
        /// The first line.
        place: Place,
        /// The name of the recording.
        name: String,
        /// The recording that lies beside them.
        trace: Option<PathBuf>,
    },
    /// A version of the format that this reader does not know.
    #[error("{place}: {format} version {found:?}; this program reads up to version {known}")]
    Version {
        /// The first line.
        place: Place,
        /// `fhtrace` or `fhsnap`.
        format: &'static str,
        /// What the file says.
        found: String,
        /// What can be read.
        known: u32,
    },
    /// A line does not have the form it must have.
    #[error("{place}: column {column}: expected {expected}, found {found:?}")]
    Line {
        /// The line.
        place: Place,
        /// The byte of the line, from 1.
        column: usize,
        /// What would be right there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A line is longer than any that a recorder writes.
    #[error("{place}: the line is longer than {limit} bytes")]
    TooLong {
        /// The line.
        place: Place,
        /// Most bytes.
        limit: usize,
    },
    /// A line is of an earlier time than the one before.
    #[error("{place}: out of order: time {time} after {before}")]
    OutOfOrder {
        /// The line.
        place: Place,
        /// Its time, in nanoseconds.
        time: u64,
        /// The time before.
        before: u64,
    },
    /// A task does something that nothing created.
    #[error("{place}: task {task} was not created before this line")]
    UnknownTask {
        /// The line.
        place: Place,
        /// Its serial number.
        task: u32,
    },
    /// A file is mapped that no line defines.
    #[error("{place}: file {id} is not defined before this line")]
    UnknownFile {
        /// The line.
        place: Place,
        /// Its number.
        id: u32,
    },
    /// A number is given a second time.
    #[error("{place}: {what} {id} occurs a second time")]
    Duplicate {
        /// The line.
        place: Place,
        /// What has the number: task, file, snapshot.
        what: &'static str,
        /// The number.
        id: u32,
    },
    /// More of something than this reader holds in memory.
    #[error("{place}: more than {limit} {what}")]
    TooMany {
        /// The line.
        place: Place,
        /// Of what.
        what: &'static str,
        /// The most.
        limit: u64,
    },
    /// A line names a snapshot that there is none of.
    #[error("{place}: snapshot {id} is missing: {why}")]
    NoSnapshot {
        /// The line.
        place: Place,
        /// Its number.
        id: u32,
        /// Where it is not.
        why: &'static str,
    },
    /// The snapshots beside the recording are those of another one.
    #[error("{place}: these are the snapshots of {found:?}, not of {expected:?}")]
    ForeignSnapshots {
        /// The first line of the snapshots.
        place: Place,
        /// The name there.
        found: String,
        /// The name of the recording.
        expected: String,
    },
}

impl ReadError {
    /// It concerns one line, and what follows can be read without that.
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

/// Says which file is to be replayed in place of the snapshots of recording `name`.
fn wanted(name: &str, trace: Option<&Path>) -> String {
    match trace {
        Some(trace) => format!("they belong to {}", trace.display()),
        None => format!("the NAME.trace of recording {name:?} is missing beside them"),
    }
}

/// What is wrong with a line, as the parser of lines sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Something else should be at this byte (from 0).
    Expected(&'static str, usize),
    /// Its time, and that of the line before.
    OutOfOrder(u64, u64),
    /// A task that nothing created.
    UnknownTask(u32),
    /// A file that no line defines.
    UnknownFile(u32),
    /// A second one with this number.
    Duplicate(&'static str, u32),
    /// More than so many.
    TooMany(&'static str, u64),
}

/// Most bytes of a line that a message repeats.
const SHOWN: usize = 60;

impl Bad {
    /// The same, said of a line in which what was read begins at byte `at`.
    pub(crate) fn behind(self, at: usize) -> Bad {
        match self {
            Bad::Expected(expected, within) => Bad::Expected(expected, at + within),
            other => other,
        }
    }

    /// The error about `line` at `place`.
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

/// The beginning of `bytes`, readable.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    String::from_utf8_lossy(shown).into_owned()
}
