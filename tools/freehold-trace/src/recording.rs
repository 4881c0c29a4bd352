//! An open recording: reads events, files, settings and snapshots in order, from either format.
//!
//! [`Recording`] chooses the reader by the first line of the file: `trace.rs` for `NAME.trace`, `strace/` for
//! strace output. `snap.rs` reads the snapshots. The recording is read once, from the beginning to the end;
//! memory stays bounded. The planner (`plan/`) and `freehold-replay` use this type. A difference between the
//! two formats belongs in a function here, such as [`Recording::follows_descriptors`], unless only the
//! planner needs it. The tests are in `recording_tests.rs`.

use crate::error::{Bad, Place, ReadError, excerpt};
use crate::files::Files;
use crate::input;
use crate::lines::Lines;
use crate::snap::SnapReader;
use crate::strace::{self, StraceReader};
use crate::trace::{Header, SNAP_VERSION, TraceReader, VERSION, header};
use crate::{Event, FileInfo, Snapshot, Unread};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// The format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `NAME.trace`, with `NAME.snap` in the same folder.
    Trace {
        /// The version in the first line.
        version: u32,
    },
    /// strace output.
    Strace,
}

/// An open recording, which is read from the beginning to the end in bounded memory.
pub struct Recording {
    name: String,
    events: Events,
    snapshots: Option<SnapReader>,
}

/// The events of a recording, by format.
enum Events {
    /// A `NAME.trace` of this version.
    Trace(u32, Box<TraceReader>),
    Strace(Box<StraceReader>),
}

impl Recording {
    /// Opens the recording `path`: a `NAME.trace`, or strace output.
    ///
    /// A `NAME.trace` is opened with the `NAME.snap` in the same folder; without that file, the recording has
    /// no snapshots. Each file may be compressed by xz or zstd. The first bytes of a file decide its format;
    /// the name of the file has no effect.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, if `path` is not a recording, or if the snapshots belong to another
    /// recording.
    pub fn open(path: &Path) -> Result<Recording, ReadError> {
        let beside = || input::snapshots_beside(path).map(|path| input::open(&path)).transpose();
        Recording::begin(path, input::open(path)?, beside)
    }

    /// Reads the recording in `events`, with its snapshots if there are any. Messages use the name `path`.
    /// For strace output, [`Recording::name`] also uses this name.
    ///
    /// # Errors
    ///
    /// Fails like [`Recording::open`].
    pub fn read(
        path: &Path,
        events: Box<dyn BufRead + Send>,
        snapshots: Option<Box<dyn BufRead + Send>>,
    ) -> Result<Recording, ReadError> {
        let beside = input::stem(path).0.with_added_extension("snap");
        let snapshots = || snapshots.map(|snapshots| input::lines(&beside, Ok(snapshots))).transpose();
        Recording::begin(path, input::lines(path, Ok(events))?, snapshots)
    }

    /// Reads a recording like [`Recording::read`], with the snapshots in the file `snapshots`.
    ///
    /// # Errors
    ///
    /// Fails like [`Recording::open`].
    pub fn read_with(
        path: &Path,
        events: Box<dyn BufRead + Send>,
        snapshots: &Path,
    ) -> Result<Recording, ReadError> {
        Recording::begin(path, input::lines(path, Ok(events))?, || input::open(snapshots).map(Some))
    }

    /// Reads the first line, and opens the reader of its format. `snapshots` is called only for a
    /// `NAME.trace`.
    fn begin(
        path: &Path,
        mut lines: Lines,
        snapshots: impl FnOnce() -> Result<Option<Lines>, ReadError>,
    ) -> Result<Recording, ReadError> {
        if !lines.advance()? {
            return Err(ReadError::NotARecording { place: lines.place(), found: String::new() });
        }
        match header(lines.line(), "fhtrace", VERSION) {
            Header::Name(version, name) => {
                let snapshots = snapshots()?.map(|lines| snapshots_of(lines, &name)).transpose()?;
                Ok(Recording {
                    name,
                    events: Events::Trace(version, Box::new(TraceReader::new(lines, version))),
                    snapshots,
                })
            }
            Header::Version(found) => {
                Err(ReadError::Version { place: lines.place(), format: "fhtrace", found, known: VERSION })
            }
            Header::None if strace::recognises(lines.line()) => {
                let name = input::stem(path).0.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let events = Events::Strace(Box::new(StraceReader::new(lines)));
                Ok(Recording { name, events, snapshots: None })
            }
            Header::None => Err(refused(path, &lines)),
        }
    }

    /// Returns the name of the recording: the name in the first line, or the file name of strace output
    /// without suffixes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format of the recording.
    pub fn format(&self) -> Format {
        match &self.events {
            Events::Trace(version, _) => Format::Trace { version: *version },
            Events::Strace(_) => Format::Strace,
        }
    }

    /// Returns the next event, or `None` at the end.
    ///
    /// # Errors
    ///
    /// Fails if the file ends within a line or a compressed stream, or if it exceeds a limit of the reader.
    /// After such a failure, the rest of the recording cannot be read. A line that cannot be read is not an
    /// error: see [`unread`](Self::unread).
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        match &mut self.events {
            Events::Trace(_, events) => events.next_event(),
            Events::Strace(events) => events.next_event(),
        }
    }

    /// Returns true if the recording contains the calls that open, copy and close descriptors.
    pub fn follows_descriptors(&self) -> bool {
        matches!(self.events, Events::Strace(_) | Events::Trace(2.., _))
    }

    /// Returns true if the recording contains calls of personality(2).
    pub fn follows_personalities(&self) -> bool {
        matches!(self.events, Events::Trace(3.., _))
    }

    /// Returns the interval in nanoseconds at which the recorder has sampled accesses. `None` if it has not.
    pub fn sampled_every(&self) -> Option<u64> {
        self.machine("accesses")?.parse().ok()
    }

    /// Returns a setting of the recorded machine, if the recording contains it.
    pub fn machine(&self, name: &str) -> Option<&str> {
        match &self.events {
            Events::Trace(_, events) => events.machine().get(name).map(String::as_str),
            Events::Strace(_) => None,
        }
    }

    /// Returns the file with this number, if an event so far refers to it.
    pub fn file(&self, id: u32) -> Option<&FileInfo> {
        self.events.files().get(id)
    }

    /// Returns the files to which the events so far refer.
    pub fn files(&self) -> &[FileInfo] {
        self.events.files().all()
    }

    /// Returns the lines so far that could not be read, completely or in part. An event
    /// [`Kind::Lost`](crate::Kind::Lost) stands for their effects.
    pub fn unread(&self) -> &Unread {
        match &self.events {
            Events::Trace(_, events) => events.unread(),
            Events::Strace(events) => events.unread(),
        }
    }

    /// Returns the calls in strace output that do not concern memory, each with its number of occurrences so
    /// far.
    pub fn skipped(&self) -> &BTreeMap<String, u64> {
        static NONE: BTreeMap<String, u64> = BTreeMap::new();
        match &self.events {
            Events::Trace(..) => &NONE,
            Events::Strace(events) => events.skipped(),
        }
    }

    /// Returns snapshot `id`. Returns `None` if the snapshot does not exist, or was returned before.
    ///
    /// The file is read as far as needed, and skipped snapshots are kept for later calls.
    ///
    /// # Errors
    ///
    /// Fails if a line of the snapshots cannot be read, or if too many lines are skipped.
    pub fn snapshot(&mut self, id: u32) -> Result<Option<Snapshot>, ReadError> {
        self.snapshots.as_mut().map_or(Ok(None), |snapshots| snapshots.snapshot(id))
    }
}

impl Recording {
    /// Returns the error for a `line` that refers to snapshot `id`, which [`Recording::snapshot`] did not
    /// return.
    pub(crate) fn no_snapshot(&self, line: u32, id: u32) -> ReadError {
        let place = Place { line, ..self.events.place() };
        let why = match self.snapshots {
            None => "there is no snapshot file next to the recording (NAME.snap for NAME.trace)",
            Some(_) => "the snapshot file does not contain it, or an earlier line refers to it",
        };
        ReadError::NoSnapshot { place, id, why }
    }
}

impl Events {
    fn place(&self) -> Place {
        match self {
            Events::Trace(_, events) => events.place(),
            Events::Strace(events) => events.place(),
        }
    }

    fn files(&self) -> &Files {
        match self {
            Events::Trace(_, events) => events.files(),
            Events::Strace(events) => events.files(),
        }
    }
}

/// Returns the error for a file that is not a recording. The current line of `lines` is the first line.
fn refused(path: &Path, lines: &Lines) -> ReadError {
    let place = lines.place();
    if let Header::Name(_, name) = header(lines.line(), "fhsnap", SNAP_VERSION) {
        return ReadError::OnlySnapshots { place, name, trace: input::recording_beside(path) };
    }
    let found = excerpt(lines.line());
    match strace::lacks_times(lines.line()) {
        true => ReadError::NoTimes { place, found },
        false => ReadError::NotARecording { place, found },
    }
}

/// Returns a reader of the snapshots in `lines`, which must belong to the recording called `expected`.
fn snapshots_of(mut lines: Lines, expected: &str) -> Result<SnapReader, ReadError> {
    if !lines.advance()? {
        return Err(ReadError::Truncated { place: lines.place(), how: "it is empty" });
    }
    match header(lines.line(), "fhsnap", SNAP_VERSION) {
        Header::Name(_, found) if found == expected => Ok(SnapReader::new(lines)),
        Header::Name(_, found) => {
            Err(ReadError::ForeignSnapshots { place: lines.place(), found, expected: expected.to_owned() })
        }
        Header::Version(found) => {
            Err(ReadError::Version { place: lines.place(), format: "fhsnap", found, known: SNAP_VERSION })
        }
        Header::None => Err(lines.wrong(Bad::Expected("`# fhsnap 1 NAME`", 0))),
    }
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
