//! The lines of a file, one at a time, in bounded memory.
//!
//! All readers (of events, snapshots and strace output) read through [`Lines`]: it owns the input and one
//! buffer, and lends the current line until the next call of [`Lines::advance`]. Lines longer than
//! [`LONGEST`] and a last line without a line end are errors. Every error names the file and the line. The
//! tests are in `lines_tests.rs`.

use crate::error::{Bad, Place, ReadError};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Maximum length of a line in bytes.
pub(crate) const LONGEST: usize = 1 << 20;
/// Number of bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// A file that is read line by line.
pub(crate) struct Lines {
    /// The input, already decompressed.
    input: Box<dyn Read + Send>,
    /// The name of the file, for errors.
    file: Arc<Path>,
    /// Number of the current line.
    number: u32,
    /// Bytes that were read, from the current line on.
    buffer: Vec<u8>,
    /// The range of the current line in the buffer, without the line end.
    current: (usize, usize),
    /// Offset of the next line in the buffer.
    next: usize,
    /// Number of bytes in the buffer.
    filled: usize,
}

impl Lines {
    /// Reads the lines of `input`. Messages use the name `file`.
    pub(crate) fn new(input: Box<dyn Read + Send>, file: &Path) -> Self {
        let buffer = vec![0; 2 * CHUNK];
        Lines { input, file: file.into(), number: 0, buffer, current: (0, 0), next: 0, filled: 0 }
    }

    /// Reads the lines of `text`, for tests.
    #[cfg(test)]
    pub(crate) fn of_text(text: impl Into<Vec<u8>>) -> Self {
        Lines::new(Box::new(io::Cursor::new(text.into())), Path::new("test"))
    }

    /// Advances to the next line. Returns false at the end of the file.
    pub(crate) fn advance(&mut self) -> Result<bool, ReadError> {
        let mut searched = self.next;
        loop {
            let rest = &self.buffer[searched..self.filled];
            if let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
                return self.step_to(searched + length).map(|()| true);
            }
            searched = self.filled;
            if searched - self.next > LONGEST {
                return Err(ReadError::TooLong { place: self.following(), limit: LONGEST });
            }
            if self.filled + CHUNK > self.buffer.len() {
                searched -= self.next;
                self.make_room();
            }
            if self.fill()? == 0 {
                if self.next == self.filled {
                    return Ok(false);
                }
                return Err(ReadError::Truncated {
                    place: self.following(),
                    how: "the last line has no line end",
                });
            }
        }
    }

    /// Returns the current line without its end.
    pub(crate) fn line(&self) -> &[u8] {
        &self.buffer[self.current.0..self.current.1]
    }

    /// Returns the number of the current line, from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the place of the current line.
    pub(crate) fn place(&self) -> Place {
        Place { file: self.file.clone(), line: self.number }
    }

    /// Returns the error about the current line.
    pub(crate) fn wrong(&self, bad: Bad) -> ReadError {
        bad.at(self.place(), self.line())
    }

    /// Returns the place of the line after the current line.
    fn following(&self) -> Place {
        Place { file: self.file.clone(), line: self.number.saturating_add(1) }
    }

    /// Makes the bytes from `next` up to `end` the current line.
    fn step_to(&mut self, end: usize) -> Result<(), ReadError> {
        if end - self.next > LONGEST {
            return Err(ReadError::TooLong { place: self.following(), limit: LONGEST });
        }
        let Some(number) = self.number.checked_add(1) else {
            let limit = u64::from(u32::MAX);
            return Err(ReadError::TooMany { place: self.place(), what: "lines", limit });
        };
        self.number = number;
        self.current = (self.next, end);
        self.next = end + 1;
        Ok(())
    }

    /// Moves the unread bytes to the front of the buffer, and grows the buffer if these bytes fill it.
    /// Overlong lines are refused before the buffer exceeds `LONGEST` by more than a few chunks.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.next..self.filled, 0);
        self.filled -= self.next;
        self.next = 0;
        self.current = (0, 0);
        if self.filled + CHUNK > self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
    }

    /// Reads more bytes into the buffer. Returns their number, 0 at the end of the file.
    fn fill(&mut self) -> Result<usize, ReadError> {
        loop {
            let space = &mut self.buffer[self.filled..];
            match self.input.read(space) {
                Ok(count) => {
                    self.filled += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let how = "the compressed stream is incomplete";
                    return Err(ReadError::Truncated { place: self.place(), how });
                }
                Err(source) => return Err(ReadError::Io { place: self.place(), source }),
            }
        }
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
