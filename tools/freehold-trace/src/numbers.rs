//! The set of serial numbers that are in use.
//!
//! `trace.rs` and `snap.rs` use one set per kind of object (tasks, exited tasks, snapshots) to detect a
//! number that occurs twice and a number that no line has introduced. The set is a bit map, so its memory is
//! bounded by [`LIMIT`] even if the recording is hostile. `trace_tests.rs` and `snap_tests.rs` check the
//! messages.

use crate::error::Bad;

/// Upper bound of serial numbers. No recording has this many tasks, files or snapshots, and a bit map of this
/// many bits still fits in memory.
const LIMIT: u32 = 1 << 24;

/// A set of serial numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    words: Vec<u64>,
}

impl Numbers {
    /// Returns true if the number is in the set.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Adds a number. Errors call an object `what`, and several objects `many`.
    pub(crate) fn insert(&mut self, number: u32, what: &'static str, many: &'static str) -> Result<(), Bad> {
        if number >= LIMIT {
            return Err(Bad::TooMany(many, u64::from(LIMIT)));
        }
        if self.contains(number) {
            return Err(Bad::Duplicate(what, number));
        }
        let index = number as usize / 64;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (number % 64);
        Ok(())
    }
}
