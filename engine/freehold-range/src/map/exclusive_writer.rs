//! The exclusive writer, and the common case of a change inside one leaf.
//!
//! The exclusive writer excludes all other writers, but not lookups under RCU. It therefore holds each node
//! that it changes (`busy_nodes.rs`). A change that fits into one leaf is made here; any other change is a
//! cut (`cut.rs`), then an insertion (`insert.rs`). `claim_writer.rs` has the other kind of writer. A change
//! makes all checks, which may panic, before its first edit. After the first edit, nothing fails.
//! `tests/map.rs` compares the writer with a naive map, `tests/refused.rs` tests the checks, and
//! `tests/loom_map.rs` tests changes during lookups.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Deref;

use allocator_api2::alloc::AllocError;
use freehold_sync::Host;

use super::busy_nodes::BusyNodes;
use super::entry::{Entry, FANOUT, MAX_LEVELS, assert_fits, leave_no_gap};
use super::fanout::Fanout;
use super::insert::SplitPolicy;
use super::node::{Node, Slot};
use super::path::{Path, Step};
use super::read::Reader;
use super::{RangeMap, spare_nodes};

/// The right of the exclusive writer to change a map. See [`RangeMap::exclusive_writer`]. Dereferences to a
/// [`Reader`].
///
/// # Invariants
///
/// While the writer exists, no other writer of the map exists, and no reader except the one inside the
/// writer.
///
/// Only one thread at a time may use the writer's lookups, because every lookup moves the finger. So the type
/// is not `Sync`:
///
/// ```compile_fail,E0277
/// use freehold_range::ExclusiveWriter;
/// use freehold_sync::Host;
///
/// fn shared(_: impl Sync) {}
///
/// fn two_threads<H: Host>(writer: ExclusiveWriter<'_, H>) {
///     shared(writer);
/// }
/// ```
pub struct ExclusiveWriter<'a, H: Host, const SLOTS: usize = FANOUT> {
    reader: Reader<'a, H, SLOTS>,
    /// Makes the type not `Sync`; see the invariants.
    alone: PhantomData<Cell<()>>,
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Returns the right to change the map.
    ///
    /// # Safety
    ///
    /// Until the writer is dropped, no other [`ExclusiveWriter`], no [`ClaimWriter`](crate::ClaimWriter) and
    /// no [`Reader`] of this map may exist. The creation of the next writer or reader must synchronise with
    /// the end of this writer (as a lock does).
    #[inline]
    pub unsafe fn exclusive_writer(&self) -> ExclusiveWriter<'_, H, SLOTS> {
        ExclusiveWriter::new(self)
    }
}

impl<'a, H: Host, const SLOTS: usize> Deref for ExclusiveWriter<'a, H, SLOTS> {
    type Target = Reader<'a, H, SLOTS>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl<'a, H: Host, const SLOTS: usize> ExclusiveWriter<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>) -> Self {
        map.finger.ensure_root(&map.root);
        Self { reader: Reader::new(map), alone: PhantomData }
    }

    #[inline]
    pub(super) fn fan(&self) -> Fanout {
        self.map.fan
    }

    // Lookups that begin at the finger and return the same results as those of `Reader`.

    /// Returns the entry that contains `key`, like [`Reader::find`].
    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// Returns the first entry whose end lies above `key`, like [`Reader::next`].
    #[inline(always)]
    pub fn next(&self, key: u64) -> Option<Entry> {
        let (leaf, at) = self.finger_search(key);
        if at < leaf.count() { leaf.slot(at).entry() } else { None }
    }

    /// Returns the last entry whose end does not lie above `key`, like [`Reader::prev`].
    #[inline]
    pub fn prev(&self, key: u64) -> Option<Entry> {
        let (leaf, at) = self.finger_search(key);
        if at > 0 { leaf.slot(at - 1).entry() } else { self.reader.prev(key) }
    }

    /// Returns the results of [`prev`](Self::prev) for `start` and [`next`](Self::next) for `end`: the
    /// neighbours of the range. `end` is not below `start`.
    #[inline(always)]
    pub fn around(&self, start: u64, end: u64) -> (Option<Entry>, Option<Entry>) {
        let (leaf, at) = self.finger_search(start);
        let count = leaf.count();
        let prev = if at > 0 { leaf.slot(at - 1).entry() } else { self.reader.prev(start) };
        let mut behind = at;
        while behind < count && leaf.end(behind) <= end {
            behind += 1;
        }
        let next = if behind < count { leaf.slot(behind).entry() } else { self.reader.next(end) };
        (prev, next)
    }

    /// Makes sure that the next `replaces` calls of [`ExclusiveWriter::replace`] cannot fail. Usually there
    /// are enough spare nodes already, and the call is one comparison. Nodes that are not used stay for later
    /// calls.
    ///
    /// # Errors
    ///
    /// Fails if the host is out of memory. The map is unchanged then.
    #[inline(always)]
    pub fn preallocate(&mut self, replaces: usize) -> Result<(), AllocError> {
        // A change splits at most every node from a leaf to the root. If it splits the root, it creates two
        // nodes, and the tree grows by a level. The first change may already split the root. The new root has
        // two slots, and each change adds at most one slot to it. So the tree can grow again only after n - 1
        // changes, where n is the number of slots of a full node.
        let levels = self.map.root.level() + 1;
        let grown = levels.saturating_add(1 + replaces / (self.fan().max_slots() - 1));
        let need =
            replaces.saturating_sub(1).saturating_mul(grown.saturating_add(1)).saturating_add(levels + 1);
        if grown <= MAX_LEVELS && self.map.spares.count() >= need {
            return Ok(());
        }
        self.refill_spares(grown, need)
    }

    /// Allocates until there are `need` spare nodes. `grown` is the number of levels that the tree may have
    /// after the changes.
    #[cold]
    fn refill_spares(&mut self, grown: usize, need: usize) -> Result<(), AllocError> {
        if grown > MAX_LEVELS {
            return Err(AllocError);
        }
        self.map.spares.fill(need)
    }

    /// Frees the unused nodes of [`ExclusiveWriter::preallocate`].
    pub fn trim(&mut self) {
        self.map.spares.free_all();
    }

    /// Replaces everything inside `[start, end)` by the entries `with` in one step: a lookup of any address
    /// sees the old state or the new state. `with` has at most [`MAX_REPLACEMENT`](crate::MAX_REPLACEMENT)
    /// entries, ascending and inside the range.
    ///
    /// Needs preallocated nodes, see [`ExclusiveWriter::preallocate`]. The cost grows with the depth of the
    /// tree and with the number of leaves (not entries) inside the range.
    ///
    /// # Panics
    ///
    /// Panics if an entry of the map reaches across `start` or `end`, if `with` is not as described, or if
    /// nodes may be needed and are not preallocated. The map is unchanged then.
    pub fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        assert_fits(start, end, with);
        if !self.replace_in_leaf(start, end, with) {
            self.replace_across(start, end, with);
        }
    }

    /// Removes every entry.
    pub fn clear(&mut self) {
        let map = self.map;
        map.finger.forget();
        let root = &map.root;
        let count = root.count();
        let leaf = root.word().is_leaf();
        let children: [*mut Node<SLOTS>; SLOTS] = core::array::from_fn(|at| root.child(at));
        root.hold();
        root.splice(0, count, &[]);
        root.set_level(0, root);
        root.release();
        if !leaf {
            for child in &children[..count] {
                // SAFETY: the slots in use linked these nodes, and the root is empty now.
                unsafe { spare_nodes::retire::<H, SLOTS>(*child) };
            }
        }
    }

    /// Returns the leaf and the slot of the first entry whose end lies above `key`. If there is none, returns
    /// the last leaf and the slot behind its last entry. The finger points there afterwards.
    #[inline(always)]
    fn finger_search<'n>(&self, key: u64) -> (&'n Node<SLOTS>, usize)
    where
        'a: 'n,
    {
        // SAFETY: only this writer unlinks nodes, after it has made the finger forget them.
        let Some(leaf) = (unsafe { self.map.finger.leaf() }) else { return self.root_search(key) };
        // The key is often at the place of the last search, or next to it.
        let at = match leaf.node.search_near(leaf.at, key, leaf.lo) {
            Some(at) => at,
            // The finger never points beyond the last entry.
            None if key < leaf.lo || key >= leaf.node.last_end() => return self.root_search(key),
            None => leaf.node.search(key),
        };
        self.map.finger.set_at(at);
        (leaf.node, at)
    }

    /// Does what [`finger_search`](Self::finger_search) does, starting at the root.
    fn root_search<'n>(&self, key: u64) -> (&'n Node<SLOTS>, usize)
    where
        'a: 'n,
    {
        let mut node: &'n Node<SLOTS> = &self.map.root;
        let mut lo = 0;
        let mut level = node.level();
        loop {
            let count = node.count();
            let found = node.search(key);
            let at = if level > 0 { found.min(count - 1) } else { found.min(count) };
            self.map.finger.set(level, Step { node, at, lo });
            if level == 0 {
                return (node, at);
            }
            if at > 0 {
                lo = node.end(at - 1);
            }
            node = self.node_at(node, at);
            level -= 1;
        }
    }

    /// Returns one step of the finger's path, which [`finger_search`](Self::finger_search) has just followed.
    /// `level` is at most the root's level.
    #[inline]
    fn step<'n>(&self, level: usize) -> Step<'n, SLOTS>
    where
        'a: 'n,
    {
        // SAFETY: `root_search` has set all levels up to that of the root. Only this writer unlinks nodes,
        // after it has made the finger forget them.
        unsafe { self.map.finger.step(level) }
    }

    /// Returns the path to the first entry whose end lies above `key`, for a change.
    pub(super) fn path<'n>(&self, key: u64) -> Path<'n, SLOTS>
    where
        'a: 'n,
    {
        self.finger_search(key);
        let mut path = Path::new(self.map.root.level());
        for level in 0..=path.top {
            path.set(level, self.step(level));
        }
        path
    }

    /// Returns the child in slot `at`, like [`Reader::child`], for as long as the map is borrowed.
    #[inline]
    pub(super) fn node_at<'n>(&self, node: &'n Node<SLOTS>, at: usize) -> &'n Node<SLOTS>
    where
        'a: 'n,
    {
        debug_assert!(!node.word().is_leaf() && at < node.count());
        // SAFETY: a slot in use links a node of this map. Only this writer unlinks nodes, and it does not
        // access a node after retiring it. So no reference made here is used after its node is retired.
        unsafe { &*node.child(at) }
    }

    /// Handles the common case: the range lies inside one leaf, which has enough slots and stays linked.
    /// Returns false in any other case.
    #[inline]
    fn replace_in_leaf(&self, start: u64, end: u64, with: &[Entry]) -> bool {
        let (leaf, from) = self.finger_search(start);
        let is_root = self.map.root.level() == 0;
        let count = leaf.count();
        let last = if count == 0 { 0 } else { leaf.end(count - 1) };
        if end > last && !self.is_last() {
            return false;
        }
        let to = range_end(leaf, from, start, end);
        let gone = to - from;
        let now = count - gone + with.len();
        let fan = self.fan();
        if now > fan.max_slots() || (now < count && now < fan.sparse() && !is_root && self.would_merge(now)) {
            return false;
        }
        if is_root {
            replace_slots(leaf, from, gone, with);
        } else if to < count || with.last().is_some_and(|entry| entry.end == last) {
            replace_slots(leaf, from, gone, with);
            // No gap grows if the change only adds entries, or if the new entries fill the whole range.
            if gone > 0 && !leave_no_gap(start, end, with) {
                self.raise_gaps(largest_gap(leaf, from, (from + with.len()).min(now - 1), self.step(0).lo));
            }
        } else {
            self.replace_at_end(self.step(0), gone, with);
            self.refresh_gaps(end);
        }
        true
    }

    /// Returns true if the leaf that the finger points to would be unlinked or merged if this number of
    /// entries remained in it. A leaf is not merged if neither neighbour has room for its entries. Such a
    /// leaf stays sparse, with room for new entries.
    #[cold]
    fn would_merge(&self, now: usize) -> bool {
        let Step { node, at, .. } = self.step(1);
        let has_room =
            |at: usize| at < node.count() && self.node_at(node, at).count() + now <= self.fan().max_merged();
        now == 0 || has_room(at + 1) || at > 0 && has_room(at - 1)
    }

    /// Returns true if the finger points to the last leaf.
    fn is_last(&self) -> bool {
        (1..=self.map.root.level()).map(|level| self.step(level)).all(|step| step.at + 1 == step.node.count())
    }

    /// Replaces slots at the end of the leaf, so that the end of the leaf changes. The ends that its
    /// ancestors store also change. The gap of the next leaf also changes; `refresh_gaps` updates it.
    #[inline(never)]
    fn replace_at_end(&self, leaf: Step<'_, SLOTS>, gone: usize, with: &[Entry]) {
        let root = self.map.root.level();
        let mut top = 1;
        while top < root && self.step(top).at + 1 == self.step(top).node.count() {
            top += 1;
        }
        for level in 0..=top {
            self.step(level).node.hold();
        }
        leaf.node.open(leaf.at, gone, with.len());
        set_slots(leaf.node, leaf.at, with);
        let end = leaf.node.last_end();
        for level in 1..=top {
            self.step(level).node.set_end(self.step(level).at, end);
        }
        for level in 0..=top {
            self.step(level).node.release();
        }
        let mut below = leaf;
        for level in 1..=root {
            let step = self.step(level);
            step.node.set_gap(step.at, below.node.max_gap(below.lo));
            below = step;
        }
    }

    /// Raises the gap words on the path to the leaf that the finger points to, because this leaf has a gap of
    /// `now` bytes. Gap words that are too large do no harm; see [`gap`](super::gap).
    #[inline]
    fn raise_gaps(&self, now: u64) {
        for level in 1..=self.map.root.level() {
            let step = self.step(level);
            if now <= step.node.datum(step.at) {
                return;
            }
            step.node.set_gap(step.at, now);
        }
    }

    /// Handles the general case: cuts out the range, and inserts the new entries into the gap. Readers see
    /// both as one step.
    #[cold]
    #[inline(never)]
    fn replace_across(&mut self, start: u64, end: u64, with: &[Entry]) {
        let cuts = self.assert_none_across(start, end);
        self.assert_spares(with, cuts);
        // No call below may panic. A reader under the lock ignores BUSY, so it would read a half-done change.
        let mut busy = BusyNodes::new();
        if cuts {
            self.cut(&mut busy, start, end);
        }
        // Nodes are linked and unlinked from here on.
        self.map.finger.forget();
        if !with.is_empty() {
            let path = self.path(with[0].start);
            self.map.insert(&mut busy, &self.map.spares, path, with, SplitPolicy::FullHalf);
        }
        self.map.finger.forget();
        self.refresh_gaps(end);
        busy.finish::<H>();
    }

    /// Asserts that no entry reaches across `start` or `end`. Returns true if an entry lies between them.
    fn assert_none_across(&self, start: u64, end: u64) -> bool {
        let inside = |entry: &Entry| entry.start >= start && entry.end <= end;
        let first = self.next(start).filter(|entry| entry.start < end);
        let last = self.next(end).filter(|entry| entry.start < end);
        assert!(first.iter().chain(&last).all(inside), "an entry reaches across the replaced range");
        first.is_some()
    }

    /// Asserts that there are enough spare nodes to insert `with`. `cuts` is true if other entries are cut
    /// out before the insertion.
    fn assert_spares(&self, with: &[Entry], cuts: bool) {
        let top = self.map.root.level();
        let need = match with {
            [] => 0,
            // A cut may leave full nodes behind, and may merge other nodes until they are full, so every node
            // on the path may need a split.
            _ if cuts => top + 2,
            [first, ..] => self.nodes_for_insert(first.start, with.len()),
        };
        assert!(self.map.spares.count() >= need, "replace without preallocated nodes");
        assert!(need < top + 2 || top + 1 < MAX_LEVELS, "replace without preallocated nodes");
    }

    /// Returns the number of nodes needed to insert `len` entries at `key`: one for each node that is split
    /// on the way up, and one more if the root is split.
    fn nodes_for_insert(&self, key: u64, mut len: usize) -> usize {
        let path = self.path(key);
        for level in 0..=path.top {
            if path.step(level).node.count() + len <= self.fan().max_slots() {
                return level;
            }
            len = 1;
        }
        path.top + 2
    }

    /// Recomputes the gap words on the path to the first entry whose end lies above `key`. A change moves no
    /// gap outside its range except the gap in front of this entry.
    fn refresh_gaps(&self, key: u64) {
        self.finger_search(key);
        let mut below = self.step(0);
        for level in 1..=self.map.root.level() {
            let step = self.step(level);
            step.node.set_gap(step.at, below.node.max_gap(below.lo));
            below = step;
        }
    }
}

/// Returns the first slot of a leaf at or behind `from` whose entry starts at or behind `end`. The entries
/// from `from` up to that slot lie inside the range.
///
/// # Panics
///
/// Panics if an entry reaches across `start` or `end`, which breaks the contract of `replace`.
#[inline]
pub(super) fn range_end<const SLOTS: usize>(leaf: &Node<SLOTS>, from: usize, start: u64, end: u64) -> usize {
    let count = leaf.count();
    let mut to = from;
    while to < count {
        let first = leaf.start(to);
        if first >= end {
            break;
        }
        assert!(first >= start && leaf.end(to) <= end, "an entry reaches across the replaced range");
        to += 1;
    }
    to
}

/// Replaces `gone` entries at slot `at` of a leaf by `with`, while the leaf is held.
#[inline(always)]
fn replace_slots<const SLOTS: usize>(leaf: &Node<SLOTS>, at: usize, gone: usize, with: &[Entry]) {
    leaf.hold();
    leaf.open(at, gone, with.len());
    set_slots(leaf, at, with);
    leaf.release();
}

/// Stores entries into consecutive slots of a held leaf.
#[inline]
fn set_slots<const SLOTS: usize>(leaf: &Node<SLOTS>, at: usize, with: &[Entry]) {
    for (index, entry) in with.iter().enumerate() {
        leaf.set(at + index, Slot::of(entry));
    }
}

/// Returns the largest of the gaps in front of the leaf's entries `from..=to`.
#[inline]
fn largest_gap<const SLOTS: usize>(leaf: &Node<SLOTS>, from: usize, to: usize, lo: u64) -> u64 {
    let mut before = if from == 0 { lo } else { leaf.end(from - 1) };
    let mut max = 0;
    for at in from..=to {
        max = max.max(leaf.start(at) - before);
        before = leaf.end(at);
    }
    max
}
