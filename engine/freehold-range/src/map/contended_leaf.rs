//! Contended leaves: leaves in which [claim writers](super::claim_writer) conflict.
//!
//! Writers whose entries are neighbours in the map conflict in one leaf, even if they share nothing else. A
//! leaf counts how often a writer found it latched, and halves the count every 64 changes. If a writer finds
//! the leaf latched and the count is high, the writer splits the leaf after its own change. The exclusive
//! writer merges sparse leaves. A split changes no entry, so it may be left out at any time, for example when
//! memory is short.

use freehold_sync::{Host, Rank};

use super::busy_nodes::BusyNodes;
use super::claim_writer::ClaimWriter;
use super::insert::SplitPolicy;
use super::leaf_path::LatchedLeaf;
use super::node::Node;
use super::path::Step;

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Latches the leaf of `key`, like [`RangeMap::latch`](super::RangeMap::latch). If the leaf is contended,
    /// records the key, so that the leaf is split later.
    #[inline]
    pub(super) fn latch<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LatchedLeaf<'n, H, SLOTS> {
        let latched = self.map.latch(rcu, key);
        if latched.contended {
            self.write_set.contended.set(Some(key));
        }
        latched
    }

    /// Splits the leaf of `key`, so that writers that conflict there can continue in different leaves. Does
    /// nothing if there is no memory for the nodes.
    #[cold]
    #[inline(never)]
    pub(super) fn split_contended_leaf(&self, key: u64) {
        self.split_leaf(key, SplitPolicy::WidestGap, |leaf, _| {
            leaf.clear_conflicts();
            (leaf.count() >= self.map.fan.min_divided()).then_some(leaf.count() / 2)
        });
    }

    /// Makes a leaf end with the last entry that ends at or below `key`, so that writers on the two sides of
    /// `key` do not conflict. Does nothing if there is no memory for the nodes.
    #[cold]
    #[inline(never)]
    pub fn split_leaf_at(&self, key: u64) {
        self.split_leaf(key, SplitPolicy::AtSlot, |leaf, at| (0 < at && at < leaf.count()).then_some(at));
    }

    /// Splits the leaf of `key` in front of the slot that `cut` returns. `cut` gets the leaf and the slot of
    /// `key`.
    fn split_leaf(
        &self,
        key: u64,
        policy: SplitPolicy,
        cut: impl FnOnce(&Node<SLOTS>, usize) -> Option<usize>,
    ) {
        let need = self.map.root.level() + 2;
        if self.ensure_own_spares(need).is_err() {
            return;
        }
        let structure = self.map.structure.lock::<H>(Rank::VmaMap);
        if self.map.root.level() + 2 > need {
            return;
        }
        let mut busy = BusyNodes::new();
        let path = self.map.latched_path_to(&mut busy, key);
        let Step { node, at, .. } = path.step(0);
        if let Some(cut) = cut(node, at) {
            self.map.finger.forget();
            self.map.split_leaf(&mut busy, &self.write_set.spares, path, (cut, policy));
        }
        let dead = busy.release();
        drop(structure);
        dead.retire::<H>();
    }
}
