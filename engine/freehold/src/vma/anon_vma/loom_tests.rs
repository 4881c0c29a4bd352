//! Faults that adopt an anon_vma for one VMA, and a walk over the pages that they made.

use super::{AnonId, AnonVmaWords};
use core::ptr::null_mut;
use freehold_sync::{
    atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    testing::model,
};
use loom::{
    sync::{Arc, RwLock},
    thread,
};

/// A tree: under its lock, whether the VMA is linked in it. That lock has tests of its own, so loom's does
/// here.
struct Tree {
    linked: RwLock<bool>,
    made: AtomicBool,
}

/// The words of one VMA; the trees that faults would give it; the home of the page that a fault has mapped.
struct World {
    id: AtomicU64,
    tree: AtomicPtr<Tree>,
    trees: [Tree; 2],
    mapped: AtomicPtr<Tree>,
}

impl World {
    fn new() -> Arc<Self> {
        let tree = || Tree { linked: RwLock::new(false), made: AtomicBool::new(false) };
        Arc::new(World {
            id: AtomicU64::new(0),
            tree: AtomicPtr::new(null_mut()),
            trees: [tree(), tree()],
            mapped: AtomicPtr::new(null_mut()),
        })
    }

    fn words(&self) -> AnonVmaWords<'_, Tree> {
        AnonVmaWords { id: &self.id, tree: &self.tree }
    }

    /// One of the trees, by its address. Not by reference: a missing order is to show as a failed test.
    fn known(&self, tree: *mut Tree) -> &Tree {
        self.trees.iter().find(|known| core::ptr::eq(*known, tree)).expect("the page has no home")
    }

    /// As [`known`](Self::known), of a tree that is about to be used.
    fn made(&self, tree: *mut Tree) -> &Tree {
        let tree = self.known(tree);
        assert!(tree.made.load(Relaxed), "the tree is not seen as it was made");
        tree
    }

    /// As `Vma::attach_anon_vma`, with a tree that this fault has made.
    fn attach_anon_vma(&self, own: usize) {
        let tree = &self.trees[own];
        tree.made.store(true, Relaxed);
        let mut edit = tree.linked.write().unwrap();
        let raw = core::ptr::from_ref(tree).cast_mut();
        let link = || *edit = true;
        if let Err(winner) = self.words().attach_anon_vma(AnonId::new(1), raw, link) {
            drop(edit);
            drop(self.made(winner.as_ptr()).linked.read().unwrap());
        }
    }

    /// The first write of a page: an anon_vma if there is none, then a page, at home in the tree. Returns
    /// that tree.
    fn fault(&self, own: usize) -> *mut Tree {
        if !self.words().id().is_some() {
            self.attach_anon_vma(own);
        }
        let home = self.words().tree();
        self.made(home);
        // Release, as the page's entry and its home are stored.
        self.mapped.store(home, Release);
        home
    }

    /// A walk from a page, if one is mapped.
    fn walk(&self) {
        let home = self.mapped.load(Acquire);
        if !home.is_null() {
            self.walk_from(home);
        }
    }

    fn walk_from(&self, home: *mut Tree) {
        let linked = *self.known(home).linked.read().unwrap();
        assert!(linked, "the walk does not find the VMA that maps the page");
    }
}

#[test]
fn a_fault_that_finds_a_family_finds_its_tree() {
    model(|| {
        let world = World::new();
        let other = thread::spawn({
            let world = world.clone();
            move || world.fault(1)
        });
        let home = world.fault(0);
        world.walk_from(home);
        assert_eq!(other.join().unwrap(), home, "two faults have made pages at different homes");
    });
}

#[test]
fn a_walk_finds_the_vma_of_every_page() {
    model(|| {
        let world = World::new();
        let adopter = thread::spawn({
            let world = world.clone();
            move || world.attach_anon_vma(1)
        });
        let walker = thread::spawn({
            let world = world.clone();
            move || world.walk()
        });
        // Finds the anon_vma that the other adopts, or none, and then makes no page.
        if world.words().id().is_some() {
            world.fault(0);
        }
        adopter.join().unwrap();
        walker.join().unwrap();
    });
}
