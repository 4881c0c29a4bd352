//! What is claimed is changed: other entries come in place of those that a [`SharedWriter`] has.
#![expect(unsafe_code, reason = "unlinks nodes with the structure lock")]

use freehold_sync::{Host, Rank};

use super::Entry;
use super::claim::{MOST, Mark, with_room};
use super::hold::Held;
use super::node::{Node, Slot};
use super::shared::SharedWriter;
use super::write::{Path, Step, assert_fits};

impl<'a, H: Host, const SLOTS: usize> SharedWriter<'a, H, SLOTS> {
    /// Puts `with` in place of what is in `[start, end)`, as one step for readers. All of that is claimed by
    /// this writer, `with` covers the same addresses, and there are no more entries than before, but for
    /// those that the claim said would come.
    ///
    /// # Panics
    ///
    /// If it is not so.
    pub fn exchange(&self, start: u64, end: u64, with: &[Entry]) {
        assert_fits(start, end, with);
        let covered: u64 = with.iter().map(|entry| entry.end - entry.start).sum();
        assert!(covered == end - start, "what comes leaves a hole");
        if !self.exchange_in_leaf(start, end, with) {
            self.exchange_across(start, end, with);
        }
    }

    #[inline(always)]
    fn exchange_in_leaf(&self, start: u64, end: u64, with: &[Entry]) -> bool {
        let rcu = H::rcu_read();
        let latched = self.map.latch(&rcu, start);
        let way = &latched.way;
        if !way.covers(end) {
            return false;
        }
        let mut part = Part::of(way.leaf, way.at, start, end);
        latched.changed();
        if part.room < with.len() {
            part.room += self.take_room(way.leaf, start, end, with.len() - part.room);
        }
        assert!(part.room >= with.len(), "more entries than room was promised for");
        self.put_part(way.leaf, way.at, &part, with);
        true
    }

    /// Takes up to `need` slots that are promised to other entries of this writer in a held leaf. Returns how
    /// many.
    #[inline(never)]
    fn take_room(&self, leaf: &Node<SLOTS>, start: u64, end: u64, need: usize) -> usize {
        let (from, to) = self.span.get();
        let mut taken = 0;
        for at in 0..leaf.count() {
            let inside = leaf.start(at) >= start && leaf.end(at) <= end;
            let mark = Mark::of(leaf.datum(at));
            if !inside && mark.is_claimed() && leaf.start(at) >= from && leaf.end(at) <= to {
                let more = mark.room().min(need - taken);
                leaf.set_value(at, with_room(leaf.datum(at), mark.room() - more));
                taken += more;
            }
        }
        taken
    }

    /// Puts `with` in place of a part of a leaf, and promises what room is left to the first that is claimed.
    #[inline(always)]
    fn put_part(&self, leaf: &Node<SLOTS>, at: usize, part: &Part, with: &[Entry]) {
        if part.wanted {
            self.wanted.set(true);
        }
        let mut left = part.room - with.len();
        leaf.open(at, part.gone, with.len());
        for (index, entry) in with.iter().enumerate() {
            let mut slot = Slot::of(entry);
            if left > 0 && Mark::of(slot.datum).is_claimed() {
                slot.datum = with_room(slot.datum, left);
                left = 0;
            }
            leaf.set(at + index, slot);
        }
    }

    /// From the last leaf to the first: so the ends that lead to those that are still to be changed are as
    /// they were.
    #[cold]
    #[inline(never)]
    fn exchange_across(&self, start: u64, end: u64, mut with: &[Entry]) {
        let map = self.map;
        let structure = map.structure.lock::<H>(Rank::Leaf);
        let mut held = Held::new();
        // All leaves are latched first, and the one behind them: what follows is one step.
        let mut keys = [0; 2 * MOST];
        let (mut leaves, mut room, mut key) = (0, 0, start);
        while key < end {
            let Step { node, at, .. } = map.path_to(&mut held, key).step(0);
            room += Part::of(node, at, start, end).room;
            keys[leaves] = key;
            (leaves, key) = (leaves + 1, node.last_end());
        }
        let mut more = with.len().saturating_sub(room);
        let _ = map.path_to(&mut held, key);
        map.finger.forget();
        for &key in keys[..leaves].iter().rev() {
            let path = map.path_to(&mut held, key);
            // Addresses move from one leaf to another: a reader on the way to either starts again.
            (1..=path.top).for_each(|level| held.hold::<H>(path.step(level).node));
            let Step { node, at, .. } = path.step(0);
            let mut part = Part::of(node, at, start, end);
            if more > 0 {
                let taken = self.take_room(node, start, end, more);
                (part.room, more) = (part.room + taken, more - taken);
            }
            let (rest, here) = with.split_at(with.len() - part.room.min(with.len()));
            self.put_part(node, at, &part, here);
            self.settle(&mut held, path);
            with = rest;
        }
        assert!(with.is_empty(), "more entries than room was promised for");
        // The gap in front of the range may belong to another leaf now.
        let mut key = start;
        while key < end {
            let path = map.path_to(&mut held, key);
            map.fit_gaps(&path);
            key = path.step(0).node.last_end();
        }
        let dead = held.release();
        drop(structure);
        dead.retire::<H>();
    }

    /// Brings the ends that are kept above a leaf into line with it; an empty leaf goes. Gaps are the
    /// caller's.
    pub(super) fn settle<'n>(&'n self, held: &mut Held<'n, SLOTS>, path: Path<'n, SLOTS>) {
        let mut level = 0;
        while level < path.top && path.step(level).node.count() == 0 {
            let Step { node, at, .. } = path.step(level + 1);
            held.hold::<H>(node);
            let link = node.child(at);
            node.splice(at, 1, &[]);
            // SAFETY: the slot is gone; the node is held, and empty.
            unsafe { held.bury(link) };
            level += 1;
        }
        if path.step(level).node.count() > 0 {
            self.map.fit_ends(held, &path, level);
        }
        self.map.lower_root(held);
    }
}

/// The entries of one leaf that an exchange replaces.
struct Part {
    gone: usize,
    /// Slots that they have, and have been promised.
    room: usize,
    wanted: bool,
}

impl Part {
    #[inline(always)]
    fn of<const SLOTS: usize>(leaf: &Node<SLOTS>, from: usize, start: u64, end: u64) -> Self {
        let mut part = Part { gone: 0, room: 0, wanted: false };
        let mut at = from;
        while at < leaf.count() && leaf.start(at) < end {
            let mark = Mark::of(leaf.datum(at));
            let inside = leaf.start(at) >= start && leaf.end(at) <= end;
            assert!(inside && mark.is_claimed(), "what is not claimed is not exchanged");
            part.gone += 1;
            part.room += 1 + mark.room();
            part.wanted |= mark.is_wanted();
            at += 1;
        }
        part
    }
}
