//! Where a recording comes from: a file, or standard input.

use freehold_trace::{Format, ReadError, Recording, Thp, shown_thp};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What stands for standard input on the command line.
pub const STDIN: &str = "-";
/// What it is called in messages and, for a text by strace, in reports.
const STDIN_NAME: &str = "standard input";
/// Bytes read from a file at a time.
const CHUNK: usize = 64 << 10;

/// A recording that can be opened again and again.
#[derive(Clone, Debug)]
pub struct Source {
    name: PathBuf,
    /// All of standard input; none for a file.
    bytes: Option<Arc<[u8]>>,
    /// A file of snapshots other than the one that lies beside it.
    snapshots: Option<PathBuf>,
}

impl Source {
    /// The recording that an argument names, with its snapshots where they are named, too. Standard input
    /// (`-`) is read to its end here, packed as it comes.
    ///
    /// # Errors
    ///
    /// Standard input cannot be read.
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

    /// What messages call it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// No file of snapshots was named.
    pub fn lacks_snapshots(&self) -> bool {
        self.snapshots.is_none()
    }

    /// Opens it, at its beginning.
    ///
    /// # Errors
    ///
    /// As [`Recording::open`].
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

    /// Where anonymous memory had huge pages, as far as the snapshots of `recording`, which is its own, show
    /// it.
    ///
    /// # Errors
    ///
    /// The file of snapshots cannot be read.
    pub fn shown_thp(&self, recording: &Recording) -> Result<Option<Thp>, ReadError> {
        let nowhere = self.bytes.is_some() && self.snapshots.is_none();
        if nowhere || recording.format() == Format::Strace {
            return Ok(None);
        }
        shown_thp(&self.name, self.snapshots.as_deref())
    }

    /// Its bytes, packed as they are, and how many there are; none for what is no ordinary file.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn raw(&self) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
        if let Some(bytes) = &self.bytes {
            return Ok((Box::new(Cursor::new(bytes.clone())), Some(bytes.len() as u64)));
        }
        let file = File::open(&self.name)?;
        let size = file.metadata().ok().filter(|found| found.is_file()).map(|found| found.len());
        Ok((Box::new(file), size))
    }
}

/// A file, with the snapshots that lie beside it.
impl<P: AsRef<Path> + ?Sized> From<&P> for Source {
    fn from(path: &P) -> Source {
        Source { name: path.as_ref().to_owned(), bytes: None, snapshots: None }
    }
}

/// The same again.
impl From<&Source> for Source {
    fn from(source: &Source) -> Source {
        source.clone()
    }
}
