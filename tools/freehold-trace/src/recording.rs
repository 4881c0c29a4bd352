//! An open recording.

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

/// What a recording is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `NAME.trace`, with `NAME.snap` beside it.
    Trace {
        /// The version that its first line gives.
        version: u32,
    },
    /// A text by strace.
    Strace,
}

/// An open recording, which is read from the beginning to the end in bounded memory.
pub struct Recording {
    name: String,
    events: Events,
    snapshots: Option<SnapReader>,
}

/// Its events, by what they are written in.
enum Events {
    /// With the version.
    Trace(u32, Box<TraceReader>),
    Strace(Box<StraceReader>),
}

impl Recording {
    /// Opens the recording `path`: a `NAME.trace`, with the `NAME.snap` that lies beside it (if none does,
    /// there are no snapshots), or a text by strace; each plain, packed by xz or by zstd. What a file is,
    /// its beginning decides, not its name.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no recording, snapshots of another recording.
    pub fn open(path: &Path) -> Result<Recording, ReadError> {
        let beside = || input::snapshots_beside(path).map(|path| input::open(&path)).transpose();
        Recording::begin(path, input::open(path)?, beside)
    }

    /// The recording in `events`, with its snapshots, where there are any. In messages and where it has no
    /// name of its own it is called `path`.
    ///
    /// # Errors
    ///
    /// As for [`Recording::open`].
    pub fn read(
        path: &Path,
        events: Box<dyn BufRead + Send>,
        snapshots: Option<Box<dyn BufRead + Send>>,
    ) -> Result<Recording, ReadError> {
        let beside = input::stem(path).0.with_added_extension("snap");
        let snapshots = || snapshots.map(|snapshots| input::lines(&beside, Ok(snapshots))).transpose();
        Recording::begin(path, input::lines(path, Ok(events))?, snapshots)
    }

    /// As [`Recording::read`], with the snapshots in the file `snapshots`, wherever it lies.
    ///
    /// # Errors
    ///
    /// As for [`Recording::open`].
    pub fn read_with(
        path: &Path,
        events: Box<dyn BufRead + Send>,
        snapshots: &Path,
    ) -> Result<Recording, ReadError> {
        Recording::begin(path, input::lines(path, Ok(events))?, || input::open(snapshots).map(Some))
    }

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

    /// Its name: what the first line says; that of the file for a text by strace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is written in.
    pub fn format(&self) -> Format {
        match &self.events {
            Events::Trace(version, _) => Format::Trace { version: *version },
            Events::Strace(_) => Format::Strace,
        }
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    ///
    /// The file ends within a line or a packed stream, or holds more than is read. Nothing sensible follows.
    /// A line that cannot be read is no error: see [`unread`](Self::unread).
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        match &mut self.events {
            Events::Trace(_, events) => events.next_event(),
            Events::Strace(events) => events.next_event(),
        }
    }

    /// Whether the recording tells of descriptors: what opens, copies and closes them.
    pub fn follows_descriptors(&self) -> bool {
        matches!(self.events, Events::Strace(_) | Events::Trace(2.., _))
    }

    /// Returns whether the recording has the calls of personality.
    pub fn follows_personalities(&self) -> bool {
        matches!(self.events, Events::Trace(3.., _))
    }

    /// A setting of the machine that it was made on, where it tells.
    pub fn machine(&self, name: &str) -> Option<&str> {
        match &self.events {
            Events::Trace(_, events) => events.machine().get(name).map(String::as_str),
            Events::Strace(_) => None,
        }
    }

    /// The file of this number, once the events so far have mentioned it.
    pub fn file(&self, id: u32) -> Option<&FileInfo> {
        self.events.files().get(id)
    }

    /// The files that the events so far have mentioned.
    pub fn files(&self) -> &[FileInfo] {
        self.events.files().all()
    }

    /// Lines so far that could not be read, or of which a part could not. What they may have said is an event
    /// [`Kind::Lost`](crate::Kind::Lost).
    pub fn unread(&self) -> &Unread {
        match &self.events {
            Events::Trace(_, events) => events.unread(),
            Events::Strace(events) => events.unread(),
        }
    }

    /// Calls in a text by strace that do not concern memory, each with how often it has occurred so far.
    pub fn skipped(&self) -> &BTreeMap<String, u64> {
        static NONE: BTreeMap<String, u64> = BTreeMap::new();
        match &self.events {
            Events::Trace(..) => &NONE,
            Events::Strace(events) => events.skipped(),
        }
    }

    /// Snapshot `id`. Each is handed out once; none is what there is for one that was handed out, that does
    /// not exist, or where there are no snapshots. The file is read as far as needed, and what is passed
    /// over is kept until it is asked for.
    ///
    /// # Errors
    ///
    /// A line of the snapshots that cannot be read, or too much passed over.
    pub fn snapshot(&mut self, id: u32) -> Result<Option<Snapshot>, ReadError> {
        self.snapshots.as_mut().map_or(Ok(None), |snapshots| snapshots.snapshot(id))
    }
}

impl Recording {
    /// The error about `line`, which names snapshot `id` where there is none to be had.
    pub(crate) fn no_snapshot(&self, line: u32, id: u32) -> ReadError {
        let place = Place { line, ..self.events.place() };
        let why = match self.snapshots {
            None => "beside the recording there is no file of snapshots (NAME.snap for NAME.trace)",
            Some(_) => "the file of snapshots has none of that number, or an earlier line has named it",
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

/// Why `path` is no recording, whose first line is the current one of `lines`.
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

/// The snapshots in `lines`, which must be those of the recording called `expected`.
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
