//! Allocation and freeing of nodes, and the spare nodes that make `replace` infallible.
//!
//! Nodes are allocated before a change, so that the change itself cannot fail. A map has a chain of spare
//! nodes, which the exclusive writer or the holder of the structure lock uses. A write set has a chain of its
//! own (`write_set.rs`). [`retire`] passes an unlinked node to the host, which frees the node after a grace
//! period. Only this file allocates and frees nodes. `tests/out_of_memory.rs` lets each allocation fail, and
//! `tests/stress.rs` detects a node that is freed too early.

use core::mem::offset_of;
use core::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Global};
use allocator_api2::boxed::Box;
use freehold_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use freehold_sync::{Host, RcuHead};

use super::node::{Node, Slot};

/// Spare nodes, chained through their first slot. Only one writer at a time accesses the chain. The lock that
/// excludes other writers also orders the accesses to the chain, so every access is relaxed.
pub(super) struct SpareNodes<const SLOTS: usize> {
    /// The head of the chain. Accessed by the writer.
    first: AtomicPtr<Node<SLOTS>>,
    /// The length of the chain. Accessed by the writer; other threads read it as a hint.
    count: AtomicUsize,
}

impl<const SLOTS: usize> SpareNodes<SLOTS> {
    pub(super) fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()), count: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds nodes until there are `need`. If an allocation fails, the nodes already added stay.
    pub(super) fn fill(&self, need: usize) -> Result<(), AllocError> {
        while self.count() < need {
            let node = Box::try_new(Node::new())?;
            Node::announce(&raw const *node);
            self.put(Box::into_raw(node));
        }
        Ok(())
    }

    /// Adds a node, which must be in the state in which [`take`](Self::take) returns nodes.
    pub(super) fn put(&self, link: *mut Node<SLOTS>) {
        let first = self.first.load(Ordering::Relaxed);
        // SAFETY: the caller owned the node until now.
        unsafe { &*link }.set(0, Slot { link: first, ..Slot::EMPTY });
        self.first.store(link, Ordering::Relaxed);
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Removes a node from the chain and returns it in the state that `Node::new` creates. The caller owns
    /// the node.
    ///
    /// # Panics
    ///
    /// Panics if the chain is empty, which means that `preallocate` was not called for this `replace`.
    pub(super) fn take(&self) -> *mut Node<SLOTS> {
        let taken = self.first.load(Ordering::Relaxed);
        assert!(!taken.is_null(), "replace without preallocated nodes");
        // SAFETY: nodes in the chain are allocated and belong only to the chain.
        let node = unsafe { &*taken };
        self.first.store(node.child(0), Ordering::Relaxed);
        self.count.store(self.count() - 1, Ordering::Relaxed);
        node.set(0, Slot::EMPTY);
        taken
    }

    /// Frees every node of the chain. No reader has seen these nodes, so no grace period is needed.
    pub(super) fn free_all(&self) {
        while self.count() > 0 {
            // SAFETY: a node taken from the chain is owned here, and no reader has ever seen it.
            unsafe { free(self.take()) };
        }
    }
}

/// Passes an unlinked node to the host. After a grace period, the host frees the node and all nodes still
/// linked below it.
///
/// # Safety
///
/// The node came from `SpareNodes::take`, was linked into a map and is unlinked. No reader that starts from
/// now on reaches the node. The node is retired only once.
pub(super) unsafe fn retire<H: Host, const SLOTS: usize>(node: *mut Node<SLOTS>) {
    // SAFETY: the node is allocated; this only computes the address of a field.
    let head = unsafe { NonNull::new_unchecked(&raw mut (*node).head) };
    // SAFETY: the head stays in place until the callback frees the node around it. The node is unlinked.
    unsafe { H::rcu_defer(head, after_grace::<SLOTS>) };
}

/// Frees the node around `head`, with everything below it. The callback of `retire`.
///
/// # Safety
///
/// `head` belongs to a node passed to `retire`, and a grace period has passed since.
unsafe fn after_grace<const SLOTS: usize>(head: NonNull<RcuHead>) {
    // SAFETY: `retire` passed the head inside a node, with the provenance of the whole node.
    let node = unsafe { head.byte_sub(offset_of!(Node<SLOTS>, head)) }.cast::<Node<SLOTS>>();
    // SAFETY: the grace period is over and the node was unlinked, so no other thread can reach it.
    unsafe { free_tree(node.as_ptr()) };
}

/// Frees a node and everything below it.
///
/// # Safety
///
/// The caller owns the whole subtree, and no reader is inside.
unsafe fn free_tree<const SLOTS: usize>(node: *mut Node<SLOTS>) {
    // SAFETY: the caller owns the subtree.
    unsafe {
        free_children(&*node);
        free(node);
    }
}

/// Frees everything below a node.
///
/// # Safety
///
/// The caller owns everything below the node, and no reader is inside. The node itself is not used as an
/// inner node again.
pub(super) unsafe fn free_children<const SLOTS: usize>(node: &Node<SLOTS>) {
    let word = node.word();
    if !word.is_leaf() {
        for at in 0..word.count() {
            // SAFETY: slots in use of an inner node own their children.
            unsafe { free_tree(node.child(at)) };
        }
    }
}

/// Frees one node.
///
/// # Safety
///
/// The node came from `SpareNodes::fill`, and the caller owns it.
unsafe fn free<const SLOTS: usize>(node: *mut Node<SLOTS>) {
    // SAFETY: `SpareNodes::fill` created the node with `Box::into_raw`, and the caller owns it.
    let node = unsafe { Box::from_raw_in(node, Global) };
    node.poison();
}
