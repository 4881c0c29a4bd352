//! Sets of pages, as sorted lists of runs of consecutive page numbers (addresses divided by 4096).
//!
//! Snapshots list present pages as runs, and comparisons need fast tests of single pages and ranges.
//! `compare.rs`, `resident.rs` and `touched.rs` build a [`Runs`] for each comparison, and do not change it
//! afterwards. [`Runs::push`] relies on ascending runs: a run that begins before the end of the last run
//! makes later answers wrong. The test at the end checks the set operations.

use std::ops::Range;

/// Pages by number, as ascending runs that do not touch.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Range<u64>>);

impl Runs {
    /// Adds `run`, which must begin at or behind the end of the last run.
    pub(super) fn push(&mut self, run: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.0.push(run),
        }
    }

    /// Returns the number of pages.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// Returns all runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    /// Returns the runs cut to `pages`.
    pub(super) fn within(&self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.partition_point(|run| run.end <= pages.start);
        let end = pages.end;
        self.0[first..]
            .iter()
            .take_while(move |run| run.start < end)
            .map(move |run| run.start.max(pages.start)..run.end.min(end))
    }

    /// Returns true if the page is in the set.
    pub(super) fn contains(&self, page: u64) -> bool {
        self.within(page..page + 1).next().is_some()
    }

    /// Returns true if all of `pages` are in the set.
    pub(super) fn contains_all(&self, pages: &Range<u64>) -> bool {
        pages.is_empty() || self.within(pages.clone()).next().is_some_and(|run| run == *pages)
    }

    /// Returns true if any of `pages` is in the set.
    pub(super) fn contains_any(&self, pages: &Range<u64>) -> bool {
        self.within(pages.clone()).next().is_some()
    }

    /// Returns the pages that are in `self` but not in `other`, ascending.
    pub(super) fn not_in(&self, other: &Runs) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|run| {
            let mut at = run.start;
            let mut gaps = Vec::new();
            for taken in other.within(run.clone()) {
                gaps.push(at..taken.start);
                at = taken.end;
            }
            gaps.push(at..run.end);
            gaps.into_iter().flatten()
        })
    }
}

impl FromIterator<Range<u64>> for Runs {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(runs: I) -> Runs {
        let mut sum = Runs::default();
        runs.into_iter().for_each(|run| sum.push(run));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations_on_runs() {
        // 2 3 4   7 8   10
        let runs: Runs = [2..4, 4..5, 7..9, 10..11].into_iter().collect();
        assert_eq!(runs.count(), 6);
        assert_eq!(runs.within(3..8).collect::<Vec<_>>(), [3..5, 7..8]);
        assert!(runs.contains(2) && !runs.contains(5) && !runs.contains(9));
        assert!(runs.contains_all(&(2..5)) && !runs.contains_all(&(2..6)) && !runs.contains_all(&(1..3)));
        assert!(runs.contains_any(&(5..8)) && !runs.contains_any(&(5..7)) && runs.contains_all(&(5..5)));
        let other: Runs = [0..3, 8..20].into_iter().collect();
        assert_eq!(runs.not_in(&other).collect::<Vec<_>>(), [3, 4, 7]);
        assert_eq!(other.not_in(&runs).take(4).collect::<Vec<_>>(), [0, 1, 9, 11]);
        assert_eq!(runs.not_in(&Runs::default()).count(), 6);
    }
}
