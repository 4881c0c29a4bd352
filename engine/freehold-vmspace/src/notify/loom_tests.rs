//! Tests of the sequence count and of the removal of a listener under loom, which tries all schedules and the
//! results that the memory model allows.
//!
//! - A driver never keeps a translation that a change has removed, whether the driver looks the translation
//!   up before, during or after the change.
//! - A removed listener is not called after the removal has returned, and a change that has begun for a
//!   listener also ends for it.
//!
//! An atomic word stands for the entry of a page, and a mutex holds the driver's translation.

use super::{Interval, Listener, Listeners, Refused};
use crate::UserRange;
use freehold_sync::{
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    testing::{LoomHost, model},
};
use loom::{
    sync::{Arc, Mutex},
    thread,
};

const RANGE: UserRange = UserRange::new(0x1000, 0x2000);

/// A page with an entry, and a driver that may have a translation of it.
struct World {
    interval: Interval<LoomHost>,
    /// The frame that the entry maps. Relaxed: the lock of the table orders nothing for the driver here.
    entry: AtomicU64,
    translation: Mutex<Option<u64>>,
}

impl World {
    /// Returns a page that maps frame 1.
    fn new() -> Arc<Self> {
        let interval = Interval::new(RANGE);
        Arc::new(World { interval, entry: AtomicU64::new(1), translation: Mutex::new(None) })
    }

    /// Replaces the frame, like a gather with a notice.
    fn change(&self, frame: u64) {
        self.interval.start(RANGE);
        *self.translation.lock().unwrap() = None;
        self.entry.store(frame, Relaxed);
        self.interval.end(RANGE);
    }

    /// Installs a translation if no change interferes.
    fn install(&self) {
        let seen = self.interval.read_begin();
        let frame = self.entry.load(Relaxed);
        let mut translation = self.translation.lock().unwrap();
        if !self.interval.read_retry(seen) {
            *translation = Some(frame);
        }
    }

    /// Checks that the driver has no translation, or that of the current entry.
    fn check(&self) {
        let found = *self.translation.lock().unwrap();
        assert!(
            found.is_none_or(|frame| frame == self.entry.load(Relaxed)),
            "a stale translation: {found:?}"
        );
    }
}

#[test]
fn driver_keeps_no_translation_of_a_changed_page() {
    model(|| {
        let world = World::new();
        let driver = {
            let world = world.clone();
            thread::spawn(move || world.install())
        };
        world.change(2);
        world.check();
        driver.join().unwrap();
        world.check();
    });
}

#[test]
fn overlapping_changes_are_both_waited_for() {
    model(|| {
        let world = World::new();
        let other = {
            let world = world.clone();
            thread::spawn(move || world.change(2))
        };
        world.interval.start(RANGE);
        world.interval.end(RANGE);
        world.install();
        other.join().unwrap();
        world.check();
    });
}

/// A listener that counts the changes in progress, and its calls.
#[derive(Default)]
struct Counting {
    active: AtomicU32,
    calls: AtomicU32,
}

impl Listener for Counting {
    fn range_start(&self, _: UserRange) {
        self.active.fetch_add(1, Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }

    fn try_range_start(&self, _: UserRange) -> Result<(), Refused> {
        Err(Refused)
    }

    fn range_end(&self, _: UserRange) {
        self.active.fetch_sub(1, Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }

    fn release(&self) {}
}

#[test]
fn removed_listener_is_not_called_afterwards() {
    model(|| {
        let listeners = Arc::new(Listeners::<LoomHost>::new());
        let listener = alloc::sync::Arc::new(Counting::default());
        let id = listeners.add(listener.clone()).unwrap();
        let changer = {
            let listeners = listeners.clone();
            thread::spawn(move || {
                if listeners.any() {
                    let heard = listeners.begin(RANGE);
                    listeners.end(RANGE, heard);
                }
            })
        };
        listeners.remove(id);
        // Relaxed accesses of the listener are ordered by the removal.
        let calls = listener.calls.load(Relaxed);
        assert_eq!(listener.active.load(Relaxed), 0, "a change in progress after the removal");
        changer.join().unwrap();
        assert_eq!(listener.calls.load(SeqCst), calls, "a call after the removal");
    });
}
