//! The end of claims: entries lose their claims, and reservations are removed.
//!
//! A release that does not change the end of its leaf holds only the latch of that leaf. Any other release
//! needs the structure lock. Both raise gap words for the gaps that they make, and need no memory.
//! `claim_writer.rs` and `hole_claim.rs` make claims; `publish.rs` replaces what was claimed.
#![expect(unsafe_code, reason = "follows links that change only under the structure lock")]

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::claim::{Mark, without_claim};
use super::claim_writer::ClaimWriter;
use super::leaf_path::LeafPath;
use super::node::Node;
use super::path::Step;
use super::publish::{HoleCallback, call_with_hole};

/// The reservations that a release removes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseScope {
    /// Removes the reservations that this writer has claimed.
    Claimed,
    /// Removes all reservations in the range, including unclaimed ones. The range belongs to this writer.
    All,
}

impl ReleaseScope {
    fn includes(self, mark: Mark) -> bool {
        mark.is_reservation() && (mark.is_claimed() || self == ReleaseScope::All)
    }
}

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Removes the unclaimed reservation `[start, end)`, which belongs to the caller. Needs no memory.
    /// `on_hole` is the same as for [`publish`](ClaimWriter::publish).
    ///
    /// # Panics
    ///
    /// Panics if there is no such reservation. The map is unchanged then.
    pub fn remove_reservation(&self, start: u64, end: u64, on_hole: Option<HoleCallback<'_>>) {
        let mut on_hole = on_hole;
        if !self.remove_in_leaf(start, end, &mut on_hole) {
            self.release_range(start, end, ReleaseScope::All, &mut on_hole);
        }
    }

    /// Calls `then` with the ends of a range: the hole that the removal of the reservation `[start, end)`
    /// would make, or a part of that hole. No entry is inserted into the hole during the call. The
    /// reservation belongs to the caller.
    ///
    /// # Panics
    ///
    /// Panics if there is no such reservation.
    pub fn with_hole_around(&self, start: u64, end: u64, then: impl FnOnce(u64, u64)) {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, start);
        let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
        assert!(at < leaf.count() && leaf.start(at) == start && leaf.end(at) == end, "no such reservation");
        let before = if at > 0 { leaf.end(at - 1) } else { lo };
        let behind = match at + 1 < leaf.count() {
            true => leaf.start(at + 1),
            // The next entry is in another leaf, which is not latched.
            false if above.is_some() => end,
            false => u64::MAX,
        };
        then(before, behind);
    }

    /// Removes a reservation in a leaf, if the end of the leaf does not change. Otherwise does nothing and
    /// returns false.
    #[inline]
    fn remove_in_leaf(&self, start: u64, end: u64, on_hole: &mut Option<HoleCallback<'_>>) -> bool {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, start);
        let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
        assert!(at < leaf.count() && leaf.start(at) == start && leaf.end(at) == end, "no such reservation");
        if above.is_some() && at + 1 == leaf.count() {
            return false;
        }
        latched.hold();
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

    /// Releases the entries of a held leaf from slot `at` on that start below `end`: removes reservations,
    /// and ends the claims of the other entries.
    #[inline]
    fn release_slots(&self, leaf: &Node<SLOTS>, at: usize, end: u64, scope: ReleaseScope) {
        let mut at = at;
        while at < leaf.count() && leaf.start(at) < end {
            let mark = Mark::of(leaf.datum(at));
            if mark.has_waiters() {
                self.write_set.had_waiters.set(true);
            }
            if mark.promised_slots() > 0 {
                leaf.set_promised(leaf.word().promised() - mark.promised_slots());
            }
            if scope.includes(mark) {
                leaf.open(at, 1, 0);
                continue;
            }
            leaf.set_value(at, without_claim(leaf.datum(at)));
            at += 1;
        }
    }

    /// Releases the entries of a range that belongs to this writer, in any number of leaves. `on_hole` is
    /// called in the same step in which its address becomes a part of a hole. So a task that sees the hole
    /// also sees the effect of the call.
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
            // The update may have changed the paths to both keys, so they are searched again. The next leaf
            // is held from here on.
            for key in [from, last] {
                let path = map.latched_path_to(&mut busy, key);
                map.update_gaps(&path);
            }
            if let Some((address, then)) = on_hole.take_if(|(address, _)| *address < last) {
                // The address belonged to this leaf. If the leaf was unlinked or ends lower now, the address
                // belongs to the next leaf, which is held too. If there is no next leaf, the address belongs
                // to the last remaining leaf, whose end moves only under the structure lock.
                let Step { node, lo, .. } = map.latched_path_to(&mut busy, address).step(0);
                call_with_hole(node, 0, lo, address, then);
            }
            let dead = busy.release();
            drop(structure);
            dead.retire::<H>();
            assert!(last > from, "the map has no entry to release");
            from = last;
        }
    }

    /// Raises the gap words on the path to `start` to at least `gap` bytes. A gap of that size starts at
    /// `start`, or started there before a later change.
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
            // SAFETY: a slot in use links a node. No thread unlinks a node without the structure lock.
            node = unsafe { &*node.child(at) };
        }
    }
}
