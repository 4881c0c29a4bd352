//! The index of a page cache: a radix tree, read without any lock.
//!
//! ```text
//! root -> Node (shift 12) -> Node (shift 6) -> Leaf -> word
//!           index >> 12 & 63   index >> 6 & 63   index & 63
//! ```
//!
//! What is done under which guard; the lock is the file's invalidate lock:
//!
//! | | under | pointers |
//! | --- | --- | --- |
//! | look ([`get`](Radix::get), [`each`](Radix::each)) | RCU, or the lock in either mode | loads |
//! | grow ([`make`](Radix::make)) | the lock, in either mode | null to a child, by compare-and-swap; the root to a taller one whose first child is the old root |
//! | shrink ([`prune`](Radix::prune)) | the lock, for writing | a child all of whose words are zero to null; the root to its first child, where it has no other |
//!
//! Makers meet each other: a maker that loses the race for a slot frees what it made. A pruner meets readers
//! under RCU alone, because makers, and tasks that change words, have the lock. It unlinks a node and defers
//! its end by a grace period: a reader that has found the node keeps it by its guard, and sees zeroes, or a
//! tree that is as short as the new one and has the same children. A guard that is made after the grace
//! period began, and not waited for, finds the slot null (contract of [`Host::rcu_defer`]). So a word stays
//! as long as the guard that it was found under, which is what [`Stay`] says, and no longer. A node that was
//! unlinked is never linked again, and only its words' zeroes are read from it.
//!
//! An old root that was replaced by its child still names that child. A later prune may end the child: a
//! reader that came by the old root was inside its guard before either was unlinked, so both wait for it.
//!
//! What the words mean, and which tasks may write them, is the caller's business.
#![expect(unsafe_code, reason = "owns nodes that are linked by atomic pointers")]

use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{
    marker::PhantomData,
    ops::{ControlFlow, Range},
    ptr::{NonNull, null_mut},
};
use freehold_sync::{
    Host, RcuHead, RwSemReadGuard, RwSemWriteGuard,
    atomic::{
        AtomicPtr, AtomicU64, CHECKED,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// Few children under a checker of schedules.
const BITS: u32 = if CHECKED { 2 } else { 6 };
const FAN: usize = 1 << BITS;

/// Bits of an index that the tallest tree can hold.
pub(super) const INDEX_BITS: u32 = 60;

/// A word of a leaf that was freed; no caller's word is this.
const POISON: u64 = u64::MAX;

/// The invalidate lock of the file whose index it is, held for reading or for writing.
pub(crate) trait Locked {}

impl<H: Host> Locked for RwSemReadGuard<'_, H> {}
impl<H: Host> Locked for RwSemWriteGuard<'_, H> {}

/// Why a word that was found stays: a guard that lives as long.
#[derive(Clone, Copy)]
pub(crate) struct Stay<'g>(PhantomData<&'g ()>);

impl<'g> Stay<'g> {
    /// A read section of RCU.
    pub fn within<H: Host>(_: &'g H::RcuGuard) -> Self {
        Stay(PhantomData)
    }

    /// The lock of the tree, or the right of a task that is alone with it.
    pub fn locked(_: &'g impl Locked) -> Self {
        Stay(PhantomData)
    }
}

/// Nobody else reaches the tree any more.
pub(in crate::file) struct Alone;

impl Locked for Alone {}

#[repr(C)]
struct Node {
    /// The host's, once the node was unlinked. First, so that it has the node's address.
    head: RcuHead,
    /// How far an index is shifted to find its child here; children of shift `BITS` are leaves. Written
    /// once.
    shift: u32,
    /// Null or a child: a `Leaf` where `shift` is `BITS`, else a `Node` of shift `shift - BITS`.
    children: [AtomicPtr<u8>; FAN],
}

#[repr(C)]
struct Leaf {
    /// As in a node.
    head: RcuHead,
    words: [AtomicU64; FAN],
}

/// A sparse array of atomic words, all zero at first.
pub(in crate::file) struct Radix {
    /// Null or the topmost node.
    root: AtomicPtr<Node>,
}

impl Node {
    fn try_new(shift: u32) -> Result<Box<Node>, AllocError> {
        let children = core::array::from_fn(|_| AtomicPtr::new(null_mut()));
        Box::try_new(Node { head: RcuHead::new(), shift, children })
    }

    fn is_empty(&self) -> bool {
        // Relaxed: the caller keeps out all that change children, or is alone with the tree.
        self.children.iter().all(|child| child.load(Relaxed).is_null())
    }

    /// Whether `index` lies below this node when it is the root.
    fn holds(&self, index: u64) -> bool {
        index >> self.shift < FAN as u64
    }

    fn child(&self, index: u64) -> &AtomicPtr<u8> {
        &self.children[(index >> self.shift) as usize & (FAN - 1)]
    }
}

impl Leaf {
    fn try_new() -> Result<Box<Leaf>, AllocError> {
        let words = core::array::from_fn(|_| AtomicU64::new(0));
        Box::try_new(Leaf { head: RcuHead::new(), words })
    }

    fn is_empty(&self) -> bool {
        // Relaxed: as in a node.
        self.words.iter().all(|word| word.load(Relaxed) == 0)
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize & (FAN - 1)]
    }
}

impl Radix {
    pub fn new() -> Self {
        Radix { root: AtomicPtr::new(null_mut()) }
    }

    /// The word at `index`, if it was asked for with [`make`](Self::make) and not pruned since.
    pub fn get<'t>(&'t self, _: Stay<'t>, index: PageIndex) -> Option<&'t AtomicU64> {
        let index = index.get();
        // Acquire, here and below: pairs with the release that linked the node, whose fields are then seen.
        let mut node = self.node(self.root.load(Acquire)).filter(|node| node.holds(index))?;
        loop {
            let child = NonNull::new(node.child(index).load(Acquire))?;
            match self.below(node, child) {
                Below::Leaf(leaf) => return Some(leaf.word(index)),
                Below::Node(next) => node = next,
            }
        }
    }

    /// The word at `index`; allocates what is missing on the way. What is not used then goes with the next
    /// [`prune`](Self::prune).
    ///
    /// # Panics
    ///
    /// When `index` has more than [`INDEX_BITS`] bits.
    pub fn make<'t>(&'t self, _: &'t impl Locked, index: PageIndex) -> Result<&'t AtomicU64, AllocError> {
        let index = index.get();
        assert!(index >> INDEX_BITS == 0, "a page index of {index:#x}");
        let mut node = self.make_root(index)?;
        loop {
            let slot = node.child(index);
            let child = match NonNull::new(slot.load(Acquire)) {
                Some(child) => child,
                None if node.shift == BITS => link(slot, Leaf::try_new()?),
                None => link(slot, Node::try_new(node.shift - BITS)?),
            };
            match self.below(node, child) {
                Below::Leaf(leaf) => return Ok(leaf.word(index)),
                Below::Node(next) => node = next,
            }
        }
    }

    /// Calls `f` with every word of `range` that can be other than zero, ascending, until it breaks.
    pub fn each<B>(
        &self,
        _: Stay<'_>,
        range: PageRange,
        mut f: impl FnMut(PageIndex, &AtomicU64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(root) = self.node(self.root.load(Acquire)) else { return ControlFlow::Continue(()) };
        let range = range.numbers();
        let end = range.end.min((FAN as u64) << root.shift);
        if range.start < end {
            self.each_below(root, range.start..end, &mut f)
        } else {
            ControlFlow::Continue(())
        }
    }

    fn each_below<B>(
        &self,
        node: &Node,
        range: Range<u64>,
        f: &mut impl FnMut(PageIndex, &AtomicU64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut at = range.start;
        while at < range.end {
            let next = (((at >> node.shift) + 1) << node.shift).min(range.end);
            if let Some(child) = NonNull::new(node.child(at).load(Acquire)) {
                match self.below(node, child) {
                    Below::Node(below) => self.each_below(below, at..next, f)?,
                    Below::Leaf(leaf) => {
                        for index in at..next {
                            f(PageIndex::new(index), leaf.word(index))?;
                        }
                    }
                }
            }
            at = next;
        }
        ControlFlow::Continue(())
    }

    /// Gives nodes back that have words of `range` and nothing but zeroes, after a grace period. Without them
    /// the tree is as short as it can be.
    pub fn prune<H: Host>(&self, _: &RwSemWriteGuard<'_, H>, range: PageRange) {
        self.prune_alone::<H>(range.numbers());
    }

    /// As [`prune`](Self::prune); the caller keeps makers out.
    fn prune_alone<H: Host>(&self, range: Range<u64>) {
        // Relaxed, here and below: makers come before us by the lock, or after us. Stores that unlink need no
        // release: a reader that sees the old value is waited for, and one that must not see it is ordered by
        // `rcu_defer`.
        let Some(mut root) = self.node(self.root.load(Relaxed)) else { return };
        let end = range.end.min((FAN as u64) << root.shift);
        if range.start < end {
            self.prune_below::<H>(root, range.start..end);
        }
        while root.children[1..].iter().all(|child| child.load(Relaxed).is_null()) {
            let first = root.children[0].load(Relaxed);
            if !first.is_null() && root.shift == BITS {
                break;
            }
            self.root.store(first.cast(), Relaxed);
            // SAFETY: just unlinked.
            unsafe { retire::<H, Node>(NonNull::from(root)) };
            match self.node(first.cast()) {
                Some(below) => root = below,
                None => break,
            }
        }
    }

    fn prune_below<H: Host>(&self, node: &Node, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let next = (((at >> node.shift) + 1) << node.shift).min(range.end);
            let slot = node.child(at);
            if let Some(child) = NonNull::new(slot.load(Relaxed)) {
                match self.below(node, child) {
                    Below::Node(below) => {
                        self.prune_below::<H>(below, at..next);
                        if below.is_empty() {
                            slot.store(null_mut(), Relaxed);
                            // SAFETY: just unlinked.
                            unsafe { retire::<H, Node>(child.cast()) };
                        }
                    }
                    Below::Leaf(leaf) if leaf.is_empty() => {
                        slot.store(null_mut(), Relaxed);
                        // SAFETY: just unlinked.
                        unsafe { retire::<H, Leaf>(child.cast()) };
                    }
                    Below::Leaf(_) => {}
                }
            }
            at = next;
        }
    }

    /// A root that is tall enough for `index`.
    fn make_root(&self, index: u64) -> Result<&Node, AllocError> {
        loop {
            let old = self.root.load(Acquire);
            let shift = match self.node(old) {
                Some(root) if root.holds(index) => return Ok(root),
                Some(root) => root.shift + BITS,
                None => BITS,
            };
            let mut new = Node::try_new(shift)?;
            new.children[0] = AtomicPtr::new(old.cast());
            let new = Box::leak(new);
            // Release on success, pairs with the acquire of every walk. Relaxed on failure: we look again.
            if self.root.compare_exchange(old, new, AcqRel, Relaxed).is_err() {
                // SAFETY: just leaked from such a box, and nobody else has seen it. Its child is not dropped
                // with it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn node(&self, node: *mut Node) -> Option<&Node> {
        // SAFETY: null or a node of this tree, found under a guard of the caller's, which it outlives.
        unsafe { node.as_ref() }
    }

    fn below(&self, node: &Node, child: NonNull<u8>) -> Below<'_> {
        debug_assert!(child != NonNull::dangling(), "a node that was freed is looked at");
        // SAFETY: a child of this tree, found under a guard of the caller's, which it outlives; the parent's
        // shift tells what it is.
        unsafe {
            if node.shift == BITS {
                Below::Leaf(child.cast::<Leaf>().as_ref())
            } else {
                Below::Node(child.cast::<Node>().as_ref())
            }
        }
    }
}

enum Below<'t> {
    Node(&'t Node),
    Leaf(&'t Leaf),
}

/// Hangs a new child into an empty slot, or frees it when somebody was faster; returns what hangs there.
fn link<T>(slot: &AtomicPtr<u8>, new: Box<T>) -> NonNull<u8> {
    let new = NonNull::from(Box::leak(new));
    // Release on success, pairs with the acquire of every walk. Acquire on failure, pairs with the winner's
    // release.
    match slot.compare_exchange(null_mut(), new.as_ptr().cast(), AcqRel, Acquire) {
        Ok(_) => new.cast(),
        Err(found) => {
            // SAFETY: just leaked from such a box, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new.as_ptr()) });
            NonNull::new(found).expect("a slot that was not empty")
        }
    }
}

/// What is freed after a grace period.
trait Retired {
    /// So that a reader that still looks is caught.
    fn poison(&self);
}

impl Retired for Node {
    fn poison(&self) {
        if cfg!(debug_assertions) {
            self.children.iter().for_each(|child| child.store(NonNull::dangling().as_ptr(), Relaxed));
        }
    }
}

impl Retired for Leaf {
    fn poison(&self) {
        if cfg!(debug_assertions) {
            self.words.iter().for_each(|word| word.store(POISON, Relaxed));
        }
    }
}

/// Frees a node, but nothing below it, after a grace period.
///
/// # Safety
///
/// It was made by `Box`, with the record of the grace period first, and was just taken out of its tree.
unsafe fn retire<H: Host, T: Retired>(node: NonNull<T>) {
    // SAFETY: the head stays in place until the function frees the node around it.
    unsafe { H::rcu_defer(node.cast(), after_grace::<T>) };
}

/// # Safety
///
/// `head` is that of a `T` passed to [`retire`], and a grace period has passed since.
unsafe fn after_grace<T: Retired>(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field of what `Box` made, and came with the provenance of the whole;
    // nobody looks at it any more.
    let node = unsafe { Box::from_raw(head.cast::<T>().as_ptr()) };
    node.poison();
}

impl Drop for Radix {
    fn drop(&mut self) {
        // Relaxed: the last owner is alone with the tree.
        if let Some(root) = NonNull::new(self.root.load(Relaxed)) {
            // SAFETY: alone with the tree; the root is owned by it.
            unsafe { free(root) };
        }
    }
}

/// Frees a node and everything below.
///
/// # Safety
///
/// The node is owned by the caller and was made by `Box`, and so was everything below.
unsafe fn free(node: NonNull<Node>) {
    // SAFETY: as the caller promises.
    let node = unsafe { Box::from_raw(node.as_ptr()) };
    for child in &node.children {
        let Some(child) = NonNull::new(child.load(Relaxed)) else { continue };
        // SAFETY: a child belongs to its parent; the shift tells what it is.
        unsafe {
            if node.shift == BITS {
                drop(Box::from_raw(child.cast::<Leaf>().as_ptr()));
            } else {
                free(child.cast());
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "radix_loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "radix_tests.rs"]
mod tests;
