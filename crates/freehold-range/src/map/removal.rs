//! The end of claims: entries are let go of, and reservations leave holes.
#![expect(unsafe_code, reason = "follows links that nobody changes without the structure lock")]

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::claim::{Mark, released};
use super::hold::Held;
use super::node::Node;
use super::shared::SharedWriter;
use super::way::Way;

/// Which reservations go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// Those that this writer has claimed.
    Claimed,
    /// Also those that nobody has claimed, in a range that belongs to this writer all the same.
    All,
}

impl Goes {
    fn has(self, mark: Mark) -> bool {
        mark.is_hole() && (mark.is_claimed() || self == Goes::All)
    }
}

impl<H: Host, const SLOTS: usize> SharedWriter<'_, H, SLOTS> {
    /// Gives up what this writer has claimed in `[start, end)`: reservations go, all other entries stay.
    /// Needs no memory.
    pub fn release(&self, start: u64, end: u64) {
        self.give_up(start, end, Goes::Claimed);
        self.span.set((0, 0));
    }

    /// Removes the reservation `[start, end)`, which is not claimed and belongs to the caller. Needs no
    /// memory.
    pub fn remove_reservation(&self, start: u64, end: u64) {
        self.give_up(start, end, Goes::All);
    }

    fn give_up(&self, start: u64, end: u64, goes: Goes) {
        let mut key = start;
        while key < end {
            let next = match self.give_up_in_leaf(key, end, goes) {
                Some(next) => next,
                None => self.give_up_across(key, end, goes),
            };
            assert!(next > key, "what is given up is not there");
            key = next;
        }
    }

    /// In one leaf, if its end stays and one entry goes at most. Up to where it was done.
    #[inline(always)]
    fn give_up_in_leaf(&self, key: u64, end: u64, goes: Goes) -> Option<u64> {
        let rcu = H::rcu_read();
        let latched = self.map.latch(&rcu, key);
        let &Way { leaf, at, lo, above, .. } = &latched.way;
        let count = leaf.count();
        let (mut to, mut gone) = (at, None);
        while to < count && leaf.start(to) < end {
            if goes.has(Mark::of(leaf.datum(to))) {
                if gone.is_some() || above.is_some() && to + 1 == count {
                    return None;
                }
                gone = Some(to);
            }
            to += 1;
        }
        let done = if to < count { end } else { end.min(leaf.last_end()) };
        latched.changed();
        self.strip(leaf, at, end, goes);
        let Some(at) = gone.filter(|_| above.is_some()) else { return Some(done) };
        let before = if at > 0 { leaf.end(at - 1) } else { lo };
        let gap = leaf.start(at) - before;
        let kept = above.is_some_and(|(node, word, slot)| node.datum(slot) >= gap && node.unchanged(word));
        drop(latched);
        if !kept {
            self.raise_gap(before, gap);
        }
        Some(done)
    }

    /// The entries of a held leaf from `at` on that start below `end`.
    #[inline(always)]
    fn strip(&self, leaf: &Node<SLOTS>, at: usize, end: u64, goes: Goes) {
        let mut at = at;
        while at < leaf.count() && leaf.start(at) < end {
            let mark = Mark::of(leaf.datum(at));
            if mark.is_wanted() {
                self.wanted.set(true);
            }
            if goes.has(mark) {
                leaf.open(at, 1, 0);
                continue;
            }
            leaf.set_value(at, released(leaf.datum(at)));
            at += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn give_up_across(&self, key: u64, end: u64, goes: Goes) -> u64 {
        let map = self.map;
        let structure = map.structure.lock::<H>(Rank::Leaf);
        let mut held = Held::new();
        map.finger.forget();
        let path = map.path_to(&mut held, key);
        let step = path.step(0);
        let last = step.node.last_end();
        let _ = map.path_to(&mut held, last);
        self.strip(step.node, step.at, end, goes);
        self.settle(&mut held, path);
        // The ways there may have changed.
        for key in [key, last] {
            let path = map.path_to(&mut held, key);
            map.fit_gaps(&path);
        }
        let dead = held.release();
        drop(structure);
        dead.retire::<H>();
        last.min(end)
    }

    /// There is a gap of `gap` bytes from `start` on, or there was: what is kept of it becomes no less.
    #[cold]
    #[inline(never)]
    fn raise_gap(&self, start: u64, gap: u64) {
        let map: &RangeMap<H, SLOTS> = self.map;
        let _structure = map.structure.lock::<H>(Rank::Leaf);
        let mut node = &map.root;
        while node.level() > 0 {
            let at = node.search(start).min(node.count() - 1);
            if node.datum(at) < gap {
                node.set_gap(at, gap);
            }
            // SAFETY: a slot in use links a node, which nobody unlinks without the structure lock.
            node = unsafe { &*node.child(at) };
        }
    }
}
