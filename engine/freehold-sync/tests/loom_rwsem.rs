//! Tests of the reader/writer lock (`RwSem`) under all schedules and all orders that the memory model allows.
//!
//! Every test keeps its data in cells that loom checks. loom reports an admission without acquire (hazard
//! C-5) or an unlock without release as a race, and a lost wake-up as a deadlock. At the end of a test, the
//! lock must be free. The tests with three threads bound the number of preemptions. `threads.rs` tests the
//! same lock with real threads and many steps. A new test with one reader and one writer passes the writer's
//! steps to [`with_a_reader`].
#![cfg(loom)]

use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{Rank, RwSem};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A lock, and the data that it guards.
struct Shared {
    lock: RwSem<LoomHost>,
    data: UnsafeCell<u32>,
}

// SAFETY: the data is accessed under the lock, and loom checks that this suffices.
unsafe impl Sync for Shared {}
// SAFETY: the fields are a number and a lock.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Self::gathering(0)
    }

    /// Creates a free lock under which up to `writers` waiting writers may overtake waiting readers.
    fn gathering(writers: u32) -> Arc<Self> {
        Arc::new(Shared {
            lock: RwSem::new(Rank::Mmap).with_passing_writers(writers),
            data: UnsafeCell::new(0),
        })
    }

    fn get(&self) -> u32 {
        // SAFETY: the lock excludes writers; loom checks that.
        self.data.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: the lock excludes other accesses; loom checks that.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    /// Returns true if no task holds the lock or waits for it.
    fn is_free(&self) -> bool {
        self.lock.try_write().is_some() && self.lock.try_read().is_some()
    }
}

fn spawn(shared: &Arc<Shared>, f: impl FnOnce(&Shared) + 'static) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || f(&shared))
}

fn add_in_write(shared: &Shared) {
    let guard = shared.lock.write();
    shared.add();
    drop(guard);
}

/// Adds one as a writer with a fatal signal pending.
fn add_unless_killed(shared: &Shared) {
    LoomHost::current_task().kill();
    if let Ok(guard) = shared.lock.write_killable() {
        shared.add();
        drop(guard);
    }
}

fn add_and_downgrade(shared: &Shared) {
    let guard = shared.lock.write();
    shared.add();
    let guard = guard.downgrade();
    shared.get();
    drop(guard);
}

fn look(shared: &Shared) -> u32 {
    let guard = shared.lock.read();
    let seen = shared.get();
    drop(guard);
    seen
}

/// Runs `look` in one thread and `add` in another.
fn with_a_reader(add: fn(&Shared)) {
    model(move || {
        let shared = Shared::new();
        let writer = spawn(&shared, add);
        look(&shared);
        writer.join().unwrap();
        assert_eq!(look(&shared), 1);
        assert!(shared.is_free());
    });
}

#[test]
fn writers_exclude_each_other() {
    model(|| {
        let shared = Shared::new();
        let other = spawn(&shared, add_in_write);
        add_in_write(&shared);
        other.join().unwrap();
        assert_eq!(look(&shared), 2);
        assert!(shared.is_free());
    });
}

/// Covers all paths of the reader: fast, in doubt with an empty queue, queued, woken.
#[test]
fn reader_sees_the_changes_of_a_writer() {
    with_a_reader(add_in_write);
}

/// Hazard C-5: the writer downgrades, and the reader is admitted while the downgraded writer holds the lock.
#[test]
fn c05_reader_sees_changes_made_before_a_downgrade() {
    with_a_reader(add_and_downgrade);
}

#[test]
fn c05_successful_attempt_acquires() {
    model(|| {
        let shared = Shared::new();
        let writer = spawn(&shared, |shared| {
            add_and_downgrade(shared);
            if let Some(guard) = shared.lock.try_write() {
                shared.add();
                drop(guard);
            }
        });
        if let Some(guard) = shared.lock.try_read() {
            shared.get();
            drop(guard);
        }
        if let Some(guard) = shared.lock.try_write() {
            shared.add();
            drop(guard);
        }
        writer.join().unwrap();
        assert!(shared.is_free());
    });
}

/// Tests the release of the last reader, and its grant of the lock.
#[test]
fn last_reader_grants_the_lock_to_a_waiting_writer() {
    model_bounded(3, || {
        let shared = Shared::new();
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        let writer = spawn(&shared, add_in_write);
        look(&shared);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(look(&shared), 1);
        assert!(shared.is_free());
    });
}

#[test]
fn two_writers_and_a_reader_all_acquire_the_lock() {
    model_bounded(2, || {
        let shared = Shared::new();
        let writers = [spawn(&shared, add_in_write), spawn(&shared, add_and_downgrade)];
        look(&shared);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(look(&shared), 2);
        assert!(shared.is_free());
    });
}

/// One writer may overtake the waiting reader, and its release admits the reader.
#[test]
fn writer_that_overtakes_a_reader_admits_it() {
    model_bounded(2, || {
        let shared = Shared::gathering(1);
        let guard = shared.lock.write();
        let writer = spawn(&shared, add_in_write);
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        shared.add();
        drop(guard);
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(look(&shared), 2);
        assert!(shared.is_free());
    });
}

/// Covers writers that lose the token, become starved, and keep new writers out.
#[test]
fn starved_writer_acquires_the_lock() {
    model_bounded(2, || {
        let shared = Shared::new();
        let writers = [spawn(&shared, add_in_write), spawn(&shared, add_in_write)];
        add_in_write(&shared);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(look(&shared), 3);
        assert!(shared.is_free());
    });
}

/// Readers queue behind a waiting writer, so that both kinds of waiters exist at a release.
#[test]
fn reader_and_writer_queued_at_a_downgrade_both_acquire_the_lock() {
    model_bounded(2, || {
        let shared = Shared::new();
        let guard = shared.lock.write();
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        let writer = spawn(&shared, add_in_write);
        shared.add();
        let guard = guard.downgrade();
        shared.get();
        drop(guard);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(look(&shared), 2);
        assert!(shared.is_free());
    });
}

/// Hazard C-72: a killed wait acquires nothing and has no effect on the lock.
#[test]
fn c72_killed_reader_leaves_the_lock_free() {
    model(|| {
        let shared = Shared::new();
        let guard = shared.lock.write();
        let reader = spawn(&shared, |shared| {
            LoomHost::current_task().kill();
            if let Ok(guard) = shared.lock.read_killable() {
                shared.get();
                drop(guard);
            }
        });
        shared.add();
        drop(guard);
        reader.join().unwrap();
        assert!(shared.is_free());
    });
}

/// The signal arrives while the reader sleeps, or at any other time.
#[test]
fn c72_reader_killed_while_asleep_leaves_the_lock_free() {
    model_bounded(3, || {
        let shared = Shared::new();
        let guard = shared.lock.write();
        let name = Arc::new(loom::sync::Mutex::new(None));
        let reader = {
            let name = Arc::clone(&name);
            spawn(&shared, move |shared| {
                *name.lock().unwrap() = Some(LoomHost::current_task());
                if let Ok(guard) = shared.lock.read_killable() {
                    shared.get();
                    drop(guard);
                }
            })
        };
        shared.add();
        let task = *name.lock().unwrap();
        if let Some(task) = task {
            task.kill();
        }
        drop(guard);
        reader.join().unwrap();
        assert!(shared.is_free());
    });
}

/// A reader waits behind a writer that waits, and the writer is killed. The reader must then get the lock,
/// because no writer is left.
#[test]
fn c72_reader_behind_a_killed_writer_is_admitted() {
    model_bounded(3, || {
        let shared = Shared::new();
        let guard = shared.lock.read();
        let writer = spawn(&shared, add_unless_killed);
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        shared.get();
        drop(guard);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(shared.is_free());
    });
}

/// The first reader holds the lock until the end, so the second reader must not wait for its release.
#[test]
fn c72_reader_behind_a_killed_writer_joins_the_present_reader() {
    model_bounded(3, || {
        let shared = Shared::new();
        let guard = shared.lock.read();
        let writer = spawn(&shared, |shared| {
            LoomHost::current_task().kill();
            assert!(
                shared.lock.write_killable().is_err(),
                "a reader holds the lock until the writer has ended"
            );
        });
        // The reader finishes while the guard is still held.
        let reader = spawn(&shared, |shared| drop(shared.lock.read()));
        writer.join().unwrap();
        reader.join().unwrap();
        drop(guard);
        assert!(shared.is_free());
    });
}

/// The release of `guard` flips the phase and so admits `reader`, which may still be asleep. `writer` is
/// killed while another reader, `look` of this thread, waits behind it. A second flip for that reader would
/// hide the first flip from `reader`, so the killed writer must not flip the phase.
#[test]
fn c72_killed_writer_between_two_batches_of_readers_loses_no_reader() {
    model_bounded(2, || {
        let shared = Shared::new();
        let guard = shared.lock.write();
        let writer = spawn(&shared, add_unless_killed);
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        shared.add();
        drop(guard);
        look(&shared);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(shared.is_free());
    });
}

/// The writer that may overtake the reader is killed.
#[test]
fn c72_reader_is_admitted_when_the_overtaking_writer_is_killed() {
    model_bounded(2, || {
        let shared = Shared::gathering(1);
        let guard = shared.lock.write();
        let writer = spawn(&shared, add_unless_killed);
        let reader = spawn(&shared, |shared| {
            look(shared);
        });
        shared.add();
        drop(guard);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(shared.is_free());
    });
}

/// The killed writer may have consumed the only wake-up, which the other writer needs.
#[test]
fn c72_killed_writer_passes_its_wake_up_to_the_other_writer() {
    model_bounded(3, || {
        let shared = Shared::new();
        let guard = shared.lock.write();
        let name = Arc::new(loom::sync::Mutex::new(None));
        let killed = {
            let name = Arc::clone(&name);
            spawn(&shared, move |shared| {
                *name.lock().unwrap() = Some(LoomHost::current_task());
                if let Ok(guard) = shared.lock.write_killable() {
                    shared.add();
                    drop(guard);
                }
            })
        };
        let writer = spawn(&shared, add_in_write);
        shared.add();
        drop(guard);
        let task = *name.lock().unwrap();
        if let Some(task) = task {
            task.kill();
        }
        killed.join().unwrap();
        writer.join().unwrap();
        assert!(look(&shared) >= 2);
        assert!(shared.is_free());
    });
}
