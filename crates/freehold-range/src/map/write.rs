//! Changing the map: the writer, its path through the tree, and the common case of a change inside one leaf.

use core::mem::MaybeUninit;
use core::ops::Deref;

use allocator_api2::alloc::AllocError;
use freehold_sync::Host;

use super::hold::Held;
use super::node::{Node, Slot};
use super::read::Reader;
use super::{Entry, FAN, MAX_LEVELS, MAX_WITH, RangeMap, spare};

/// The right to change a map. See [`RangeMap::writer`]. Dereferences to a [`Reader`].
///
/// # Invariants
///
/// While it lives no other writer and no reader (other than the one inside) of the map exists.
pub struct Writer<'a, H: Host, const SLOTS: usize = FAN> {
    reader: Reader<'a, H, SLOTS>,
}

impl<'a, H: Host, const SLOTS: usize> Deref for Writer<'a, H, SLOTS> {
    type Target = Reader<'a, H, SLOTS>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl<'a, H: Host, const SLOTS: usize> Writer<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>) -> Self {
        Self { reader: Reader::new(map) }
    }

    /// Makes sure that the next `replaces` calls of [`Writer::replace`] cannot fail. Nearly always that is so already
    /// and this is a comparison. What is not used up stays in store for later calls.
    ///
    /// # Errors
    ///
    /// When the host is out of memory; the map is unchanged.
    #[inline]
    pub fn reserve(&mut self, replaces: usize) -> Result<(), AllocError> {
        // A change splits at most every node from a leaf to the root, and the root into two new ones. A split leaves the
        // root with two slots, and a change adds one: the tree grows at once, and again after `SLOTS` - 1 changes.
        let levels = self.map.root.level() + 1;
        let grown = levels.saturating_add(1 + replaces / (SLOTS - 1));
        let need =
            replaces.saturating_sub(1).saturating_mul(grown.saturating_add(1)).saturating_add(levels + 1);
        if grown <= MAX_LEVELS && self.map.spares.count() >= need {
            return Ok(());
        }
        self.refill(grown, need)
    }

    #[cold]
    fn refill(&mut self, grown: usize, need: usize) -> Result<(), AllocError> {
        if grown > MAX_LEVELS {
            return Err(AllocError);
        }
        self.map.spares.fill(need)
    }

    /// Replaces everything inside `[start, end)` by the entries `with` (at most [`MAX_WITH`], ascending, inside the
    /// range) as one step: a lookup of any address sees what was there or what is there now.
    ///
    /// Needs a reservation, see [`Writer::reserve`]. The cost grows with the depth of the tree, and with the number of
    /// leaves (not entries) inside the range.
    ///
    /// # Panics
    ///
    /// If an entry reaches across `start` or `end`, if `with` is not as described, or without a reservation when one
    /// turns out to be needed.
    pub fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        assert_fits(start, end, with);
        if !self.replace_in_leaf(start, end, with) {
            self.replace_across(start, end, with);
        }
    }

    /// Removes every entry.
    pub fn clear(&mut self) {
        let map = self.map;
        let root = &map.root;
        let count = root.count();
        let leaf = root.word().is_leaf();
        let children: [*mut Node<SLOTS>; SLOTS] = core::array::from_fn(|at| root.child(at));
        root.hold();
        root.splice(0, count, &[]);
        root.set_level(0);
        root.release();
        map.add_len(0, map.len());
        if !leaf {
            for child in &children[..count] {
                // SAFETY: the slots in use linked these nodes, and the root is empty now.
                unsafe { spare::retire::<H, SLOTS>(*child) };
            }
        }
    }

    /// Fills in the path to the first entry whose end lies above `key`, or behind the last entry.
    #[inline(always)]
    pub(super) fn descend<'n>(&self, key: u64, path: &mut Path<'n, SLOTS>)
    where
        'a: 'n,
    {
        let mut node: &'n Node<SLOTS> = &self.map.root;
        let mut lo = 0;
        let mut level = node.level();
        path.top = level;
        loop {
            let count = node.count();
            let found = node.search(key);
            let at = if level > 0 { found.min(count - 1) } else { found.min(count) };
            path.set(level, Step { node, at, lo });
            if level == 0 {
                return;
            }
            if at > 0 {
                lo = node.end(at - 1);
            }
            node = self.node_at(node, at);
            level -= 1;
        }
    }

    /// As [`Reader::child`], for as long as the map is borrowed.
    #[inline(always)]
    pub(super) fn node_at<'n>(&self, node: &'n Node<SLOTS>, at: usize) -> &'n Node<SLOTS>
    where
        'a: 'n,
    {
        debug_assert!(!node.word().is_leaf() && at < node.count());
        // SAFETY: a slot in use links a node of this map. The writer itself unlinks nodes, and retires them only as its
        // last act on them, so that no reference made here is used afterwards.
        unsafe { &*node.child(at) }
    }

    /// The common case: the range lies inside one leaf, which has the room and does not become sparse. Returns whether
    /// it was.
    #[inline(always)]
    fn replace_in_leaf(&self, start: u64, end: u64, with: &[Entry]) -> bool {
        let mut path = Path::new();
        self.descend(start, &mut path);
        let Step { node: leaf, at: from, lo } = path.step(0);
        let is_root = path.top == 0;
        let count = leaf.count();
        let last = leaf.last_end();
        if end > last && !path.is_last() {
            return false;
        }
        let to = first_behind(leaf, from, start, end);
        let gone = to - from;
        let now = count - gone + with.len();
        if now > SLOTS || (now < count && now < Node::<SLOTS>::SPARSE && !is_root) {
            return false;
        }
        if is_root {
            edit(leaf, from, gone, with);
        } else if to < count || with.last().is_some_and(|entry| entry.end == last) {
            let before = gaps(leaf, from, to.min(count - 1), lo);
            edit(leaf, from, gone, with);
            let after = gaps(leaf, from, (from + with.len()).min(now - 1), lo);
            gap_changed(&path, before, after);
        } else {
            self.replace_at_end(&path, gone, with);
            self.refresh_gaps(end);
        }
        self.map.add_len(with.len(), gone);
        true
    }

    /// The same where the end of the leaf changes: so do the ends that its ancestors keep, and the gap of the leaf
    /// behind, which is left to `refresh_gaps`.
    #[inline(never)]
    fn replace_at_end(&self, path: &Path<'_, SLOTS>, gone: usize, with: &[Entry]) {
        let Step { node: leaf, at: from, lo } = path.step(0);
        let mut top = 1;
        while top < path.top && path.step(top).at + 1 == path.step(top).node.count() {
            top += 1;
        }
        for level in 0..=top {
            path.step(level).node.hold();
        }
        leaf.open(from, gone, with.len());
        fill(leaf, from, with);
        let end = leaf.last_end();
        for level in 1..=top {
            path.step(level).node.set_end(path.step(level).at, end);
        }
        for level in 0..=top {
            path.step(level).node.release();
        }
        let (mut below, mut lo) = (leaf, lo);
        for level in 1..=path.top {
            let step = path.step(level);
            step.node.set_gap(step.at, below.max_gap(lo));
            (below, lo) = (step.node, step.lo);
        }
    }

    /// The general case: cut the range out, put the new entries into the gap, and let no reader in between.
    #[cold]
    #[inline(never)]
    fn replace_across(&mut self, start: u64, end: u64, with: &[Entry]) {
        let mut held = Held::new();
        let mut lost = 0;
        if self.next(start).is_some_and(|entry| entry.start < end) {
            lost = self.cut(&mut held, start, end);
        }
        if !with.is_empty() {
            self.put(&mut held, with);
        }
        self.refresh_gaps(end);
        self.map.add_len(with.len(), lost);
        held.finish::<H>();
    }

    /// Recomputes the gaps on the path to the first entry whose end lies above `key`: the one entry outside a changed
    /// range whose gap the change has moved.
    fn refresh_gaps(&self, key: u64) {
        let mut path = Path::new();
        self.descend(key, &mut path);
        for level in 1..=path.top {
            let below = path.step(level - 1);
            let Step { node, at, .. } = path.step(level);
            node.set_gap(at, below.node.max_gap(below.lo));
        }
    }
}

/// One level of a path.
#[derive(Clone, Copy)]
pub(super) struct Step<'n, const SLOTS: usize> {
    pub(super) node: &'n Node<SLOTS>,
    /// The slot the path goes through; in the leaf possibly one behind the last.
    pub(super) at: usize,
    /// End of the entry before this node's first.
    pub(super) lo: u64,
}

/// The way from the root (at `top`) to a leaf (at 0).
pub(super) struct Path<'n, const SLOTS: usize> {
    /// Written from 0 to `top`.
    steps: [MaybeUninit<Step<'n, SLOTS>>; MAX_LEVELS],
    /// Level of the root.
    pub(super) top: usize,
}

impl<'n, const SLOTS: usize> Path<'n, SLOTS> {
    /// To be filled in by `descend`.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { steps: [MaybeUninit::uninit(); _], top: 0 }
    }

    /// Whether the path leads to the last leaf.
    #[inline]
    fn is_last(&self) -> bool {
        (1..=self.top).all(|level| self.step(level).at + 1 == self.step(level).node.count())
    }

    #[inline(always)]
    pub(super) fn step(&self, level: usize) -> Step<'n, SLOTS> {
        debug_assert!(level <= self.top);
        // SAFETY: `descend` and `raise` write every element up to `top`, and nobody asks for one above it.
        unsafe { self.steps[level].assume_init() }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, level: usize, step: Step<'n, SLOTS>) {
        self.steps[level].write(step);
    }
}

/// The new entries as slots; the first `with.len()` count.
#[inline(always)]
pub(super) fn slots<const SLOTS: usize>(with: &[Entry]) -> [Slot<SLOTS>; MAX_WITH] {
    let mut slots = [Slot::EMPTY; MAX_WITH];
    for (slot, entry) in slots.iter_mut().zip(with) {
        *slot = Slot::of(entry);
    }
    slots
}

/// The first slot of a leaf at or behind `from` whose entry starts at or behind `end`; those between lie inside the
/// range, or the caller has broken the contract of `replace`.
#[inline(always)]
pub(super) fn first_behind<const SLOTS: usize>(
    leaf: &Node<SLOTS>,
    from: usize,
    start: u64,
    end: u64,
) -> usize {
    let count = leaf.count();
    let mut to = from;
    while to < count && leaf.start(to) < end {
        assert!(leaf.start(to) >= start && leaf.end(to) <= end, "an entry reaches across the replaced range");
        to += 1;
    }
    to
}

#[inline(always)]
fn edit<const SLOTS: usize>(leaf: &Node<SLOTS>, at: usize, gone: usize, with: &[Entry]) {
    leaf.hold();
    leaf.open(at, gone, with.len());
    fill(leaf, at, with);
    leaf.release();
}

#[inline(always)]
fn fill<const SLOTS: usize>(leaf: &Node<SLOTS>, at: usize, with: &[Entry]) {
    for (index, entry) in with.iter().enumerate() {
        leaf.set(at + index, Slot::of(entry));
    }
}

/// The largest of the gaps in front of the leaf's entries `from..=to`.
#[inline(always)]
fn gaps<const SLOTS: usize>(leaf: &Node<SLOTS>, from: usize, to: usize, lo: u64) -> u64 {
    let mut before = if from == 0 { lo } else { leaf.end(from - 1) };
    let mut max = 0;
    for at in from..=to {
        max = max.max(leaf.start(at) - before);
        before = leaf.end(at);
    }
    max
}

/// In the leaf of `path` gaps of at most `before` became gaps of at most `after`: corrects what its ancestors keep.
#[inline(always)]
fn gap_changed<const SLOTS: usize>(path: &Path<'_, SLOTS>, before: u64, after: u64) {
    let mut below = path.step(0);
    let (mut before, mut after) = (before, after);
    for level in 1..=path.top {
        let step = path.step(level);
        let kept = step.node.datum(step.at);
        let now = if after >= kept {
            after
        } else if before < kept {
            return;
        } else {
            below.node.max_gap(below.lo)
        };
        if now == kept {
            return;
        }
        step.node.set_gap(step.at, now);
        (before, after, below) = (kept, now, step);
    }
}

#[inline]
fn assert_fits(start: u64, end: u64, with: &[Entry]) {
    assert!(start < end && with.len() <= MAX_WITH);
    let mut before = start;
    for entry in with {
        assert!(before <= entry.start && entry.start < entry.end && entry.end <= end, "entries out of order");
        before = entry.end;
    }
}
