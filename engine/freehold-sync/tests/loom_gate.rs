//! Tests of range writers and holders of the mmap lock (`mmap_lock/gate.rs`), under all schedules and all
//! orders that the memory model allows.
//!
//! The shared data are two `things`. A range writer accesses one of them, as if it had claimed it; a holder
//! of the lock accesses both. loom reports concurrent accesses to a thing as a race. `words` are for
//! speculation, which reads without a lock. A test with three threads bounds the number of preemptions, so
//! that it takes only seconds. To add a case, spawn a closure for each further thread and let the test's own
//! thread act as well.
#![cfg(loom)]

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};
use freehold_sync::counted::Counted;
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{MmapLock, MmapRangeWriteGuard, ReaderSlots};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The lock under test.
type Lock = MmapLock<LoomHost>;

/// The mmap lock of an address space, and data that it guards.
struct Space {
    lock: Lock,
    /// loom checks that the lock excludes concurrent accesses.
    things: [UnsafeCell<u32>; 2],
    /// Read without a lock, during a speculation.
    words: [AtomicU32; 2],
}

// SAFETY: the things are accessed under the lock, and loom checks that this suffices.
unsafe impl Sync for Space {}
// SAFETY: the fields are numbers and a lock.
unsafe impl Send for Space {}

impl Space {
    fn new() -> Arc<Self> {
        Self::with_lock(Lock::new())
    }

    /// Creates a space whose range writers use slots as soon as they contend.
    fn per_cpu() -> Arc<Self> {
        let slots = Counted::try_new(ReaderSlots::try_new().unwrap()).unwrap();
        Self::with_lock(Lock::new().with_slots(slots))
    }

    fn with_lock(lock: Lock) -> Arc<Self> {
        let things = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Space { lock, things, words: [AtomicU32::new(0), AtomicU32::new(0)] })
    }

    fn add(&self, thing: usize) {
        // SAFETY: the lock excludes other accesses; loom checks that.
        self.things[thing].with_mut(|value| unsafe { *value += 1 });
    }

    fn sum(&self) -> u32 {
        // SAFETY: the lock excludes writers; loom checks that.
        self.things.iter().map(|thing| thing.with(|value| unsafe { *value })).sum()
    }

    fn change(&self, thing: usize) {
        let _guard = self.lock.enter_range_writer();
        self.add(thing);
    }

    /// Writes both words, as a range writer.
    fn change_words(&self) {
        self.words.iter().for_each(|word| word.store(1, Relaxed));
    }

    /// Reads both words without a lock, and checks them if the speculation is valid.
    fn speculate(&self) {
        let Some(speculation) = self.lock.speculate() else { return };
        let [second, first] = [1, 0].map(|word| self.words[word].load(Relaxed));
        if speculation.valid(&self.lock) {
            assert_eq!(first, second, "the speculation saw half of a change");
        }
    }

    fn change_all(&self) {
        let _guard = self.lock.write();
        self.add(0);
        self.add(1);
    }
}

fn spawn(space: &Arc<Space>, f: impl FnOnce(&Space) + 'static) -> thread::JoinHandle<()> {
    let space = Arc::clone(space);
    thread::spawn(move || f(&space))
}

#[test]
fn range_writer_and_exclusive_writer_exclude_each_other() {
    model_bounded(3, || {
        let space = Space::new();
        let other = spawn(&space, |space| {
            space.change(0);
            space.change(0);
        });
        space.change_all();
        other.join().unwrap();
        let _guard = space.lock.read();
        assert_eq!(space.sum(), 4);
    });
}

#[test]
fn exclusive_writer_excludes_two_range_writers() {
    for space in [Space::new, Space::per_cpu] {
        model_bounded(2, move || {
            let space = space();
            let others = [0, 1].map(|thing| spawn(&space, move |space| space.change(thing)));
            space.change_all();
            others.into_iter().for_each(|other| other.join().unwrap());
            let _guard = space.lock.write();
            assert_eq!(space.sum(), 4);
        });
    }
}

#[test]
fn range_writer_and_readers_exclude_each_other() {
    model_bounded(2, || {
        let space = Space::new();
        drop(space.lock.enter_range_writer());
        let reader = spawn(&space, |space| {
            let _guard = space.lock.read();
            assert!(space.sum() <= 1);
        });
        let writer = spawn(&space, |space| space.change(0));
        let guard = space.lock.read();
        assert!(space.sum() <= 1);
        drop(guard);
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

/// Checks that an attempt never waits, and fails while a range writer is inside.
#[test]
fn attempt_fails_while_a_range_writer_is_inside() {
    for space in [Space::new, Space::per_cpu] {
        model_bounded(3, move || {
            let space = space();
            let other = spawn(&space, |space| {
                space.change(0);
                space.change(0);
            });
            if let Some(_guard) = space.lock.try_read() {
                space.sum();
            }
            if let Some(_guard) = space.lock.try_write() {
                space.add(1);
            }
            other.join().unwrap();
            let _guard = space.lock.try_write().expect("no range writer is inside");
            assert!(space.sum() >= 2);
        });
    }
}

/// A writer that is killed while it waits for a range writer leaves the gate open.
#[test]
fn killed_writer_leaves_the_gate_open() {
    model(|| {
        let space = Space::new();
        let inside: MmapRangeWriteGuard<'_, LoomHost> = space.lock.enter_range_writer();
        let killed = spawn(&space, |space| {
            LoomHost::current_task().kill();
            assert!(space.lock.write_killable().is_err(), "a range writer is inside");
        });
        killed.join().unwrap();
        let other = spawn(&space, |space| space.change(1));
        space.add(0);
        other.join().unwrap();
        drop(inside);
        space.change_all();
    });
}

/// A range writer may be killed after a holder of the lock has closed the gate.
#[test]
fn range_writer_killed_at_the_gate_acquires_nothing() {
    model_bounded(3, || {
        let space = Space::new();
        let other = spawn(&space, |space| {
            LoomHost::current_task().kill();
            if let Ok(_guard) = space.lock.enter_range_writer_killable() {
                space.add(0);
            }
        });
        space.change_all();
        other.join().unwrap();
        space.change_all();
    });
}

/// Data read without the lock and found valid is consistent.
#[test]
fn a_speculation_never_spans_a_range_writer() {
    model_bounded(3, || {
        let space = Space::new();
        let writer = spawn(&space, |space| {
            let guard = space.lock.enter_range_writer();
            space.change_words();
            drop(guard);
            drop(space.lock.write());
        });
        for _ in 0..2 {
            space.speculate();
        }
        writer.join().unwrap();
    });
}

/// The second range writer enters through a gate that another range writer has opened.
#[test]
fn a_speculation_never_spans_a_second_range_writer() {
    model_bounded(2, || {
        let space = Space::new();
        let opener = spawn(&space, |space| drop(space.lock.enter_range_writer()));
        let writer = spawn(&space, |space| {
            let _guard = space.lock.enter_range_writer();
            space.change_words();
        });
        space.speculate();
        opener.join().unwrap();
        writer.join().unwrap();
    });
}
