//! A set of addresses, stored as disjoint ranges.
//!
//! A model ([`Space`](super::space::Space)) has several such sets: the addresses whose mappings are known,
//! assumed memory, written bytes, memory that may be locked, and others. The ranges of a set may begin and
//! end at any byte, also within a page. Ranges that touch are joined, so that equal sets are equal values.
//! The test at the end checks this.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of addresses. Empty ranges have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressSet {
    /// The end of each range, by its start. The ranges are disjoint and not adjacent to each other.
    ranges: BTreeMap<u64, u64>,
}

impl AddressSet {
    /// Adds a range.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((&at, &before)) = self.ranges.range(..=start).next_back()
            && before >= start
        {
            (start, end) = (at, end.max(before));
        }
        let inside: Vec<(u64, u64)> = self.ranges.range(start..=end).map(|(at, to)| (*at, *to)).collect();
        for (at, to) in inside {
            self.ranges.remove(&at);
            end = end.max(to);
        }
        self.ranges.insert(start, end);
    }

    /// Removes a range.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.ranges.range(..range.start).next_back().map_or(range.start, |(start, _)| *start);
        let cut: Vec<(u64, u64)> = self.ranges.range(first..range.end).map(|(at, to)| (*at, *to)).collect();
        for (start, end) in cut.into_iter().filter(|(_, end)| *end > range.start) {
            self.ranges.remove(&start);
            self.add(start..range.start.min(end));
            self.add(range.end.max(start)..end);
        }
    }

    /// Returns the parts of `range` that are in the set.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let missing = self.missing(range).into_iter().chain(std::iter::once(range.end..range.end));
        let mut at = range.start;
        let parts = missing.map(|hole| std::mem::replace(&mut at, hole.end)..hole.start);
        parts.filter(|part| part.start < part.end).collect()
    }

    /// Returns the parts of `range` that are not in the set.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let first = self.ranges.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (&start, &end) in self.ranges.range(first..range.end.max(first)) {
            if end <= at {
                continue;
            }
            if start > at {
                parts.push(at..start.min(range.end));
            }
            at = at.max(end);
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
    fn ranges_are_joined_and_split() {
        let mut set = AddressSet::default();
        assert_eq!(set.missing(&(0..10)), [0..10]);
        set.add(2..4);
        set.add(6..8);
        assert_eq!(set.missing(&(0..10)), [0..2, 4..6, 8..10]);
        assert_eq!(set.missing(&(3..7)), [4..6]);
        set.add(4..6);
        assert_eq!(set.ranges, BTreeMap::from([(2, 8)]));
        assert_eq!(set.missing(&(2..8)), []);
        set.add(0..20);
        assert_eq!(set.within(&(5..25)), [5..20]);
        set.remove(&(4..6));
        set.remove(&(18..30));
        set.remove(&(0..0));
        assert_eq!(set.ranges, BTreeMap::from([(0, 4), (6, 18)]));
        assert_eq!(set.within(&(2..20)), [2..4, 6..18]);
        assert_eq!(set.within(&(4..6)), []);
        set.add(0..20);
        assert_eq!(set.ranges, BTreeMap::from([(0, 20)]));
        set.add(5..5);
        assert_eq!(set.missing(&(19..25)), [20..25]);
    }
}
