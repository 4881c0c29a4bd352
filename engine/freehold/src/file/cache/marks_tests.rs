//! Tests of the marks of a tree, in one thread: which pages and how many leaves a search finds. A tree is a
//! type of this crate only, so these tests are here.

use super::{
    super::{Alone, FAN},
    *,
};
use alloc::vec::Vec;
use freehold_machine::Machine;

/// Creates a tree that has leaves for these indices.
fn tree(indices: impl IntoIterator<Item = u64>) -> Radix {
    let tree = Radix::new();
    for index in indices {
        tree.make(&Alone, PageIndex::new(index)).unwrap().store(1, Relaxed);
    }
    tree
}

fn mark(tree: &Radix, index: u64) {
    tree.mark_dirty(Stay::locked(&Alone), PageIndex::new(index));
}

/// Begins all writes of a range. Returns the pages in order.
fn begin(tree: &Radix, marks: &mut Marks, range: PageRange) -> Vec<u64> {
    let (mut at, mut found) = (range.start, Vec::new());
    while at < range.end {
        let (begun, next) = tree.begin_writes(marks, Stay::locked(&Alone), PageRange::new(at, range.end));
        found.extend(begun.into_iter().flat_map(|begun| bits_of(begun.base, begun.pages)));
        at = next;
    }
    found
}

fn bits_of(base: PageIndex, bits: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| base.get() + bit)
}

fn end(tree: &Radix, pages: &[u64]) {
    for page in pages {
        assert!(!tree.end_write(Stay::locked(&Alone), PageIndex::new(*page)), "no task waits");
    }
}

/// Indices in different leaves and at different heights.
const FAR: [u64; 4] = [3, FAN as u64, (FAN * FAN * 2 + 1) as u64, (FAN * FAN * FAN * 3) as u64];

#[test]
fn search_visits_only_leaves_with_marks() {
    let every = (0..(FAN * FAN * 8) as u64).step_by(FAN);
    let (tree, mut marks) = (tree(every.chain(FAR)), Marks::default());
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), []);
    assert_eq!(marks.visits, 0, "a leaf without marks was visited");
    FAR.into_iter().for_each(|page| mark(&tree, page));
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), FAR);
    assert_eq!(marks.visits, FAR.len() as u64);
    end(&tree, &FAR);
    // The next search finds that the leaves have no marks any more, and the search after that visits none.
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), []);
    let visits = marks.visits;
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), []);
    assert_eq!(marks.visits, visits, "a leaf without marks was visited again");
}

#[test]
fn search_begins_and_clears_only_pages_of_its_range() {
    let (tree, mut marks) = (tree(0..2 * FAN as u64), Marks::default());
    (0..2 * FAN as u64).for_each(|page| mark(&tree, page));
    let middle = PageRange::new(PageIndex::new(1), PageIndex::new(FAN as u64 + 2));
    let inside: Vec<u64> = middle.numbers().collect();
    assert_eq!(begin(&tree, &mut marks, middle), inside);
    end(&tree, &inside);
    tree.clear_dirty(&mut marks, Stay::locked(&Alone), PageRange::one(PageIndex::new(0)));
    let rest: Vec<u64> = (FAN as u64 + 2..2 * FAN as u64).collect();
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), rest);
}

#[test]
fn marks_stay_when_the_tree_grows_and_shrinks() {
    let (tree, mut marks) = (tree([1]), Marks::default());
    mark(&tree, 1);
    let far = PageIndex::new(FAR[3]);
    tree.make(&Alone, far).unwrap();
    let (found, _) = tree.begin_writes(&mut marks, Stay::locked(&Alone), PageRange::ALL);
    assert!(matches!(found, Some(Begun { pages: 2, .. })), "{found:?}");
    end(&tree, &[1]);
    mark(&tree, 1);
    tree.prune_alone::<Machine>(0..u64::MAX);
    assert!(tree.get(Stay::locked(&Alone), far).is_none(), "the empty leaf was freed");
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), [1]);
}

#[test]
fn page_that_is_dirty_again_keeps_both_marks() {
    let (tree, mut marks) = (tree([1]), Marks::default());
    mark(&tree, 1);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), [1]);
    mark(&tree, 1);
    let (found, _) = tree.begin_writes(&mut marks, Stay::locked(&Alone), PageRange::ALL);
    assert!(matches!(found, Some(Begun { pages: 0, again: 2, .. })), "{found:?}");
    assert_eq!(tree.marks_of(Stay::locked(&Alone), PageIndex::new(1)), (true, true));
    let (writing, _) = tree.next_write(&mut marks, Stay::locked(&Alone), PageRange::ALL);
    assert_eq!(writing, Some(PageIndex::new(1)));
    end(&tree, &[1]);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), [1]);
}

#[test]
fn prune_keeps_a_leaf_with_marks() {
    let (tree, mut marks) = (tree([1]), Marks::default());
    mark(&tree, 1);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), [1]);
    tree.get(Stay::locked(&Alone), PageIndex::new(1)).unwrap().store(0, Relaxed);
    tree.prune_alone::<Machine>(0..u64::MAX);
    assert_eq!(tree.marks_of(Stay::locked(&Alone), PageIndex::new(1)), (false, true));
    end(&tree, &[1]);
    // A mark without a page counts as a dirty page, so its leaf stays until the mark is cleared.
    mark(&tree, 1);
    tree.prune_alone::<Machine>(0..u64::MAX);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), [1]);
    end(&tree, &[1]);
    tree.prune_alone::<Machine>(0..u64::MAX);
    assert!(tree.get(Stay::locked(&Alone), PageIndex::new(1)).is_none());
    mark(&tree, 1);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), []);
}

#[test]
fn search_that_finds_nothing_visits_a_limited_number_of_leaves() {
    let leaves = MOST + 10;
    let (tree, mut marks) = (tree((0..leaves).map(|leaf| leaf * FAN as u64)), Marks::default());
    (0..leaves).for_each(|leaf| mark(&tree, leaf * FAN as u64));
    let found = tree.next_write(&mut marks, Stay::locked(&Alone), PageRange::ALL);
    assert_eq!(found, (None, PageIndex::new(MOST * FAN as u64)));
    assert_eq!(marks.visits, MOST);
    tree.clear_dirty(&mut marks, Stay::locked(&Alone), PageRange::ALL);
    assert_eq!(begin(&tree, &mut marks, PageRange::ALL), []);
}
