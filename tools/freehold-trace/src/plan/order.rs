//! Which step of a plan must wait for which: the order that addresses force.

use rustc_hash::FxHashSet as HashSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// A step of a plan: the task that takes it, and its number among that task's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stamp {
    /// The task; 0 stands for "before everything".
    pub task: u32,
    /// The number, from 0.
    pub index: u32,
}

impl Stamp {
    /// Before everything: nobody waits for it.
    pub(crate) const START: Stamp = Stamp { task: 0, index: 0 };
}

/// Addresses are told apart in units of this many bits where only pages are concerned: what a huge page
/// spans.
const CHUNK_SHIFT: u32 = 21;
/// Bytes of such a unit.
pub(crate) const CHUNK: u64 = 1 << CHUNK_SHIFT;

/// Which steps did what where in one address space, as far as later steps may have to wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// The last step that changed what is mapped at an address, or took its pages: from the key to the end
    /// given.
    changed: BTreeMap<u64, (u64, Stamp)>,
    /// The last step of each task that faulted in a chunk.
    faulted: BTreeMap<u64, Vec<Stamp>>,
    /// The last step that concerned the space as a whole.
    pub(crate) whole: Stamp,
    /// Last steps of tasks that have left the space.
    pub(crate) departed: Vec<Stamp>,
    /// Tasks that took steps after `whole`; for the others, who waits for that has waited for them.
    active: HashSet<u32>,
}

impl Order {
    /// The steps that last changed something in `range` or right beside it.
    pub(crate) fn changed(&self, range: Range<u64>) -> impl Iterator<Item = Stamp> {
        let first = self.changed.range(..=range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let from = first.map_or(range.start, |(start, _)| *start);
        self.changed.range(from..range.end.max(from)).map(|(_, (_, stamp))| *stamp)
    }

    /// The step that last changed what is at the page of `at`.
    pub(crate) fn changed_at(&self, at: u64) -> Option<Stamp> {
        let (_, (end, stamp)) = self.changed.range(..=at).next_back()?;
        (at < *end).then_some(*stamp)
    }

    /// The steps that faulted in `range`, in whole chunks.
    pub(crate) fn faulted(&self, range: &Range<u64>) -> impl Iterator<Item = Stamp> {
        let first = range.start >> CHUNK_SHIFT;
        let last = (range.end.max(range.start + 1) - 1) >> CHUNK_SHIFT;
        self.faulted.range(first..=last).flat_map(|(_, stamps)| stamps.iter().copied())
    }

    /// `stamp` faults at `at`.
    pub(crate) fn note_fault(&mut self, at: u64, stamp: Stamp) {
        let stamps = self.faulted.entry(at >> CHUNK_SHIFT).or_default();
        match stamps.iter_mut().find(|old| old.task == stamp.task) {
            Some(old) => old.index = stamp.index,
            None => stamps.push(stamp),
        }
    }

    /// `stamp`, which waited for everything that was said of `range`, changes it.
    pub(crate) fn note_change(&mut self, range: &Range<u64>, stamp: Stamp) {
        if range.start >= range.end {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        self.changed.insert(range.start, (range.end, stamp));
        while let Some((&start, _)) = self.changed.range(range.start + 1..range.end).next() {
            self.changed.remove(&start);
        }
        let (first, end) = (range.start.div_ceil(CHUNK), range.end >> CHUNK_SHIFT);
        if first < end {
            while let Some((&chunk, _)) = self.faulted.range(first..end).next() {
                self.faulted.remove(&chunk);
            }
        }
    }

    /// `task` takes a step.
    pub(crate) fn note_step(&mut self, task: u32) {
        self.active.insert(task);
    }

    /// Tasks that took steps since all of the space was last waited for.
    pub(crate) fn active(&self) -> impl Iterator<Item = u32> {
        self.active.iter().copied()
    }

    fn cut(&mut self, at: u64) {
        let Some((&start, &(end, stamp))) = self.changed.range(..at).next_back() else { return };
        if at < end {
            self.changed.insert(start, (at, stamp));
            self.changed.insert(at, (end, stamp));
        }
    }

    /// `stamp`, which waited for all that happened in this space, concerns it as a whole.
    pub(crate) fn note_whole(&mut self, stamp: Stamp) {
        self.forget();
        self.whole = stamp;
    }

    /// Nobody has to wait for what happened until now.
    pub(crate) fn forget(&mut self) {
        self.changed.clear();
        self.faulted.clear();
        self.departed.clear();
        self.active.clear();
        self.whole = Stamp::START;
    }
}
