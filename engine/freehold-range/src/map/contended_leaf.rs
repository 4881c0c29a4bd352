//! Contended leaves: those in which [claim writers](super::claim_writer) meet.
//!
//! Writers whose entries are neighbours in the map meet in one leaf, though they have nothing else in common.
//! A leaf counts how often a writer found it latched, and forgets half of it every 64 changes. A writer that
//! finds it so, and knows that this is often, splits the leaf when its own change is done. The writer that is
//! alone merges what is sparse.

use freehold_sync::{Host, Rank};

use super::busy_nodes::BusyNodes;
use super::claim_writer::ClaimWriter;
use super::insert::SplitPolicy;
use super::leaf_path::LatchedLeaf;
use super::node::Node;
use super::path::Step;

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// As [`RangeMap::latch`]; a leaf in which writers meet often is to be split.
    #[inline]
    pub(super) fn latch<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LatchedLeaf<'n, H, SLOTS> {
        let latched = self.map.latch(rcu, key);
        if latched.contended {
            self.write_set.contended.set(Some(key));
        }
        latched
    }

    /// Splits the leaf to which `key` belongs, so that writers who met there may go on in leaves of their
    /// own. It is not worth waiting for memory.
    #[cold]
    #[inline(never)]
    pub(super) fn split_contended_leaf(&self, key: u64) {
        self.split_leaf(key, SplitPolicy::WidestGap, |leaf, _| {
            leaf.clear_conflicts();
            (leaf.count() >= self.map.fan.min_divided()).then_some(leaf.count() / 2)
        });
    }

    /// Lets a leaf end with what ends at or below `key`, so that writers on either side of it do not meet.
    /// Without memory all stays as it is.
    #[cold]
    #[inline(never)]
    pub fn split_leaf_at(&self, key: u64) {
        self.split_leaf(key, SplitPolicy::AtSlot, |leaf, at| (0 < at && at < leaf.count()).then_some(at));
    }

    /// Splits the leaf to which `key` belongs where `cut` says, which is told the slot of `key`.
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
