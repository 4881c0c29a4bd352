//! The end of claims: entries are let go of, and reservations leave holes.
#![expect(unsafe_code, reason = "follows links that nobody changes without the structure lock")]

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::claim::{Mark, without_claim};
use super::claim_writer::ClaimWriter;
use super::leaf_path::LeafPath;
use super::node::Node;
use super::path::Step;
use super::publish::{HoleCallback, call_with_hole};

/// Which reservations go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseScope {
    /// Those that this writer has claimed.
    Claimed,
    /// Also those that nobody has claimed, in a range that belongs to this writer all the same.
    All,
}

impl ReleaseScope {
    fn includes(self, mark: Mark) -> bool {
        mark.is_reservation() && (mark.is_claimed() || self == ReleaseScope::All)
    }
}

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Removes the reservation `[start, end)`, which is not claimed and belongs to the caller. Needs no
    /// memory. `on_hole` as for [`publish`](ClaimWriter::publish).
    ///
    /// # Panics
    ///
    /// If there is no such reservation. The map is as before.
    pub fn remove_reservation(&self, start: u64, end: u64, on_hole: Option<HoleCallback<'_>>) {
        let mut on_hole = on_hole;
        if !self.remove_in_leaf(start, end, &mut on_hole) {
            self.release_range(start, end, ReleaseScope::All, &mut on_hole);
        }
    }

    /// In one leaf whose end stays.
    #[inline]
    fn remove_in_leaf(&self, start: u64, end: u64, on_hole: &mut Option<HoleCallback<'_>>) -> bool {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, start);
        let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
        assert!(at < leaf.count() && leaf.start(at) == start && leaf.end(at) == end, "no such reservation");
        if above.is_some() && at + 1 == leaf.count() {
            return false;
        }
        latched.changed();
        self.release_slots(leaf, at, end, ReleaseScope::All);
        if let Some((address, then)) = on_hole.take() {
            call_with_hole(leaf, at, lo, address, then);
        }
        let Some((node, word, slot)) = above else { return true };
        let before = if at > 0 { leaf.end(at - 1) } else { lo };
        let gap = leaf.start(at) - before;
        let kept = node.datum(slot) >= gap && node.unchanged(word);
        drop(latched);
        if !kept {
            self.raise_gap(before, gap);
        }
        true
    }

    /// The entries of a held leaf from `at` on that start below `end`: reservations go, of the others the
    /// claim ends.
    #[inline]
    fn release_slots(&self, leaf: &Node<SLOTS>, at: usize, end: u64, scope: ReleaseScope) {
        let mut at = at;
        while at < leaf.count() && leaf.start(at) < end {
            let mark = Mark::of(leaf.datum(at));
            if mark.has_waiters() {
                self.write_set.had_waiters.set(true);
            }
            if scope.includes(mark) {
                leaf.open(at, 1, 0);
                continue;
            }
            leaf.set_value(at, without_claim(leaf.datum(at)));
            at += 1;
        }
    }

    /// Gives up what is in a range that belongs to this writer, in any number of leaves. `on_hole` is called
    /// in the step in which its address comes to lie in a hole: a task that finds the hole finds that done.
    #[cold]
    #[inline(never)]
    pub(super) fn release_range(
        &self,
        start: u64,
        end: u64,
        scope: ReleaseScope,
        on_hole: &mut Option<HoleCallback<'_>>,
    ) {
        let map = self.map;
        let mut from = start;
        while from < end {
            let structure = map.structure.lock::<H>(Rank::VmaMap);
            let mut busy = BusyNodes::new();
            map.finger.forget();
            let path = map.latched_path_to(&mut busy, from);
            let step = path.step(0);
            let last = step.node.last_end();
            self.release_slots(step.node, step.at, end, scope);
            self.update_ancestors(&mut busy, path);
            // The ways there may have changed. The leaf behind is held from here on, if it was not before.
            for key in [from, last] {
                let path = map.latched_path_to(&mut busy, key);
                map.update_gaps(&path);
            }
            if let Some((address, then)) = on_hole.take_if(|(address, _)| *address < last) {
                // In this leaf, or in the one behind it, if this one has gone or ends lower now: both are
                // held. If it was the last, in the one before, whose end moves with the structure lock alone.
                let Step { node, lo, .. } = map.latched_path_to(&mut busy, address).step(0);
                call_with_hole(node, 0, lo, address, then);
            }
            let dead = busy.release();
            drop(structure);
            dead.retire::<H>();
            assert!(last > from, "what is given up is not there");
            from = last;
        }
    }

    /// There is a gap of `gap` bytes from `start` on, or there was: what is kept of it becomes no less.
    #[cold]
    #[inline(never)]
    pub(super) fn raise_gap(&self, start: u64, gap: u64) {
        let map: &RangeMap<H, SLOTS> = self.map;
        let _structure = map.structure.lock::<H>(Rank::VmaMap);
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
