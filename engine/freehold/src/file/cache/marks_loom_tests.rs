//! Tests of the marks under loom, which tries all schedules and the results that the memory model allows.
//!
//! - A page that a task has marked is found by every search that begins later, although another task clears
//!   bits above it, marks the same page, or makes the tree taller.
//! - A fault that makes an entry writable finds the mark cleared, or write-back finds the table of the entry.
//!   A fault that needs the mark as its permission has the same choice.
//! - A task that waits for the end of a write is woken and sees what the write did.
//!
//! The leaves of a test stay in the tree, so these tests need no read section. A mutex stands for the lock of
//! the marks. A sleeper that is never woken makes loom report a deadlock.

use super::{
    super::{Alone, FAN},
    *,
};
use crate::file::cache::reading::Turns;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use loom::{
    sync::{Arc, Mutex},
    thread,
};

/// A tree and the lock of its marks.
struct File {
    tree: Radix,
    marks: Mutex<Marks>,
}

impl File {
    /// Creates a file with these pages.
    fn new(pages: &[u64]) -> Arc<Self> {
        let tree = Radix::new();
        for page in pages {
            tree.make(&Alone, PageIndex::new(*page)).unwrap().store(1, Relaxed);
        }
        Arc::new(File { tree, marks: Mutex::new(Marks::default()) })
    }

    fn mark(&self, page: u64) {
        self.tree.mark_dirty(Stay::locked(&Alone), PageIndex::new(page));
    }

    /// Begins a write of the first dirty page. Returns the bits of the pages in the leaf.
    fn begin(&self) -> Option<u64> {
        let mut marks = self.marks.lock().unwrap();
        let (begun, _) = self.tree.begin_writes(&mut marks, Stay::locked(&Alone), PageRange::ALL);
        begun.map(|begun| begun.pages)
    }

    fn end(&self, page: u64) -> bool {
        self.tree.end_write(Stay::locked(&Alone), PageIndex::new(page))
    }

    fn marks_of(&self, page: u64) -> (bool, bool) {
        self.tree.marks_of(Stay::locked(&Alone), PageIndex::new(page))
    }
}

/// A search finds the leaf without marks and clears the bit above, while another task marks a page there.
#[test]
fn mark_is_found_after_a_concurrent_search() {
    model(|| {
        let file = File::new(&[0, 1]);
        // The bit of the leaf is set, and the leaf has no marks.
        file.mark(0);
        assert_eq!(file.begin(), Some(1));
        file.end(0);
        let setter = {
            let file = file.clone();
            thread::spawn(move || file.mark(1))
        };
        let first = file.begin();
        setter.join().unwrap();
        let second = file.begin();
        assert!([first, second].contains(&Some(2)), "a marked page was not found: {first:?}, {second:?}");
    });
}

/// Two tasks mark the same page. The second finds the mark in the leaf, and perhaps not yet the bits above.
/// A search that this task makes finds the page, although a third task clears bits.
#[test]
fn task_that_finds_the_mark_set_finds_the_page_itself() {
    model_bounded(3, || {
        let file = File::new(&[0]);
        file.mark(0);
        assert_eq!(file.begin(), Some(1));
        file.end(0);
        let [other, own] = [false, true].map(|searches| {
            let file = file.clone();
            thread::spawn(move || {
                file.mark(0);
                if searches {
                    let found = file.begin();
                    let is_written = found == Some(1) || file.marks_of(0).1;
                    assert!(is_written, "the page is neither found nor being written");
                }
            })
        });
        file.begin();
        other.join().unwrap();
        own.join().unwrap();
    });
}

/// The tree gets another root, and a search clears a bit of this root, while a task marks a page below the
/// old root.
#[test]
fn mark_is_found_in_a_tree_that_grows() {
    model_bounded(3, || {
        let file = File::new(&[0]);
        let setter = {
            let file = file.clone();
            thread::spawn(move || file.mark(0))
        };
        file.tree.make(&Alone, PageIndex::new((FAN * FAN) as u64)).unwrap();
        let first = file.begin();
        setter.join().unwrap();
        let second = file.begin();
        assert!([first, second].contains(&Some(1)), "a marked page was not found: {first:?}, {second:?}");
    });
}

/// Makes an entry writable in a table that is new, and then calls `look`, while a write of the page begins.
/// The page is marked before. Returns the file, whether the write found the table, and the result of `look`.
fn begin_beside_fault<R: Send + 'static>(
    look: impl FnOnce(&File) -> R + Send + 'static,
) -> (Arc<File>, bool, R) {
    let file = File::new(&[0]);
    let table = Arc::new(AtomicU64::new(0));
    file.mark(0);
    let fault = {
        let (file, table) = (file.clone(), table.clone());
        thread::spawn(move || {
            table.store(1, Release);
            look(&file)
        })
    };
    assert_eq!(file.begin(), Some(1));
    let cleaned = table.load(Acquire) == 1;
    (file, cleaned, fault.join().unwrap())
}

/// A fault makes an entry writable and marks the page, while a write of the page begins.
#[test]
fn fault_sees_the_cleared_mark_or_write_back_sees_the_table() {
    model(|| {
        let (file, cleaned, ()) = begin_beside_fault(|file| file.mark(0));
        assert!(cleaned || file.marks_of(0).0, "the entry stays writable, and the page is not marked");
    });
}

/// A fault makes an entry writable because the page has a permission, which is its mark. Concurrently, the
/// beginning of a write ends the permission.
#[test]
fn fault_finds_the_permission_ended_or_write_back_sees_the_table() {
    model(|| {
        let look = |file: &File| file.tree.is_dirty_at_fault(Stay::locked(&Alone), PageIndex::new(0));
        let (_, cleaned, is_permitted) = begin_beside_fault(look);
        assert!(cleaned || !is_permitted, "the entry becomes writable after its permission has ended");
    });
}

/// Two tasks sleep until a write has ended, and see what it did.
#[test]
fn sleepers_are_woken_at_the_end_of_a_write() {
    model_bounded(3, || {
        let file = File::new(&[0]);
        let (turns, stored) = (Arc::new(Turns::new()), Arc::new(AtomicU64::new(0)));
        file.mark(0);
        assert_eq!(file.begin(), Some(1));
        let waits = {
            let (file, turns, stored) = (file.clone(), turns.clone(), stored.clone());
            move || {
                let writing = || file.tree.watch_write(Stay::locked(&Alone), PageIndex::new(0));
                turns.of(0, 0).wait_while::<LoomHost>(writing).unwrap();
                // Relaxed: the end of the write makes the value visible.
                assert_eq!(stored.load(Relaxed), 1, "the write has not ended");
            }
        };
        let waiter = thread::spawn(waits.clone());
        let writer = {
            let (file, turns, stored) = (file.clone(), turns.clone(), stored.clone());
            thread::spawn(move || {
                stored.store(1, Relaxed);
                if file.end(0) {
                    turns.of(0, 0).wake::<LoomHost>();
                }
            })
        };
        waits();
        writer.join().unwrap();
        waiter.join().unwrap();
    });
}
