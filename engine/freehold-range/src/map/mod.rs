//! The range map: a B+tree read without locks and edited in place, by one writer or by
//! [several](claim_writer).
//!
//! # Shape
//!
//! Every node has the same layout: a control word, `FANOUT` upper ends, and per slot a pair of words. In a
//! leaf a slot is an entry: end, start, value. In an inner node a slot is a child: the end of the child's
//! last entry, the child, and no less than the largest gap in front of any entry of the child. The root is
//! part of the map itself: it never moves and is never freed, and a map of up to `FANOUT` entries allocates
//! nothing.
//!
//! Two rules make every search one descent:
//!
//! * the end stored for a child is *exactly* the end of its last entry, so "the first child whose end lies
//!   above the key" holds the first entry whose end lies above the key;
//! * the free space in front of an entry belongs to the leaf of that entry, so no gap spans two leaves.
//!
//! Slots that are not in use have the end `u64::MAX`. A search counts the ends not above the key, so it needs
//! no length and has no branch that depends on the data. Below the root a reader knows that there is such an
//! end, from the parent: it leaves out the last of the fifteen, and asks for no count.
//!
//! # The control word
//!
//! | state | BUSY | DEAD | may read | may write | leaves it by |
//! | --- | --- | --- | --- | --- | --- |
//! | stable | 0 | 0 | readers, writers | nobody (the gap words: writer, search) | `hold`; beside others `try_latch` |
//! | busy | 1 | 0 | its writer | its writer | `release`, with the next version; `release_unchanged`, with the same |
//! | dead | 1 | 1 | writer | nobody | never; freed after a grace period |
//!
//! The word also carries the level (0 for a leaf), the number of slots in use and a version of 44 bits, so
//! that a single load tells a reader all it needs about a node, and a single comparison tells it that nothing
//! has changed.
//!
//! # Which access pairs with which
//!
//! * A: `hold` stores BUSY (relaxed), then a release fence, then edits with relaxed stores. A reader loads
//!   slots (relaxed), then an acquire fence, then the word (relaxed) in `unchanged`. A reader that saw any
//!   edit sees BUSY or a later version, and starts again.
//! * B: `release` stores the next version (release); a reader takes the word in `begin` (acquire). A reader
//!   that sees the version sees all edits made before it, including the contents of new nodes that a slot now
//!   points to.
//! * C: a reader that moves from a parent to a child takes the child's word by `begin` (acquire) and then
//!   asks again whether the parent is `unchanged`. The writer holds *every* node that it is going to change
//!   before it releases *any*. So a reader that saw the child's new version sees the parent BUSY or newer,
//!   and starts again.
//!
//! Nothing read from a node is used (least of all followed as a pointer) before the node was found unchanged.
//!
//! # Why a reader never misses an entry
//!
//! Let a reader step from a parent, seen at version `p`, to a child, seen at version `c`. The parent was
//! unchanged after `c` was read; so there was an instant at which the parent was at `p` and the child at `c`
//! (C). By induction from the root, which is always reachable, there was an instant at which the path led
//! from the root to this leaf at version `c`, hence the leaf held the first entry above the key. The leaf's
//! slots were those of version `c` (A). The lookup takes effect at that instant. An entry present throughout
//! is in the leaf at that instant, and an entry absent throughout is not.
//!
//! That needs every change which moves an address from one leaf to another to change all nodes between the
//! two: or a reader could step from a root that still leads to the one, by a node that is unchanged, to a
//! leaf that has given the address away. The exclusive writer never moves the end of a leaf upwards over
//! what the next leaf holds; an exchange of claim writers may, and holds both ways.
//!
//! A range that covers many leaves is cut out by its edges: whole subtrees are unlinked at the level where
//! they hang, and nothing inside them is touched. A reader already inside sees them as they were: it has
//! passed the edge before the cut, its instant lies before the cut, and below the edge nothing changes any
//! more. A node that was *merged* into its sibling is different: its children live on and go on changing, so
//! it is marked DEAD, and a reader that stands in it starts again.
//!
//! Unlinked nodes are handed to [`Host::rcu_defer`] after the stores that unlink them; a reader that starts
//! after the grace period sees those stores, so it cannot reach the node. A cut subtree is handed over by its
//! top node alone and freed below it by the callback.
//!
//! # Bounded
//!
//! A reader that met a busy or changed node starts again from the root, a fixed number of times; then it says
//! [`Lookup::Contended`] and its caller takes the lock. A writer that is descheduled in the middle of a
//! change therefore stalls no reader.
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
pub mod write_set;

use core::marker::PhantomData;

use freehold_sync::{Host, RawSpin};

use self::fanout::{Fanout, NodeWidth};
use self::finger::Finger;
use self::node::Node;
use self::spare_nodes::SpareNodes;

pub use self::entry::{Entry, FANOUT, Lookup, MAX_REPLACEMENT};

/// Disjoint ranges of addresses with a value each: lock-free lookups beside one writer, or several that have
/// [claimed](claim) what they change.
///
/// Creating a map allocates nothing. Readers hold a grace-period guard of the host; the writer is the task
/// with the right to call [`RangeMap::exclusive_writer`]: in an address space, the holder of the mmap lock
/// for writing.
///
/// `SLOTS` is the number of slots of a node, and the fan-out of the tree unless the map was made with
/// narrower [`NodeWidth`]. The default is the one that measures best; tests choose a small one, so that a
/// handful of entries already splits and merges nodes.
///
/// # Invariants
///
/// * At most one [`ExclusiveWriter`](crate::ExclusiveWriter) exists at a time, and no
///   [`Reader`](crate::Reader) or [`ClaimWriter`](crate::ClaimWriter) beside it; no `Reader` beside a
///   `ClaimWriter`.
/// * Every node reachable from the root is owned by this map, and stays allocated for a grace period after it
///   was unlinked.
pub struct RangeMap<H: Host, const SLOTS: usize = FANOUT> {
    /// The root: read by everyone, written by the writer as the module documentation says.
    root: Node<SLOTS>,
    /// Spare nodes for `replace`; touched by the exclusive writer, or under the structure lock.
    spares: SpareNodes<SLOTS>,
    /// Where the writer was last; touched by the writer alone.
    finger: Finger<SLOTS>,
    /// Held by a claim writer that changes more than one leaf, and by a search that corrects what an inner
    /// node keeps.
    structure: RawSpin,
    /// The fan-out; fixed.
    fan: Fanout,
    host: PhantomData<fn() -> H>,
}

// SAFETY: all fields are atomics, but for the grace-period heads inside nodes. A head is written only by the
// host, once its node was handed to `rcu_defer`, when no thread reaches it through this map any more.
unsafe impl<H: Host, const SLOTS: usize> Send for RangeMap<H, SLOTS> {}
// SAFETY: as above.
unsafe impl<H: Host, const SLOTS: usize> Sync for RangeMap<H, SLOTS> {}

impl<H: Host, const SLOTS: usize> Default for RangeMap<H, SLOTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// An empty map. Allocates nothing.
    pub fn new() -> Self {
        Self::with_node_width(NodeWidth::Wide)
    }

    /// The same with nodes of this kind.
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

    /// The entry that contains `key`. Takes no lock, writes nothing, never waits.
    #[inline]
    pub fn lookup(&self, rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.next(rcu, key) {
            Lookup::Found(entry) if entry.start > key => Lookup::Hole,
            other => other,
        }
    }

    /// The first entry whose end lies above `key`: the one that contains it, or else the next one. Takes no
    /// lock, writes nothing, never waits.
    ///
    /// Beware of taking an entry that starts above `key` for one that contains it: that is what
    /// [`RangeMap::lookup`] is for.
    #[inline(always)]
    pub fn next(&self, _rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.attempt(key) {
            Lookup::Contended => self.retry(key),
            found => found,
        }
    }

    /// As [`lookup`](Self::lookup), in one descent: [`Lookup::Contended`] as soon as that meets a writer.
    /// For callers with a slow path of their own, which `lookup` may be a part of.
    #[inline]
    pub fn try_lookup(&self, _rcu: &H::RcuGuard, key: u64) -> Lookup {
        match self.attempt(key) {
            Lookup::Found(entry) if entry.start > key => Lookup::Hole,
            other => other,
        }
    }

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

    /// One descent; `Contended` when it met a node that was busy or changed under it.
    #[inline(always)]
    fn attempt(&self, key: u64) -> Lookup {
        let mut node = &self.root;
        let Some(mut word) = node.begin() else { return Lookup::Contended };
        let mut at = node.search(key);
        if at >= word.count() {
            // Only the root can hold nothing above the key: everywhere else the parent's end says otherwise.
            return if node.unchanged(word) { Lookup::Hole } else { Lookup::Contended };
        }
        while !word.is_leaf() {
            let child = node.child(at);
            if !node.unchanged(word) {
                return Lookup::Contended;
            }
            debug_assert!(at < word.count(), "nothing in an inner node lies above the key");
            // SAFETY: the node was unchanged after the slot was read, so this was its child; the caller's
            // guard keeps it allocated even when it was unlinked since (pairing B: its contents
            // are visible).
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
                debug_assert!(at < word.count() && entry.end > key, "nothing in a leaf lies above the key");
                Lookup::Found(entry)
            }
            _ => Lookup::Contended,
        }
    }
}

impl<H: Host, const SLOTS: usize> Drop for RangeMap<H, SLOTS> {
    fn drop(&mut self) {
        // SAFETY: the map is borrowed exclusively, so no reader is inside; nothing is reachable afterwards.
        unsafe { spare_nodes::free_children(&self.root) };
        self.spares.free_all();
    }
}
