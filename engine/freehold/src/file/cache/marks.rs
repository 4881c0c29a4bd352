//! Marks of pages in the tree of a page cache, by which write-back finds its pages without visiting others.
//!
//! Each leaf has three bitmaps with one bit for each index, and each inner node has a bitmap of the children
//! that have marks:
//!
//! | bitmap | bit is set | bit is cleared |
//! | --- | --- | --- |
//! | `dirty` of a leaf | by a task that changes the page, or lets a program change it ([`mark_dirty`](Radix::mark_dirty)) | when a write of the page begins ([`begin_writes`](Radix::begin_writes)); when the page is removed ([`clear_dirty`](Radix::clear_dirty)) |
//! | `writing` of a leaf | when a write of the page begins | when the write has ended ([`end_write`](Radix::end_write)) |
//! | `waited` of a leaf | by a task that is about to sleep until the write ends ([`watch_write`](Radix::watch_write)) | by the end of the write, which then wakes the sleepers |
//! | `marked` of a node | by `mark_dirty`, from the leaf up to the root; for a new root | by a search that finds the child without marks |
//!
//! A page has to be marked as dirty if an entry through which stores reach the file may be writable, or if
//! the page's frame is dirty. A mark may be set although the page is clean or absent; write-back then clears
//! it. The bits of the inner nodes are hints in one direction only: a bit that is set may be out of date, but
//! a page that is marked is found by every search that begins later.
//!
//! | access | pairs with | so that |
//! | --- | --- | --- |
//! | setter: sets a bit, fence, examines the bit above, and at last the root pointer | search: clears a bit, fence, examines the bits below and sets the bit again | the bit above a set bit stays set |
//! | fault: links a table or locks it, fence, examines the mark | `begin_writes`: clears the mark, fence; then write-back walks the page tables | a fault finds the mark cleared and sets it, or write-back finds the entry and removes the right to write |
//! | `end_write`: clears `writing` (release), fence, examines `waited` | `watch_write`: sets `waited`, fence, examines `writing` (acquire) | a task that sleeps is woken, and sees what the write did |
//!
//! One task at a time searches or clears marks of a file: the caller holds the lock of the marks
//! ([`Marks`]), because between the two steps of a search a bit above a marked page may be clear. Setters and
//! ends of writes take no lock. The memory of the bitmaps is that of the tree: see [`Stay`]. A prune frees no
//! leaf with a page that is dirty or being written.
//!
//! `change/write_back.rs` and `file/write.rs` use the marks. `marks_tests.rs` counts the leaves that searches
//! visit, and `marks_loom_tests.rs` runs setters concurrently with searches, growth and sleepers. The
//! mutations that begin with `marks-` (`xtask/mutants`) remove the fences and the second look one by one.

use super::{Below, Leaf, Node, Radix, Stay};
use crate::file::removal::Removals;
use core::{
    ops::{ControlFlow, Range},
    ptr::NonNull,
};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use freehold_vmspace::{PageIndex, PageRange};

/// The right to search and clear the marks of a file, which one task at a time has, and the removals that are
/// under way. The value behind the lock of the marks.
#[derive(Default)]
pub(in crate::file) struct Marks {
    /// Number of leaves that searches have visited. For tests.
    pub(in crate::file) visits: u64,
    /// The removals of pages that are under way, which hold writes back.
    pub(in crate::file) removals: Removals,
}

/// Maximum number of leaves that one search visits, so that it holds the lock of the marks only briefly.
const MOST: u64 = 64;

/// Pages of one leaf whose write has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) struct Begun {
    /// The page of bit 0 of `pages`.
    pub base: PageIndex,
    /// The pages whose mark was moved from `dirty` to `writing`.
    pub pages: u64,
    /// Pages that are dirty again while an earlier write of them is under way. They keep both marks.
    pub again: u64,
    /// Dirty pages whose write does not begin, because a removal of them is announced.
    pub held: u64,
}

impl Begun {
    /// Returns the range from the first page whose write has begun to the last.
    pub fn range(&self) -> PageRange {
        let end = u64::from(u64::BITS - self.pages.leading_zeros());
        let start = u64::from(self.pages.trailing_zeros()).min(end);
        PageRange::new(self.base + start, self.base + end)
    }
}

impl Node {
    /// Returns the bit of the child that leads to `index`.
    fn bit(&self, index: u64) -> u64 {
        1 << (index >> self.shift & (super::FAN as u64 - 1))
    }
}

impl Leaf {
    /// Returns the bits of the indices of `range`, which lies in this leaf.
    fn bits(range: &Range<u64>) -> u64 {
        let (first, count) = (range.start % super::FAN as u64, range.end - range.start);
        (u64::MAX >> (u64::BITS as u64 - count)) << first
    }
}

impl Below<'_> {
    /// Returns the bitmap that decides whether the bit of this child is set.
    fn marks(&self) -> u64 {
        // Acquire: a search that finds a mark sees what the task did before it set the mark.
        match self {
            Below::Node(node) => node.marked.load(Acquire),
            Below::Leaf(leaf) => leaf.dirty.load(Acquire) | leaf.writing.load(Acquire),
        }
    }
}

/// Sets a bit. Writes to the word only if the bit is clear, so that a mark that is set again and again costs
/// no transfer of the cache line. Returns true if the bit was clear.
fn set(word: &AtomicU64, bit: u64) -> bool {
    let is_new = word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Release) & bit == 0;
    // Pairs with the fence in `forget_child`: either the next load sees that the bit above was cleared, or
    // the search sees this bit. The fence is needed even if the bit was set already.
    fence(SeqCst);
    is_new
}

impl Radix {
    /// Marks the page `index` as dirty. Returns true if it was not marked. Does nothing if the tree has no
    /// leaf for the page, which then is not in the cache. A task that makes an entry writable holds the lock
    /// of the entry's table.
    pub fn mark_dirty(&self, _: Stay<'_>, index: PageIndex) -> bool {
        // Pairs with the fence in `begin_writes`; see the module.
        fence(SeqCst);
        let (mut done, mut is_new) = (None, false);
        // Acquire: as in `get`. The loop ends when the tree has no other root than the one whose bit was set
        // last.
        while let Some(root) = self.node(self.root.load(Acquire)).filter(|root| root.holds(index.get()))
            && !done.is_some_and(|done| core::ptr::eq::<Node>(done, root))
            && let Some(marked) = self.mark_below(root, index.get())
        {
            done = Some(root);
            is_new |= marked;
        }
        is_new
    }

    /// Sets the bits of `index` from the leaf up to `node`. Returns true if the page was not marked, and
    /// `None` if there is no leaf.
    fn mark_below(&self, node: &Node, index: u64) -> Option<bool> {
        let child = NonNull::new(node.child(index).load(Acquire))?;
        let is_new = match self.below(node, child) {
            Below::Leaf(leaf) => set(&leaf.dirty, Leaf::bits(&(index..index + 1))),
            Below::Node(next) => self.mark_below(next, index)?,
        };
        set(&node.marked, node.bit(index));
        Some(is_new)
    }

    /// Begins writes of the first dirty pages of `range` that are not being written, at most those of one
    /// leaf: clears their marks and marks them as being written. Also stops at a leaf with pages that are
    /// dirty again during a write, or whose write must not begin.
    ///
    /// The caller then removes the right to write from the entries that map the pages. Also returns the index
    /// at which the caller continues: a search that has visited [`MOST`] leaves ends early.
    pub fn begin_writes(
        &self,
        marks: &mut Marks,
        _: Stay<'_>,
        range: PageRange,
    ) -> (Option<Begun>, PageIndex) {
        let Marks { visits, removals } = marks;
        let found = self.search(visits, range, |base, leaf, bits| {
            let dirty = leaf.dirty.load(Relaxed) & bits;
            let again = dirty & leaf.writing.load(Relaxed);
            let held = dirty & removals.held_back(base);
            let pages = dirty & !again & !held;
            if dirty == 0 {
                return ControlFlow::Continue(());
            }
            // In this order, so that a page always has one of the marks. Acquire pairs with the release in
            // `set`.
            leaf.writing.fetch_or(pages, Relaxed);
            leaf.dirty.fetch_and(!pages, AcqRel);
            ControlFlow::Break(Begun { base: PageIndex::new(base), pages, again, held })
        });
        // Pairs with the fence in `mark_dirty`; see the module.
        fence(SeqCst);
        found
    }

    /// Returns the first page of `range` that is being written, and the index at which the caller continues.
    pub fn next_write(
        &self,
        marks: &mut Marks,
        _: Stay<'_>,
        range: PageRange,
    ) -> (Option<PageIndex>, PageIndex) {
        self.search(&mut marks.visits, range, |base, leaf, bits| {
            // Acquire pairs with the release in `end_write`: the caller sees what the write of a page did
            // that is found not to be written any more.
            match leaf.writing.load(Acquire) & bits {
                0 => ControlFlow::Continue(()),
                found => ControlFlow::Break(PageIndex::new(base + u64::from(found.trailing_zeros()))),
            }
        })
    }

    /// Clears the dirty marks of `range`, whose pages have been removed. Returns the number of marks.
    pub fn clear_dirty(&self, marks: &mut Marks, _: Stay<'_>, range: PageRange) -> u64 {
        let (mut at, mut count) = (range.start, 0);
        while at < range.end {
            (_, at) = self.search(&mut marks.visits, PageRange::new(at, range.end), |_, leaf, bits| {
                count += u64::from((leaf.dirty.fetch_and(!bits, Relaxed) & bits).count_ones());
                ControlFlow::<()>::Continue(())
            });
        }
        count
    }

    /// Ends the write of a page. Returns true if tasks may sleep until then.
    pub fn end_write(&self, _: Stay<'_>, index: PageIndex) -> bool {
        let Some(leaf) = self.leaf(index.get()) else { return false };
        let bit = Leaf::bits(&(index.get()..index.get() + 1));
        // Release pairs with the acquire in `watch_write` and `next_write`.
        leaf.writing.fetch_and(!bit, Release);
        // Pairs with the fence in `watch_write`.
        fence(SeqCst);
        leaf.waited.load(Relaxed) & bit != 0 && leaf.waited.fetch_and(!bit, Relaxed) & bit != 0
    }

    /// Returns true if the page is being written. The end of the write then wakes the caller, which has read
    /// the counter of the page before.
    pub fn watch_write(&self, _: Stay<'_>, index: PageIndex) -> bool {
        let Some(leaf) = self.leaf(index.get()) else { return false };
        let bit = Leaf::bits(&(index.get()..index.get() + 1));
        // Acquire: as in `next_write`.
        if leaf.writing.load(Acquire) & bit == 0 {
            return false;
        }
        // Release: the sleeper has read the counter before, and the end of the write changes it afterwards.
        leaf.waited.fetch_or(bit, Release);
        // Pairs with the fence in `end_write`.
        fence(SeqCst);
        leaf.writing.load(Acquire) & bit != 0
    }

    /// Returns the marks of a page: dirty, and being written.
    pub fn marks_of(&self, _: Stay<'_>, index: PageIndex) -> (bool, bool) {
        let Some(leaf) = self.leaf(index.get()) else { return (false, false) };
        let bit = Leaf::bits(&(index.get()..index.get() + 1));
        // Dirty first: a write that begins in between has then set the second mark.
        let dirty = leaf.dirty.load(Acquire) & bit != 0;
        (dirty, leaf.writing.load(Acquire) & bit != 0)
    }

    /// Returns true if a page is marked as dirty. The caller is a fault that is about to make an entry
    /// writable, and holds the lock of the table. If this look misses a write that begins, write-back finds
    /// the table.
    pub fn is_dirty_at_fault(&self, stay: Stay<'_>, index: PageIndex) -> bool {
        // Pairs with the fence in `begin_writes`, as in `mark_dirty`.
        fence(SeqCst);
        self.marks_of(stay, index).0
    }

    /// Calls `f` with each leaf that has marks and covers a part of `range`, in ascending order: with the
    /// first index of the leaf and the bits of the range. Stops if `f` breaks, or after [`MOST`] leaves.
    /// Counts the leaves in `visits`, a field of the caller's [`Marks`].
    /// Returns the value of `f`, and the index at which the search stopped.
    fn search<B>(
        &self,
        visits: &mut u64,
        range: PageRange,
        mut f: impl FnMut(u64, &Leaf, u64) -> ControlFlow<B>,
    ) -> (Option<B>, PageIndex) {
        let Some(root) = self.node(self.root.load(Acquire)) else { return (None, range.end) };
        let numbers = range.numbers();
        let end = numbers.end.min((super::FAN as u64) << root.shift);
        if numbers.start >= end {
            return (None, range.end);
        }
        let mut left = MOST;
        let stop = self.search_below(root, numbers.start..end, &mut |part, leaf| {
            if left == 0 {
                return ControlFlow::Break((None, PageIndex::new(part.start)));
            }
            left -= 1;
            *visits += 1;
            let base = part.start - part.start % super::FAN as u64;
            match f(base, leaf, Leaf::bits(&part)) {
                ControlFlow::Break(found) => ControlFlow::Break((Some(found), PageIndex::new(part.end))),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            }
        });
        stop.break_value().unwrap_or((None, range.end))
    }

    /// Implements [`search`](Self::search) for the part of the range below `node`.
    fn search_below<B>(
        &self,
        node: &Node,
        range: Range<u64>,
        f: &mut impl FnMut(Range<u64>, &Leaf) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut at = range.start;
        while at < range.end {
            let part = at..(((at >> node.shift) + 1) << node.shift).min(range.end);
            at = part.end;
            // Acquire: as in `Below::marks`.
            if node.marked.load(Acquire) & node.bit(part.start) == 0 {
                continue;
            }
            if let Some(child) = NonNull::new(node.child(part.start).load(Acquire)) {
                match self.below(node, child) {
                    Below::Node(next) => self.search_below(next, part.clone(), f)?,
                    Below::Leaf(leaf) => f(part.clone(), leaf)?,
                }
            }
            self.forget_child(node, part.start);
        }
        ControlFlow::Continue(())
    }

    /// Clears the bit of a child of `node` if the child has no marks.
    fn forget_child(&self, node: &Node, index: u64) {
        let has_marks = || {
            let child = NonNull::new(node.child(index).load(Acquire));
            child.is_some_and(|child| self.below(node, child).marks() != 0)
        };
        if has_marks() {
            return;
        }
        node.marked.fetch_and(!node.bit(index), AcqRel);
        // Pairs with the fence in `set`: a setter that found the bit still set had marked the child before.
        fence(SeqCst);
        if has_marks() {
            node.marked.fetch_or(node.bit(index), Release);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "marks_loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "marks_tests.rs"]
mod tests;
