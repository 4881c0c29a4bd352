//! Tests of the radix tree on its own, without a file and mostly with one thread.
//!
//! The tests use [`Alone`] as the proof of the lock. [`words`] and [`nodes`] show the contents and the size
//! of a tree. The expected number of nodes follows from 64 words per leaf; `radix_loom_tests.rs` tests
//! concurrent readers.

use super::*;
use alloc::vec::Vec as StdVec;
use freehold_machine::Machine;

/// Returns the index and the value of each word of `range` that is not zero.
fn words(tree: &Radix, range: Range<u64>) -> StdVec<(u64, u64)> {
    let mut found = StdVec::new();
    let _: ControlFlow<()> = tree.each(Stay::locked(&Alone), range.into(), |index, word| {
        if word.load(Relaxed) != 0 {
            found.push((index.get(), word.load(Relaxed)));
        }
        ControlFlow::Continue(())
    });
    found
}

#[test]
fn new_tree_has_no_words() {
    let tree = Radix::new();
    assert!(tree.get(Stay::locked(&Alone), PageIndex::new(0)).is_none());
    assert!(tree.get(Stay::locked(&Alone), PageIndex::new(u64::MAX)).is_none());
    assert!(words(&tree, 0..u64::MAX).is_empty());
}

#[test]
fn words_survive_growth() {
    // Each index needs a taller tree than the index before it; neighbouring indices may share a leaf.
    let indices: StdVec<u64> =
        (0..INDEX_BITS / BITS).flat_map(|level| [(1 << (level * BITS)) - 1, 1 << (level * BITS)]).collect();
    let tree = Radix::new();
    for (n, &index) in indices.iter().enumerate() {
        tree.make(&Alone, PageIndex::new(index)).unwrap().store(index + 1, Relaxed);
        for &index in &indices[..=n] {
            assert_eq!(
                tree.get(Stay::locked(&Alone), PageIndex::new(index)).unwrap().load(Relaxed),
                index + 1,
                "{index:#x} was lost"
            );
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
fn highest_index_has_a_word() {
    let tree = Radix::new();
    let last = (1 << INDEX_BITS) - 1;
    tree.make(&Alone, PageIndex::new(last)).unwrap().store(7, Relaxed);
    assert_eq!(tree.get(Stay::locked(&Alone), PageIndex::new(last)).unwrap().load(Relaxed), 7);
    assert!(
        tree.get(Stay::locked(&Alone), PageIndex::new(0)).is_none(),
        "only the path to the index was made"
    );
    assert_eq!(words(&tree, last..last + 1), [(last, 7)]);
}

#[test]
fn each_stops_when_closure_breaks() {
    let tree = Radix::new();
    for index in [1, 70, 9000] {
        tree.make(&Alone, PageIndex::new(index)).unwrap().store(1, Relaxed);
    }
    let stopped = tree.each(Stay::locked(&Alone), PageRange::ALL, |index, word| match word.load(Relaxed) {
        1 if index.get() > 1 => ControlFlow::Break(index.get()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(stopped, ControlFlow::Break(70));
}

#[test]
fn concurrent_makers_get_the_same_word() {
    extern crate std;
    let tree = Radix::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in (0..20_000).step_by(61) {
                    tree.make(&Alone, PageIndex::new(index)).unwrap().fetch_add(1, Relaxed);
                }
            });
        }
    });
    let found = words(&tree, 0..u64::MAX);
    assert_eq!(found.len(), 20_000_usize.div_ceil(61));
    assert!(found.iter().all(|&(_, count)| count == 4), "a word was lost when two makers raced for a leaf");
}

/// Returns the number of nodes and leaves.
fn nodes(tree: &Radix) -> usize {
    fn below(tree: &Radix, node: &Node) -> usize {
        let children = node.children.iter().filter_map(|child| NonNull::new(child.load(Relaxed)));
        1 + children
            .map(|child| match tree.below(node, child) {
                Below::Node(node) => below(tree, node),
                Below::Leaf(_) => 1,
            })
            .sum::<usize>()
    }
    tree.node(tree.root.load(Relaxed)).map_or(0, |root| below(tree, root))
}

/// Prunes the tree and waits until the unlinked nodes are freed.
fn prune(tree: &Radix, range: Range<u64>) {
    tree.prune_alone::<Machine>(range);
    <Machine>::rcu_barrier();
}

#[test]
fn prune_frees_empty_nodes_in_range() {
    let tree = Radix::new();
    prune(&tree, 0..u64::MAX);
    let indices = [0, 63, 64, 4096, 1 << 18, (1 << 18) + 1, (1 << INDEX_BITS) - 1];
    for index in indices {
        tree.make(&Alone, PageIndex::new(index)).unwrap().store(index + 1, Relaxed);
    }
    let before = nodes(&tree);
    // No node is empty.
    prune(&tree, 0..u64::MAX);
    assert_eq!(nodes(&tree), before);
    // Empty a part of a leaf, and then the whole leaf. When the word of the last index is zero, the tree
    // becomes shorter.
    let take = |index| tree.get(Stay::locked(&Alone), PageIndex::new(index)).unwrap().store(0, Relaxed);
    take(1 << 18);
    prune(&tree, 0..u64::MAX);
    assert_eq!(nodes(&tree), before);
    take((1 << 18) + 1);
    prune(&tree, 0..1 << 18);
    assert_eq!(nodes(&tree), before, "nodes outside the range were freed");
    prune(&tree, 1 << 18..(1 << 18) + 1);
    assert_eq!(nodes(&tree), before - 3);
    take((1 << INDEX_BITS) - 1);
    prune(&tree, 1 << 20..u64::MAX);
    // The root, two nodes below it, and the leaves of 0, 64 and 4096.
    assert_eq!(nodes(&tree), 6);
    assert_eq!(words(&tree, 0..u64::MAX), [(0, 1), (63, 64), (64, 65), (4096, 4097)]);
    [0, 63, 64, 4096].into_iter().for_each(take);
    prune(&tree, 0..u64::MAX);
    assert_eq!(nodes(&tree), 0);
    tree.make(&Alone, PageIndex::new(70)).unwrap().store(7, Relaxed);
    assert_eq!(words(&tree, 0..u64::MAX), [(70, 7)]);
}

/// Nodes that were made and never used are freed too, at any height of the tree.
#[test]
fn prune_frees_unused_nodes() {
    let tree = Radix::new();
    for index in [5, 5 << 12, 5 << 30] {
        tree.make(&Alone, PageIndex::new(index)).unwrap();
    }
    prune(&tree, 0..u64::MAX);
    assert_eq!(nodes(&tree), 0);
}
