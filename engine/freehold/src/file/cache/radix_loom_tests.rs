//! Nodes go beside readers that take no lock. A leaf that is freed is poisoned, and so is a node: a reader
//! that comes there is found out.

use super::*;
use freehold_sync::atomic::Ordering::Release;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use loom::{sync::Arc, thread};

/// Reads the word at `index` within a read section.
fn look(tree: &Radix, index: u64) -> u64 {
    let rcu = LoomHost::rcu_read();
    let word =
        tree.get(Stay::within::<LoomHost>(&rcu), PageIndex::new(index)).map_or(0, |word| word.load(Acquire));
    drop(rcu);
    word
}

/// A tree with a page in a leaf beside that of index 0.
fn with_page() -> Arc<Radix> {
    let tree = Arc::new(Radix::new());
    tree.make(&Alone, PageIndex::new(FAN as u64)).unwrap().store(1, Relaxed);
    tree
}

/// The page goes and another comes, as under the lock, while somebody looks: before, none, or after.
#[test]
fn a_leaf_goes_and_comes_beside_a_reader() {
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
        assert!(seen <= 2, "a leaf that was freed was read: {seen:#x}");
        assert_eq!(look(&tree, FAN as u64), 2);
        LoomHost::rcu_barrier();
    });
}

/// The tree becomes shorter and then loses what it was shortened to.
#[test]
fn the_root_goes_beside_a_reader() {
    model_bounded(2, || {
        let tree = Arc::new(Radix::new());
        tree.make(&Alone, PageIndex::new(0)).unwrap().store(1, Relaxed);
        // Three levels: the second page lies behind all that two have room for.
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
