//! The reader/writer lock under all schedules and all orders that the memory model allows.
//!
//! Every test keeps its data in cells that loom watches: an admission without acquire (hazard C-5) or a
//! release without release is reported as a race, a lost wake-up as a deadlock. Tests of three threads are
//! bounded, as they say.
#![cfg(loom)]

use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{Rank, RwSem};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    lock: RwSem<LoomHost>,
    data: UnsafeCell<u32>,
}

// SAFETY: the data is touched under the lock, and loom checks that this suffices.
unsafe impl Sync for Shared {}
// SAFETY: a number.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Self::gathering(0)
    }

    fn gathering(writers: u32) -> Arc<Self> {
        Arc::new(Shared {
            lock: RwSem::new(Rank::Mmap).with_passing_writers(writers),
            data: UnsafeCell::new(0),
        })
    }

    fn get(&self) -> u32 {
        // SAFETY: as for `Sync`.
        self.data.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: as for `Sync`.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

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

/// A writer that a fatal signal waits for.
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

/// A thread looks while another adds one.
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

/// Fast, in doubt with an empty queue, queued, woken: the reader takes whichever path the schedule leads it.
#[test]
fn a_reader_sees_what_a_writer_did() {
    with_a_reader(add_in_write);
}

/// Hazard C-5 itself: the writer downgrades, and the reader is admitted beside it.
#[test]
fn c05_a_reader_sees_what_a_writer_did_before_its_downgrade() {
    with_a_reader(add_and_downgrade);
}

#[test]
fn c05_trying_orders_too() {
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

/// The release of the last reader, and the grant that goes with it.
#[test]
fn a_writer_comes_after_the_readers() {
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
fn two_writers_and_a_reader() {
    model_bounded(2, || {
        let shared = Shared::new();
        let writers = [spawn(&shared, add_in_write), spawn(&shared, add_and_downgrade)];
        look(&shared);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(look(&shared), 2);
        assert!(shared.is_free());
    });
}

/// One writer may pass the reader that waits, and is the one to admit it.
#[test]
fn a_reader_that_a_writer_passes() {
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

/// Writers that lose the token, grow impatient and close the gate.
#[test]
fn three_writers() {
    model_bounded(2, || {
        let shared = Shared::new();
        let writers = [spawn(&shared, add_in_write), spawn(&shared, add_in_write)];
        add_in_write(&shared);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(look(&shared), 3);
        assert!(shared.is_free());
    });
}

/// Readers that queue behind a waiting writer, so that both kinds of waiters are there at a release.
#[test]
fn many_readers_behind_a_downgrade() {
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

/// Hazard C-72: a killed wait has acquired nothing and leaves the lock as it would be without it.
#[test]
fn c72_a_reader_is_killed() {
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

/// The signal comes while the reader sleeps, or at any other time.
#[test]
fn c72_a_reader_is_killed_in_its_sleep() {
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

/// A reader waits because a writer waits; the writer is killed. No writer is left that the reader could wait
/// for.
#[test]
fn c72_a_writer_is_killed_with_a_reader_behind_it() {
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

/// The reader would wait for ever behind the killed writer if the first reader never let go.
#[test]
fn c72_a_killed_writer_lets_readers_pass_at_once() {
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
        // It ends while the guard is still held.
        let reader = spawn(&shared, |shared| drop(shared.lock.read()));
        writer.join().unwrap();
        reader.join().unwrap();
        drop(guard);
        assert!(shared.is_free());
    });
}

/// A reader that was admitted when the first writer let go may not know it yet when the second one is killed
/// and lets in the readers behind it. The first reader must not take that for nothing having happened.
#[test]
fn c72_a_writer_is_killed_between_two_batches_of_readers() {
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

/// The writer that was to pass the reader is killed.
#[test]
fn c72_a_writer_is_killed_that_passes_a_reader() {
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

/// The killed writer may have swallowed the one wake-up, which the other one needs.
#[test]
fn c72_one_of_two_writers_is_killed() {
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
