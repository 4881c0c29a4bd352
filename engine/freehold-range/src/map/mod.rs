//! The range map: a B+tree that is read without locks and edited in place, by one exclusive writer or by
//! several [claim writers](claim_writer).
//!
//! | task | files |
//! | --- | --- |
//! | reading | `read.rs`, `gap.rs`, `finger.rs` |
//! | changes by the exclusive writer | `exclusive_writer.rs`, `cut.rs`, `insert.rs` |
//! | claims, and changes by claim writers | `claim.rs`, `claim_writer.rs`, `hole_claim.rs`, `write_set.rs`, `publish.rs`, `release.rs`, `contended_leaf.rs` |
//! | changes of one leaf without a claim | `unclaimed.rs` |
//! | nodes | `node.rs`, `path.rs`, `leaf_path.rs`, `busy_nodes.rs`, `spare_nodes.rs`, `fanout.rs`, `entry.rs` |
//! | invariants | `check.rs` |
//!
//! # Shape
//!
//! Every node has the same layout: a control word, `SLOTS` upper ends, and a pair of words per slot. In a
//! leaf, a slot is an entry: its end, start and value. In an inner node, a slot is a child: the end of the
//! child's last entry, the pointer to the child, and the gap word. The *gap word* is an upper bound of the
//! largest gap in front of any entry of the child. The root is part of the map itself: no change moves or
//! frees it. A map whose entries fit into the root allocates nothing.
//!
//! Because of two rules, every search is a single descent:
//!
//! * The end stored for a child is *exactly* the end of its last entry. So the first child whose end lies
//!   above the key holds the first entry whose end lies above the key.
//! * The free space in front of an entry belongs to the leaf of that entry. So no gap spans two leaves.
//!
//! Unused slots have the end `u64::MAX`. A search counts the ends that are not above the key. So a search
//! needs no length and has no branch that depends on the data. Below the root, the end kept in the parent
//! guarantees that the node has an end above the key. Therefore a search below the root skips the last of the
//! fifteen ends and does not read the slot count.
//!
//! # The control word
//!
//! | state | LATCHED | BUSY | DEAD | may read | may write | the state ends with |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | stable | 0 | 0 | 0 | readers, writers | no thread, except that the writer or a search may write gap words | `hold` by the exclusive writer, `hold_alone` under the structure lock, `try_latch` by a claim writer |
//! | latched leaf | 1 | 0 | 0 | readers, its writer | its writer, only marks of entries | `hold`; or `release_unchanged`, which keeps the version |
//! | busy | 0, or 1 in a latched leaf | 1 | 0 | its writer | its writer | `release`, which stores the next version |
//! | dead | 0 | 1 | 1 | writer | no thread | the free of the node, after a grace period |
//!
//! The word also carries the level (0 for a leaf), the number of slots in use, the number of promised slots,
//! and a version of 38 bits. So a reader learns all that it needs about a node from a single load. A single
//! comparison shows that nothing has changed.
//!
//! # Which access pairs with which
//!
//! * A: `hold` stores BUSY (relaxed), then executes a release fence, then edits slots with relaxed stores. A
//!   reader loads slots (relaxed), then executes an acquire fence, then loads the word (relaxed) in
//!   `unchanged`. A reader that saw any edit sees BUSY or a later version, and starts again.
//! * B: `release` stores the next version (release). A reader loads the word in `begin` (acquire). A reader
//!   that sees the version sees all edits made before it, including the contents of new nodes that a slot now
//!   points to.
//! * C: A reader that moves from a parent to a child loads the child's word in `begin` (acquire). The reader
//!   then checks again that the parent is `unchanged`. The writer holds *every* node that it will change
//!   before it releases *any* of them. So a reader that saw the child's new version sees the parent BUSY or
//!   newer, and starts again.
//!
//! A reader uses no value that it read from a node, and follows no pointer, before it has found the node
//! unchanged.
//!
//! # Why a reader never misses an entry
//!
//! Let a reader step from a parent, seen at version `p`, to a child, seen at version `c`. The parent was
//! unchanged after `c` was read. So at some instant the parent was at `p` and the child at `c` (C). By
//! induction from the root, which is always reachable, there was an instant at which the path led from the
//! root to this leaf at version `c`. At that instant, the leaf held the first entry above the key. The leaf's
//! slots were those of version `c` (A). The lookup takes effect at that instant. An entry that is present
//! during the whole lookup is in the leaf at that instant. An entry that is absent during the whole lookup is
//! not in the leaf.
//!
//! The argument needs one rule: a change that moves an address from one leaf to another changes all nodes
//! between the two. Otherwise a reader could step from a root that still leads to the old leaf, through an
//! unchanged node, to a leaf that no longer holds the address. The exclusive writer never moves the end of a
//! leaf upwards over addresses that the next leaf holds. A claim writer may do so when it publishes over
//! several leaves; it then holds all nodes on the paths to both leaves.
//!
//! A range that covers many leaves is cut out at its edges. Whole subtrees are unlinked at the level where
//! they hang, and no node inside them is touched. A reader that is already inside such a subtree sees the
//! state before the cut. The reader passed the edge before the cut, and no node below the edge changes any
//! more. So the lookup takes effect at an instant before the cut. A node that was *merged* into its sibling
//! is different: its children stay linked and keep changing. So the merged node is marked DEAD, and a reader
//! that is in it starts again.
//!
//! Unlinked nodes are passed to [`Host::rcu_defer`] after the stores that unlink them. A reader that starts
//! after the grace period sees those stores, so it cannot reach the node. For a cut subtree, only the top
//! node is passed to the host; the callback frees the nodes below it.
//!
//! # Bounded retries
//!
//! A reader that finds a busy or changed node starts again from the root, at most a fixed number of times.
//! Then the lookup returns [`Lookup::Contended`], and the caller takes the lock. So a writer that is
//! descheduled in the middle of a change stalls no reader.
//!
//! # Sources
//!
//! Optimistic lock coupling: Leis, Haubenschild, Neumann, "Optimistic Lock Coupling: A Scalable and Efficient
//! General-Purpose Synchronization Method" (2019). Sequence locks under the C11 model: Boehm, "Can Seqlocks
//! Get Along With Programming Language Memory Models?" (2012). Merging late instead of keeping nodes half
//! full: Johnson, Shasha, "B-Trees with Inserts and Deletes: Why Free-at-Empty Is Better Than Merge-at-Half"
//! (1989).
#![expect(unsafe_code, reason = "nodes are linked by pointers and freed after a grace period")]

mod busy_nodes;
mod check;
pub mod claim;
pub mod claim_writer;
mod contended_leaf;
mod cut;
mod entry;
pub(crate) mod exclusive_writer;
pub mod fanout;
mod finger;
pub(crate) mod gap;
mod hole_claim;
mod insert;
mod leaf_path;
mod node;
mod path;
pub mod publish;
pub(crate) mod read;
mod release;
mod spare_nodes;
pub(crate) mod unclaimed;
pub mod write_set;

use core::marker::PhantomData;

use freehold_sync::{Host, RawSpin};

use self::fanout::{Fanout, NodeWidth};
use self::finger::Finger;
use self::node::Node;
use self::spare_nodes::SpareNodes;

pub use self::entry::{Entry, FANOUT, Lookup, MAX_REPLACEMENT};

/// Disjoint ranges of addresses, each with a value. Lookups take no lock and run concurrently with one
/// exclusive writer, or with several writers that have [claimed](claim) what they change.
///
/// Creating a map allocates nothing. Readers hold a grace-period guard of the host. The exclusive writer is
/// the task with the right to call [`RangeMap::exclusive_writer`]. In an address space, that task is the
/// holder of the mmap lock for writing.
///
/// `SLOTS` is the number of slots of a node, and also the fan-out of the tree, unless the map was created
/// with a narrower [`NodeWidth`]. The default is the fastest size measured. Tests choose a small size, so
/// that a few entries already split and merge nodes.
///
/// # Invariants
///
/// * While an [`ExclusiveWriter`](crate::ExclusiveWriter) exists, no other `ExclusiveWriter`,
///   [`Reader`](crate::Reader) or [`ClaimWriter`](crate::ClaimWriter) exists. While a `ClaimWriter` exists,
///   no `Reader` exists.
/// * Every node reachable from the root is owned by this map. Each node stays allocated for a grace period
///   after it is unlinked.
pub struct RangeMap<H: Host, const SLOTS: usize = FANOUT> {
    /// The root. Readers read it at any time; the writer writes it by the rules of the module documentation.
    root: Node<SLOTS>,
    /// Spare nodes for `replace`. Accessed by the exclusive writer, or under the structure lock.
    spares: SpareNodes<SLOTS>,
    /// The place of the exclusive writer's last search. Accessed by the exclusive writer, or (to forget it)
    /// under the structure lock.
    finger: Finger<SLOTS>,
    /// The structure lock. Held by a claim writer that changes more than one leaf, and by a search that
    /// corrects a gap word of an inner node.
    structure: RawSpin,
    /// The fan-out. Never changes.
    fan: Fanout,
    host: PhantomData<fn() -> H>,
}

// SAFETY: all fields are atomics, except the grace-period heads inside nodes. Only the host writes a head,
// after the node was passed to `rcu_defer`. No thread reaches the node through this map by then.
unsafe impl<H: Host, const SLOTS: usize> Send for RangeMap<H, SLOTS> {}
// SAFETY: see `Send` above.
unsafe impl<H: Host, const SLOTS: usize> Sync for RangeMap<H, SLOTS> {}

impl<H: Host, const SLOTS: usize> Default for RangeMap<H, SLOTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Returns an empty map. Allocates nothing.
    pub fn new() -> Self {
        Self::with_node_width(NodeWidth::Wide)
    }

    /// Returns an empty map with nodes of this width. Allocates nothing.
    pub fn with_node_width(width: NodeWidth) -> Self {
        let fan = match width {
            NodeWidth::Wide => const { Fanout::new(SLOTS) },
            NodeWidth::Narrow => const { Fanout::new(fanout::MIN_FANOUT) },
        };
        Self {
            root: Node::new(),
            spares: SpareNodes::new(),
            finger: Finger::new(),
            structure: RawSpin::new(),
            fan,
            host: PhantomData,
        }
    }

    /// Returns the entry that contains `key`. Takes no lock, writes nothing and never waits.
    #[inline]
    pub fn lookup(&self, rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.next(rcu, key) {
            Lookup::Found(entry) if entry.start > key => Lookup::Hole,
            other => other,
        }
    }

    /// Returns the first entry whose end lies above `key`: the entry that contains `key`, or else the next
    /// one. Takes no lock, writes nothing and never waits.
    ///
    /// The returned entry may start above `key`. [`RangeMap::lookup`] returns only an entry that contains
    /// `key`.
    #[inline(always)]
    pub fn next(&self, _rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.attempt(key) {
            Lookup::Contended => self.retry(key),
            found => found,
        }
    }

    /// Returns the entry that contains `key`, in one descent. Like [`lookup`](Self::lookup), but returns
    /// [`Lookup::Contended`] as soon as the descent finds a busy or changed node. Meant for callers that then
    /// take a slow path of their own, which may use `lookup`.
    #[inline]
    pub fn try_lookup(&self, _rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.attempt(key) {
            Lookup::Found(entry) if entry.start > key => Lookup::Hole,
            other => other,
        }
    }

    /// Repeats a contended descent a few times, with pauses.
    #[cold]
    #[inline(never)]
    fn retry(&self, key: u64) -> Lookup {
        for _ in 1..self.fan.lookup_attempts() {
            H::relax();
            let found = self.attempt(key);
            if found != Lookup::Contended {
                return found;
            }
        }
        Lookup::Contended
    }

    /// Makes one descent. Returns `Contended` if it finds a node that is busy or that changes during the
    /// visit.
    #[inline(always)]
    fn attempt(&self, key: u64) -> Lookup {
        let mut node = &self.root;
        let Some(mut word) = node.begin() else { return Lookup::Contended };
        let mut at = node.search(key);
        if at >= word.count() {
            // Only the root can lack an end above the key. For every other node on the path, the parent
            // stores an end above the key, which is also the last end of the node.
            return if node.unchanged(word) { Lookup::Hole } else { Lookup::Contended };
        }
        while !word.is_leaf() {
            let child = node.child(at);
            if !node.unchanged(word) {
                return Lookup::Contended;
            }
            debug_assert!(at < word.count(), "no end in the inner node lies above the key");
            // SAFETY: the node was unchanged after the slot was read, so the pointer led to a child of the
            // node. The caller's guard keeps the child allocated even if it was unlinked since. The child's
            // contents are visible (pairing B).
            let child = unsafe { &*child };
            let Some(below) = child.begin() else { return Lookup::Contended };
            if !node.unchanged(word) {
                return Lookup::Contended;
            }
            (node, word) = (child, below);
            at = node.search_below(key);
        }
        let entry = node.slot(at).entry();
        match entry {
            Some(entry) if node.unchanged(word) => {
                debug_assert!(at < word.count() && entry.end > key, "no end in the leaf lies above the key");
                Lookup::Found(entry)
            }
            _ => Lookup::Contended,
        }
    }
}

impl<H: Host, const SLOTS: usize> Drop for RangeMap<H, SLOTS> {
    fn drop(&mut self) {
        // SAFETY: the map is borrowed exclusively, so no reader is inside. No node is reachable afterwards.
        unsafe { spare_nodes::free_children(&self.root) };
        self.spares.free_all();
    }
}
