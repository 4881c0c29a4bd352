//! Sleeping on a key until somebody wakes it: for the engine's words, a program's futexes, and events of the
//! kernel. A key's sleepers are in one of [`BUCKETS`] lists, in the order in which they came.

use super::{Thread, timers::Alarm, work};
use crate::arch::clock;
use crate::arch::cpu;
use crate::arch::lock::SpinLock;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BUCKETS: usize = 256;

static TABLE: [SpinLock<VecDeque<Sleeper>>; BUCKETS] = [const { SpinLock::new(VecDeque::new()) }; BUCKETS];
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// An address space, a file, or 0 for the kernel.
    pub of: u64,
    pub at: u64,
}

impl Key {
    /// An object of the kernel's, by its address.
    pub fn kernel(at: u64) -> Self {
        Key { of: 0, at }
    }

    fn bucket(self) -> &'static SpinLock<VecDeque<Sleeper>> {
        let mixed = (self.at >> 2 ^ self.of >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &TABLE[(mixed >> 56) as usize % BUCKETS]
    }
}

struct Sleeper {
    key: Key,
    id: u64,
    /// Wakers that name bits wake those who share one (FUTEX_WAIT_BITSET).
    bits: u32,
    thread: Arc<Thread>,
}

/// What ends a sleep besides a wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Nothing.
    Deaf,
    /// A fatal signal.
    Killable,
    /// Any signal that is not blocked.
    Interruptible,
}

impl Sleep {
    fn ends_by(self) -> u32 {
        match self {
            Sleep::Deaf => 0,
            Sleep::Killable => work::KILL,
            Sleep::Interruptible => work::KILL | work::SIGNAL,
        }
    }
}

/// Why a sleep is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Waker,
    Signal,
    Time,
}

/// The calling thread in the list of a key. A wake-up counts from now on; it sleeps by
/// [`sleep`](Self::sleep).
pub struct Waiting {
    key: Key,
    id: u64,
}

/// Puts the calling thread into the list of `key`, if `holds`, which wakers cannot come in between with.
pub fn enqueue_if(key: Key, holds: impl FnOnce() -> bool) -> Option<Waiting> {
    let mut bucket = key.bucket().lock();
    holds().then(|| push(&mut bucket, key, u32::MAX))
}

/// Puts the calling thread into the list of `key`, for wakers of these bits.
pub fn enqueue(key: Key, bits: u32) -> Waiting {
    push(&mut key.bucket().lock(), key, bits)
}

fn push(bucket: &mut VecDeque<Sleeper>, key: Key, bits: u32) -> Waiting {
    let id = NEXT.fetch_add(1, Relaxed);
    bucket.push_back(Sleeper { key, id, bits, thread: Thread::hold_current() });
    Waiting { key, id }
}

impl Waiting {
    /// Sleeps until a wake-up, what `how` says, or the deadline, in nanoseconds since the start.
    pub fn sleep(self, how: Sleep, deadline: u64) -> Woken {
        let _alarm = Alarm::set(deadline);
        let here = cpu::current();
        loop {
            if !self.is_listed() {
                return Woken::Waker;
            }
            let early = if here.work.load(Relaxed) & how.ends_by() != 0 {
                Woken::Signal
            } else if clock::now_ns() >= deadline {
                Woken::Time
            } else {
                here.park();
                continue;
            };
            return if self.cancel() { Woken::Waker } else { early };
        }
    }

    fn is_listed(&self) -> bool {
        self.key.bucket().lock().iter().any(|sleeper| sleeper.id == self.id)
    }

    /// Takes the thread out of the list; whether a waker had done so already.
    pub fn cancel(&self) -> bool {
        let mut bucket = self.key.bucket().lock();
        let at = bucket.iter().position(|sleeper| sleeper.id == self.id);
        let sleeper = at.and_then(|at| bucket.remove(at));
        drop(bucket);
        sleeper.is_none()
    }
}

/// Sleeps until any of these is woken, and takes the thread out of all their lists; else as
/// [`Waiting::sleep`].
pub fn sleep_any(all: &[Waiting], how: Sleep, deadline: u64) -> Woken {
    let _alarm = Alarm::set(deadline);
    let here = cpu::current();
    let woken = loop {
        if all.iter().any(|waiting| !waiting.is_listed()) {
            break Woken::Waker;
        } else if here.work.load(Relaxed) & how.ends_by() != 0 {
            break Woken::Signal;
        } else if clock::now_ns() >= deadline {
            break Woken::Time;
        }
        here.park();
    };
    for waiting in all {
        waiting.cancel();
    }
    woken
}

/// Wakes up to `most` that sleep on the key, the longest first; returns how many.
pub fn wake(key: Key, most: usize) -> usize {
    wake_bits(key, most, u32::MAX)
}

/// The same, those alone who share a bit.
pub fn wake_bits(key: Key, most: usize, bits: u32) -> usize {
    let mut woken = 0;
    while woken < most {
        let mut bucket = key.bucket().lock();
        let at = bucket.iter().position(|sleeper| sleeper.key == key && sleeper.bits & bits != 0);
        let Some(sleeper) = at.and_then(|at| bucket.remove(at)) else { break };
        drop(bucket);
        sleeper.thread.unpark();
        woken += 1;
    }
    woken
}
