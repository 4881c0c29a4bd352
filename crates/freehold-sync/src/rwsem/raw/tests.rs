//! Locks with as many readers and waiters as can be counted.

use super::super::word::{MOST_READ_WAITERS, MOST_WRITE_WAITERS};
use super::*;
use crate::testing::StdHost;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

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

/// Whether `f` goes on by itself, or only after `then`.
fn waits_for(f: impl FnOnce() + Send, then: impl FnOnce()) -> bool {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let task = scope.spawn(|| {
            f();
            done.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        let waited = !done.load(SeqCst);
        then();
        task.join().unwrap();
        waited
    })
}

#[test]
fn a_crowd_of_readers_lets_no_more_in() {
    let lock = with(CROWD - 1);
    assert!(lock.try_read());
    assert!(!lock.try_read());
    assert_eq!(word(&lock), CROWD);
    assert!(waits_for(|| assert_eq!(lock.read(), Path::Slow), || lock.unlock_read()));
    assert_eq!(word(&lock), CROWD, "one has left, and one came");
}

#[test]
fn a_reader_beside_a_crowd_can_be_killed() {
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
    let full = WRITER + MOST_READ_WAITERS * READ_WAITER;
    let (lock, mut seen) = (with(full), 0);
    let waited = waits_for(
        || assert_eq!(lock.read(), Path::Slow),
        || {
            seen = word(&lock);
            lock.unlock_write();
        },
    );
    assert!(waited);
    assert_eq!(seen & !(CROWD - 1), full, "it waits outside of the queue");
    assert_eq!(word(&lock) & (2 * CROWD - 1), MOST_READ_WAITERS + 1, "all in the queue, and one more");
}

#[test]
fn a_full_queue_takes_no_more_writers() {
    let full = WRITER + MOST_WRITE_WAITERS * WRITE_WAITER;
    let lock = with(full);
    thread::scope(|scope| {
        let task = scope.spawn(|| {
            StdHost::current_task().kill();
            lock.write_killable().is_err()
        });
        assert!(task.join().unwrap());
    });
    assert_eq!(word(&lock), full);
    // The lock passes to a waiter of the queue; only this one is really there.
    assert!(waits_for(|| assert_eq!(lock.write(), Path::Slow), || lock.unlock_write()));
    assert_eq!(word(&lock), full);
}
