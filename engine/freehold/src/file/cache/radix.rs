//! The index of a page cache: a radix tree that is read without a lock.
//!
//! ```text
//! root -> Node (shift 12) -> Node (shift 6) -> Leaf -> word
//!           index >> 12 & 63   index >> 6 & 63   index & 63
//! ```
//!
//! The operations and the guards that they need. "The lock" is the file's invalidate lock:
//!
//! | operation | guard | changes of pointers |
//! | --- | --- | --- |
//! | look ([`get`](Radix::get), [`each`](Radix::each)) | RCU, or the lock in either mode | none |
//! | grow ([`make`](Radix::make)) | the lock, in either mode | a null pointer is set to a new child, by compare-and-swap; the root pointer is set to a taller root, whose first child is the old root |
//! | shrink ([`prune`](Radix::prune)) | the lock, for writing | the pointer to a child is set to null if all words below the child are zero; the root pointer is set to the first child of the root, if the root has no other child |
//!
//! Several makers can run at once. A maker that loses the race for a slot frees the node that it made. A
//! pruner holds the lock for writing, so it runs concurrently only with readers under RCU. Makers and tasks
//! that change words hold the lock too. The pruner unlinks a node and frees it after a grace period. A reader
//! that found the node before it was unlinked keeps the node alive by its RCU guard. In an unlinked child,
//! such a reader finds only zero words. From an unlinked root, such a reader reaches the new root, which is
//! the only child of the old root. The grace period does not wait for a reader whose guard was created after
//! the start of the grace period. Such a reader finds the slot null (contract of [`Host::rcu_defer`]).
//!
//! A word that was found under a guard stays valid exactly as long as that guard lives; [`Stay`] expresses
//! this rule. An unlinked node is never linked again, and only zero words are read from it.
//!
//! An old root that was replaced by its child still points to that child. A later prune may free the child.
//! Consider a reader that reaches the child through the old root. The reader entered its read section before
//! the old root was unlinked, and therefore before the child was unlinked. The grace periods of both nodes
//! therefore wait for the reader.
//!
//! The caller defines the meaning of the words and which tasks may write them. `marks.rs` has the marks that
//! pages have beside their words: dirty, and being written.
//!
//! `radix_tests.rs` tests the tree on its own, and `radix_loom_tests.rs` tests a prune with concurrent
//! readers. A leaf that is freed without a grace period makes
//! `reader_finds_old_or_new_word_while_leaf_is_replaced` fail.
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

/// Number of index bits per level. Small under a schedule checker (loom, shuttle), so that nodes have few
/// children.
const BITS: u32 = if CHECKED { 2 } else { 6 };
/// Number of children of a node, and of words of a leaf.
const FAN: usize = 1 << BITS;

/// Number of index bits that the tallest tree supports.
pub(super) const INDEX_BITS: u32 = 60;

/// Value of each word of a freed leaf. Callers never store this value.
const POISON: u64 = u64::MAX;

/// Proof that the invalidate lock of the index's file is held, for reading or for writing.
pub(crate) trait Locked {}

impl<H: Host> Locked for RwSemReadGuard<'_, H> {}
impl<H: Host> Locked for RwSemWriteGuard<'_, H> {}

/// Proof that the memory of a word stays allocated, because a guard that ensures this is borrowed for the
/// lifetime `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Stay<'g>(PhantomData<&'g ()>);

impl<'g> Stay<'g> {
    /// Borrows a read section of RCU.
    pub fn within<H: Host>(_: &'g H::RcuGuard) -> Self {
        Stay(PhantomData)
    }

    /// Borrows the lock of the tree, or the proof of exclusive access.
    pub fn locked(_: &'g impl Locked) -> Self {
        Stay(PhantomData)
    }
}

/// Proof of exclusive access: no other task can reach the tree. Used when a file is dropped, and by tests.
pub(in crate::file) struct Alone;

impl Locked for Alone {}

/// An inner node. Freed after a grace period, once it is unlinked.
#[repr(C)]
struct Node {
    /// Used by the host after the node is unlinked. The head is the first field, so its address is that of
    /// the node.
    head: RcuHead,
    /// Number of low bits of an index that select a word below a child of this node. The children of a node
    /// of shift `BITS` are leaves. Never changes.
    shift: u32,
    /// The children that have marks; see `marks.rs`.
    marked: AtomicU64,
    /// Null or a child: a `Leaf` if `shift` is `BITS`, otherwise a `Node` of shift `shift - BITS`.
    children: [AtomicPtr<u8>; FAN],
}

/// A node without children: the words of consecutive indices.
#[repr(C)]
struct Leaf {
    /// Used by the host after the leaf is unlinked. The head is the first field, so its address is that of
    /// the leaf.
    head: RcuHead,
    /// The pages that are marked as dirty, one bit for each word; see `marks.rs`, also for the next fields.
    dirty: AtomicU64,
    /// The pages that are being written.
    writing: AtomicU64,
    /// The pages for whose write a task waits.
    waited: AtomicU64,
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
        Box::try_new(Node { head: RcuHead::new(), shift, marked: AtomicU64::new(0), children })
    }

    fn is_empty(&self) -> bool {
        // Relaxed: the caller excludes every task that changes children, or has exclusive access to the tree.
        self.children.iter().all(|child| child.load(Relaxed).is_null())
    }

    /// Returns true if `index` lies below this node when it is the root.
    fn holds(&self, index: u64) -> bool {
        index >> self.shift < FAN as u64
    }

    /// Returns the slot of the child that leads to the word of `index`.
    fn child(&self, index: u64) -> &AtomicPtr<u8> {
        &self.children[(index >> self.shift) as usize & (FAN - 1)]
    }
}

impl Leaf {
    fn try_new() -> Result<Box<Leaf>, AllocError> {
        let words = core::array::from_fn(|_| AtomicU64::new(0));
        let [dirty, writing, waited] = [(); 3].map(|()| AtomicU64::new(0));
        Box::try_new(Leaf { head: RcuHead::new(), dirty, writing, waited, words })
    }

    /// Returns true if the leaf has no page and no write of a page is under way. A page whose memory failed
    /// is removed during its write.
    fn is_empty(&self) -> bool {
        // Relaxed: as in `Node::is_empty`. A write begins under the lock; the end of a write accesses the
        // leaf within a read section.
        self.words.iter().all(|word| word.load(Relaxed) == 0)
            && self.dirty.load(Relaxed) | self.writing.load(Relaxed) == 0
    }

    /// Returns the word of `index`, which lies in this leaf.
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize & (FAN - 1)]
    }
}

impl Radix {
    pub fn new() -> Self {
        Radix { root: AtomicPtr::new(null_mut()) }
    }

    /// Returns the word at `index`, if [`make`](Self::make) created the word and no prune has freed it since.
    pub fn get<'t>(&'t self, _: Stay<'t>, index: PageIndex) -> Option<&'t AtomicU64> {
        Some(self.leaf(index.get())?.word(index.get()))
    }

    /// Returns the leaf that covers `index`, for a caller whose guard outlives the reference.
    fn leaf(&self, index: u64) -> Option<&Leaf> {
        // Acquire, here and below: pairs with the release that linked the node and makes the node's fields
        // visible.
        let mut node = self.node(self.root.load(Acquire)).filter(|node| node.holds(index))?;
        loop {
            let child = NonNull::new(node.child(index).load(Acquire))?;
            match self.below(node, child) {
                Below::Leaf(leaf) => return Some(leaf),
                Below::Node(next) => node = next,
            }
        }
    }

    /// Returns the word at `index`, and allocates missing nodes. Nodes that stay unused are freed by the next
    /// [`prune`](Self::prune).
    ///
    /// # Panics
    ///
    /// Panics if `index` has more than [`INDEX_BITS`] bits.
    pub fn make<'t>(&'t self, _: &'t impl Locked, index: PageIndex) -> Result<&'t AtomicU64, AllocError> {
        let index = index.get();
        assert!(index >> INDEX_BITS == 0, "page index {index:#x} is too large");
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

    /// Calls `f` with every word of `range` that can be non-zero, in ascending order, until `f` breaks.
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

    /// Implements [`each`](Self::each) for the part of the range below `node`.
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

    /// Unlinks each node that covers a part of `range` and holds only zeroes; the node is freed after a grace
    /// period. Then makes the tree as short as possible.
    pub fn prune<H: Host>(&self, _: &RwSemWriteGuard<'_, H>, range: PageRange) {
        self.prune_alone::<H>(range.numbers());
    }

    /// Like [`prune`](Self::prune), without the lock. The caller excludes makers.
    fn prune_alone<H: Host>(&self, range: Range<u64>) {
        // Relaxed, here and below: the lock orders makers before or after this call. Stores that unlink need
        // no release. `rcu_defer` waits for each reader that may see the old value, and makes later readers
        // see the new value.
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
            // SAFETY: the node was just unlinked and came from `Box`.
            unsafe { retire::<H, Node>(NonNull::from(root)) };
            match self.node(first.cast()) {
                Some(below) => root = below,
                None => break,
            }
        }
    }

    /// Implements [`prune`](Self::prune) for the children of `node` in `range`. Does not free `node`.
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
                            // SAFETY: the node was just unlinked and came from `Box`.
                            unsafe { retire::<H, Node>(child.cast()) };
                        }
                    }
                    Below::Leaf(leaf) if leaf.is_empty() => {
                        slot.store(null_mut(), Relaxed);
                        // SAFETY: the leaf was just unlinked and came from `Box`.
                        unsafe { retire::<H, Leaf>(child.cast()) };
                    }
                    Below::Leaf(_) => {}
                }
            }
            at = next;
        }
    }

    /// Returns a root that is tall enough for `index`, and allocates new roots if necessary.
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
            // The tree below may have marks.
            new.marked = AtomicU64::new(u64::from(!old.is_null()));
            let new = Box::leak(new);
            // Release on success pairs with the acquire of every walk. Relaxed on failure: the loop loads the
            // root again.
            if self.root.compare_exchange(old, new, AcqRel, Relaxed).is_err() {
                // SAFETY: the pointer was just leaked from a box, and no other task has seen it. Dropping a
                // node does not drop its children.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn node(&self, node: *mut Node) -> Option<&Node> {
        // SAFETY: the pointer is null or a node of this tree. The caller found it under a guard that outlives
        // the returned reference.
        unsafe { node.as_ref() }
    }

    fn below(&self, node: &Node, child: NonNull<u8>) -> Below<'_> {
        debug_assert!(child != NonNull::dangling(), "a freed node was accessed");
        // SAFETY: the pointer is a child in this tree. The caller found it under a guard that outlives the
        // returned reference. The parent's shift determines its type.
        unsafe {
            if node.shift == BITS {
                Below::Leaf(child.cast::<Leaf>().as_ref())
            } else {
                Below::Node(child.cast::<Node>().as_ref())
            }
        }
    }
}

/// A child of a node, by type.
enum Below<'t> {
    Node(&'t Node),
    Leaf(&'t Leaf),
}

/// Links a new child into an empty slot, or frees the new child if another task has filled the slot. Returns
/// the child that is in the slot.
fn link<T>(slot: &AtomicPtr<u8>, new: Box<T>) -> NonNull<u8> {
    let new = NonNull::from(Box::leak(new));
    // Release on success pairs with the acquire of every walk. Acquire on failure pairs with the release of
    // the task that filled the slot.
    match slot.compare_exchange(null_mut(), new.as_ptr().cast(), AcqRel, Acquire) {
        Ok(_) => new.cast(),
        Err(found) => {
            // SAFETY: the pointer was just leaked from a box, and no other task has seen it.
            drop(unsafe { Box::from_raw(new.as_ptr()) });
            NonNull::new(found).expect("a failed compare-and-swap returns a child")
        }
    }
}

/// An object that is freed after a grace period.
trait Retired {
    /// Overwrites the object, so that an access after the grace period is detected.
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
/// The node was made by `Box` and has its `RcuHead` as the first field. The node was just unlinked from its
/// tree.
unsafe fn retire<H: Host, T: Retired>(node: NonNull<T>) {
    // SAFETY: the head stays in place until the function frees the node around it.
    unsafe { H::rcu_defer(node.cast(), after_grace::<T>) };
}

/// # Safety
///
/// `head` is the head of a `T` that was passed to [`retire`], and a grace period has passed since.
unsafe fn after_grace<T: Retired>(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field of a `T` made by `Box` and has the provenance of the whole object.
    // After the grace period no reader accesses the object.
    let node = unsafe { Box::from_raw(head.cast::<T>().as_ptr()) };
    node.poison();
}

impl Drop for Radix {
    fn drop(&mut self) {
        // Relaxed: the last owner has exclusive access to the tree.
        if let Some(root) = NonNull::new(self.root.load(Relaxed)) {
            // SAFETY: the tree owns its root, and the last owner has exclusive access.
            unsafe { free(root) };
        }
    }
}

/// Frees a node and everything below.
///
/// # Safety
///
/// The caller owns the node. `Box` made the node and everything below it.
unsafe fn free(node: NonNull<Node>) {
    // SAFETY: the caller guarantees that it owns the node and that `Box` made it.
    let node = unsafe { Box::from_raw(node.as_ptr()) };
    for child in &node.children {
        let Some(child) = NonNull::new(child.load(Relaxed)) else { continue };
        // SAFETY: a parent owns its children; the shift determines their type.
        unsafe {
            if node.shift == BITS {
                drop(Box::from_raw(child.cast::<Leaf>().as_ptr()));
            } else {
                free(child.cast());
            }
        }
    }
}

#[path = "marks.rs"]
pub(in crate::file) mod marks;

#[cfg(all(test, loom))]
#[path = "radix_loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "radix_tests.rs"]
mod tests;
