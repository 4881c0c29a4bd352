//! Lines of a recording that cannot be read. Unreadable lines are reported and counted, and the other lines
//! are read.
//!
//! Both readers (`trace.rs`, `strace/`) keep one [`Unread`]; `freehold-replay` prints its errors after the
//! list of unchecked answers, and exits with status 2. Only errors of a single line belong here:
//! [`Unread::note`] returns all other errors, which end the reading. Memory is bounded by [`KEPT`] errors.
//! `errors_of_only_the_first_unreadable_lines_are_kept` (`trace_tests.rs`) checks the bound.

use crate::error::ReadError;

/// Maximum number of lines whose errors are kept.
const KEPT: usize = 10;

/// The lines so far that could not be read, completely or in part.
#[derive(Debug, Default)]
pub struct Unread {
    /// Number of lines.
    count: u64,
    /// The errors of the first unreadable lines, at most [`KEPT`].
    first: Vec<ReadError>,
}

impl Unread {
    /// Returns the number of lines.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the errors of the first unreadable lines.
    pub fn first(&self) -> &[ReadError] {
        &self.first
    }

    /// Adds an error. Returns the error if it does not concern a single line.
    pub(crate) fn note(&mut self, error: ReadError) -> Result<(), ReadError> {
        if !error.is_of_a_line() {
            return Err(error);
        }
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push(error);
        }
        Ok(())
    }
}
