//! The write set of a [claim writer](super::claim_writer::ClaimWriter): a copy of the claimed entries. The
//! writer changes the copy any number of times before the copy replaces the claimed entries.
//!
//! `claim_writer.rs` and `hole_claim.rs` fill the write set. `publish.rs` stores the write set into the map
//! and empties it. A write set has one or two spans. A *span* (`WriteSetSpan`) is a range without unclaimed
//! parts, together with its entries. The second span exists only for an additional hole that does not touch
//! the first span. Only the writer's own thread uses a write set, so it needs no lock. Its capacity is fixed,
//! so it allocates nothing; a change with more entries than the claim has room for panics.

use core::cell::{Cell, RefCell};

use arrayvec::ArrayVec;

use super::claim::{MAX_CLAIM_ENTRIES, SLOTS_FOR_CUTS, unmarked};
use super::entry::{Entry, FANOUT};
use super::node::Node;
use super::spare_nodes::SpareNodes;

/// Maximum number of entries of a span.
pub(super) const MAX_SPAN_ENTRIES: usize = MAX_CLAIM_ENTRIES + SLOTS_FOR_CUTS;

/// Storage for the entries and holes that one claim writer has claimed. The storage is separate from the
/// writer, so that moving the writer does not copy it.
pub struct WriteSet<const SLOTS: usize = FANOUT> {
    pub(super) first: RefCell<WriteSetSpan>,
    /// The second span, which does not touch the first. Valid if `has_second` is set.
    pub(super) second: RefCell<WriteSetSpan>,
    pub(super) has_second: Cell<bool>,
    /// Spare nodes for claims that split nodes.
    pub(super) spares: SpareNodes<SLOTS>,
    /// Set if another writer was refused an entry of a claim that has ended.
    pub(super) had_waiters: Cell<bool>,
    /// A key of a contended leaf.
    pub(super) contended: Cell<Option<u64>>,
}

impl<const SLOTS: usize> WriteSet<SLOTS> {
    /// Returns a write set without a claim.
    #[inline]
    pub fn new() -> Self {
        WriteSet {
            first: RefCell::new(WriteSetSpan::none()),
            second: RefCell::new(WriteSetSpan::none()),
            has_second: Cell::new(false),
            spares: SpareNodes::new(),
            had_waiters: Cell::new(false),
            contended: Cell::new(None),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.borrow().is_empty()
    }

    /// Returns the span that contains `key`, or the first span if no span contains `key`.
    #[inline]
    pub(super) fn span_of(&self, key: u64) -> &RefCell<WriteSetSpan> {
        match self.has_second.get() && self.second.borrow().contains(key) {
            true => &self.second,
            false => &self.first,
        }
    }
}

impl<const SLOTS: usize> Default for WriteSet<SLOTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SLOTS: usize> Drop for WriteSet<SLOTS> {
    #[inline]
    fn drop(&mut self) {
        self.spares.free_all();
    }
}

/// The entries inside one range, in ascending order. Their values have no marks.
pub(super) struct WriteSetSpan {
    entries: ArrayVec<Entry, MAX_SPAN_ENTRIES>,
    /// Start of the claimed range. Equal to `to` if nothing is claimed.
    from: u64,
    to: u64,
    /// Set if the span differs from what was claimed.
    changed: bool,
}

impl WriteSetSpan {
    #[inline]
    fn none() -> Self {
        WriteSetSpan { entries: ArrayVec::new_const(), from: 0, to: 0, changed: false }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to
    }

    #[inline]
    pub(super) fn range(&self) -> (u64, u64) {
        (self.from, self.to)
    }

    #[inline]
    pub(super) fn contains(&self, key: u64) -> bool {
        self.from <= key && key < self.to
    }

    /// Returns true if an entry of the span starts at `start`.
    pub(super) fn has_entry_at(&self, start: u64) -> bool {
        self.entries.iter().any(|entry| entry.start == start)
    }

    /// Returns true if the span has room for another hole. A hole needs room for the entry that fills it, for
    /// one more entry that touches it, and for the entries that cuts add.
    pub(super) fn fits_additional_hole(&self) -> bool {
        self.entries.len() + SLOTS_FOR_CUTS + 2 <= MAX_SPAN_ENTRIES
    }

    /// Returns true if the span differs from the map, so that it must be published.
    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    #[inline]
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds an entry of a latched leaf. The entry lies behind all entries of the span.
    #[inline]
    pub(super) fn add<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) {
        let entry = self.cover_entry(leaf, at);
        self.entries.push(entry);
    }

    /// Adds an entry of a latched leaf in front of all entries of the span.
    pub(super) fn add_first<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) {
        let entry = self.cover_entry(leaf, at);
        self.entries.insert(0, entry);
    }

    /// Extends the span by an entry of a latched leaf. Returns the entry without the marks of the claim.
    #[inline]
    fn cover_entry<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) -> Entry {
        let entry = leaf.slot(at).entry().expect("a latched leaf has no torn slots");
        self.cover(entry.start, entry.end);
        Entry { value: unmarked(entry.value), ..entry }
    }

    /// Adds a hole, which is also claimed.
    #[inline]
    pub(super) fn add_hole(&mut self, start: u64, end: u64) {
        self.cover(start, end);
        self.changed = true;
    }

    /// Extends the span so that it contains `[start, end)`.
    #[inline]
    fn cover(&mut self, start: u64, end: u64) {
        if self.is_empty() {
            (self.from, self.to) = (start, end);
        } else {
            (self.from, self.to) = (self.from.min(start), self.to.max(end));
        }
    }

    /// Empties the span at the end of the claim.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.from, self.to, self.changed) = (0, 0, false);
    }

    /// Returns the index of the first entry whose end lies above `key`.
    #[inline]
    fn first_above(&self, key: u64) -> usize {
        self.entries.iter().take_while(|entry| entry.end <= key).count()
    }

    /// Returns the first entry of the span whose end lies above `key`.
    #[inline]
    pub(super) fn next(&self, key: u64) -> Option<Entry> {
        self.entries.get(self.first_above(key)).copied()
    }

    /// Returns the last entry of the span whose end does not lie above `key`.
    #[inline]
    pub(super) fn prev(&self, key: u64) -> Option<Entry> {
        self.first_above(key).checked_sub(1).map(|at| self.entries[at])
    }

    /// Replaces the entries inside `[start, end)`, which lies in the span, by `with`. The map itself changes
    /// when the span is published.
    #[inline]
    pub(super) fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        assert!(self.from <= start && end <= self.to, "the replaced range is not claimed");
        let from = self.first_above(start);
        let mut to = from;
        while self.entries.get(to).is_some_and(|entry| entry.start < end) {
            let inside = self.entries[to].start >= start && self.entries[to].end <= end;
            assert!(inside, "an entry reaches across the replaced range");
            to += 1;
        }
        let mut at = from;
        for entry in with {
            if at < to {
                self.entries[at] = *entry;
            } else {
                self.entries.insert(at, *entry);
            }
            at += 1;
        }
        if at < to {
            let len = self.entries.len();
            self.entries.copy_within(to..len, at);
            self.entries.truncate(len - (to - at));
        }
        self.changed = true;
    }

    /// Returns true if an address of the span is in no entry.
    #[inline]
    pub(super) fn has_hole(&self) -> bool {
        let covered: u64 = self.entries.iter().map(|entry| entry.end - entry.start).sum();
        covered < self.to - self.from
    }
}
