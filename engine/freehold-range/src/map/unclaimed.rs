//! Changes of one leaf that need no claim: the leaf is latched once, for the whole change.
//!
//! An insertion into a hole, the removal of whole entries and a short change of a write set are the most
//! frequent changes, and so are new bounds of one entry at a hole. If one leaf has all entries that such a
//! change reads, the latch of the leaf does the work of a claim. No other writer changes the leaf, and
//! readers see the change as one step. The general way, for every other change, is a claim
//! (`claim_writer.rs`, `hole_claim.rs`) and its end (`publish.rs`). The insertion changes nothing if it needs
//! a claim; the others then make the claim under the same latch.
//!
//! | condition | reason |
//! | --- | --- |
//! | the entries and both ends of the hole around them lie in the leaf | another leaf has another latch |
//! | no entry is claimed; no entry is a reservation | it belongs to another writer |
//! | the end of the leaf stays, except in the root | the nodes above keep the end, and change only under the structure lock |
//! | new entries find free slots that are not promised | a split needs the structure lock |
//!
//! The functions that callers pass run with the leaf latched. They return quickly and wait only for spin
//! locks. Readers still read the leaf during these calls. Another change without a claim belongs here if it
//! fulfils these conditions. `tests/claims/` compares the functions with a model, and `tests/loom_claims.rs`
//! runs them concurrently with claims and readers.

use core::num::NonZeroU64;

use freehold_sync::Host;

use super::claim::{ClaimError, MAX_CLAIM_ENTRIES, Mark, RESERVED};
use super::claim_writer::{ClaimRequest, ClaimWriter, LeafEntries, mark_claimed};
use super::entry::{Entry, assert_fits};
use super::hole_claim::{Neighbours, fits_in_leaf};
use super::leaf_path::{LatchedLeaf, LeafPath};
use super::node::{Node, Slot};
use super::write_set::WriteSetSpan;

/// The result of [`ClaimWriter::insert_unclaimed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The entry was inserted.
    Inserted,
    /// An entry that touches the hole was extended. The new entry was not inserted.
    Extended,
    /// The map is unchanged. The hole must be claimed, for example because two entries must be joined or
    /// because the insertion needs more than one leaf.
    NeedsClaim,
}

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Fills the hole at the range of `with` in one step, without a claim: inserts `with`, or extends an
    /// entry that touches the hole. `guard` is the same as for [`claim_hole`](Self::claim_hole).
    ///
    /// `joins(entry)` returns true if an entry that touches the hole must be joined with `with`. If only one
    /// entry must be joined, `extend` is called with this entry in its new bounds. If `extend` returns true,
    /// the entry gets these bounds. `extend` returns false if the entry needs a claim.
    ///
    /// # Errors
    ///
    /// Fails with [`ClaimError::Contended`] if an entry that touches the hole is claimed. See [`ClaimError`]
    /// for other errors. The map is unchanged then.
    ///
    /// # Panics
    ///
    /// Panics if the entry is empty, or ends before it starts. The map is unchanged then.
    #[inline]
    pub fn insert_unclaimed(
        &self,
        with: &Entry,
        guard: impl Fn(&Entry) -> u64,
        joins: impl Fn(&Entry) -> bool,
        extend: impl FnOnce(&Entry) -> bool,
    ) -> Result<Filled, ClaimError> {
        assert_fits(with.start, with.end, core::slice::from_ref(with));
        self.ensure_spares()?;
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, with.start);
        let LeafPath { leaf, at, .. } = latched.path;
        if !fits_in_leaf(&latched.path, with.start, self.map.fan) {
            return Ok(Filled::NeedsClaim);
        }
        let neighbours =
            Neighbours::of(leaf, at, with, &guard, &|_| false).map_err(|no| no.note_waiter(leaf))?;
        let joined = |at: usize| leaf.slot(at).entry().filter(&joins).map(|entry| (at, entry));
        let before = neighbours.before.and_then(|_| joined(at - 1));
        let behind = neighbours.behind.and_then(|_| joined(at));
        let (at, entry) = match (before, behind) {
            (None, None) => {
                latched.hold();
                leaf.splice(at, 0, &[Slot::of(with)]);
                return Ok(Filled::Inserted);
            }
            (Some(_), Some(_)) => return Ok(Filled::NeedsClaim),
            (Some(one), None) | (None, Some(one)) => one,
        };
        let whole = Entry { start: entry.start.min(with.start), end: entry.end.max(with.end), ..entry };
        if !extend(&whole) {
            return Ok(Filled::NeedsClaim);
        }
        latched.hold();
        leaf.set(at, Slot::of(&whole));
        Ok(Filled::Extended)
    }

    /// Makes `[start, end)` a hole in one step without a claim, if all entries in it lie inside the range and
    /// in one leaf, or if the range is an end of one entry. Otherwise claims the entries in the range, and
    /// the entries that touch it, like [`claim`](Self::claim) with cuts. Returns true if the range is a hole.
    ///
    /// `take(entry)` is called for each entry in ascending order, and returns false if the entry needs a
    /// claim. Before it returns false, it undoes the effects of the earlier calls. `reserve(before, behind)`
    /// is called last, with the ends of the hole that the removal makes. If it returns a value, a
    /// [reservation](RESERVED) with this value replaces the entries, from the start of the first to the end
    /// of the last.
    ///
    /// If the range is an end of one entry, only `cut(rest, before, behind)` is called, with the rest of the
    /// entry and the ends of the hole behind or in front of the rest. `cut` returns false if the entry needs
    /// a claim.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed then, and the map is unchanged.
    ///
    /// # Panics
    ///
    /// Panics if the value is not that of a reservation, or if the range is empty. The map is unchanged then.
    #[inline]
    pub fn remove_or_claim(
        &self,
        start: u64,
        end: u64,
        take: impl FnMut(&Entry) -> bool,
        reserve: impl FnOnce(u64, u64) -> Option<NonZeroU64>,
        cut: impl FnOnce(&Entry, u64, u64) -> bool,
    ) -> Result<bool, ClaimError> {
        assert!(start < end, "the removed range is empty");
        self.ensure_spares()?;
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, start);
        let hole = remove_whole_entries(&latched, start, end, take, reserve)
            .or_else(|| cut_end(&latched, start, end, cut));
        if let Some((start, end)) = hole {
            let gap = end - start;
            let above = latched.path.above.filter(|_| gap > 0);
            let kept = above.is_none_or(|(node, word, slot)| node.datum(slot) >= gap && node.unchanged(word));
            drop(latched);
            if !kept {
                self.raise_gap(start, gap);
            }
            return Ok(true);
        }
        let request = ClaimRequest::of(start, end, true, true);
        let claimed = self.claim_in_leaf(latched, &request);
        drop(rcu);
        claimed.unwrap_or_else(|| self.claim_across(&request)).map(|()| false)
    }

    /// Claims entries like [`claim`](Self::claim) with cuts, and lets `change` change the write set at once,
    /// with the leaf latched. If `change` returns a value, the write set is published in the same step, and
    /// this value is returned. The claim then has neither begun nor ended for other writers. If `change`
    /// returns `None`, it has changed nothing; the entries are then claimed, as they are if they lie in more
    /// than one leaf.
    ///
    /// `change` must not call any other method of the map than those that use the write set. It may cut the
    /// entries at `start` and `end`, and otherwise adds no entries. It keeps every address covered.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed then, and the map is unchanged.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty. Also panics if `change` moved an end of the claimed range or added too
    /// many entries, and with debug assertions if it made a hole. The map is unchanged then.
    #[inline]
    pub fn change_or_claim<T>(
        &self,
        start: u64,
        end: u64,
        change: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>, ClaimError> {
        assert!(start < end, "the changed range is empty");
        debug_assert!(self.write_set.is_empty(), "the write set already holds a claim");
        let request = ClaimRequest::of(start, end, true, true);
        self.ensure_spares()?;
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, start);
        let Some(scanned) = self.scan_leaf(&latched, &request) else {
            drop(latched);
            drop(rcu);
            return self.claim_across(&request).map(|()| None);
        };
        let Some(found) = scanned? else { return Ok(None) };
        self.add_to_first_span(&latched, &found);
        let done = change();
        match done {
            Some(_) => {
                let mut span = self.write_set.first.borrow_mut();
                store_span(&latched, &found, &span);
                span.clear();
            }
            None => mark_claimed(&latched, &found),
        }
        Ok(done)
    }
}

/// Replaces entries of a latched leaf by those of the span, which covers the same addresses.
#[inline]
fn store_span<H: Host, const SLOTS: usize>(
    latched: &LatchedLeaf<'_, H, SLOTS>,
    found: &LeafEntries,
    span: &WriteSetSpan,
) {
    if !span.is_changed() {
        return;
    }
    let (leaf, entries) = (latched.path.leaf, span.entries());
    let gone = found.last - found.first + 1;
    debug_assert!(!span.has_hole(), "a change with a latched leaf made a hole");
    let (from, to) = span.range();
    let covers = entries.first().is_some_and(|first| first.start == from)
        && entries.last().is_some_and(|last| last.end == to);
    assert!(covers, "a change with a latched leaf moved an end of the claimed range");
    assert!(entries.len() <= gone + found.extra_slots, "a change with a latched leaf added too many entries");
    latched.hold();
    leaf.open(found.first, gone, entries.len());
    for (index, entry) in entries.iter().enumerate() {
        leaf.set(found.first + index, Slot::of(entry));
    }
}

/// Removes the entries in `[start, end)` from a latched leaf, if all of them lie inside the range and may be
/// removed under this latch. Returns the hole that the removal makes, or an empty hole if it makes none.
/// Returns `None` if the entries were not removed. `take` and `reserve` are the same as for
/// [`ClaimWriter::remove_or_claim`].
#[inline]
fn remove_whole_entries<H: Host, const SLOTS: usize>(
    latched: &LatchedLeaf<'_, H, SLOTS>,
    start: u64,
    end: u64,
    mut take: impl FnMut(&Entry) -> bool,
    reserve: impl FnOnce(u64, u64) -> Option<NonZeroU64>,
) -> Option<(u64, u64)> {
    let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
    let behind = end_of_whole_entries(leaf, at, start, end)?;
    // The node above keeps the end of the leaf.
    if above.is_some() && behind == leaf.count() {
        return None;
    }
    if !(at..behind).all(|at| leaf.slot(at).entry().is_some_and(|entry| take(&entry))) {
        return None;
    }
    let hole_start = if at > 0 { leaf.end(at - 1) } else { lo };
    let hole_end = if behind < leaf.count() { leaf.start(behind) } else { u64::MAX };
    if let Some(value) = reserve(hole_start, hole_end) {
        assert!(value.get() & RESERVED != 0, "entries are replaced by an entry that is not a reservation");
        let reservation = Entry { start: leaf.start(at), end: leaf.end(behind - 1), value };
        latched.hold();
        leaf.splice(at, behind - at, &[Slot::of(&reservation)]);
        return Some((hole_start, hole_start));
    }
    latched.hold();
    leaf.open(at, behind - at, 0);
    Some((hole_start, hole_end))
}

/// Cuts `[start, end)` off an entry of a latched leaf, if the range is an end of this entry and overlaps no
/// other entry. Returns the hole, or `None` if nothing was cut. `cut` is the same as for
/// [`ClaimWriter::remove_or_claim`].
#[inline]
fn cut_end<H: Host, const SLOTS: usize>(
    latched: &LatchedLeaf<'_, H, SLOTS>,
    start: u64,
    end: u64,
    cut: impl FnOnce(&Entry, u64, u64) -> bool,
) -> Option<(u64, u64)> {
    let &LeafPath { leaf, at, lo, above, .. } = &latched.path;
    let entry = if at < leaf.count() { leaf.slot(at).entry()? } else { return None };
    let mark = Mark::of(leaf.datum(at));
    if mark.is_claimed() || mark.is_reservation() {
        return None;
    }
    let (rest, hole) = match (entry.start < start, end < entry.end) {
        (true, false) => {
            let is_last = at + 1 == leaf.count();
            // The node above keeps the end of the leaf.
            if is_last && above.is_some() {
                return None;
            }
            (Entry { end: start, ..entry }, (start, if is_last { u64::MAX } else { leaf.start(at + 1) }))
        }
        (false, true) if entry.start < end => {
            (Entry { start: end, ..entry }, (if at > 0 { leaf.end(at - 1) } else { lo }, end))
        }
        _ => return None,
    };
    if end > hole.1 || !cut(&rest, hole.0, hole.1) {
        return None;
    }
    latched.hold();
    leaf.set(at, Slot::of(&rest));
    Some(hole)
}

/// Returns the slot behind the entries that lie inside `[start, end)`, which begin at slot `at` of a held
/// leaf. Returns `None` if there is no such entry, if an entry reaches across an end of the range, if an
/// entry is claimed or is a reservation, or if there are more entries than a claim may have.
#[inline]
fn end_of_whole_entries<const SLOTS: usize>(
    leaf: &Node<SLOTS>,
    at: usize,
    start: u64,
    end: u64,
) -> Option<usize> {
    let mut behind = at;
    while behind < leaf.count() && leaf.start(behind) < end {
        let mark = Mark::of(leaf.datum(behind));
        let whole = start <= leaf.start(behind) && leaf.end(behind) <= end;
        if !whole || mark.is_claimed() || mark.is_reservation() || behind - at == MAX_CLAIM_ENTRIES {
            return None;
        }
        behind += 1;
    }
    (behind > at).then_some(behind)
}
