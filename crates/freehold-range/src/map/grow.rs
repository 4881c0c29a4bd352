//! Putting entries into a gap, with the splits this takes.

use freehold_sync::Host;

use super::hold::Held;
use super::node::{Node, Slot};
use super::write::{Path, Step, Writer, slots};
use super::{Entry, MAX_LEVELS};

impl<'a, H: Host, const SLOTS: usize> Writer<'a, H, SLOTS> {
    /// Inserts entries into the gap that holds them all. The gap in front of the entry that follows is right
    /// afterwards unless they became the last of their leaf: that is left to `refresh_gaps`.
    pub(super) fn put<'n>(&self, held: &mut Held<'n, SLOTS>, with: &[Entry])
    where
        'a: 'n,
    {
        let mut path = self.path(with[0].start);
        let mut items = slots(with);
        let mut len = with.len();
        let mut at = path.step(0).at;
        let mut level = 0;
        while path.step(level).node.count() + len > SLOTS {
            if level == path.top {
                self.raise(held, &mut path);
            }
            let Step { node, lo, .. } = path.step(level);
            let right = self.split(held, node, at, &items[..len]);
            let parent = path.step(level + 1);
            held.hold(parent.node);
            parent.node.set_end(parent.at, node.last_end());
            parent.node.set_gap(parent.at, node.max_gap(lo));
            items[0] = self.slot_of(right, node.last_end());
            (len, at, level) = (1, parent.at + 1, level + 1);
        }
        let node = path.step(level).node;
        held.hold(node);
        node.splice(at, 0, &items[..len]);
        for level in level..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            let end = below.node.last_end();
            if above.node.end(above.at) != end {
                held.hold(above.node);
                above.node.set_end(above.at, end);
            }
            above.node.set_gap(above.at, below.node.max_gap(below.lo));
        }
    }

    /// The slot that links a node that no slot links yet; `lo` is the end of the entry before it.
    fn slot_of(&self, link: *mut Node<SLOTS>, lo: u64) -> Slot<SLOTS> {
        // SAFETY: from `Spares::take`; owned by this change until it is linked.
        let node = unsafe { &*link };
        Slot { end: node.last_end(), link, datum: node.max_gap(lo) }
    }

    /// Adds a level: what the root holds moves into a new node, which becomes its only child.
    fn raise<'n>(&self, held: &mut Held<'n, SLOTS>, path: &mut Path<'n, SLOTS>)
    where
        'a: 'n,
    {
        assert!(path.top + 1 < MAX_LEVELS, "replace without a reservation");
        let root: &'n Node<SLOTS> = &self.map.root;
        let link = self.map.spares.take();
        // SAFETY: taken from the store, hence allocated, and linked below the root from here on.
        let node: &'n Node<SLOTS> = unsafe { &*link };
        let count = root.count();
        for at in 0..count {
            node.set(at, root.slot(at));
        }
        node.set_count(count);
        node.set_level(path.top);
        held.hold(root);
        root.splice(0, count, &[self.slot_of(link, 0)]);
        root.set_level(path.top + 1);
        let step = path.step(path.top);
        path.set(path.top, Step { node, ..step });
        path.top += 1;
        path.set(path.top, Step { node: root, at: 0, lo: 0 });
    }

    /// Splits a node that has no room for `items` in front of slot `at`, puts them in, and returns the right
    /// half, which no slot links yet.
    fn split<'n>(
        &self,
        held: &mut Held<'n, SLOTS>,
        node: &'n Node<SLOTS>,
        at: usize,
        items: &[Slot<SLOTS>],
    ) -> *mut Node<SLOTS>
    where
        'a: 'n,
    {
        let (count, len) = (node.count(), items.len());
        let cut = cut_at::<SLOTS>(count, at, len);
        let link = self.map.spares.take();
        // SAFETY: taken from the store, hence allocated and nobody else's.
        let right = unsafe { &*link };
        right.set_level(node.level());
        for index in cut..count + len {
            let slot = match index {
                _ if index < at => node.slot(index),
                _ if index < at + len => items[index - at],
                _ => node.slot(index - len),
            };
            right.set(index - cut, slot);
        }
        right.set_count(count + len - cut);
        held.hold(node);
        // What stays on the left: slots in front of `cut`, counted with the new ones in place.
        let old = if cut <= at { cut } else { cut.saturating_sub(len).max(at) };
        node.splice(old, count - old, &[]);
        node.splice(old.min(at), 0, &items[..cut - old]);
        link
    }
}

/// How many of `count + len` slots stay in the left half when `len` new ones come in front of slot `at`.
///
/// Mappings are mostly added downwards, each in front of the one before. So the cut is made just behind the
/// new ones: the right half is not touched again by such a run, and is left as full as possible. At the very
/// end it is made in front of them, for the same reason.
fn cut_at<const SLOTS: usize>(count: usize, at: usize, len: usize) -> usize {
    let total = count + len;
    let quarter = SLOTS / 4;
    let cut = if at == 0 {
        len
    } else if at == count {
        count
    } else {
        (at + len).clamp(quarter, total - quarter)
    };
    cut.clamp(total.saturating_sub(SLOTS).max(1), SLOTS.min(total - 1))
}
