//! Inserting entries into a gap, and splitting nodes that have no room for the entries.
//!
//! The exclusive writer uses this file, and so do claim writers that hold the structure lock. All nodes that
//! change are held in [`BusyNodes`] until the change is complete. New nodes come from spare nodes that the
//! caller has allocated (`spare_nodes.rs`), so an insertion cannot fail. `cut.rs` is the opposite.

use freehold_sync::Host;

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::entry::{Entry, MAX_LEVELS, MAX_REPLACEMENT};
use super::node::{Node, Slot};
use super::path::{Path, Step};
use super::spare_nodes::SpareNodes;

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Inserts entries at the end of the path, into a gap that contains all of them. If `with` is empty,
    /// inserts nothing, and splits the leaf if its slots in use and its promised slots together exceed its
    /// capacity. Afterwards the gap in front of the entry that follows is correct, except if the new entries
    /// became the last entries of their leaf; `refresh_gaps` handles that case.
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

    /// Splits the leaf at the end of the path in front of the slot `at`, although the leaf has room. `at` is
    /// not the first slot.
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

    /// Splits full nodes from the leaf upwards, and inserts the entries. If `split` is set and there are no
    /// entries, only splits the leaf.
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
            busy.hold::<H>(parent.node);
            parent.node.set_end(parent.at, node.last_end());
            parent.node.set_gap(parent.at, node.max_gap(lo));
            items[0] = self.slot_of(right, node.last_end());
            (len, at, level) = (1, parent.at + 1, level + 1);
        }
        let node = path.step(level).node;
        busy.hold::<H>(node);
        node.splice(at, 0, &items[..len]);
        for level in level..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            let end = below.node.last_end();
            if above.node.end(above.at) != end {
                busy.hold::<H>(above.node);
                above.node.set_end(above.at, end);
            }
            above.node.set_gap(above.at, below.node.max_gap(below.lo));
        }
    }

    /// Returns the slot for a node that no slot links yet. `lo` is the end of the entry before the node.
    fn slot_of(&self, link: *mut Node<SLOTS>, lo: u64) -> Slot<SLOTS> {
        // SAFETY: the node comes from `SpareNodes::take`, and this change owns it until it is linked.
        let node = unsafe { &*link };
        Slot { end: node.last_end(), link, datum: node.max_gap(lo) }
    }

    /// Adds a level: moves the contents of the root into a new node, which becomes the only child of the
    /// root.
    fn raise_root<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        spares: &SpareNodes<SLOTS>,
        path: &mut Path<'n, SLOTS>,
    ) {
        assert!(path.top + 1 < MAX_LEVELS, "replace without preallocated nodes");
        let root: &'n Node<SLOTS> = &self.root;
        let link = spares.take();
        // SAFETY: the node is a spare node, so it is allocated. The node is linked below the root from here
        // on.
        let node: &'n Node<SLOTS> = unsafe { &*link };
        let count = root.count();
        for at in 0..count {
            node.set(at, root.slot(at));
        }
        node.set_count(count);
        node.set_level(path.top, root);
        busy.hold::<H>(root);
        root.splice(0, count, &[self.slot_of(link, 0)]);
        root.set_level(path.top + 1, root);
        root.set_promised(0);
        let step = path.step(path.top);
        path.set(path.top, Step { node, ..step });
        path.top += 1;
        path.set(path.top, Step { node: root, at: 0, lo: 0 });
    }

    /// Splits a node that has no room for `items` in front of slot `at`, and inserts the items. Returns the
    /// right half, which no slot links yet.
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
        // SAFETY: the node is a spare node, so it is allocated, and only this change can reach it.
        let right = unsafe { &*link };
        right.set_level(node.level(), node);
        for index in cut..count + len {
            right.set(index - cut, with_new(node, at, items, index));
        }
        right.set_count(count + len - cut);
        busy.hold::<H>(node);
        // The slots before `cut` stay on the left. `cut` counts the new slots as inserted.
        let old = if cut <= at { cut } else { cut.saturating_sub(len).max(at) };
        node.splice(old, count - old, &[]);
        node.splice(old.min(at), 0, &items[..cut - old]);
        if node.word().promised() != 0 {
            node.set_promised(node.sum_of_promises());
            right.set_promised(right.sum_of_promises());
        }
        link
    }
}

/// Returns the new entries as slots. The first `with.len()` slots are valid.
#[inline]
fn slots<const SLOTS: usize>(with: &[Entry]) -> [Slot<SLOTS>; MAX_REPLACEMENT] {
    let mut slots = [Slot::EMPTY; MAX_REPLACEMENT];
    for (slot, entry) in slots.iter_mut().zip(with) {
        *slot = Slot::of(entry);
    }
    slots
}

/// Returns the slot of a node at `index`, with the new slots counted as inserted in front of slot `at`.
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

/// The place where a node is split.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SplitPolicy {
    /// Splits so that one half is full: see [`full_half`].
    FullHalf,
    /// Splits so that both halves are used: see [`widest_gap`].
    WidestGap,
    /// Splits a leaf in front of the given slot, and an inner node in the middle.
    AtSlot,
}

/// Returns how many of `count + len` slots stay in the left half when `len` new slots are inserted in front
/// of slot `at`.
///
/// Mappings are mostly added downwards: each new mapping lies below the previous mapping. So the cut is made
/// just behind the new slots. The next insertions then do not touch the right half, so the right half is left
/// as full as possible. If the new slots are inserted at the very end, the cut is made in front of them, for
/// the same reason. At either end of the node, one old slot stays with the new slots: a leaf with only the
/// new entries would be unlinked when these entries are removed, and a leaf would be created again for the
/// next new entries.
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

/// Returns the cut for claim writers. Both halves get at least a quarter of the slots. A leaf with one entry
/// would be unlinked together with this entry, and the next entry in its place would split the other half
/// again. Both changes need the structure lock. Among the remaining cuts of a leaf, the widest gap is chosen.
/// Writers that map on the two sides of that gap no longer conflict.
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

/// Returns the cut nearest to `wanted` at which each half has a weight of at most `most`. An entry with
/// promised slots counts for more than one slot.
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
    nearest.expect("two nodes hold a full node and the additions of one change")
}
