//! Crowded leaves: those in which [claim writers](super::claim_writer) meet.
//!
//! Writers whose entries are neighbours in the map meet in one leaf, though they have nothing else in common.
//! A leaf counts how often a writer found it latched, and forgets half of it every 64 changes. A writer that
//! finds it so, and knows that this is often, splits the leaf when its own change is done. The writer that is
//! alone merges what is sparse.

use freehold_sync::{Host, Rank};

use super::claim_writer::ClaimWriter;
use super::grow::Halves;
use super::hold::Held;
use super::node::Node;
use super::path::Step;
use super::way::Latched;

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// As [`RangeMap::latch`]; a leaf in which writers meet often is to be split.
    #[inline(always)]
    pub(super) fn latch<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> Latched<'n, H, SLOTS> {
        let latched = self.map.latch(rcu, key);
        if latched.crowded {
            self.write_set.crowded.set(Some(key));
        }
        latched
    }

    /// Splits the leaf to which `key` belongs, so that writers who met there may go on in leaves of their
    /// own. It is not worth waiting for memory.
    #[cold]
    #[inline(never)]
    pub(super) fn part(&self, key: u64) {
        self.split_leaf(key, Halves::Shared, |leaf, _| {
            leaf.forget_meetings();
            (leaf.count() >= self.map.fan.divisible()).then_some(leaf.count() / 2)
        });
    }

    /// Lets a leaf end with what ends at or below `key`, so that writers on either side of it do not meet.
    /// Without memory all stays as it is.
    #[cold]
    #[inline(never)]
    pub fn divide(&self, key: u64) {
        self.split_leaf(key, Halves::There, |leaf, at| (0 < at && at < leaf.count()).then_some(at));
    }

    /// Splits the leaf to which `key` belongs where `cut` says, which is told the slot of `key`.
    fn split_leaf(&self, key: u64, halves: Halves, cut: impl FnOnce(&Node<SLOTS>, usize) -> Option<usize>) {
        let need = self.map.root.level() + 2;
        if self.fill(need).is_err() {
            return;
        }
        let structure = self.map.structure.lock::<H>(Rank::VmaMap);
        if self.map.root.level() + 2 > need {
            return;
        }
        let mut held = Held::new();
        let path = self.map.path_to(&mut held, key);
        let Step { node, at, .. } = path.step(0);
        if let Some(cut) = cut(node, at) {
            self.map.finger.forget();
            self.map.part(&mut held, &self.write_set.spares, path, (cut, halves));
        }
        let dead = held.release();
        drop(structure);
        dead.retire::<H>();
    }
}
