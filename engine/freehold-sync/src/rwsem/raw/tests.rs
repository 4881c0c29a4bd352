//! Tests of locks at the limits of their counts, and of the order in which readers and writers acquire the
//! lock.
//!
//! The limits are up to a million tasks, so a test starts with a lock whose state word has the wanted counts
//! ([`with`]), and takes or releases the lock as one more task. [`waits`] replaces the sleep of that task by
//! a function of the test, which changes the lock and thereby ends the wait. The constants below repeat the
//! layout of the word on purpose, so that a change of `word.rs` fails here.

use super::super::word::{MAX_READ_WAITERS, MAX_WRITE_WAITERS};
use super::*;
use crate::testing::StdHost;
use std::boxed::Box;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

/// The lock under test.
type Lock = RawRwSem<StdHost>;

/// Half of the number of values of the field of readers.
const CROWD: u64 = 1 << 20;
const READ_WAITER: u64 = 1 << 21;
const WRITE_WAITER: u64 = 1 << 42;
const WRITER: u64 = 1 << 63;

/// Creates a lock with this state word.
fn with(word: u64) -> Lock {
    Lock { state: AtomicU64::new(word), ..Lock::new() }
}

fn word(lock: &Lock) -> u64 {
    lock.load(Ordering::Relaxed).0
}

std::thread_local! {
    static IN_WAIT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Waits by running the function that [`waits`] has stored. Fails a test that waits twice.
fn wait(_: &AtomicU32, _: u32) -> Result<(), Killed> {
    IN_WAIT.take().expect("a second wait")();
    Ok(())
}

/// Runs `attempt` on a lock, and `then` during the first wait of the attempt. Returns true if the attempt
/// waited.
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

/// Takes the lock for reading like [`RawRwSem::read`].
fn read(lock: &Lock) -> Result<(), Killed> {
    if lock.read_fast() { Ok(()) } else { lock.read_slow(wait) }
}

#[test]
fn lock_with_maximum_of_readers_admits_no_reader() {
    let lock = Arc::new(with(CROWD - 1));
    assert!(lock.try_read());
    assert!(!lock.try_read());
    assert_eq!(word(&lock), CROWD);
    assert!(waits(&lock, read, Lock::unlock_read));
    assert_eq!(word(&lock), CROWD, "one reader left and another one was admitted");
}

#[test]
fn reader_waiting_for_a_full_lock_can_be_killed() {
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
fn full_queue_takes_no_more_readers() {
    let full = WRITER + MAX_READ_WAITERS * READ_WAITER;
    let lock = Arc::new(with(full));
    let then = move |lock: &Lock| {
        assert_eq!(word(lock), full, "the reader waits outside the queue");
        lock.unlock_write(0);
    };
    assert!(waits(&lock, read, then));
    assert_eq!(word(&lock) & (2 * CROWD - 1), MAX_READ_WAITERS + 1, "all queued readers and the one outside");
}

#[test]
fn full_queue_takes_no_more_writers() {
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
    // The lock is granted to a queued writer. Only the writer of this test exists, so it takes the token.
    assert!(waits(&lock, |lock| lock.write_by(wait), |lock| lock.unlock_write(0)));
    assert_eq!(word(&lock), full);
}

/// Releases the lock, and takes the token if the lock was granted to a writer. Returns two values: true if
/// the lock was granted to a writer, and the number of writers that still wait.
fn after_release(lock: &Lock, passing_writers: u32) -> (bool, u64) {
    lock.unlock_write(passing_writers);
    let now = lock.load(Ordering::Relaxed);
    if now.has_writer() {
        assert!(lock.take_token());
    }
    (now.has_writer(), now.write_waiters())
}

#[test]
fn bounded_number_of_writers_overtakes_waiting_readers() {
    for passing_writers in 0..4 {
        let lock = with(WRITER + 3 * READ_WAITER + 5 * WRITE_WAITER);
        for passed_by_writers in 0..passing_writers {
            assert_eq!(after_release(&lock, passing_writers), (true, 4 - u64::from(passed_by_writers)));
        }
        assert_eq!(after_release(&lock, passing_writers), (false, 5 - u64::from(passing_writers)));
        assert_eq!(lock.load(Ordering::Relaxed).readers(), 3, "all readers hold the lock together");
    }
}

#[test]
fn readers_are_admitted_when_no_writer_is_queued() {
    let lock = with(WRITER + READ_WAITER + WRITE_WAITER);
    assert_eq!(after_release(&lock, 9), (true, 0));
    assert_eq!(after_release(&lock, 9), (false, 0));
    assert_eq!(lock.load(Ordering::Relaxed).readers(), 1);
}

#[test]
fn count_of_overtaking_writers_restarts_after_readers_are_admitted() {
    let lock = with(WRITER + READ_WAITER + 9 * WRITE_WAITER);
    for left in [(true, 8), (false, 8)] {
        assert_eq!(after_release(&lock, 1), left);
    }
    // The reader releases the lock, which grants it to a writer. Another reader queues.
    lock.unlock_read();
    assert!(lock.take_token());
    lock.state.fetch_add(READ_WAITER, Ordering::Relaxed);
    for left in [(true, 6), (false, 6)] {
        assert_eq!(after_release(&lock, 1), left);
    }
}
