//! Publishing: the end of a claim, when the write set of a [`ClaimWriter`] replaces the claimed entries.
//!
//! A write set that stays in one leaf is published under the latch of that leaf. Any other write set is
//! published under the structure lock, while this writer holds all nodes that change (`busy_nodes.rs`).
//! Publishing needs no memory and cannot fail, because the claim has promised the slots. `release.rs` ends
//! claims without a replacement.
//!
//! A gap that appears must be visible to searches before the call returns: this file raises the gap words, or
//! finds them large enough while the leaf is still latched ("Gaps" in [`claim_writer`](super::claim_writer)).
#![expect(unsafe_code, reason = "unlinks nodes under the structure lock")]

use arrayvec::ArrayVec;
use freehold_sync::{Host, Rank};

use super::busy_nodes::BusyNodes;
use super::claim::{CLAIMED, CLAIMED_RESERVATION, MAX_CLAIM_ENTRIES, Mark, RESERVED};
use super::claim_writer::ClaimWriter;
use super::entry::Entry;
use super::leaf_path::LeafPath;
use super::node::{Node, Slot};
use super::path::{Path, Step};
use super::release::ReleaseScope;
use super::write_set::{MAX_SPAN_ENTRIES, WriteSetSpan};

/// An address, and a function that is called with the hole that contains the address. The function runs while
/// the leaf is latched, so no entry is inserted into the hole before the function returns.
pub type HoleCallback<'f> = (u64, &'f mut dyn FnMut(u64, u64));

impl<'a, H: Host, const SLOTS: usize> ClaimWriter<'a, H, SLOTS> {
    /// Ends the claim, if there is one. The write set replaces what was claimed, in one step for readers. If
    /// there are two spans, the second is published first. Entries that are [`RESERVED`] stay in the map as
    /// unclaimed reservations. Needs no memory.
    ///
    /// `on_hole` is an address in the write set and a function. If the address lies in a hole afterwards, the
    /// function is called with the ends of that hole. No entry is inserted into the hole during the call. The
    /// function returns quickly, and may wait only for a spin lock.
    #[inline]
    pub fn publish(&self, on_hole: Option<HoleCallback<'_>>) {
        if !self.write_set.is_empty() || self.write_set.contended.get().is_some() {
            self.publish_spans(on_hole);
        }
    }

    /// Does the work of [`publish`](Self::publish) if there is any.
    #[inline(never)]
    fn publish_spans(&self, mut on_hole: Option<HoleCallback<'_>>) {
        if self.write_set.has_second.get() {
            self.publish_second(&mut on_hole);
        }
        self.publish_span(&mut self.write_set.first.borrow_mut(), &mut on_hole);
        if let Some(key) = self.write_set.contended.take() {
            self.split_contended_leaf(key);
        }
    }

    /// Publishes one span and empties it.
    #[inline(always)]
    fn publish_span(&self, span: &mut WriteSetSpan, on_hole: &mut Option<HoleCallback<'_>>) {
        if span.is_empty() {
            return;
        }
        if !self.publish_in_leaf(span, on_hole) {
            self.publish_across(span, on_hole);
        }
        span.clear();
    }

    /// Publishes the span of an additional hole. Calls `on_hole` here if its address lies in this span.
    #[cold]
    #[inline(never)]
    fn publish_second(&self, on_hole: &mut Option<HoleCallback<'_>>) {
        self.write_set.has_second.set(false);
        let mut second = self.write_set.second.borrow_mut();
        let mut its = on_hole.take_if(|(address, _)| second.contains(*address));
        self.publish_span(&mut second, &mut its);
    }

    /// Publishes a span that lies in one leaf, if the end of the leaf does not change. Otherwise does nothing
    /// and returns false.
    #[inline(always)]
    fn publish_in_leaf(&self, span: &WriteSetSpan, on_hole: &mut Option<HoleCallback<'_>>) -> bool {
        let (from, to) = span.range();
        let entries = span.entries();
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, from);
        let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
        let count = leaf.count();
        let last = leaf.last_end();
        if above.is_some() && (last < to || last == to && entries.last().is_none_or(|it| it.end < to)) {
            return false;
        }
        let (mut behind, mut promised) = (at, 0);
        while behind < count && leaf.start(behind) < to {
            let mark = Mark::of(leaf.datum(behind));
            debug_assert!(mark.is_claimed() && leaf.start(behind) >= from, "the span has an unclaimed entry");
            if mark.has_waiters() {
                self.write_set.had_waiters.set(true);
            }
            promised += mark.promised_slots();
            behind += 1;
        }
        if span.is_changed() {
            latched.hold();
            leaf.open(at, behind - at, entries.len());
        }
        for (index, entry) in entries.iter().enumerate() {
            leaf.set(at + index, Slot::of(entry));
        }
        if promised > 0 {
            latched.hold();
            leaf.set_promised(leaf.word().promised() - promised);
        }
        if let Some((address, then)) = on_hole.take() {
            call_with_hole(leaf, at, lo, address, then);
        }
        if above.is_none() || !span.has_hole() {
            return true;
        }
        let (before, gap) = largest_gap(leaf, at, entries.len(), lo);
        let kept = above.is_some_and(|(node, word, slot)| node.datum(slot) >= gap && node.unchanged(word));
        drop(latched);
        if !kept {
            self.raise_gap(before, gap);
        }
        true
    }

    /// Publishes a span that lies in any number of leaves. First fills the future holes with reservations, so
    /// that no other writer inserts an entry there. Then removes the reservations.
    #[cold]
    #[inline(never)]
    fn publish_across(&self, span: &WriteSetSpan, on_hole: &mut Option<HoleCallback<'_>>) {
        let (from, to) = span.range();
        if span.is_changed() {
            let mut with = ArrayVec::<Entry, { 2 * MAX_SPAN_ENTRIES + 1 }>::new();
            let mut at = from;
            for entry in span.entries() {
                if at < entry.start {
                    with.push(Entry { start: at, end: entry.start, value: CLAIMED_RESERVATION });
                }
                let stays = entry.value.get() & RESERVED != 0;
                with.push(Entry { value: entry.value | if stays { 0 } else { CLAIMED }, ..*entry });
                at = entry.end;
            }
            if at < to {
                with.push(Entry { start: at, end: to, value: CLAIMED_RESERVATION });
            }
            self.replace_claimed(from, to, &with);
        }
        self.release_range(from, to, ReleaseScope::Claimed, on_hole);
    }

    /// Replaces the claimed entries by `with`, which covers the same addresses. Works from the last leaf to
    /// the first, so that the stored ends still lead to the remaining leaves.
    fn replace_claimed(&self, start: u64, end: u64, mut with: &[Entry]) {
        let map = self.map;
        let structure = map.structure.lock::<H>(Rank::VmaMap);
        let mut busy = BusyNodes::new();
        // All changed leaves and the leaf behind them are latched first. So readers see the changes that
        // follow as one step.
        let mut keys = [0; MAX_CLAIM_ENTRIES + 1];
        let (mut leaves, mut key) = (0, start);
        while key < end {
            keys[leaves] = key;
            (leaves, key) = (leaves + 1, map.latched_path_to(&mut busy, key).step(0).node.last_end());
        }
        let _ = map.latched_path_to(&mut busy, key);
        map.finger.forget();
        for &key in keys[..leaves].iter().rev() {
            let path = map.latched_path_to(&mut busy, key);
            // Addresses move from one leaf to another, so a reader on the path to either leaf must start
            // again.
            (1..=path.top).for_each(|level| busy.hold::<H>(path.step(level).node));
            let Step { node, at, .. } = path.step(0);
            let (gone, slots) = self.claimed_slots(node, at, start, end);
            // An entry whose end belongs to this leaf is stored in this leaf if there is a slot. So the ends
            // of leaves ascend at all times.
            let ending = with.iter().rev().take_while(|entry| entry.end > key).count();
            let (rest, here) = with.split_at(with.len() - ending.min(slots));
            node.open(at, gone, here.len());
            node.set_promised(node.word().promised() - (slots - gone));
            for (index, entry) in here.iter().enumerate() {
                node.set(at + index, Slot::of(entry));
            }
            self.update_ancestors(&mut busy, path);
            with = rest;
        }
        assert!(with.is_empty(), "the write set has more entries than promised slots");
        // The gap in front of the range may now belong to another leaf.
        let mut key = start;
        while key < end {
            let path = map.latched_path_to(&mut busy, key);
            map.update_gaps(&path);
            key = path.step(0).node.last_end();
        }
        let dead = busy.release();
        drop(structure);
        dead.retire::<H>();
    }

    /// Returns the number of entries of a held leaf in the range, and the number of slots that these entries
    /// occupy or that are promised to them.
    fn claimed_slots(&self, leaf: &Node<SLOTS>, from: usize, start: u64, end: u64) -> (usize, usize) {
        let (mut gone, mut slots) = (0, 0);
        while from + gone < leaf.count() && leaf.start(from + gone) < end {
            let mark = Mark::of(leaf.datum(from + gone));
            let inside = leaf.start(from + gone) >= start && leaf.end(from + gone) <= end;
            assert!(inside && mark.is_claimed(), "the span has an unclaimed entry");
            if mark.has_waiters() {
                self.write_set.had_waiters.set(true);
            }
            gone += 1;
            slots += 1 + mark.promised_slots();
        }
        (gone, slots)
    }

    /// Updates the ends that the nodes above a leaf keep. Unlinks the leaf if it is empty, and each ancestor
    /// that becomes empty. The caller updates the gap words.
    pub(super) fn update_ancestors<'n>(&'n self, busy: &mut BusyNodes<'n, SLOTS>, path: Path<'n, SLOTS>) {
        let mut level = 0;
        while level < path.top && path.step(level).node.count() == 0 {
            let Step { node, at, .. } = path.step(level + 1);
            busy.hold::<H>(node);
            let link = node.child(at);
            node.splice(at, 1, &[]);
            // SAFETY: the slot is cleared. The node is held and empty.
            unsafe { busy.add_dead(link) };
            level += 1;
        }
        if path.step(level).node.count() > 0 {
            self.map.update_ends(busy, &path, level);
        }
        self.map.lower_root(busy);
    }
}

/// Calls `then` with the hole that contains `address`, if there is such a hole. The leaf is latched, and the
/// ends of all slots before `from` lie below the address. `lo` is the end of the entry before the leaf.
#[inline]
pub(super) fn call_with_hole<const SLOTS: usize>(
    leaf: &Node<SLOTS>,
    from: usize,
    lo: u64,
    address: u64,
    then: &mut dyn FnMut(u64, u64),
) {
    let count = leaf.count();
    let mut at = from;
    while at < count && leaf.end(at) <= address {
        at += 1;
    }
    let before = if at > 0 { leaf.end(at - 1) } else { lo };
    let behind = if at < count { leaf.start(at) } else { u64::MAX };
    if address < behind {
        then(before, behind);
    }
}

/// Returns the start and the size of the largest gap. Considers the gaps in front of the `len` entries from
/// slot `at` on, and the gap behind these entries. The leaf is held.
#[inline]
fn largest_gap<const SLOTS: usize>(leaf: &Node<SLOTS>, at: usize, len: usize, lo: u64) -> (u64, u64) {
    let mut before = if at > 0 { leaf.end(at - 1) } else { lo };
    let mut largest = (before, 0);
    for at in at..(at + len + 1).min(leaf.count()) {
        let gap = leaf.start(at) - before;
        if gap > largest.1 {
            largest = (before, gap);
        }
        before = leaf.end(at);
    }
    largest
}
