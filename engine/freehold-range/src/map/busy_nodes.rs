//! The nodes that one structural change holds ([`BusyNodes`]), and the nodes that it has unlinked
//! ([`DeadNodes`]).
//!
//! A change that may link, unlink or merge nodes holds each node here before it edits the node, and
//! releases all nodes only when the change is complete. Changes of both kinds of writers use this type.
//! Pairing C in the [module documentation](super) rests on the rule that all nodes are held before any is
//! released. A change must not return or panic between its first edit and the release. Dead nodes are retired
//! after the release, outside of spin locks.

use core::mem::MaybeUninit;
use core::ptr;

use freehold_sync::Host;

use super::entry::MAX_LEVELS;
use super::node::{Node, Slot};
use super::spare_nodes;

/// Maximum number of nodes of a level that one change holds. These are the two nodes at the edges of the
/// range, the two neighbours of each edge node, the node where an insertion ends, and the node whose contents
/// move into the root.
const PER_LEVEL: usize = 8;

/// The nodes that a change holds, and the nodes that the change has marked as dead.
///
/// # Invariants
///
/// Every held node is BUSY until `finish` or `release`. Every node that a change edits is held or not yet
/// reachable.
#[must_use = "held nodes keep readers out until `finish` or `release`"]
pub(super) struct BusyNodes<'n, const SLOTS: usize> {
    nodes: [MaybeUninit<&'n Node<SLOTS>>; PER_LEVEL * MAX_LEVELS],
    len: usize,
    /// Chain, through the first slot, of dead nodes that must be retired.
    dead: *mut Node<SLOTS>,
}

impl<'n, const SLOTS: usize> BusyNodes<'n, SLOTS> {
    pub(super) fn new() -> Self {
        Self { nodes: [MaybeUninit::uninit(); _], len: 0, dead: ptr::null_mut() }
    }

    /// Holds the node unless this change already holds it.
    pub(super) fn hold<H: Host>(&mut self, node: &'n Node<SLOTS>) {
        if !self.contains(node) {
            node.hold_alone::<H>();
            self.nodes[self.len].write(node);
            self.len += 1;
        }
    }

    fn contains(&self, node: &Node<SLOTS>) -> bool {
        // SAFETY: the first `len` elements were written by `hold`.
        self.nodes[..self.len].iter().any(|busy| ptr::eq(unsafe { busy.assume_init() }, node))
    }

    /// Marks a held node as dead, so that it is retired after the release. The node no longer has children.
    ///
    /// # Safety
    ///
    /// `node` comes from the slot that linked it. The slot was cleared, and the node's children moved to
    /// other nodes.
    pub(super) unsafe fn add_dead(&mut self, node: *mut Node<SLOTS>) {
        // SAFETY: the node was unlinked just now, so it is still allocated.
        let node_ref = unsafe { &*node };
        node_ref.mark_dead();
        // A reader in this node may read the chain pointer as a child, but discards the pointer, because the
        // node has changed.
        node_ref.set(0, Slot { link: self.dead, ..Slot::EMPTY });
        self.dead = node;
    }

    /// Releases the held nodes and retires the dead nodes.
    pub(super) fn finish<H: Host>(self) {
        self.release().retire::<H>();
    }

    /// Releases the held nodes, so that readers and other writers can continue. The caller must retire the
    /// dead nodes.
    pub(super) fn release(self) -> DeadNodes<SLOTS> {
        for node in &self.nodes[..self.len] {
            // SAFETY: the first `len` elements were written by `hold`. Dead nodes are retired only after
            // this loop.
            let node = unsafe { node.assume_init() };
            if !node.word().is_dead() {
                node.release();
            }
        }
        DeadNodes(self.dead)
    }
}

/// Nodes that are unlinked and dead, chained through their first slot.
#[must_use = "dead nodes are freed only if they are retired"]
pub(super) struct DeadNodes<const SLOTS: usize>(*mut Node<SLOTS>);

impl<const SLOTS: usize> DeadNodes<SLOTS> {
    /// Passes the nodes to the host to be freed after a grace period. Not called under a spin lock, because
    /// the host may free the nodes at once.
    pub(super) fn retire<H: Host>(self) {
        let mut dead = self.0;
        while !dead.is_null() {
            // SAFETY: the node is in the chain, so it is not yet retired.
            let next = unsafe { &*dead }.child(0);
            // SAFETY: the node was unlinked before `add_dead` added it to the chain, and is in the chain only
            // once.
            unsafe { spare_nodes::retire::<H, SLOTS>(dead) };
            dead = next;
        }
    }
}
