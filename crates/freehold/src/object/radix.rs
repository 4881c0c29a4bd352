//! The index of a page cache: a radix tree that only grows, read without any lock.
//!
//! ```text
//! root -> Node (shift 12) -> Node (shift 6) -> Leaf -> word
//!           index >> 12 & 63   index >> 6 & 63   index & 63
//! ```
//!
//! Every pointer goes from null to a child by compare-and-swap and stays; only the root changes, to a taller tree whose first
//! child is the old root. Nodes are freed with the tree. So a reader may hold a word for as long as it holds the tree, and
//! whoever loses a race frees what it made. What the words mean, and who may write them, is the caller's business.
#![expect(unsafe_code, reason = "owns nodes that are linked by atomic pointers")]

use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{
    ops::{ControlFlow, Range},
    ptr::{NonNull, null_mut},
};
use freehold_sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

const BITS: u32 = 6;
const FAN: usize = 1 << BITS;

/// Bits of an index that the tallest tree can hold.
pub(super) const INDEX_BITS: u32 = 60;

struct Node {
    /// How far an index is shifted to find its child here; children of shift `BITS` are leaves. Written once.
    shift: u32,
    /// Null or a child: a `Leaf` where `shift` is `BITS`, else a `Node` of shift `shift - BITS`.
    children: [AtomicPtr<u8>; FAN],
}

struct Leaf {
    words: [AtomicU64; FAN],
}

/// A sparse array of atomic words, all zero at first.
pub(super) struct Radix {
    /// Null or the topmost node.
    root: AtomicPtr<Node>,
}

impl Node {
    fn try_new(shift: u32) -> Result<Box<Node>, AllocError> {
        Box::try_new(Node { shift, children: core::array::from_fn(|_| AtomicPtr::new(null_mut())) })
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
        Box::try_new(Leaf { words: core::array::from_fn(|_| AtomicU64::new(0)) })
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize & (FAN - 1)]
    }
}

impl Radix {
    pub fn new() -> Self {
        Radix { root: AtomicPtr::new(null_mut()) }
    }

    /// The word at `index`, if it was ever asked for with [`make`](Self::make).
    pub fn get(&self, index: u64) -> Option<&AtomicU64> {
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

    /// The word at `index`; allocates what is missing on the way.
    ///
    /// # Panics
    ///
    /// When `index` has more than [`INDEX_BITS`] bits.
    pub fn make(&self, index: u64) -> Result<&AtomicU64, AllocError> {
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
        range: Range<u64>,
        mut f: impl FnMut(u64, &AtomicU64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(root) = self.node(self.root.load(Acquire)) else { return ControlFlow::Continue(()) };
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
        f: &mut impl FnMut(u64, &AtomicU64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut at = range.start;
        while at < range.end {
            let next = (((at >> node.shift) + 1) << node.shift).min(range.end);
            if let Some(child) = NonNull::new(node.child(at).load(Acquire)) {
                match self.below(node, child) {
                    Below::Node(below) => self.each_below(below, at..next, f)?,
                    Below::Leaf(leaf) => {
                        for index in at..next {
                            f(index, leaf.word(index))?;
                        }
                    }
                }
            }
            at = next;
        }
        ControlFlow::Continue(())
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
                // SAFETY: just leaked from such a box, and nobody else has seen it. Its child is not dropped with it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn node(&self, node: *mut Node) -> Option<&Node> {
        // SAFETY: null or a node of this tree, which lives as long as the tree.
        unsafe { node.as_ref() }
    }

    fn below(&self, node: &Node, child: NonNull<u8>) -> Below<'_> {
        // SAFETY: a child of this tree, which lives as long as the tree; the parent's shift tells what it is.
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
    // Release on success, pairs with the acquire of every walk. Acquire on failure, pairs with the winner's release.
    match slot.compare_exchange(null_mut(), new.as_ptr().cast(), AcqRel, Acquire) {
        Ok(_) => new.cast(),
        Err(found) => {
            // SAFETY: just leaked from such a box, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new.as_ptr()) });
            NonNull::new(found).expect("a slot that was not empty")
        }
    }
}

impl Drop for Radix {
    fn drop(&mut self) {
        // Relaxed: whoever drops the tree is alone with it.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec as StdVec;

    fn words(tree: &Radix, range: Range<u64>) -> StdVec<(u64, u64)> {
        let mut found = StdVec::new();
        let _: ControlFlow<()> = tree.each(range, |index, word| {
            if word.load(Relaxed) != 0 {
                found.push((index, word.load(Relaxed)));
            }
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn empty() {
        let tree = Radix::new();
        assert!(tree.get(0).is_none());
        assert!(tree.get(u64::MAX).is_none());
        assert!(words(&tree, 0..u64::MAX).is_empty());
    }

    #[test]
    fn grows_and_keeps() {
        // Each needs a taller tree than the one before, and their neighbours share leaves or not.
        let indices: StdVec<u64> = (0..INDEX_BITS / BITS)
            .flat_map(|level| [(1 << (level * BITS)) - 1, 1 << (level * BITS)])
            .collect();
        let tree = Radix::new();
        for (n, &index) in indices.iter().enumerate() {
            tree.make(index).unwrap().store(index + 1, Relaxed);
            for &index in &indices[..=n] {
                assert_eq!(tree.get(index).unwrap().load(Relaxed), index + 1, "{index:#x} was lost");
            }
        }
        let mut expected: StdVec<_> = indices.iter().map(|&index| (index, index + 1)).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(words(&tree, 0..u64::MAX), expected);
        assert_eq!(words(&tree, 63..4097), [(63, 64), (64, 65), (4095, 4096), (4096, 4097)]);
        assert_eq!(words(&tree, 64..64), []);
    }

    #[test]
    fn highest_index() {
        let tree = Radix::new();
        let last = (1 << INDEX_BITS) - 1;
        tree.make(last).unwrap().store(7, Relaxed);
        assert_eq!(tree.get(last).unwrap().load(Relaxed), 7);
        assert!(tree.get(0).is_none(), "nothing but the asked path was made");
        assert_eq!(words(&tree, last..last + 1), [(last, 7)]);
    }

    #[test]
    fn stops_where_told() {
        let tree = Radix::new();
        for index in [1, 70, 9000] {
            tree.make(index).unwrap().store(1, Relaxed);
        }
        let stopped = tree.each(0..u64::MAX, |index, word| match word.load(Relaxed) {
            1 if index > 1 => ControlFlow::Break(index),
            _ => ControlFlow::Continue(()),
        });
        assert_eq!(stopped, ControlFlow::Break(70));
    }

    #[test]
    fn many_makers_one_word() {
        extern crate std;
        let tree = Radix::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in (0..20_000).step_by(61) {
                        tree.make(index).unwrap().fetch_add(1, Relaxed);
                    }
                });
            }
        });
        let found = words(&tree, 0..u64::MAX);
        assert_eq!(found.len(), 20_000_usize.div_ceil(61));
        assert!(found.iter().all(|&(_, count)| count == 4), "a word was lost when two made its leaf");
    }
}
