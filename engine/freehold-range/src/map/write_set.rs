//! What a [claim writer](super::claim_writer::ClaimWriter) has claimed, as it is to be: a copy of the
//! entries, which the writer changes as often as it likes before all of it takes their place.

use core::cell::{Cell, RefCell};

use arrayvec::ArrayVec;

use super::claim::{MAX_CLAIM_ENTRIES, SLOTS_FOR_CUTS, unmarked};
use super::entry::{Entry, FANOUT};
use super::node::Node;
use super::spare_nodes::SpareNodes;

/// Entries of a write set at most.
pub(super) const MAX_SPAN_ENTRIES: usize = MAX_CLAIM_ENTRIES + SLOTS_FOR_CUTS;

/// Room for what one claim writer has claimed. It is apart from the writer, which is moved about.
pub struct WriteSet<const SLOTS: usize = FANOUT> {
    pub(super) first: RefCell<WriteSetSpan>,
    /// A second span, apart from the first, if there is one.
    pub(super) second: RefCell<WriteSetSpan>,
    pub(super) has_second: Cell<bool>,
    /// Nodes for claims that split.
    pub(super) spares: SpareNodes<SLOTS>,
    /// Somebody was refused what was claimed.
    pub(super) had_waiters: Cell<bool>,
    /// A key of a leaf in which writers meet often.
    pub(super) contended: Cell<Option<u64>>,
}

impl<const SLOTS: usize> WriteSet<SLOTS> {
    /// Nothing is claimed.
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

    /// The span to which `key` belongs; the first, if it belongs to none.
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

/// Entries inside one range, ascending, their values without marks.
pub(super) struct WriteSetSpan {
    entries: ArrayVec<Entry, MAX_SPAN_ENTRIES>,
    from: u64,
    to: u64,
    /// Whether it differs from what was claimed.
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

    /// Whether an entry that starts there is in it.
    pub(super) fn has_entry_at(&self, start: u64) -> bool {
        self.entries.iter().any(|entry| entry.start == start)
    }

    /// Whether a hole may be added with what touches it on the other side, and filled, beside what cuts add.
    pub(super) fn fits_additional_hole(&self) -> bool {
        self.entries.len() + SLOTS_FOR_CUTS + 2 <= MAX_SPAN_ENTRIES
    }

    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    #[inline]
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds an entry of a latched leaf, which follows those that are there or comes behind a hole that does.
    #[inline]
    pub(super) fn add<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) {
        let entry = self.cover_entry(leaf, at);
        self.entries.push(entry);
    }

    /// The same of an entry in front of all that are there.
    pub(super) fn add_first<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) {
        let entry = self.cover_entry(leaf, at);
        self.entries.insert(0, entry);
    }

    #[inline]
    fn cover_entry<const SLOTS: usize>(&mut self, leaf: &Node<SLOTS>, at: usize) -> Entry {
        let entry = leaf.slot(at).entry().expect("a latched leaf has no torn slots");
        self.cover(entry.start, entry.end);
        Entry { value: unmarked(entry.value), ..entry }
    }

    /// Adds a hole, which is claimed too.
    #[inline]
    pub(super) fn add_hole(&mut self, start: u64, end: u64) {
        self.cover(start, end);
        self.changed = true;
    }

    #[inline]
    fn cover(&mut self, start: u64, end: u64) {
        if self.is_empty() {
            (self.from, self.to) = (start, end);
        } else {
            (self.from, self.to) = (self.from.min(start), self.to.max(end));
        }
    }

    /// The claim has ended.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.from, self.to, self.changed) = (0, 0, false);
    }

    #[inline]
    fn first_above(&self, key: u64) -> usize {
        self.entries.iter().take_while(|entry| entry.end <= key).count()
    }

    #[inline]
    pub(super) fn next(&self, key: u64) -> Option<Entry> {
        self.entries.get(self.first_above(key)).copied()
    }

    #[inline]
    pub(super) fn prev(&self, key: u64) -> Option<Entry> {
        self.first_above(key).checked_sub(1).map(|at| self.entries[at])
    }

    #[inline]
    pub(super) fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        assert!(self.from <= start && end <= self.to, "what is not claimed is not changed");
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

    /// Whether an address of it is to be in no entry.
    #[inline]
    pub(super) fn has_hole(&self) -> bool {
        let covered: u64 = self.entries.iter().map(|entry| entry.end - entry.start).sum();
        covered < self.to - self.from
    }
}
