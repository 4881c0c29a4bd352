//! A set of page offsets ([`IndexSet`]), stored as runs of consecutive offsets. `reserves.rs` keeps
//! reservations in such sets, and `file/kinds/huge_allocate.rs` keeps the pages that a fallocate added. A set
//! usually contains all pages of a mapping or none, so it has few runs.
//!
//! A spin lock guards the runs, so nothing may be allocated or freed under it: [`Roomy`] keeps the old buffer
//! until the lock is released. `set_of_reservations_grows` in `tests/hugetlb/pools.rs` fails if the buffer is
//! freed under the lock. A change may need memory for one more run. If there is no memory, the change must
//! leave the set unchanged.

use crate::{error::NoMemory, platform::Platform};
use allocator_api2::vec::Vec;
use freehold_sync::{Rank, SpinGuard, SpinLock};
use freehold_vmspace::{PageIndex, PageRange};

/// A set of page offsets. Other tasks see each call as one step.
pub(crate) struct IndexSet {
    /// Runs in ascending order. No run is empty, and no run touches the next run.
    runs: SpinLock<Vec<PageRange>>,
}

type Runs<'s, P> = SpinGuard<'s, Vec<PageRange>, P>;

/// The runs, locked, with capacity for one more.
struct Roomy<'s, P: Platform> {
    runs: Runs<'s, P>,
    /// A buffer to be freed: the previous buffer of the runs, or a new buffer that was not needed. Freed
    /// after the lock is released, because fields are dropped in the order of their declaration.
    _spent: Vec<PageRange>,
}

impl IndexSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        IndexSet { runs: SpinLock::new(Vec::new(), Rank::FileIndex) }
    }

    /// Returns true if the set contains `index`.
    pub fn contains<P: Platform>(&self, index: PageIndex) -> bool {
        let runs = self.runs.lock::<P>();
        let at = runs.partition_point(|run| run.end <= index);
        runs.get(at).is_some_and(|run| run.start <= index)
    }

    /// Returns the number of offsets of `range` that are in the set.
    pub fn count<P: Platform>(&self, range: PageRange) -> u64 {
        count(&self.runs.lock::<P>(), &range)
    }

    /// Adds a range. Returns the number of its offsets that were not in the set.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; the set is then unchanged.
    pub fn insert<P: Platform>(&self, range: PageRange) -> Result<u64, NoMemory> {
        let mut roomy = self.with_room::<P>()?;
        let runs = &mut *roomy.runs;
        let new = range.len().get() - count(runs, &range);
        let first = runs.partition_point(|run| run.end < range.start);
        let behind = runs.partition_point(|run| run.start <= range.end);
        if first == behind {
            runs.insert(first, range);
        } else {
            let (first_start, last_end) = (runs[first].start, runs[behind - 1].end);
            let joined = PageRange::new(range.start.min(first_start), range.end.max(last_end));
            runs[first] = joined;
            runs.drain(first + 1..behind);
        }
        Ok(new)
    }

    /// Removes a range. Returns the number of its offsets that were in the set.
    ///
    /// # Errors
    ///
    /// Fails if a run must be split and there is no memory; the set is then unchanged.
    pub fn remove<P: Platform>(&self, range: PageRange) -> Result<u64, NoMemory> {
        let mut roomy = Roomy { runs: self.runs.lock::<P>(), _spent: Vec::new() };
        if around(&roomy.runs, &range).is_some() && roomy.runs.len() == roomy.runs.capacity() {
            drop(roomy);
            roomy = self.with_room::<P>()?;
        }
        let runs = &mut *roomy.runs;
        let gone = count(runs, &range);
        if let Some(at) = around(runs, &range) {
            let rest = PageRange::new(range.end, runs[at].end);
            runs[at].end = range.start;
            runs.insert(at + 1, rest);
            return Ok(gone);
        }
        let first = runs.partition_point(|run| run.end <= range.start);
        for run in &mut runs[first..] {
            if run.start >= range.end {
                break;
            }
            if run.start < range.start {
                run.end = range.start;
            } else {
                run.start = run.end.min(range.end);
            }
        }
        runs.retain(|run| run.start < run.end);
        Ok(gone)
    }

    /// Makes sure that the next change needs no memory. The caller prevents other changes until that change.
    pub fn prepare<P: Platform>(&self) -> Result<(), NoMemory> {
        self.with_room::<P>().map(drop)
    }

    /// Locks the runs, with capacity for one more. Allocates without the lock.
    fn with_room<P: Platform>(&self) -> Result<Roomy<'_, P>, NoMemory> {
        let mut larger: Vec<PageRange> = Vec::new();
        loop {
            let mut runs = self.runs.lock::<P>();
            if runs.len() < runs.capacity() {
                return Ok(Roomy { runs, _spent: larger });
            }
            if runs.len() < larger.capacity() {
                larger.extend_from_slice(&runs);
                core::mem::swap(&mut *runs, &mut larger);
                return Ok(Roomy { runs, _spent: larger });
            }
            let want = (runs.len() * 2).max(4);
            drop(runs);
            larger.try_reserve_exact(want).map_err(|_| NoMemory)?;
        }
    }
}

/// Returns the position of the run that extends beyond both ends of `range`, if there is one. Removing
/// `range` splits this run.
fn around(runs: &[PageRange], range: &PageRange) -> Option<usize> {
    let at = runs.partition_point(|run| run.end <= range.start);
    runs.get(at).is_some_and(|run| run.start < range.start && range.end < run.end).then_some(at)
}

/// Returns the number of offsets of `range` that are in the runs.
fn count(runs: &[PageRange], range: &PageRange) -> u64 {
    let first = runs.partition_point(|run| run.end <= range.start);
    let inside = |run: &PageRange| (run.end.min(range.end) - run.start.max(range.start)).get();
    runs[first..].iter().take_while(|run| run.start < range.end).map(inside).sum()
}
