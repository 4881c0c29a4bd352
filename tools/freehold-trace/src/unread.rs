//! Lines of a recording that cannot be read: they are named and counted, and the rest is read.

use crate::error::ReadError;

/// How many are kept with everything about them.
const KEPT: usize = 10;

/// The lines so far that could not be read, or not in every part.
#[derive(Debug, Default)]
pub struct Unread {
    count: u64,
    first: Vec<ReadError>,
}

impl Unread {
    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What is wrong with the first of them.
    pub fn first(&self) -> &[ReadError] {
        &self.first
    }

    /// One more. What concerns more than a line is handed back.
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
