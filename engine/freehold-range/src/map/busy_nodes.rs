//! The nodes that one structural change holds: all are held before any is released.

use core::mem::MaybeUninit;
use core::ptr;

use freehold_sync::Host;

use super::entry::MAX_LEVELS;
use super::node::{Node, Slot};
use super::spare_nodes;

/// A change touches at most this many nodes of a level: the two at the edges of the range with a neighbour on
/// each side, the one an insertion ends in, and the one the root takes over.
const PER_LEVEL: usize = 8;

/// The nodes held by a change, and those that died in it.
///
/// # Invariants
///
/// Every held node is BUSY until `finish`, and every node that a change edits is held or not yet reachable.
#[must_use = "held nodes keep readers out until `finish`"]
pub(super) struct BusyNodes<'n, const SLOTS: usize> {
    nodes: [MaybeUninit<&'n Node<SLOTS>>; PER_LEVEL * MAX_LEVELS],
    len: usize,
    /// Chain, through the first slot, of dead nodes to be retired.
    dead: *mut Node<SLOTS>,
}

impl<'n, const SLOTS: usize> BusyNodes<'n, SLOTS> {
    pub(super) fn new() -> Self {
        Self { nodes: [MaybeUninit::uninit(); _], len: 0, dead: ptr::null_mut() }
    }

    /// Holds the node unless this change does already.
    pub(super) fn latch<H: Host>(&mut self, node: &'n Node<SLOTS>) {
        if !self.contains(node) {
            node.latch::<H>();
            self.nodes[self.len].write(node);
            self.len += 1;
        }
    }

    fn contains(&self, node: &Node<SLOTS>) -> bool {
        // SAFETY: the first `len` elements were written by `latch`.
        self.nodes[..self.len].iter().any(|busy| ptr::eq(unsafe { busy.assume_init() }, node))
    }

    /// Marks a held node as dead; it is retired by `finish`. Nothing is linked below it any more.
    ///
    /// # Safety
    ///
    /// `node` comes from the slot that linked it; the slot was cleared, and the node's children moved
    /// elsewhere.
    pub(super) unsafe fn add_dead(&mut self, node: *mut Node<SLOTS>) {
        // SAFETY: unlinked just now, hence still allocated.
        let node_ref = unsafe { &*node };
        node_ref.mark_dead();
        // Readers that stand here read the chain as a child, and throw it away since the node is not
        // unchanged.
        node_ref.set(0, Slot { link: self.dead, ..Slot::EMPTY });
        self.dead = node;
    }

    /// Lets readers in again and retires the dead.
    pub(super) fn finish<H: Host>(self) {
        self.release().retire::<H>();
    }

    /// Lets readers and other writers in again. The dead are the caller's to retire.
    pub(super) fn release(self) -> DeadNodes<SLOTS> {
        for node in &self.nodes[..self.len] {
            // SAFETY: the first `len` elements were written by `latch`. Dead ones are not retired before the
            // end.
            let node = unsafe { node.assume_init() };
            if !node.word().is_dead() {
                node.release();
            }
        }
        DeadNodes(self.dead)
    }
}

/// Nodes that are unlinked and dead, chained through their first slot.
#[must_use = "nobody else frees them"]
pub(super) struct DeadNodes<const SLOTS: usize>(*mut Node<SLOTS>);

impl<const SLOTS: usize> DeadNodes<SLOTS> {
    /// Hands them over to be freed. Not under a spin lock: the host may do it at once.
    pub(super) fn retire<H: Host>(self) {
        let mut dead = self.0;
        while !dead.is_null() {
            // SAFETY: in the chain, hence not yet retired.
            let next = unsafe { &*dead }.child(0);
            // SAFETY: `add_dead` received it unlinked; it is in the chain once.
            unsafe { spare_nodes::retire::<H, SLOTS>(dead) };
            dead = next;
        }
    }
}
