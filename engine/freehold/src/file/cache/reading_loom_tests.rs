//! Tests of the protocol of a read under loom, which tries all schedules and the results that the memory
//! model allows.
//!
//! - A task that waits for a page is always woken, whichever of the end and the removal comes first.
//! - A task that finds the page sees its contents.
//! - One task returns a page that is swapped out, or a write replaces it, and the count of its slot is
//! dropped once.
//! - An end and a removal never both take effect, and an old read has no effect on a later read of the page.
//!
//! The word of a test stays allocated, so these tests need no read section. An atomic word stands for the
//! contents of the frame. A sleeper that is never woken makes loom report a deadlock.

use super::*;
use crate::swap::SwapEntry;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use loom::{sync::Arc, thread};

/// The frame of the first read.
const FIRST: Pfn = Pfn::new(5);
/// The frame of a later read.
const SECOND: Pfn = Pfn::new(6);

/// A page that is being read into `FIRST`.
struct Page {
    word: AtomicU64,
    turns: Turns,
    /// The contents of the frame `FIRST`. Relaxed: published by the word.
    contents: AtomicU64,
}

impl Page {
    fn new() -> Arc<Self> {
        let page = Page { word: AtomicU64::new(0), turns: Turns::new(), contents: AtomicU64::new(0) };
        assert!(begin(&page.word, FIRST, 0, false));
        Arc::new(page)
    }

    /// Ends the read into `pfn`, like `Mapping::end_read`. Returns true if the read had an effect.
    fn end(&self, pfn: Pfn, visible: bool) -> bool {
        match end(&self.word, pfn, visible, false) {
            End::Ended { wake } => {
                if wake {
                    self.turns.of(0, 0).wake::<LoomHost>();
                }
                true
            }
            End::Removed => false,
        }
    }

    /// Fills the frame and publishes the page.
    fn read(&self) -> bool {
        self.contents.store(7, Relaxed);
        self.end(FIRST, true)
    }

    /// Removes the page, like a truncation. Returns true if the page was being read.
    fn remove(&self) -> bool {
        let removed = remove(&self.word);
        if removed.is_some_and(|removed| removed.wake) {
            self.turns.of(0, 0).wake::<LoomHost>();
        }
        removed.is_some()
    }

    /// Waits for the read, and checks the contents if the page is visible.
    fn wait(&self) -> State {
        let state = self.turns.of(0, 0).wait::<LoomHost, _>(|| ended(watch(&self.word))).unwrap();
        if state == State::Visible && Word(self.word.load(Relaxed)).visible() == Some(FIRST) {
            assert_eq!(self.contents.load(Relaxed), 7, "a visible page without contents");
        }
        state
    }
}

#[test]
fn sleepers_see_the_page_and_its_contents() {
    model_bounded(3, || {
        let page = Page::new();
        let waiter = {
            let page = page.clone();
            thread::spawn(move || page.wait())
        };
        let reader = {
            let page = page.clone();
            thread::spawn(move || page.read())
        };
        assert_eq!(page.wait(), State::Visible);
        assert_eq!(waiter.join().unwrap(), State::Visible);
        assert!(reader.join().unwrap());
    });
}

/// A failure is stored for a task that waits. A task that comes after the end may find no read.
#[test]
fn sleepers_see_the_failure() {
    model(|| {
        let page = Page::new();
        let reader = {
            let page = page.clone();
            thread::spawn(move || page.end(FIRST, false))
        };
        let state = page.wait();
        assert!(matches!(state, State::Failed | State::Other), "{state:?}");
        assert!(reader.join().unwrap());
        assert!(Word(page.word.load(Relaxed)).is_vacant());
    });
}

#[test]
fn removal_and_end_do_not_both_take_effect() {
    model(|| {
        let page = Page::new();
        let [reader, waiter] = [true, false].map(|reads| {
            let page = page.clone();
            thread::spawn(move || if reads { page.read() } else { page.wait() == State::Visible })
        });
        let removed = page.remove();
        let read = reader.join().unwrap();
        let seen = waiter.join().unwrap();
        assert_ne!(removed, read, "both or neither took effect");
        assert_eq!(Word(page.word.load(Relaxed)).visible().is_some(), read);
        assert!(read || !seen, "a removed page was seen");
    });
}

/// A second read begins after a removal, while the first is still under way.
#[test]
fn old_read_does_not_end_a_later_read() {
    model(|| {
        let page = Page::new();
        let reader = {
            let page = page.clone();
            thread::spawn(move || page.read())
        };
        let removed = page.remove();
        let begun = begin(&page.word, SECOND, 0, false);
        assert_eq!(removed, begun, "a read began although the page was there");
        assert_ne!(reader.join().unwrap(), removed);
        if begun {
            assert!(page.end(SECOND, true));
        }
        let shown = if begun { SECOND } else { FIRST };
        assert_eq!(Word(page.word.load(Relaxed)).visible(), Some(shown));
    });
}

/// A page that is swapped out, and the number of times that the count of its slot was dropped. The swap cache
/// has the page in `FIRST`.
struct Swapped {
    page: Page,
    drops: AtomicU64,
}

const SLOT: SwappedOut = SwappedOut::Slot(SwapEntry::from_payload(9));

impl Swapped {
    fn new() -> Arc<Self> {
        let page = Page {
            word: AtomicU64::new(Word::swapped(SLOT).0),
            turns: Turns::new(),
            contents: AtomicU64::new(0),
        };
        Arc::new(Swapped { page, drops: AtomicU64::new(0) })
    }

    /// Returns the page like `Mapping::return_page`. Waits if another task returns it.
    fn bring_back(&self) {
        let word = &self.page.word;
        if !claim(word, SLOT, FIRST) {
            self.page.wait();
            return;
        }
        self.drops.fetch_add(1, Relaxed);
        self.page.contents.store(7, Relaxed);
        self.page.end(FIRST, true);
    }

    /// Replaces the page, like a write of the whole page.
    fn write(&self) {
        if let Some(replaced) = replace(&self.page.word, SECOND) {
            if replaced.swapped.is_some() {
                self.drops.fetch_add(1, Relaxed);
            }
            if replaced.wake {
                self.page.turns.of(0, 0).wake::<LoomHost>();
            }
        }
    }
}

#[test]
fn one_task_returns_a_page() {
    model(|| {
        let swapped = Swapped::new();
        let other = thread::spawn({
            let swapped = swapped.clone();
            move || swapped.bring_back()
        });
        swapped.bring_back();
        assert_eq!(swapped.page.wait(), State::Visible);
        other.join().unwrap();
        assert_eq!(swapped.drops.load(Relaxed), 1);
    });
}

#[test]
fn a_write_replaces_a_page_that_another_task_returns() {
    model_bounded(2, || {
        let swapped = Swapped::new();
        let [writer, waiter] = [true, false].map(|writes| {
            let swapped = swapped.clone();
            thread::spawn(move || if writes { swapped.write() } else { _ = swapped.page.wait() })
        });
        swapped.bring_back();
        writer.join().unwrap();
        waiter.join().unwrap();
        assert_eq!(swapped.drops.load(Relaxed), 1);
        assert!(Word(swapped.page.word.load(Relaxed)).visible().is_some());
    });
}
