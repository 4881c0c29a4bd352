//! The checks of the invariants that hold between two changes of a map, and counts that tests need.
//!
//! The caller has a [`Reader`] of its own or of its exclusive writer, so there is no other writer. Tests
//! (`tests/map.rs`, `tests/claims/`) and the check of an address space (`report/check.rs` of `freehold`) call
//! [`Reader::check`] after changes. A gap word may be too large, never too small. If a node is still held
//! during a check, a change has not released it.
//!
//! A new invariant of a node or of the finger belongs here. The check ignores the claim bits of values and
//! the number of slots that a node uses.

use freehold_sync::Host;

use super::entry::MAX_LEVELS;
use super::node::Node;
use super::read::Reader;

impl<'a, H: Host, const SLOTS: usize> Reader<'a, H, SLOTS> {
    /// Verifies the whole map: order, overlap, ends, gaps, unused slots, levels.
    ///
    /// # Panics
    ///
    /// Panics with a description if an invariant does not hold.
    pub fn check(&self) {
        let root = &self.map.root;
        let mut seen = Checked { last_end: 0 };
        assert!(root.level() < MAX_LEVELS, "the tree is too high");
        assert!(root.word().is_leaf() || root.count() >= 2, "an inner root with {} children", root.count());
        self.check_node(root, &mut seen);
        self.check_finger();
    }

    /// Verifies that the finger, if it points anywhere, follows the links from the root.
    fn check_finger(&self) {
        let mut node = &self.map.root;
        let mut lo = 0;
        for level in (0..=node.level()).rev() {
            let Some((found, at, below)) = self.map.finger.stored_step(level) else { return };
            assert!(core::ptr::eq(found, node), "the finger points to another node at level {level}");
            assert_eq!(below, lo, "the finger has a wrong preceding end at level {level}");
            if level > 0 {
                assert!(at < node.count(), "the finger points behind a node at level {level}");
                lo = if at > 0 { node.end(at - 1) } else { lo };
                node = self.child(node, at);
            }
        }
    }

    /// Returns the number of nodes that have no gap of `len` bytes although their gap word is at least `len`.
    /// Visits all nodes.
    pub fn overstated_gaps(&self, len: u64) -> usize {
        self.overstated_below(&self.map.root, 0, len).0
    }

    /// Returns the result of [`overstated_gaps`](Self::overstated_gaps) for the nodes below a node, and the
    /// largest gap there. `lo` is the end of the entry before the node.
    fn overstated_below(&self, node: &Node<SLOTS>, mut lo: u64, len: u64) -> (usize, u64) {
        let word = node.word();
        if word.is_leaf() {
            return (0, node.max_gap(lo));
        }
        let (mut missing, mut largest) = (0, 0);
        for at in 0..word.count() {
            let (below, gap) = self.overstated_below(self.child(node, at), lo, len);
            missing += below + usize::from(node.datum(at) >= len && gap < len);
            (lo, largest) = (node.end(at), largest.max(gap));
        }
        (missing, largest)
    }

    /// Returns the start of the first entry below the root's second child, if the tree has at least three
    /// levels. For tests that need a place where a change touches only the root and a leaf.
    pub fn first_of_second_subtree(&self) -> Option<u64> {
        let root = &self.map.root;
        (root.level() >= 2).then(|| self.next(root.end(0)))?.map(|entry| entry.start)
    }

    /// Returns the number of nodes besides the root. Each node has 384 bytes at the default fan-out. Visits
    /// all nodes.
    pub fn node_count(&self) -> usize {
        self.node_count_below(&self.map.root)
    }

    /// Returns the number of nodes below a node.
    fn node_count_below(&self, node: &Node<SLOTS>) -> usize {
        let word = node.word();
        if word.is_leaf() {
            return 0;
        }
        (0..word.count()).map(|at| 1 + self.node_count_below(self.child(node, at))).sum()
    }

    /// Verifies a subtree. Returns the largest gap in front of its entries.
    fn check_node(&self, node: &Node<SLOTS>, seen: &mut Checked) -> u64 {
        let word = node.word();
        assert!(!word.is_busy() && !word.is_dead(), "a reachable node is held or dead: {word:?}");
        assert!(word.count() <= self.map.fan.max_slots(), "a node has more slots in use than the fan-out");
        let promised = if word.is_leaf() { node.sum_of_promises() } else { 0 };
        assert_eq!(word.promised(), promised, "the number of promised slots differs from a recount");
        for unused in word.count()..SLOTS {
            assert_eq!(node.end(unused), u64::MAX, "an unused slot has an end");
        }
        let mut max = 0;
        for at in 0..word.count() {
            let end = node.end(at);
            assert!(end > seen.last_end, "ends do not ascend at {end:#x}");
            let gap = if word.is_leaf() {
                self.check_entry(node, at, seen)
            } else {
                let child = self.child(node, at);
                assert_eq!(child.level() + 1, word.level(), "wrong level of a child");
                assert!(child.count() > 0, "an empty child");
                let gap = self.check_node(child, seen);
                assert!(node.datum(at) >= gap, "a child has a larger gap than its gap word");
                gap
            };
            assert_eq!(seen.last_end, end, "wrong end of a child");
            max = max.max(gap);
        }
        max
    }

    /// Verifies one entry. Returns the gap in front of it.
    fn check_entry(&self, leaf: &Node<SLOTS>, at: usize, seen: &mut Checked) -> u64 {
        let entry = leaf.slot(at).entry().expect("an entry without a value");
        assert!(entry.start < entry.end, "an empty entry: {entry:x?}");
        assert!(entry.start >= seen.last_end, "entries overlap at {entry:x?}");
        let gap = entry.start - seen.last_end;
        seen.last_end = entry.end;
        gap
    }
}

/// The progress of a check, in the order of addresses.
struct Checked {
    /// End of the last entry seen.
    last_end: u64,
}
