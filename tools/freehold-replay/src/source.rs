//! Sources of a recording: a file or standard input.
//!
//! A replay reads its recording more than once: to estimate its length, to find settings, to plan, and once
//! for each design. Standard input can be read only once, so [`Source`] keeps its bytes in memory. `lib.rs`,
//! `tasks.rs` and `picture/` open recordings through it. `freehold-cli/tests/command.rs` tests standard
//! input.

use freehold_trace::{Format, ReadError, Recording, Thp, shown_thp};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of standard input on the command line.
pub const STDIN: &str = "-";
/// Name of standard input in messages, and in reports for strace output, which contains no name.
const STDIN_NAME: &str = "standard input";
/// Number of bytes read from a file at a time.
const CHUNK: usize = 64 << 10;

/// A recording that can be opened any number of times.
#[derive(Clone, Debug)]
pub struct Source {
    name: PathBuf,
    /// All of standard input. `None` for a file.
    bytes: Option<Arc<[u8]>>,
    /// File of snapshots. `None` if it is the file next to the recording.
    snapshots: Option<PathBuf>,
}

impl Source {
    /// Returns the recording that an argument names, with a file of snapshots if one is named. Reads standard
    /// input (`-`), which may be compressed, to its end.
    ///
    /// # Errors
    ///
    /// Fails if standard input cannot be read.
    pub fn of_argument(path: &Path, snapshots: Option<&Path>) -> Result<Source, ReadError> {
        let mut source = Source::from(path);
        source.snapshots = snapshots.map(Path::to_owned);
        if path == Path::new(STDIN) {
            source.name = STDIN_NAME.into();
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| ReadError::Open { file: STDIN_NAME.into(), source: error })?;
            source.bytes = Some(bytes.into());
        }
        Ok(source)
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns true if no file of snapshots was named.
    pub fn lacks_snapshots(&self) -> bool {
        self.snapshots.is_none()
    }

    /// Opens the recording at its beginning.
    ///
    /// # Errors
    ///
    /// Fails like [`Recording::open`].
    pub fn open(&self) -> Result<Recording, ReadError> {
        if self.bytes.is_none() && self.snapshots.is_none() {
            return Recording::open(&self.name);
        }
        let (events, _) = self.raw().map_err(|source| ReadError::Open { file: self.name.clone(), source })?;
        let events = Box::new(BufReader::with_capacity(CHUNK, events));
        match &self.snapshots {
            Some(snapshots) => Recording::read_with(&self.name, events, snapshots),
            None => Recording::read(&self.name, events, None),
        }
    }

    /// Returns the setting for huge pages of anonymous memory, as far as the snapshots show it. `recording`
    /// must be opened from this source.
    ///
    /// # Errors
    ///
    /// Fails if the file of snapshots cannot be read.
    pub fn shown_thp(&self, recording: &Recording) -> Result<Option<Thp>, ReadError> {
        let nowhere = self.bytes.is_some() && self.snapshots.is_none();
        if nowhere || recording.format() == Format::Strace {
            return Ok(None);
        }
        shown_thp(&self.name, self.snapshots.as_deref())
    }

    /// Returns the bytes of the source without decompressing them, and their number. The number is `None` if
    /// the source is not an ordinary file.
    ///
    /// # Errors
    ///
    /// Fails with the error of the operating system.
    pub fn raw(&self) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
        if let Some(bytes) = &self.bytes {
            return Ok((Box::new(Cursor::new(bytes.clone())), Some(bytes.len() as u64)));
        }
        let file = File::open(&self.name)?;
        let size = file.metadata().ok().filter(|found| found.is_file()).map(|found| found.len());
        Ok((Box::new(file), size))
    }
}

/// A file, with the snapshots that lie next to it.
impl<P: AsRef<Path> + ?Sized> From<&P> for Source {
    fn from(path: &P) -> Source {
        Source { name: path.as_ref().to_owned(), bytes: None, snapshots: None }
    }
}

/// A copy of the source.
impl From<&Source> for Source {
    fn from(source: &Source) -> Source {
        source.clone()
    }
}
