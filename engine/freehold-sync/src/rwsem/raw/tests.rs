//! Locks with as many readers and waiters as can be counted, and in which order these come.

use super::super::word::{MAX_READ_WAITERS, MAX_WRITE_WAITERS};
use super::*;
use crate::testing::StdHost;
use std::boxed::Box;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

type Lock = RawRwSem<StdHost>;

/// Half of what the field of readers holds.
const CROWD: u64 = 1 << 20;
const READ_WAITER: u64 = 1 << 21;
const WRITE_WAITER: u64 = 1 << 42;
const WRITER: u64 = 1 << 63;

/// A lock whose word came to be this.
fn with(word: u64) -> Lock {
    Lock { state: AtomicU64::new(word), ..Lock::new() }
}

fn word(lock: &Lock) -> u64 {
    lock.load(Ordering::Relaxed).0
}

std::thread_local! {
    static IN_WAIT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A wait during which the function of [`waits`] runs.
fn wait(_: &AtomicU32, _: u32) -> Result<(), Killed> {
    IN_WAIT.take().expect("a second wait")();
    Ok(())
}

/// Makes `attempt` on a lock, whose first wait is `then`. Returns whether it waited.
fn waits(
    lock: &Arc<Lock>,
    attempt: impl FnOnce(&Lock) -> Result<(), Killed>,
    then: impl FnOnce(&Lock) + 'static,
) -> bool {
    let inside = lock.clone();
    IN_WAIT.set(Some(Box::new(move || then(&inside))));
    assert!(attempt(lock).is_ok());
    IN_WAIT.take().is_none()
}

/// Reads as [`RawRwSem::read`] does.
fn read(lock: &Lock) -> Result<(), Killed> {
    if lock.read_fast() { Ok(()) } else { lock.read_slow(wait) }
}

#[test]
fn too_many_readers_admit_no_more() {
    let lock = Arc::new(with(CROWD - 1));
    assert!(lock.try_read());
    assert!(!lock.try_read());
    assert_eq!(word(&lock), CROWD);
    assert!(waits(&lock, read, Lock::unlock_read));
    assert_eq!(word(&lock), CROWD, "one has left, and one came");
}

#[test]
fn a_reader_refused_by_too_many_readers_can_be_killed() {
    let lock = with(CROWD);
    thread::scope(|scope| {
        let task = scope.spawn(|| {
            StdHost::current_task().kill();
            lock.read_killable().is_err()
        });
        assert!(task.join().unwrap());
    });
    assert_eq!(word(&lock), CROWD);
}

#[test]
fn a_full_queue_takes_no_more_readers() {
    let full = WRITER + MAX_READ_WAITERS * READ_WAITER;
    let lock = Arc::new(with(full));
    let then = move |lock: &Lock| {
        assert_eq!(word(lock), full, "it waits outside of the queue");
        lock.unlock_write(0);
    };
    assert!(waits(&lock, read, then));
    assert_eq!(word(&lock) & (2 * CROWD - 1), MAX_READ_WAITERS + 1, "all in the queue, and one more");
}

#[test]
fn a_full_queue_takes_no_more_writers() {
    let full = WRITER + MAX_WRITE_WAITERS * WRITE_WAITER;
    let lock = Arc::new(with(full));
    thread::scope(|scope| {
        let task = scope.spawn(|| {
            StdHost::current_task().kill();
            lock.write_killable().is_err()
        });
        assert!(task.join().unwrap());
    });
    assert_eq!(word(&lock), full);
    // The lock passes to a waiter of the queue; only this one is really there.
    assert!(waits(&lock, |lock| lock.write_by(wait), |lock| lock.unlock_write(0)));
    assert_eq!(word(&lock), full);
}

/// Whether the lock went to a writer, which takes it, and how many of these still wait.
fn after_release(lock: &Lock, passing_writers: u32) -> (bool, u64) {
    lock.unlock_write(passing_writers);
    let now = lock.load(Ordering::Relaxed);
    if now.has_writer() {
        assert!(lock.take_token());
    }
    (now.has_writer(), now.write_waiters())
}

#[test]
fn waiting_readers_are_passed_by_a_bounded_number_of_writers() {
    for passing_writers in 0..4 {
        let lock = with(WRITER + 3 * READ_WAITER + 5 * WRITE_WAITER);
        for passed_by_writers in 0..passing_writers {
            assert_eq!(after_release(&lock, passing_writers), (true, 4 - u64::from(passed_by_writers)));
        }
        assert_eq!(after_release(&lock, passing_writers), (false, 5 - u64::from(passing_writers)));
        assert_eq!(lock.load(Ordering::Relaxed).readers(), 3, "all of them together");
    }
}

#[test]
fn readers_wait_only_for_queued_writers() {
    let lock = with(WRITER + READ_WAITER + WRITE_WAITER);
    assert_eq!(after_release(&lock, 9), (true, 0));
    assert_eq!(after_release(&lock, 9), (false, 0));
    assert_eq!(lock.load(Ordering::Relaxed).readers(), 1);
}

#[test]
fn passing_writers_are_counted_from_zero_each_time() {
    let lock = with(WRITER + READ_WAITER + 9 * WRITE_WAITER);
    for left in [(true, 8), (false, 8)] {
        assert_eq!(after_release(&lock, 1), left);
    }
    // The reader lets go, which grants the lock to a writer; another reader has come.
    lock.unlock_read();
    assert!(lock.take_token());
    lock.state.fetch_add(READ_WAITER, Ordering::Relaxed);
    for left in [(true, 6), (false, 6)] {
        assert_eq!(after_release(&lock, 1), left);
    }
}
