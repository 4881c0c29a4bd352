//! Reading the map while no writer changes it.
//!
//! The caller excludes all writers, for example by the mmap lock held for reading. Lookups here therefore
//! never retry. `mod.rs` has the lookups under RCU, which run concurrently with writers. Nothing here changes
//! the map. A lookup of an [`ExclusiveWriter`](crate::ExclusiveWriter) returns the same result but starts at
//! its finger (`finger.rs`).

use freehold_sync::Host;

use super::RangeMap;
use super::entry::{Entry, FANOUT, MAX_LEVELS};
use super::node::Node;

/// The right to read a map that no writer changes. See [`RangeMap::reader`].
///
/// # Invariants
///
/// While the reader exists, no writer exists except the writer that contains the reader.
pub struct Reader<'a, H: Host, const SLOTS: usize = FANOUT> {
    pub(super) map: &'a RangeMap<H, SLOTS>,
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Returns the right to read the map while no writer changes it. A reader offers lookups, searches for
    /// neighbours, and iteration. Its lookups are never [`Lookup::Contended`](crate::Lookup::Contended).
    ///
    /// # Safety
    ///
    /// Until the reader is dropped, no [`ExclusiveWriter`](crate::ExclusiveWriter) and no
    /// [`ClaimWriter`](crate::ClaimWriter) of this map may exist. The creation of the reader must synchronise
    /// with the end of the last writer (as a lock does).
    #[inline]
    pub unsafe fn reader(&self) -> Reader<'_, H, SLOTS> {
        Reader::new(self)
    }
}

impl<'a, H: Host, const SLOTS: usize> Reader<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>) -> Self {
        Self { map }
    }

    /// Returns the child in slot `at`, which is in use.
    #[inline]
    pub(super) fn child<'n>(&'n self, node: &'n Node<SLOTS>, at: usize) -> &'n Node<SLOTS> {
        debug_assert!(!node.word().is_leaf() && at < node.count());
        // SAFETY: a slot in use of a reachable inner node points to a node of this map. While `self` exists,
        // only the writer that holds `self` unlinks nodes, and it does not access a node after unlinking it.
        unsafe { &*node.child(at) }
    }

    /// Returns the number of entries. Visits all of them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns true if the map has no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.map.root.count() == 0
    }

    /// Returns the entry that contains `key`.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// Returns the first entry whose end lies above `key`.
    #[inline]
    pub fn next(&self, key: u64) -> Option<Entry> {
        let (leaf, at) = self.seek(key);
        if at < leaf.count() { leaf.slot(at).entry() } else { None }
    }

    /// Returns the last entry whose end does not lie above `key`.
    #[inline]
    pub fn prev(&self, key: u64) -> Option<Entry> {
        self.around(key).0
    }

    /// Returns the results of [`Reader::prev`] and [`Reader::next`] in one descent: the neighbours of a new
    /// entry that would start at `key`.
    #[inline]
    pub fn around(&self, key: u64) -> (Option<Entry>, Option<Entry>) {
        let mut node = &self.map.root;
        // The deepest child to the left of the path. The child's last entry precedes everything in the final
        // leaf.
        let mut left = None;
        loop {
            let at = node.search(key);
            let word = node.word();
            if word.is_leaf() {
                let at = at.min(word.count());
                let next = if at < word.count() { node.slot(at).entry() } else { None };
                let prev = match (at, left) {
                    (0, None) => None,
                    (0, Some((node, at))) => self.last(self.child(node, at)),
                    (at, _) => node.slot(at - 1).entry(),
                };
                return (prev, next);
            }
            let at = at.min(word.count() - 1);
            if at > 0 {
                left = Some((node, at - 1));
            }
            node = self.child(node, at);
        }
    }

    /// Returns all entries whose end lies above `key`, in ascending order.
    #[inline]
    pub fn iter_from(&self, key: u64) -> Iter<'_, H, SLOTS> {
        let (leaf, at) = self.seek(key);
        Iter { reader: self, leaf, at, done: key }
    }

    /// Returns all entries in ascending order.
    #[inline]
    pub fn iter(&self) -> Iter<'_, H, SLOTS> {
        self.iter_from(0)
    }

    /// Returns the leaf and the slot of the first entry whose end lies above `key`. If there is none, returns
    /// the last leaf and the slot behind its last entry.
    #[inline]
    fn seek(&self, key: u64) -> (&Node<SLOTS>, usize) {
        let mut node = &self.map.root;
        loop {
            let at = node.search(key);
            let word = node.word();
            if word.is_leaf() {
                return (node, at);
            }
            node = self.child(node, at.min(word.count() - 1));
        }
    }

    /// Returns the last entry at or below `node`.
    fn last<'n>(&'n self, mut node: &'n Node<SLOTS>) -> Option<Entry> {
        for _ in 0..=MAX_LEVELS {
            let word = node.word();
            if word.is_leaf() {
                break;
            }
            node = self.child(node, word.count() - 1);
        }
        node.slot(node.count() - 1).entry()
    }
}

/// Iterator over entries in ascending order. See [`Reader::iter_from`].
pub struct Iter<'r, H: Host, const SLOTS: usize = FANOUT> {
    reader: &'r Reader<'r, H, SLOTS>,
    leaf: &'r Node<SLOTS>,
    at: usize,
    /// The end of the last entry that was returned, or the key that the iteration starts at.
    done: u64,
}

impl<H: Host, const SLOTS: usize> Iterator for Iter<'_, H, SLOTS> {
    type Item = Entry;

    #[inline]
    fn next(&mut self) -> Option<Entry> {
        if self.at >= self.leaf.count() {
            (self.leaf, self.at) = self.reader.seek(self.done);
            if self.at >= self.leaf.count() {
                return None;
            }
        }
        let entry = self.leaf.slot(self.at).entry()?;
        self.at += 1;
        self.done = entry.end;
        Some(entry)
    }
}
