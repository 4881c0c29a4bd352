//! The interval tree against a list.
#![cfg(not(loom))]

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::NonNull;

use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use proptest::prelude::*;

struct Object {
    name: usize,
    link: IntervalLink,
    keys: Cell<(u64, u64)>,
}

enum ByLink {}

// SAFETY: the two functions add and subtract the same offset, and nobody else uses the link.
unsafe impl IntervalAdapter for ByLink {
    type Object = Object;

    fn link(object: NonNull<Object>) -> NonNull<IntervalLink> {
        // SAFETY: a field of an object.
        unsafe { object.byte_add(offset_of!(Object, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Object> {
        // SAFETY: every link of this adapter is in an object.
        unsafe { link.byte_sub(offset_of!(Object, link)).cast() }
    }
}

/// Objects, some of which are in a tree; `order` names those in the order that the tree should have.
struct World {
    tree: IntervalTree<ByLink>,
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

    fn holds(&self, name: usize) -> bool {
        // SAFETY: objects live as long as the world.
        unsafe { self.tree.holds(self.objects[name]) }
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
            // SAFETY: leaked from a box in `new`; the tree is not used any more.
            drop(unsafe { Box::from_raw(object.as_ptr()) });
        }
    }
}

#[test]
fn fork_puts_the_child_right_behind_its_parent() {
    let mut world = World::new(6);
    for name in 0..4 {
        world.insert(name, 10, 20);
    }
    world.insert_after(1, 4);
    world.insert_after(4, 5);
    assert_eq!(world.found(15, 15), [0, 1, 4, 5, 2, 3]);
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
fn an_object_is_not_inserted_twice() {
    let mut world = World::new(1);
    world.insert(0, 1, 2);
    world.insert(0, 1, 2);
}

#[test]
#[should_panic(expected = "in no tree")]
fn an_object_that_is_in_no_tree_is_not_removed() {
    let mut world = World::new(1);
    world.remove(0);
}

#[test]
fn a_search_looks_at_few_links_of_many() {
    // Long chains would show as a stack overflow of `check` or as minutes of running time.
    let mut world = World::new(20_000);
    for name in 0..20_000 {
        let first = name as u64 * 2;
        // SAFETY: the object outlives the tree.
        unsafe { world.tree.insert(world.objects[name], first, first + 1) };
        world.keys(name).set((first, first + 1));
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

#[derive(Clone, Debug)]
enum Op {
    Insert(usize, u64, u64),
    Behind(usize, usize),
    Remove(usize),
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
        2 => (0..SPAN, len()).prop_map(|(first, len)| Op::Find(first, first + len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_list(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new(OBJECTS);
        for op in ops {
            match op {
                Op::Insert(name, first, last) if !world.holds(name) => world.insert(name, first, last),
                Op::Behind(sibling, name) if world.holds(sibling) && !world.holds(name) => {
                    world.insert_after(sibling, name);
                }
                Op::Remove(name) if world.holds(name) => world.remove(name),
                Op::Find(first, last) => world.compare_overlap(first, last),
                _ => {}
            }
        }
    }
}
