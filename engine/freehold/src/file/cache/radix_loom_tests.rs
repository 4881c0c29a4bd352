//! Loom tests of [`Radix`]: pruning concurrent with readers that take no lock.
//!
//! `model` runs each test with every interleaving, and `model_bounded` with a bounded number of preemptions.
//! The main thread stands for the task that holds the invalidate lock, so only this thread changes words and
//! prunes; the other thread reads under RCU. Freed leaves and nodes are poisoned, so an access after the
//! grace period is detected: the assertions compare each word with the values that the test stored. A test
//! must end with `rcu_barrier`, so that the nodes are freed within the model.

use super::*;
use freehold_sync::atomic::Ordering::Release;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use loom::{sync::Arc, thread};

/// Returns the word at `index`, read within a read section.
fn look(tree: &Radix, index: u64) -> u64 {
    let rcu = LoomHost::rcu_read();
    let word =
        tree.get(Stay::within::<LoomHost>(&rcu), PageIndex::new(index)).map_or(0, |word| word.load(Acquire));
    drop(rcu);
    word
}

/// Creates a tree with one page, in the leaf after that of index 0.
fn with_page() -> Arc<Radix> {
    let tree = Arc::new(Radix::new());
    tree.make(&Alone, PageIndex::new(FAN as u64)).unwrap().store(1, Relaxed);
    tree
}

/// A task that holds the lock removes a page and adds another page at the same index, while a reader looks
/// this index up. The reader finds the old page, none, or the new page.
#[test]
fn reader_finds_old_or_new_word_while_leaf_is_replaced() {
    model(|| {
        let tree = with_page();
        let reader = thread::spawn({
            let tree = tree.clone();
            move || look(&tree, FAN as u64)
        });
        tree.get(Stay::locked(&Alone), PageIndex::new(FAN as u64)).unwrap().store(0, Relaxed);
        tree.prune_alone::<LoomHost>(0..u64::MAX);
        tree.make(&Alone, PageIndex::new(FAN as u64)).unwrap().store(2, Release);
        let seen = reader.join().unwrap();
        assert!(seen <= 2, "a freed leaf was read: {seen:#x}");
        assert_eq!(look(&tree, FAN as u64), 2);
        LoomHost::rcu_barrier();
    });
}

/// The tree becomes shorter, and then its new root is freed as well.
#[test]
fn reader_is_safe_while_root_is_replaced_and_freed() {
    model_bounded(2, || {
        let tree = Arc::new(Radix::new());
        tree.make(&Alone, PageIndex::new(0)).unwrap().store(1, Relaxed);
        // Three levels: the index of the second page is too large for a tree of two levels.
        tree.make(&Alone, PageIndex::new((FAN * FAN) as u64)).unwrap().store(2, Relaxed);
        let reader = thread::spawn({
            let tree = tree.clone();
            move || (look(&tree, 0), look(&tree, (FAN * FAN) as u64))
        });
        tree.get(Stay::locked(&Alone), PageIndex::new((FAN * FAN) as u64)).unwrap().store(0, Relaxed);
        tree.prune_alone::<LoomHost>(0..u64::MAX);
        tree.get(Stay::locked(&Alone), PageIndex::new(0)).unwrap().store(0, Relaxed);
        tree.prune_alone::<LoomHost>(0..u64::MAX);
        assert!(tree.root.load(Relaxed).is_null());
        let (first, second) = reader.join().unwrap();
        assert!(first <= 1 && (second == 0 || second == 2), "{first:#x}, {second:#x}");
        LoomHost::rcu_barrier();
    });
}
