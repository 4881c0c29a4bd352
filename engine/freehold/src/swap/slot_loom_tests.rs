//! Tests of the protocol of a slot under loom, which tries all schedules and the results that the memory
//! model allows.
//!
//! - A lookup gets a reference only to the frame that has the page, and sees its contents.
//! - Of several tasks that need a stored page, one reads it. The others sleep until the read ends, and see
//!   the contents or the failure.
//! - The use of a slot ends once, and the last reference to each frame is dropped once, whichever of a
//!   release, the end of a write and a lookup comes last.
//! - Swap entries are counted exactly.
//!
//! `Cell` is a slot with its frames. The word of a test stays allocated, so these tests need no read section.
//! An atomic word stands for the contents of a frame. A sleeper that is never woken makes loom report a
//! deadlock.

use super::*;
use crate::{swap::word::VALUE_BITS, wait::Turns};
use freehold_sync::{
    atomic::{AtomicU32, Ordering::Relaxed},
    testing::{LoomHost, model, model_bounded},
};
use loom::{sync::Arc, thread};

const FIRST: Pfn = Pfn::new(0);
const SECOND: Pfn = Pfn::new(1);
const SHADOW: Shadow = Shadow::new(1 << (VALUE_BITS - 1));

/// A slot, and two frames.
struct Cell {
    word: AtomicU64,
    frames: [Frame; 2],
    /// Contents of the frames. Relaxed: published by the word.
    contents: [AtomicU32; 2],
    /// Number of times that the last reference to each frame was dropped.
    freed: [AtomicU32; 2],
    /// Number of times that the slot became unused.
    ended: AtomicU32,
    turns: Turns,
}

impl Frames for Cell {
    fn frame(&self, pfn: Pfn) -> &Frame {
        &self.frames[pfn.get() as usize]
    }
}

impl Cell {
    /// Creates a slot in this state.
    fn new(state: State) -> Arc<Self> {
        Arc::new(Cell {
            word: AtomicU64::new(state.word()),
            frames: [Frame::new(), Frame::new()],
            contents: [AtomicU32::new(0), AtomicU32::new(0)],
            freed: [AtomicU32::new(0), AtomicU32::new(0)],
            ended: AtomicU32::new(0),
            turns: Turns::new(),
        })
    }

    /// Creates a slot with a page in the first frame that has only the reference of the cache, `count` swap
    /// entries, and the contents 7.
    fn cached(count: u32) -> Arc<Self> {
        let cell = Cell::new(State::Reserved);
        cell.frame(FIRST).init_run();
        cell.contents[0].store(7, Relaxed);
        assert!(cell.slot().insert(FIRST, &*cell));
        (1..count).for_each(|_| cell.slot().duplicate().unwrap());
        cell.put(FIRST);
        cell
    }

    /// Creates a slot with a page that is being written, like [`cached`](Self::cached).
    fn writing(count: u32) -> Arc<Self> {
        let cell = Cell::cached(count);
        assert_eq!(cell.slot().begin_write(&*cell), Some(FIRST));
        cell
    }

    fn slot(&self) -> Slot<'_> {
        Slot(&self.word)
    }

    /// Drops a reference. Returns true if it was the last.
    fn put(&self, pfn: Pfn) -> bool {
        let last = self.frame(pfn).put();
        if last {
            self.freed[pfn.get() as usize].fetch_add(1, Relaxed);
        }
        last
    }

    /// Does what a change has left, like `Area::settle`. Returns true if the frame became free.
    fn settle(&self, rest: Rest) -> bool {
        if rest.wake {
            self.turns.of(0, 0).wake::<LoomHost>();
        }
        if rest.unused.is_some() {
            self.ended.fetch_add(1, Relaxed);
        }
        rest.frame.is_some_and(|pfn| self.put(pfn))
    }

    fn release(&self) -> bool {
        self.settle(self.slot().release(self).1)
    }

    fn end_write(&self, written: Result<(), IoError>) {
        self.settle(self.slot().end_write(FIRST, written, SHADOW, self));
    }

    fn lookup(&self) -> Lookup {
        loop {
            match self.slot().lookup(self) {
                Ok(found) => return found,
                Err(stale) => {
                    self.put(stale);
                }
            }
        }
    }

    /// Looks the page up, and checks the contents if it is found. Drops the reference. Returns true if the
    /// page was found in a frame.
    fn look(&self) -> bool {
        match self.lookup() {
            Lookup::Cached(pfn) => {
                assert_eq!(self.contents[pfn.get() as usize].load(Relaxed), 7, "a page without contents");
                self.put(pfn);
                true
            }
            found => {
                assert!(!matches!(found, Lookup::Reading(_)), "no task reads the page");
                false
            }
        }
    }

    /// Gets the page as a fault does: looks it up, or reads it into `own`. Returns the contents, or `None` if
    /// the read failed. `works` says whether the device works.
    fn fault(&self, own: Pfn, works: bool) -> Option<u32> {
        loop {
            let (pfn, is_reading) = match self.lookup() {
                Lookup::Cached(pfn) => (pfn, false),
                Lookup::Reading(pfn) => (pfn, true),
                Lookup::NotInUse => panic!("the caller has a swap entry"),
                Lookup::Stored(shadow) => {
                    self.frame(own).init_run();
                    let Some(begun) = self.slot().begin_read(own, self) else {
                        self.put(own);
                        continue;
                    };
                    assert_eq!(begun, shadow);
                    self.contents[own.get() as usize].store(7, Relaxed);
                    let read = if works { Ok(()) } else { Err(IoError) };
                    self.settle(self.slot().end_read(own, read, shadow, self));
                    (own, false)
                }
            };
            if is_reading {
                self.turns.of(0, 0).wait_while::<LoomHost>(|| self.slot().watch(pfn)).unwrap();
            }
            let failed = self.frame(pfn).is_unread();
            let seen = self.contents[pfn.get() as usize].load(Relaxed);
            self.put(pfn);
            return (!failed).then_some(seen);
        }
    }

    /// Checks that the slot is not used any more, and that the first frame was freed once.
    fn assert_ended(&self) {
        assert_eq!(self.slot().state().count(), 0);
        assert_eq!(self.ended.load(Relaxed), 1, "the use of the slot did not end once");
        assert_eq!(self.freed[0].load(Relaxed), 1, "the frame was not freed once");
        assert!(self.frames.iter().all(Frame::is_free), "a reference is missing or left over");
    }
}

/// Runs `f` in another thread.
fn spawn<T: 'static>(cell: &Arc<Cell>, f: impl FnOnce(&Cell) -> T + 'static) -> thread::JoinHandle<T> {
    let cell = cell.clone();
    thread::spawn(move || f(&cell))
}

#[test]
fn swap_entries_are_counted_exactly() {
    model(|| {
        let cell = Cell::new(State::Stored { shadow: SHADOW, count: 2 });
        let other = spawn(&cell, |cell| {
            cell.slot().duplicate().unwrap();
            cell.release();
        });
        cell.slot().duplicate().unwrap();
        cell.release();
        other.join().unwrap();
        assert_eq!(cell.slot().state(), State::Stored { shadow: SHADOW, count: 2 });
        assert_eq!(cell.ended.load(Relaxed), 0);
    });
}

#[test]
fn last_release_ends_the_use_of_the_slot_once() {
    model(|| {
        let cell = Cell::cached(2);
        let other = spawn(&cell, Cell::release);
        cell.release();
        other.join().unwrap();
        cell.assert_ended();
    });
}

/// The frame may be used for another page as soon as it is free.
#[test]
fn lookup_during_the_last_release_gets_no_other_page() {
    model(|| {
        let cell = Cell::cached(1);
        let lookup = spawn(&cell, Cell::look);
        let reused = cell.release();
        if reused {
            // The next use of the frame is in another slot.
            cell.frame(FIRST).init_run();
            cell.contents[0].store(8, Relaxed);
            assert!(cell.frame(FIRST).enter_swap_cache());
            cell.frame(FIRST).leave_swap_cache();
            cell.put(FIRST);
            cell.put(FIRST);
        }
        lookup.join().unwrap();
        assert_eq!(cell.freed[0].load(Relaxed), 1 + u32::from(reused), "each use of the frame ends once");
        assert!(cell.frame(FIRST).is_free(), "a reference is missing or left over");
    });
}

#[test]
fn lookup_during_the_end_of_a_write_finds_the_page_or_that_it_is_stored() {
    model(|| {
        let cell = Cell::writing(1);
        let lookup = spawn(&cell, |cell| {
            let found = cell.look();
            assert!(found || matches!(cell.slot().state(), State::Stored { .. }));
        });
        cell.end_write(Ok(()));
        lookup.join().unwrap();
        assert_eq!(cell.slot().state(), State::Stored { shadow: SHADOW, count: 1 });
        cell.release();
        cell.assert_ended();
    });
}

#[test]
fn release_during_a_write_ends_the_use_of_the_slot_once() {
    model(|| {
        let cell = Cell::writing(1);
        let other = spawn(&cell, Cell::release);
        cell.end_write(Ok(()));
        other.join().unwrap();
        assert_eq!(cell.slot().state(), State::Reserved);
        cell.assert_ended();
    });
}

#[test]
fn slot_is_bad_after_a_failed_write_and_a_release_in_any_order() {
    model(|| {
        let cell = Cell::writing(1);
        let other = spawn(&cell, Cell::release);
        cell.end_write(Err(IoError));
        other.join().unwrap();
        assert_eq!(cell.slot().state(), State::Bad);
        cell.assert_ended();
    });
}

#[test]
fn release_end_of_a_write_and_lookup_free_the_frame_once() {
    model_bounded(2, || {
        let cell = Cell::writing(1);
        let release = spawn(&cell, Cell::release);
        let lookup = spawn(&cell, Cell::look);
        cell.end_write(Ok(()));
        release.join().unwrap();
        lookup.join().unwrap();
        cell.assert_ended();
    });
}

#[test]
fn page_dropped_as_clean_stays_readable_for_a_lookup() {
    model(|| {
        let cell = Cell::cached(1);
        cell.word.store(State::Cached { pfn: FIRST, count: 1, copy: Copy::Clean }.word(), Relaxed);
        let lookup = spawn(&cell, Cell::look);
        let dropped = cell.slot().drop_clean(SHADOW, &*cell).unwrap();
        cell.put(dropped);
        lookup.join().unwrap();
        assert_eq!(cell.slot().state(), State::Stored { shadow: SHADOW, count: 1 });
        cell.release();
        cell.assert_ended();
    });
}

/// A frame that has left the cache by the last release may be in another cache only afterwards.
#[test]
fn frame_enters_another_cache_only_after_it_has_left_this_one() {
    model(|| {
        let cell = Cell::cached(1);
        cell.frame(FIRST).get();
        let other = spawn(&cell, |cell| {
            let entered = cell.frame(FIRST).enter_swap_cache();
            if entered {
                cell.frame(FIRST).leave_swap_cache();
                cell.put(FIRST);
            }
            cell.put(FIRST);
        });
        cell.release();
        other.join().unwrap();
        cell.assert_ended();
    });
}

#[test]
fn one_of_two_faults_reads_and_both_see_the_contents() {
    model_bounded(2, || {
        let cell = Cell::new(State::Stored { shadow: SHADOW, count: 2 });
        let other = spawn(&cell, |cell| assert_eq!(cell.fault(SECOND, true), Some(7)));
        assert_eq!(cell.fault(FIRST, true), Some(7));
        other.join().unwrap();
        let State::Cached { pfn, count: 2, copy: Copy::Clean } = cell.slot().state() else {
            panic!("{:?}", cell.slot().state());
        };
        assert!(cell.frame(pfn).refs() == 1, "only the cache has a reference");
        cell.release();
        cell.release();
        assert!(cell.frames.iter().all(Frame::is_free));
    });
}

/// A fault fails if the read that it made or waited for has failed. A later fault reads again.
#[test]
fn tasks_that_wait_for_a_failed_read_see_the_failure() {
    model_bounded(2, || {
        let cell = Cell::new(State::Stored { shadow: SHADOW, count: 2 });
        let other = spawn(&cell, |cell| assert_eq!(cell.fault(SECOND, false), None));
        assert_eq!(cell.fault(FIRST, false), None);
        other.join().unwrap();
        assert_eq!(cell.slot().state(), State::Stored { shadow: SHADOW, count: 2 });
        assert!(cell.frames.iter().all(Frame::is_free));
        assert_eq!(cell.fault(FIRST, true), Some(7));
    });
}

#[test]
fn last_release_during_a_read_ends_the_use_of_the_slot_once() {
    model_bounded(2, || {
        let cell = Cell::new(State::Stored { shadow: SHADOW, count: 1 });
        cell.frame(FIRST).init_run();
        assert!(cell.slot().begin_read(FIRST, &*cell).is_some());
        let device = spawn(&cell, |cell| {
            cell.settle(cell.slot().end_read(FIRST, Ok(()), SHADOW, cell));
        });
        let waiter = spawn(&cell, |cell| {
            cell.turns.of(0, 0).wait_while::<LoomHost>(|| cell.slot().watch(FIRST)).unwrap();
            cell.put(FIRST);
        });
        cell.release();
        device.join().unwrap();
        waiter.join().unwrap();
        cell.assert_ended();
    });
}
