//! Tests with loom of the two words of an anon_vma (`AnonVmaWords`): faults that attach an anon_vma to the
//! same VMA concurrently, and a walk for the pages that they made.
//!
//! The VMA, the trees and the page are models (`World`); only the words are those of the engine. loom tries
//! all interleavings. The assertions are: a fault that finds an identity finds an initialised tree, two
//! faults make pages with the same home, and a walk finds the VMA of every page. The mutations `vma-family-*`
//! (`xtask/mutants`) weaken each memory order and must fail here. `cargo xtask loom` runs the tests.

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

/// A tree: its lock, and whether the VMA is linked. The real lock has its own tests, so these tests use
/// loom's lock.
struct Tree {
    linked: RwLock<bool>,
    made: AtomicBool,
}

/// The words of one VMA, the trees that two faults would attach, and the home of the page that a fault has
/// mapped.
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

    /// Returns the tree with this address. Compares addresses and does not dereference `tree`, so that a
    /// missing memory order shows as a failed test.
    fn known(&self, tree: *mut Tree) -> &Tree {
        self.trees.iter().find(|known| core::ptr::eq(*known, tree)).expect("unknown home of the page")
    }

    /// Returns the tree with this address like [`known`](Self::known), and checks that this thread sees the
    /// tree initialised.
    fn made(&self, tree: *mut Tree) -> &Tree {
        let tree = self.known(tree);
        assert!(tree.made.load(Relaxed), "the tree is seen before its initialisation");
        tree
    }

    /// Attaches a tree that this fault has made, like `Vma::attach_anon_vma`.
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

    /// Writes a page for the first time: attaches an anon_vma if there is none, then maps a page whose home
    /// is the tree. Returns that tree.
    fn fault(&self, own: usize) -> *mut Tree {
        if !self.words().id().is_some() {
            self.attach_anon_vma(own);
        }
        let home = self.words().tree();
        self.made(home);
        // Release: models the stores of the page's entry and home.
        self.mapped.store(home, Release);
        home
    }

    /// Walks from the mapped page, if there is one.
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
fn fault_that_finds_an_anon_vma_finds_its_tree() {
    model(|| {
        let world = World::new();
        let other = thread::spawn({
            let world = world.clone();
            move || world.fault(1)
        });
        let home = world.fault(0);
        world.walk_from(home);
        assert_eq!(other.join().unwrap(), home, "two faults have made pages with different homes");
    });
}

#[test]
fn walk_finds_the_vma_of_every_page() {
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
        // Makes a page only if this thread sees the anon_vma that the other thread attaches.
        if world.words().id().is_some() {
            world.fault(0);
        }
        adopter.join().unwrap();
        walker.join().unwrap();
    });
}
