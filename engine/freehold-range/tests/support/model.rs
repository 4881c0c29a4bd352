//! The naive map: a sorted list of entries, and a gap search that tries every address.
//!
//! The naive map is the oracle of `pair.rs`, which compares a `RangeMap` with it after every change. The
//! naive map must stay simple enough to be obviously correct: no structure is shared with the code under
//! test, and speed does not matter. [`entry`] makes entries whose values leave the bits of claims clear.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound::{Excluded, Unbounded};

use freehold_range::{Direction, Entry, GapRequest};

/// The entries that a range map must have. No two entries overlap.
#[derive(Default, Clone, Debug, PartialEq)]
pub struct Model {
    /// The entries by start.
    pub entries: BTreeMap<u64, Entry>,
}

/// Returns an entry whose value is `value`, shifted above the bits that belong to the map.
pub fn entry(start: u64, end: u64, value: u64) -> Entry {
    Entry { start, end, value: NonZeroU64::new(value << 6).unwrap() }
}

impl Model {
    /// Removes the entries that overlap the range, and inserts `with`.
    pub fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        self.entries.retain(|_, entry| entry.end <= start || entry.start >= end);
        self.entries.extend(with.iter().map(|entry| (entry.start, *entry)));
    }

    /// Returns the entry that contains `key`.
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// Returns the first entry that ends above `key`.
    pub fn next(&self, key: u64) -> Option<Entry> {
        let (_, around) = self.entries.range(..=key).next_back().unzip();
        let (_, after) = self.entries.range((Excluded(key), Unbounded)).next().unzip();
        around.filter(|entry| entry.end > key).or(after).copied()
    }

    /// Returns the last entry that ends at or below `key`.
    pub fn prev(&self, key: u64) -> Option<Entry> {
        let (_, entry) = self.entries.range(..=key).rev().find(|(_, entry)| entry.end <= key)?;
        Some(*entry)
    }

    /// Widens a range so that no entry reaches across its ends. Returns the wider range and the parts outside
    /// the original range.
    pub fn widen(&self, start: u64, end: u64) -> (u64, u64, Option<Entry>, Option<Entry>) {
        let left = self.find(start).filter(|entry| entry.start < start);
        let right = self.find(end - 1).filter(|entry| entry.end > end);
        (
            left.map_or(start, |entry| entry.start),
            right.map_or(end, |entry| entry.end),
            left.map(|entry| Entry { end: start, ..entry }),
            right.map(|entry| Entry { start: end, ..entry }),
        )
    }

    /// Returns the address of a gap for the request, by trying every multiple of the alignment. `below`
    /// returns the number of free addresses that an entry needs below it.
    pub fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        let free = |at: &u64| {
            let end = at + request.len;
            *at >= request.low
                && end <= request.high
                && self.next(*at).is_none_or(|entry| {
                    // The guard of an entry lies only in the gap directly in front of it.
                    end <= entry.start.saturating_sub(below(&entry))
                })
        };
        let mut all = (0..request.high).filter(|at| at.is_multiple_of(request.align));
        match request.direction {
            Direction::BottomUp => all.find(free),
            Direction::TopDown => all.rev().find(free),
        }
    }
}
