//! Putting entries into a gap, with the splits this takes.

use freehold_sync::Host;

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::entry::{Entry, MAX_LEVELS, MAX_REPLACEMENT};
use super::node::{Node, Slot};
use super::path::{Path, Step};
use super::spare_nodes::SpareNodes;

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Inserts entries where the path leads, into the gap that holds them all; without any it splits a leaf
    /// that has promised more room than it has. The gap in front of the entry that follows is right
    /// afterwards unless they became the last of their leaf: that is left to `refresh_gaps`.
    pub(super) fn insert<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        path: Path<'n, SLOTS>,
        with: &[Entry],
        policy: SplitPolicy,
    ) {
        self.insert_or_split(busy, spares, path, with, false, policy);
    }

    /// Splits the leaf that the path leads to, although it has room, in front of a slot that is not its
    /// first.
    pub(super) fn split_leaf<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        mut path: Path<'n, SLOTS>,
        (at, policy): (usize, SplitPolicy),
    ) {
        path.set(0, Step { at, ..path.step(0) });
        self.insert_or_split(busy, spares, path, &[], true, policy);
    }

    #[inline(always)]
    fn insert_or_split<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        mut path: Path<'n, SLOTS>,
        with: &[Entry],
        split: bool,
        policy: SplitPolicy,
    ) {
        let mut items = slots(with);
        let mut len = with.len();
        let mut at = path.step(0).at;
        let mut level = 0;
        while split && level == 0 || path.step(level).node.weight() + len > self.fan.max_slots() {
            if level == path.top {
                self.raise_root(busy, spares, &mut path);
            }
            let Step { node, lo, .. } = path.step(level);
            let right = self.split_node(busy, spares, node, at, &items[..len], policy);
            let parent = path.step(level + 1);
            busy.latch::<H>(parent.node);
            parent.node.set_end(parent.at, node.last_end());
            parent.node.set_gap(parent.at, node.max_gap(lo));
            items[0] = self.slot_of(right, node.last_end());
            (len, at, level) = (1, parent.at + 1, level + 1);
        }
        let node = path.step(level).node;
        busy.latch::<H>(node);
        node.splice(at, 0, &items[..len]);
        for level in level..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            let end = below.node.last_end();
            if above.node.end(above.at) != end {
                busy.latch::<H>(above.node);
                above.node.set_end(above.at, end);
            }
            above.node.set_gap(above.at, below.node.max_gap(below.lo));
        }
    }

    /// The slot that links a node that no slot links yet; `lo` is the end of the entry before it.
    fn slot_of(&self, link: *mut Node<SLOTS>, lo: u64) -> Slot<SLOTS> {
        // SAFETY: from `SpareNodes::take`; owned by this change until it is linked.
        let node = unsafe { &*link };
        Slot { end: node.last_end(), link, datum: node.max_gap(lo) }
    }

    /// Adds a level: what the root holds moves into a new node, which becomes its only child.
    fn raise_root<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        path: &mut Path<'n, SLOTS>,
    ) {
        assert!(path.top + 1 < MAX_LEVELS, "replace without preallocated nodes");
        let root: &'n Node<SLOTS> = &self.root;
        let link = spares.take();
        // SAFETY: a spare node, hence allocated, and linked below the root from here on.
        let node: &'n Node<SLOTS> = unsafe { &*link };
        let count = root.count();
        for at in 0..count {
            node.set(at, root.slot(at));
        }
        node.set_count(count);
        node.set_level(path.top, root);
        busy.latch::<H>(root);
        root.splice(0, count, &[self.slot_of(link, 0)]);
        root.set_level(path.top + 1, root);
        root.set_promised(false);
        let step = path.step(path.top);
        path.set(path.top, Step { node, ..step });
        path.top += 1;
        path.set(path.top, Step { node: root, at: 0, lo: 0 });
    }

    /// Splits a node that has no room for `items` in front of slot `at`, puts them in, and returns the right
    /// half, which no slot links yet.
    fn split_node<'n>(
        &self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        node: &'n Node<SLOTS>,
        at: usize,
        items: &[Slot<SLOTS>],
        policy: SplitPolicy,
    ) -> *mut Node<SLOTS> {
        let (count, len) = (node.count(), items.len());
        let cut = match policy {
            SplitPolicy::FullHalf => full_half(count, at, len, self.fan.max_slots()),
            SplitPolicy::WidestGap => widest_gap(node, at, items, self.fan.max_slots()),
            SplitPolicy::AtSlot if node.word().is_leaf() => at,
            SplitPolicy::AtSlot => node.count() / 2,
        };
        let cut = nearest_that_fits(node, at, len, cut, self.fan.max_slots());
        let link = spares.take();
        // SAFETY: a spare node, hence allocated and nobody else's.
        let right = unsafe { &*link };
        right.set_level(node.level(), node);
        for index in cut..count + len {
            right.set(index - cut, with_new(node, at, items, index));
        }
        right.set_count(count + len - cut);
        busy.latch::<H>(node);
        // What stays on the left: slots in front of `cut`, counted with the new ones in place.
        let old = if cut <= at { cut } else { cut.saturating_sub(len).max(at) };
        node.splice(old, count - old, &[]);
        node.splice(old.min(at), 0, &items[..cut - old]);
        link
    }
}

/// The new entries as slots; the first `with.len()` count.
#[inline]
fn slots<const SLOTS: usize>(with: &[Entry]) -> [Slot<SLOTS>; MAX_REPLACEMENT] {
    let mut slots = [Slot::EMPTY; MAX_REPLACEMENT];
    for (slot, entry) in slots.iter_mut().zip(with) {
        *slot = Slot::of(entry);
    }
    slots
}

/// The slot of a node at `index`, counted with the new ones in front of slot `at`.
#[inline]
fn with_new<const SLOTS: usize>(
    node: &Node<SLOTS>,
    at: usize,
    items: &[Slot<SLOTS>],
    index: usize,
) -> Slot<SLOTS> {
    match index {
        _ if index < at => node.slot(index),
        _ if index < at + items.len() => items[index - at],
        _ => node.slot(index - items.len()),
    }
}

/// Where a node is split.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SplitPolicy {
    /// So that one half is full: [`full_half`].
    FullHalf,
    /// So that both are used: [`widest_gap`].
    WidestGap,
    /// A leaf in front of the slot.
    AtSlot,
}

/// How many of `count + len` slots stay in the left half when `len` new ones come in front of slot `at`.
///
/// Mappings are mostly added downwards, each in front of the one before. So the cut is made just behind the
/// new ones: the right half is not touched again by such a run, and is left as full as possible. At the very
/// end it is made in front of them, for the same reason. One old slot goes with them all the same: a leaf
/// that they have for themselves would go with them, and come again with the next ones.
fn full_half(count: usize, at: usize, len: usize, most: usize) -> usize {
    let total = count + len;
    let quarter = (most / 4).min(total / 2);
    let cut = if at == 0 {
        len + 1
    } else if at == count {
        count - 1
    } else {
        (at + len).clamp(quarter, total - quarter)
    };
    cut.clamp(total.saturating_sub(most).max(1), most.min(total - 1))
}

/// The same for writers beside each other. A leaf with one entry would go with that, and the next entry there
/// would split the full one again, each time with the structure lock: so both halves have a quarter. Of the
/// cuts that are left it is the one at the widest gap of a leaf: those who map on either side of it meet no
/// more.
fn widest_gap<const SLOTS: usize>(
    node: &Node<SLOTS>,
    at: usize,
    items: &[Slot<SLOTS>],
    most: usize,
) -> usize {
    let total = node.count() + items.len();
    let slot = |index| with_new(node, at, items, index);
    let quarter = (most / 4).min(total / 2).max(1).max(total.saturating_sub(most));
    let middle = total / 2;
    if !node.word().is_leaf() {
        return middle;
    }
    let gap = |cut: &usize| slot(*cut).link.addr() as u64 - slot(*cut - 1).end;
    let widest = (quarter..=total - quarter).max_by_key(|cut| (gap(cut), usize::MAX - cut.abs_diff(middle)));
    widest.unwrap_or(middle)
}

/// The cut nearest to the one wanted that leaves neither half with more than it has room for: entries count
/// for more than one slot where room is promised.
fn nearest_that_fits<const SLOTS: usize>(
    node: &Node<SLOTS>,
    at: usize,
    len: usize,
    wanted: usize,
    most: usize,
) -> usize {
    let total = node.count() + len;
    let weight = |index: usize| match index {
        _ if index < at => node.weight_of(index),
        _ if index < at + len => 1,
        _ => node.weight_of(index - len),
    };
    let fits = |cut: &usize| {
        (0..*cut).map(weight).sum::<usize>() <= most && (*cut..total).map(weight).sum::<usize>() <= most
    };
    let nearest = (1..total).filter(fits).min_by_key(|cut| cut.abs_diff(wanted));
    nearest.expect("two nodes have room for a full one and what a change adds")
}
