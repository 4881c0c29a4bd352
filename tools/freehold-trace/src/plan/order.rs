//! The order that addresses require between steps.
//!
//! [`Order`] is a part of the model of one address space ([`Space`](super::space::Space)). For each address
//! it keeps the last steps that later steps must wait for. A later step need not wait for older steps,
//! because the last step has waited for them. `touch.rs` asks for these steps and notes new steps. Faults are
//! kept per chunk of 2 MiB and task, changes per range. A larger chunk would only add waits; with a smaller
//! chunk, a change would miss faults that mapped huge pages. At the end of a segment [`Order::forget`]
//! empties the order. Before a step is noted, the step must gather the earlier steps that it replaces here.
//! If it does not, later steps wait for too few steps.

use rustc_hash::FxHashSet as HashSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// A step of a plan: its task, and its number among the steps of that task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stamp {
    /// The task. 0 means "before all steps".
    pub task: u32,
    /// The number of the step among the steps of the task, from 0.
    pub index: u32,
}

impl Stamp {
    /// The stamp before all steps, for which no step waits.
    pub(crate) const START: Stamp = Stamp { task: 0, index: 0 };
}

/// Base-2 logarithm of the size of a chunk: 2 MiB, the size of a huge page. Faults are grouped by chunks.
const CHUNK_SHIFT: u32 = 21;
/// Size of a chunk in bytes.
pub(crate) const CHUNK: u64 = 1 << CHUNK_SHIFT;

/// The effects of steps in one address space, as far as later steps may have to wait for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// The last step that changed the mapping at an address, or removed pages there. Maps the start of each
    /// range to its end and the step.
    changed: BTreeMap<u64, (u64, Stamp)>,
    /// The last step of each task that faulted in a chunk, by the number of the chunk.
    faulted: BTreeMap<u64, Vec<Stamp>>,
    /// The last step that concerned the whole address space.
    pub(crate) whole: Stamp,
    /// Last steps of the tasks that have left the address space.
    pub(crate) departed: Vec<Stamp>,
    /// Tasks that have taken steps after `whole`. The steps of all other tasks are earlier than `whole`, so a
    /// step that waits for `whole` need not wait for them.
    active: HashSet<u32>,
}

impl Order {
    /// Returns the steps that last changed something in `range` or adjacent to it.
    pub(crate) fn changed(&self, range: Range<u64>) -> impl Iterator<Item = Stamp> {
        let first = self.changed.range(..=range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let from = first.map_or(range.start, |(start, _)| *start);
        self.changed.range(from..range.end.max(from)).map(|(_, (_, stamp))| *stamp)
    }

    /// Returns the step that last changed the mapping of the page at `at`, or removed the page.
    pub(crate) fn changed_at(&self, at: u64) -> Option<Stamp> {
        let (_, (end, stamp)) = self.changed.range(..=at).next_back()?;
        (at < *end).then_some(*stamp)
    }

    /// Returns the steps that faulted in the chunks of `range`.
    pub(crate) fn faulted(&self, range: &Range<u64>) -> impl Iterator<Item = Stamp> {
        let first = range.start >> CHUNK_SHIFT;
        let last = (range.end.max(range.start + 1) - 1) >> CHUNK_SHIFT;
        self.faulted.range(first..=last).flat_map(|(_, stamps)| stamps.iter().copied())
    }

    /// Notes that step `stamp` faults at `at`.
    pub(crate) fn note_fault(&mut self, at: u64, stamp: Stamp) {
        let stamps = self.faulted.entry(at >> CHUNK_SHIFT).or_default();
        match stamps.iter_mut().find(|old| old.task == stamp.task) {
            Some(old) => old.index = stamp.index,
            None => stamps.push(stamp),
        }
    }

    /// Notes that step `stamp` changes `range`, and forgets all earlier steps in `range`. Step `stamp` must
    /// wait for the forgotten steps, so that later steps need to wait only for `stamp`.
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

    /// Notes that `task` takes a step.
    pub(crate) fn note_step(&mut self, task: u32) {
        self.active.insert(task);
    }

    /// Returns the tasks that have taken steps since the last step that concerned the whole address space.
    pub(crate) fn active(&self) -> impl Iterator<Item = u32> {
        self.active.iter().copied()
    }

    /// Splits the range that contains `at`, so that a range begins there.
    fn cut(&mut self, at: u64) {
        let Some((&start, &(end, stamp))) = self.changed.range(..at).next_back() else { return };
        if at < end {
            self.changed.insert(start, (at, stamp));
            self.changed.insert(at, (end, stamp));
        }
    }

    /// Notes that step `stamp` concerns the whole address space. The step must wait for all earlier steps in
    /// the address space, because this function forgets them.
    pub(crate) fn note_whole(&mut self, stamp: Stamp) {
        self.forget();
        self.whole = stamp;
    }

    /// Forgets the steps so far: later steps do not wait for them.
    pub(crate) fn forget(&mut self) {
        self.changed.clear();
        self.faulted.clear();
        self.departed.clear();
        self.active.clear();
        self.whole = Stamp::START;
    }
}
