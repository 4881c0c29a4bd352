//! Which serial numbers have been given out.

use crate::error::Bad;

/// Serial numbers are below this: far more tasks, files or snapshots than a recording has, and few enough to
/// keep a bit for each.
const LIMIT: u32 = 1 << 24;

/// A set of serial numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    words: Vec<u64>,
}

impl Numbers {
    /// It was given out.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Gives it out to a `what`, of which there are `many`.
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
