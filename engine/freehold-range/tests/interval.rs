//! Tests that compare the interval tree with a list.
//!
//! Only one thread uses a tree here, because the tree is guarded by a lock of its user. The tests try all
//! small trees, then random ones, and check the order, the results of searches and the balance after each
//! change. `World` has the objects and the tree; its methods make a change and compare the tree with the
//! list. Calls with invalid arguments must panic. A new operation becomes a method of `World` and a variant
//! of [`Op`], so that the random sequences contain it.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::NonNull;

use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use proptest::prelude::*;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// An object of the tree, with the keys that the list has for it.
struct Object {
    name: usize,
    link: IntervalLink,
    keys: Cell<(u64, u64)>,
}

/// Finds the link in an [`Object`].
enum LinkAdapter {}

// SAFETY: the two functions add and subtract the same offset. Only trees of this adapter use the link.
unsafe impl IntervalAdapter for LinkAdapter {
    type Object = Object;

    fn link(object: NonNull<Object>) -> NonNull<IntervalLink> {
        // SAFETY: the link is a field of the object.
        unsafe { object.byte_add(offset_of!(Object, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Object> {
        // SAFETY: every link of this adapter is in an object.
        unsafe { link.byte_sub(offset_of!(Object, link)).cast() }
    }
}

/// Objects, some of which are in a tree. `order` lists the names of these objects in the order that the tree
/// should have.
struct World {
    tree: IntervalTree<LinkAdapter>,
    objects: Vec<NonNull<Object>>,
    order: Vec<usize>,
}

impl World {
    fn new(objects: usize) -> Self {
        let make = |name| {
            let object = Object { name, link: IntervalLink::new(), keys: Cell::new((0, 0)) };
            NonNull::from(Box::leak(Box::new(object)))
        };
        Self { tree: IntervalTree::new(), objects: (0..objects).map(make).collect(), order: Vec::new() }
    }

    fn keys(&self, name: usize) -> &Cell<(u64, u64)> {
        // SAFETY: objects live as long as the world.
        unsafe { &self.objects[name].as_ref().keys }
    }

    fn insert(&mut self, name: usize, first: u64, last: u64) {
        // SAFETY: the object outlives the tree.
        unsafe { self.tree.insert(self.objects[name], first, last) };
        self.keys(name).set((first, last));
        let at = self.order.partition_point(|&other| self.keys(other).get().0 <= first);
        self.order.insert(at, name);
        self.compare();
    }

    fn insert_after(&mut self, sibling: usize, name: usize) {
        // SAFETY: the object outlives the tree.
        unsafe { self.tree.insert_after(self.objects[sibling], self.objects[name]) };
        self.keys(name).set(self.keys(sibling).get());
        let at = self.order.iter().position(|&other| other == sibling).unwrap();
        self.order.insert(at + 1, name);
        self.compare();
    }

    fn remove(&mut self, name: usize) {
        // SAFETY: this is the only tree.
        unsafe { self.tree.remove(self.objects[name]) };
        self.order.retain(|&other| other != name);
        self.compare();
    }

    fn rekey(&mut self, name: usize, first: u64, last: u64) {
        // SAFETY: the object outlives the tree, and this is the only tree.
        unsafe { self.tree.rekey(self.objects[name], first, last) };
        let old = self.keys(name).replace((first, last)).0;
        let at = self.order.iter().position(|&other| other == name).unwrap();
        let first_of = |at: usize| self.order.get(at).map(|&other| self.keys(other).get().0);
        let fits_left = at == 0 || first_of(at - 1).is_some_and(|left| left <= first);
        let fits_right = first_of(at + 1).is_none_or(|right| first < right);
        if first != old && !(fits_left && fits_right) {
            self.order.remove(at);
            let at = self.order.partition_point(|&other| self.keys(other).get().0 <= first);
            self.order.insert(at, name);
        }
        self.compare();
    }

    fn holds(&self, name: usize) -> bool {
        // SAFETY: objects live as long as the world.
        unsafe { self.tree.contains(self.objects[name]) }
    }

    fn found(&self, first: u64, last: u64) -> Vec<usize> {
        // SAFETY: objects live as long as the world.
        self.tree.overlapping(first, last).map(|object| unsafe { object.as_ref() }.name).collect()
    }

    fn compare(&self) {
        self.tree.check();
        assert_eq!(self.found(0, u64::MAX), self.order);
        assert_eq!(self.tree.is_empty(), self.order.is_empty());
    }

    fn compare_overlap(&self, first: u64, last: u64) {
        let meets = |&name: &usize| {
            let (from, to) = self.keys(name).get();
            from <= last && to >= first
        };
        let expected: Vec<usize> = self.order.iter().copied().filter(meets).collect();
        assert_eq!(self.found(first, last), expected, "{first}..={last}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for object in &self.objects {
            // SAFETY: the object was leaked from a box in `new`, and the tree is not used any more.
            drop(unsafe { Box::from_raw(object.as_ptr()) });
        }
    }
}

#[test]
fn insert_after_places_the_object_next_to_its_sibling() {
    let mut world = World::new(6);
    for name in 0..4 {
        world.insert(name, 10, 20);
    }
    world.insert_after(1, 4);
    world.insert_after(4, 5);
    assert_eq!(world.found(15, 15), [0, 1, 4, 5, 2, 3]);
}

#[test]
fn rekey_moves_an_object_only_if_the_order_requires_it() {
    let mut world = World::new(4);
    for name in 0..3 {
        world.insert(name, 10, 20);
    }
    // Only the end changes: the parent stays before its children.
    world.rekey(0, 10, 15);
    assert_eq!(world.found(0, 100), [0, 1, 2]);
    assert_eq!(world.found(16, 20), [1, 2]);
    // No object lies between the old and the new place.
    world.rekey(0, 5, 30);
    assert_eq!(world.found(25, 25), [0]);
    // The object moves behind the objects that begin at its new start, and then back.
    world.rekey(0, 10, 20);
    assert_eq!(world.found(0, 100), [1, 2, 0]);
    world.rekey(0, 11, 12);
    assert_eq!(world.found(0, 100), [1, 2, 0]);
    world.rekey(0, 10, 10);
    assert_eq!(world.found(0, 100), [1, 2, 0]);
    world.rekey(0, 9, 10);
    assert_eq!(world.found(0, 100), [0, 1, 2]);
}

#[test]
#[should_panic(expected = "not in a tree")]
fn rekey_panics_for_an_unlinked_object() {
    let mut world = World::new(1);
    world.rekey(0, 1, 2);
}

#[test]
fn the_whole_range_of_keys_is_usable() {
    let mut world = World::new(3);
    world.insert(0, 0, u64::MAX);
    world.insert(1, u64::MAX, u64::MAX);
    world.insert(2, 0, 0);
    assert_eq!(world.found(0, 0), [0, 2]);
    assert_eq!(world.found(u64::MAX, u64::MAX), [0, 1]);
}

#[test]
#[should_panic(expected = "in a tree already")]
fn insert_panics_for_a_linked_object() {
    let mut world = World::new(1);
    world.insert(0, 1, 2);
    world.insert(0, 1, 2);
}

#[test]
#[should_panic(expected = "not in a tree")]
fn remove_panics_for_an_unlinked_object() {
    let mut world = World::new(1);
    world.remove(0);
}

impl World {
    /// Inserts without comparing the tree with the list.
    fn put(&mut self, name: usize, first: u64) {
        // SAFETY: the object outlives the tree.
        unsafe { self.tree.insert(self.objects[name], first, first + 1) };
    }

    fn take(&mut self, name: usize) {
        // SAFETY: this is the only tree.
        unsafe { self.tree.remove(self.objects[name]) };
    }
}

#[test]
fn search_finds_few_links_among_many() {
    let mut world = World::new(20_000);
    for name in 0..20_000 {
        world.put(name, name as u64 * 2);
        world.keys(name).set((name as u64 * 2, name as u64 * 2 + 1));
        world.order.push(name);
    }
    world.compare();
    for name in (0..20_000).step_by(3) {
        assert_eq!(
            world.found(name * 2, name * 2 + 3),
            [name as usize, name as usize + 1][..(20_000 - name as usize).min(2)]
        );
    }
}

/// Returns a hash of a link's address. If the balance of the tree depended on this hash, a program could
/// compute the hash and unbalance the tree on purpose, because the hash uses no secret.
fn hash(object: NonNull<Object>) -> u64 {
    let product = (LinkAdapter::link(object).addr().get() as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// The addresses of the links determine the keys, and the keys determine the orders of insertion and removal.
/// `check` verifies the depth.
#[test]
fn tree_stays_balanced_for_any_keys_addresses_and_order() {
    const LINKS: usize = 60_000;
    let mut world = World::new(LINKS);
    let mut by_hash: Vec<usize> = (0..LINKS).collect();
    by_hash.sort_by_key(|&name| hash(world.objects[name]));
    let by_address = {
        let mut names: Vec<usize> = (0..LINKS).collect();
        names.sort_by_key(|&name| world.objects[name].addr());
        names
    };
    let by_birth = (0..LINKS).collect();
    let keys: [fn(usize) -> u64; 4] = [
        |n| n as u64,
        |n| (LINKS - n) as u64,
        |_| 7,
        |n| if n % 2 == 0 { n as u64 } else { (2 * LINKS - n) as u64 },
    ];
    for order in [by_hash, by_address, by_birth] {
        for key in keys {
            order.iter().enumerate().for_each(|(n, &name)| world.put(name, key(n)));
            world.tree.check();
            // Removes the links at one end, then most of the others.
            order[..LINKS / 3].iter().for_each(|&name| world.take(name));
            world.tree.check();
            let (some, rest) = order[LINKS / 3..].split_at(LINKS / 100);
            rest.iter().for_each(|&name| world.take(name));
            world.tree.check();
            some.iter().for_each(|&name| world.take(name));
            assert!(world.tree.is_empty());
        }
    }
}

#[test]
fn tree_stays_balanced_after_many_insertions_behind_one_sibling() {
    let mut world = World::new(20_000);
    world.put(0, 1);
    for name in 1..20_000 {
        // SAFETY: the object outlives the tree, and the sibling is in the tree.
        unsafe { world.tree.insert_after(world.objects[name / 2 * (name % 2)], world.objects[name]) };
    }
    world.tree.check();
}

/// Returns every order of up to six names.
fn orders() -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for len in 0..6 {
        let longer = |order: &Vec<usize>| -> Vec<Vec<usize>> {
            (0..=len).map(|at| [&order[..at], &[len], &order[at..]].concat()).collect()
        };
        let shorter: Vec<_> = all.iter().filter(|order| order.len() == len).cloned().collect();
        all.extend(shorter.iter().flat_map(longer));
    }
    all
}

/// Tries every order of insertion and every order of removal. The lengths depend on the order of insertion,
/// so that each link has the largest end in some order.
#[test]
fn every_small_tree_agrees_with_a_list() {
    let mut world = World::new(6);
    let all = orders();
    for inserted in &all {
        for removed in all.iter().filter(|removed| removed.len() == inserted.len()) {
            for (n, &name) in inserted.iter().enumerate() {
                let first = name as u64 * 2;
                // SAFETY: the object outlives the tree.
                unsafe { world.tree.insert(world.objects[name], first, first + [0, 100, 5][(name + n) % 3]) };
            }
            world.tree.check();
            for &name in removed {
                world.take(name);
                world.tree.check();
            }
        }
    }
}

/// Grows and shrinks the tree at random, at every size up to some hundreds.
#[test]
fn tree_stays_balanced_at_every_size() {
    let mut random = Pcg64Mcg::new(1);
    let mut below = move |bound: u64| random.next_u64() % bound;
    let mut world = World::new(600);
    for round in 0..20_000 {
        let name = below(600) as usize;
        // Phases in which the tree grows alternate with phases in which it shrinks.
        let growing = round / 1_000 % 2 == 0;
        match world.holds(name) {
            true if !growing || below(4) == 0 => world.take(name),
            false if growing || below(4) == 0 => {
                world.put(name, below(if round % 3 == 0 { 8 } else { 1_000 }));
            }
            _ => continue,
        }
        if round % 8 == 0 {
            world.tree.check();
        }
    }
}

/// A random operation on the tree and on the list. An object is named by its index in `World::objects`.
#[derive(Clone, Debug)]
enum Op {
    Insert(usize, u64, u64),
    Behind(usize, usize),
    Remove(usize),
    Rekey(usize, u64, u64),
    Find(u64, u64),
}

const OBJECTS: usize = 40;
const SPAN: u64 = 60;

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![3 => 0..3u64, 1 => 0..SPAN];
    prop_oneof![
        4 => (0..OBJECTS, 0..SPAN, len()).prop_map(|(name, first, len)| Op::Insert(name, first, first + len)),
        2 => (0..OBJECTS, 0..OBJECTS).prop_map(|(sibling, name)| Op::Behind(sibling, name)),
        2 => (0..OBJECTS).prop_map(Op::Remove),
        3 => (0..OBJECTS, 0..SPAN, len()).prop_map(|(name, first, len)| Op::Rekey(name, first, first + len)),
        2 => (0..SPAN, len()).prop_map(|(first, len)| Op::Find(first, first + len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_a_list(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new(OBJECTS);
        for op in ops {
            match op {
                Op::Insert(name, first, last) if !world.holds(name) => world.insert(name, first, last),
                Op::Behind(sibling, name) if world.holds(sibling) && !world.holds(name) => {
                    world.insert_after(sibling, name);
                }
                Op::Remove(name) if world.holds(name) => world.remove(name),
                Op::Rekey(name, first, last) if world.holds(name) => world.rekey(name, first, last),
                Op::Find(first, last) => world.compare_overlap(first, last),
                _ => {}
            }
        }
    }
}
