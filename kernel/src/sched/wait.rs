//! Sleeping on a key until another thread wakes the sleeper: for words of the engine, futexes of programs,
//! and events of the kernel. The sleepers of a key are in one of [`BUCKETS`] lists, in the order of their
//! arrival.
//!
//! A thread enters the list ([`enqueue`]), then checks its condition, and then sleeps ([`Waiting::sleep`]) or
//! leaves the list ([`Waiting::cancel`]). A waker first makes the condition true and then calls [`wake`], so
//! no wake-up is lost. A [`Waiting`] that is dropped without either call leaves the thread in the list. A
//! sleep may end although the condition is false, so callers check the condition in a loop.
//!
//! Each list has a spin lock. [`requeue`] takes the locks of two lists, in the order of the lists' indices.
//! The lock of a scheduler's queue may be taken under a list's lock, and never the other way round.
//!
//! An event of the kernel has the key [`Key::kernel`], with the address of a field of its object. The program
//! `jobs.c` of the tests checks [`requeue`] and [`sleep_any`].

use super::thread::current;
use crate::arch::{clock, jitter, lock::SpinLock};
use crate::sched::{Thread, timers::Alarm, work};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of lists.
const BUCKETS: usize = 256;

/// A list of sleepers in the order of their arrival, with its lock.
type Bucket = SpinLock<VecDeque<Sleeper>>;

/// The lists. A key's hash selects its list, so a list also contains sleepers of other keys.
static TABLE: [Bucket; BUCKETS] = [const { SpinLock::new(VecDeque::new()) }; BUCKETS];
/// The number of the next sleep.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The object on which threads sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// An address space, a file, or 0 for the kernel.
    pub of: u64,
    /// An address or an offset in that object.
    pub at: u64,
}

impl Key {
    /// Returns the key of a kernel object, by its address.
    pub fn kernel(at: u64) -> Self {
        Key { of: 0, at }
    }

    /// Returns the index of the key's list in [`TABLE`].
    fn index(self) -> usize {
        let mixed = (self.at >> 2 ^ self.of >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 56) as usize % BUCKETS
    }

    /// Returns the key's list.
    fn bucket(self) -> &'static Bucket {
        &TABLE[self.index()]
    }
}

/// A thread in a list.
struct Sleeper {
    key: Key,
    /// The number of the sleep, unique in all lists.
    id: u64,
    /// Bits of the sleeper. A waker with bits wakes only sleepers that have one of the waker's bits
    /// (FUTEX_WAIT_BITSET).
    bits: u32,
    /// True if the thread sleeps on other keys, too. [`requeue`] wakes such a thread, because a thread can
    /// record only one move.
    is_one_of_many: bool,
    thread: Arc<Thread>,
}

/// The events, apart from a wake-up, that end a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// No other event.
    Deaf,
    /// A fatal signal.
    Killable,
    /// Any signal that is not blocked.
    Interruptible,
}

impl Sleep {
    /// Returns the bits of a thread's work that end the sleep.
    pub fn ends_by(self) -> u32 {
        match self {
            Sleep::Deaf => 0,
            Sleep::Killable => work::KILL,
            Sleep::Interruptible => work::KILL | work::SIGNAL,
        }
    }
}

/// The reason for the end of a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// A waker removed the thread from the list.
    Waker,
    /// The thread's work has a bit that ends this kind of sleep.
    Signal,
    /// The deadline has passed.
    Time,
}

/// The place of the calling thread in the list of a key. A wake-up that happens before the thread sleeps also
/// counts.
pub struct Waiting {
    key: Key,
    id: u64,
}

/// Puts the calling thread into the list of `key` if `holds` returns true. The list stays locked from the
/// call of `holds` on, so no waker can act in between.
pub fn enqueue_if(key: Key, holds: impl FnOnce() -> bool) -> Option<Waiting> {
    jitter::stall();
    let mut bucket = key.bucket().lock();
    holds().then(|| push(&mut bucket, key, u32::MAX, false))
}

/// Puts the calling thread into the list of `key`. [`wake_bits`] wakes the thread if the two calls share a
/// bit; [`wake`] wakes it whatever its bits are.
pub fn enqueue(key: Key, bits: u32) -> Waiting {
    push(&mut key.bucket().lock(), key, bits, false)
}

/// Puts the calling thread into the list of `key`, one of the keys on which the thread sleeps with
/// [`sleep_any`].
pub fn enqueue_one_of_many(key: Key) -> Waiting {
    push(&mut key.bucket().lock(), key, u32::MAX, true)
}

/// Adds the calling thread at the end of a list, whose lock the caller holds.
fn push(bucket: &mut VecDeque<Sleeper>, key: Key, bits: u32, is_one_of_many: bool) -> Waiting {
    let id = NEXT.fetch_add(1, Relaxed);
    bucket.push_back(Sleeper { key, id, bits, is_one_of_many, thread: Thread::hold_current() });
    Waiting { key, id }
}

impl Waiting {
    /// Sleeps until a wake-up, an event that `how` allows, or the deadline, in nanoseconds since the start.
    pub fn sleep(self, how: Sleep, deadline: u64) -> Woken {
        let _alarm = Alarm::set(deadline);
        let here = current();
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

    /// Returns true if no waker has removed the thread yet.
    fn is_listed(&self) -> bool {
        self.find(|_, _| ()).is_some()
    }

    /// Removes the thread from the list. Returns true if a waker had already removed it.
    pub fn cancel(&self) -> bool {
        let gone = self.find(|bucket, at| bucket.remove(at));
        gone.is_none()
    }

    /// Calls `f` with the list that contains the thread, and the thread's place in it. Returns `None` if no
    /// list contains the thread.
    fn find<R>(&self, mut f: impl FnMut(&mut VecDeque<Sleeper>, usize) -> R) -> Option<R> {
        let mut look = |index: usize| {
            let mut bucket = TABLE[index].lock();
            let at = bucket.iter().position(|sleeper| sleeper.id == self.id)?;
            Some(f(&mut bucket, at))
        };
        if let Some(found) = look(self.key.index()) {
            return Some(found);
        }
        let moved = &current().moved;
        let mut index = moved.of(self.id)?;
        loop {
            if let Some(found) = look(index) {
                return Some(found);
            }
            match moved.of(self.id) {
                Some(now) if now != index => index = now,
                _ => return None,
            }
        }
    }
}

/// Wakes up to `wakes` threads that sleep on `from`, and moves up to `moves` others to the list of `to`.
/// Returns the numbers of woken and moved threads. A thread that sleeps on several keys is woken instead of
/// moved, and counts as moved.
pub fn requeue(from: Key, to: Key, wakes: usize, moves: usize) -> (usize, usize) {
    let woken = wake(from, wakes);
    if from == to {
        return (woken, 0);
    }
    let (source, target) = (from.index(), to.index());
    let (mut moved, mut at) = (0, 0);
    // Two lists are locked in the order of their indices.
    let (mut first, mut second) = (TABLE[source.min(target)].lock(), None);
    if source != target {
        second = Some(TABLE[source.max(target)].lock());
    }
    while moved < moves {
        let (leaves, comes) = match &mut second {
            None => (&mut *first, None),
            Some(second) if source < target => (&mut *first, Some(&mut **second)),
            Some(second) => (&mut **second, Some(&mut *first)),
        };
        // The sleepers before `at` have already been checked.
        let Some(behind) = leaves.iter().skip(at).position(|sleeper| sleeper.key == from) else { break };
        at += behind;
        let Some(mut sleeper) = leaves.remove(at) else { break };
        if sleeper.is_one_of_many {
            // The thread is woken instead of moved, and its program checks the words again.
            sleeper.thread.unpark();
        } else {
            sleeper.key = to;
            sleeper.thread.moved.set(sleeper.id, target);
            comes.unwrap_or(leaves).push_back(sleeper);
        }
        moved += 1;
    }
    (woken, moved)
}

/// Sleeps until a waker wakes the thread in any of these lists, and then removes the thread from all of them.
/// Returns the index of a place from which a waker removed the thread, or else the reason for the end, like
/// [`Waiting::sleep`].
pub fn sleep_any(all: &[Waiting], how: Sleep, deadline: u64) -> Result<usize, Woken> {
    let _alarm = Alarm::set(deadline);
    let here = current();
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
    cancel_all(all).ok_or(woken)
}

/// Removes the calling thread from all these lists. If wakers had already removed the thread from some lists,
/// returns the index of the last of these.
pub fn cancel_all(all: &[Waiting]) -> Option<usize> {
    let mut woken = None;
    for (n, waiting) in all.iter().enumerate() {
        if waiting.cancel() {
            woken = Some(n);
        }
    }
    woken
}

/// Wakes up to `most` threads that sleep on the key, the longest sleepers first. Returns the number of woken
/// threads.
pub fn wake(key: Key, most: usize) -> usize {
    wake_bits(key, most, u32::MAX)
}

/// Wakes up to `most` threads that sleep on the key and have one of these bits. Returns the number of woken
/// threads.
pub fn wake_bits(key: Key, most: usize, bits: u32) -> usize {
    let mut woken = 0;
    while woken < most {
        let mut bucket = key.bucket().lock();
        let at = bucket.iter().position(|sleeper| sleeper.key == key && sleeper.bits & bits != 0);
        let Some(sleeper) = at.and_then(|at| bucket.remove(at)) else { break };
        drop(bucket);
        jitter::stall();
        sleeper.thread.unpark();
        woken += 1;
    }
    woken
}
