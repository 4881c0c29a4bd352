//! Sleeping on a key until another thread wakes the sleeper: for words of the engine, futexes of programs,
//! and events of the kernel. The sleepers of a key are in one of [`BUCKETS`] lists, in the order of their
//! arrival.
//!
//! A thread enters the list ([`enqueue`]), then checks its condition, and then sleeps ([`Waiting::sleep`]) or
//! leaves the list ([`Waiting::cancel`]). A waker first makes the condition true and then calls [`wake`], so
//! no wake-up is lost. A [`Waiting`] that is dropped without either call leaves the thread in the list. A
//! sleep may end although the condition is false, so callers check the condition in a loop.
//!
//! Each list is a search tree with a spin lock. A program chooses how many threads sleep on a key, so no section
//! of a list's lock visits more than [`PART`] sleepers. A waker passes a preemption point between two sections,
//! if its caller permits that, and wakes no thread that entered the list after the call. [`requeue`] takes the
//! locks of two lists, in the order of the lists' indices. The lock of a scheduler's queue and the lock of
//! [`Moved`](super::thread::Moved) may be taken under a list's lock, and never the other way round.
//!
//! An event of the kernel has the key [`Key::kernel`], with the address of a field of its object. The program
//! `jobs.c` of the tests checks [`requeue`] and [`sleep_any`], and `floods.c` checks many sleepers.

use super::key::Place;
use super::thread::current;
use crate::arch::{clock, jitter, lock::SpinGuard, lock::SpinLock, preempt::preempt_point};
use crate::sched::{Thread, timers::Alarm, work};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use super::key::Key;

/// Number of lists.
const BUCKETS: usize = 256;
/// Maximum number of sleepers that are visited in one section of a list's lock.
const PART: usize = 64;

/// A list of sleepers by their places.
type List = BTreeMap<Place, Sleeper>;

/// The lists. A key's hash selects its list, so a list also contains sleepers of other keys.
static TABLE: [SpinLock<List>; BUCKETS] = [const { SpinLock::new(BTreeMap::new()) }; BUCKETS];
/// The number of the next place.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Returns the index of the key's list in [`TABLE`].
fn index(key: Key) -> usize {
    let mixed = (key.at >> 2 ^ key.of >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % BUCKETS
}

/// Locks the list of a key.
fn list_of(key: Key) -> SpinGuard<'static, List> {
    TABLE[index(key)].lock()
}

/// Returns the number of the next place, which is larger than that of each thread in the list that the caller has
/// locked. A thread that enters the list later sees everything that the caller did before.
fn next_order() -> u64 {
    // Relaxed: the lock orders the load after the additions of the threads in the list.
    NEXT.load(Relaxed)
}

/// Returns a new place behind the other sleepers of the key.
fn new_place(key: Key) -> Place {
    Place { key, order: NEXT.fetch_add(1, Relaxed) }
}

/// A thread in a list.
struct Sleeper {
    /// The number of the sleep: the number of its first place.
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
pub struct Waiting(Place);

/// Puts the calling thread into the list of `key` if `holds` returns true. The list stays locked from the
/// call of `holds` on, so no waker can act in between.
pub fn enqueue_if(key: Key, holds: impl FnOnce() -> bool) -> Option<Waiting> {
    jitter::stall();
    let mut list = list_of(key);
    holds().then(|| push(&mut list, key, u32::MAX, false))
}

/// Puts the calling thread into the list of `key`. [`wake_bits`] wakes the thread if the two calls share a
/// bit; [`wake`] wakes it whatever its bits are.
pub fn enqueue(key: Key, bits: u32) -> Waiting {
    push(&mut list_of(key), key, bits, false)
}

/// Puts the calling thread into the list of `key`, one of the keys on which the thread sleeps with
/// [`sleep_any`].
pub fn enqueue_one_of_many(key: Key) -> Waiting {
    push(&mut list_of(key), key, u32::MAX, true)
}

/// Adds the calling thread at the end of a list, whose lock the caller holds.
fn push(list: &mut List, key: Key, bits: u32, is_one_of_many: bool) -> Waiting {
    let place = new_place(key);
    list.insert(place, Sleeper { id: place.order, bits, is_one_of_many, thread: Thread::hold_current() });
    Waiting(place)
}

impl Waiting {
    /// Sleeps until a wake-up, an event that `how` allows, or the deadline, in nanoseconds since the start.
    pub fn sleep(self, how: Sleep, deadline: u64) -> Woken {
        let _alarm = Alarm::set(deadline);
        let here = current();
        here.ends_by.store(how.ends_by(), Relaxed);
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
        self.find(|list, place| list.contains_key(&place).then_some(())).is_some()
    }

    /// Removes the thread from the list. Returns true if a waker had already removed it.
    pub fn cancel(&self) -> bool {
        let gone = self.find(|list, place| list.remove(&place));
        gone.is_none()
    }

    /// Calls `f` with each list that may contain the thread, and the thread's place in it, until `f` finds the
    /// thread. Returns `None` if no list contains the thread.
    fn find<R>(&self, f: impl Fn(&mut List, Place) -> Option<R>) -> Option<R> {
        let look = |place: Place| f(&mut list_of(place.key), place);
        if let Some(found) = look(self.0) {
            return Some(found);
        }
        let moved = &current().moved;
        let mut place = moved.of(self.0.order)?;
        loop {
            if let Some(found) = look(place) {
                return Some(found);
            }
            match moved.of(self.0.order) {
                Some(now) if now != place => place = now,
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
    let (mut end, mut moved) = (None, 0);
    loop {
        let most = (moves - moved).min(PART);
        let step = requeue_part(from, to, &mut end, most);
        moved += step;
        if step < PART {
            return (woken, moved);
        }
        preempt_point();
    }
}

/// Moves up to `most` threads that sleep on `from`, at places before `end`, which the first call sets. Returns the
/// number of moved threads.
fn requeue_part(from: Key, to: Key, end: &mut Option<u64>, most: usize) -> usize {
    let (source, target) = (index(from), index(to));
    // Two lists are locked in the order of their indices.
    let (mut first, mut second) = (TABLE[source.min(target)].lock(), None);
    if source != target {
        second = Some(TABLE[source.max(target)].lock());
    }
    let end = *end.get_or_insert_with(next_order);
    for moved in 0..most {
        let (leaves, comes) = match &mut second {
            None => (&mut *first, None),
            Some(second) if source < target => (&mut *first, Some(&mut **second)),
            Some(second) => (&mut **second, Some(&mut *first)),
        };
        let Some(place) = leaves.range(places(from, 0, end)).next().map(|(place, _)| *place) else {
            return moved;
        };
        let Some(sleeper) = leaves.remove(&place) else { return moved };
        if sleeper.is_one_of_many {
            // The thread is woken instead of moved, and its program checks the words again.
            sleeper.thread.unpark();
        } else {
            let place = new_place(to);
            sleeper.thread.moved.set(sleeper.id, place);
            comes.unwrap_or(leaves).insert(place, sleeper);
        }
    }
    most
}

/// Returns the places of a key with numbers from `begin` to before `end`.
fn places(key: Key, begin: u64, end: u64) -> Range<Place> {
    Place { key, order: begin.min(end) }..Place { key, order: end }
}

/// Sleeps until a waker wakes the thread in any of these lists, and then removes the thread from all of them.
/// Returns the index of a place from which a waker removed the thread, or else the reason for the end, like
/// [`Waiting::sleep`].
pub fn sleep_any(all: &[Waiting], how: Sleep, deadline: u64) -> Result<usize, Woken> {
    let _alarm = Alarm::set(deadline);
    let here = current();
    here.ends_by.store(how.ends_by(), Relaxed);
    let woken = loop {
        if all.iter().any(has_left) {
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

/// Returns true if a waker has removed the thread. The call is a preemption point, because a program chooses
/// the number of keys.
fn has_left(waiting: &Waiting) -> bool {
    preempt_point();
    !waiting.is_listed()
}

/// Removes the calling thread from all these lists. If wakers had already removed the thread from some lists,
/// returns the index of the last of these.
pub fn cancel_all(all: &[Waiting]) -> Option<usize> {
    let mut woken = None;
    for (n, waiting) in all.iter().enumerate() {
        preempt_point();
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
    let (mut woken, mut from, mut end) = (0, 0, None);
    while woken < most {
        if from > 0 {
            preempt_point();
        }
        let mut list = list_of(key);
        let end = *end.get_or_insert_with(next_order);
        let mut part = list.range(places(key, from, end)).take(PART);
        let found = part.find(|(_, sleeper)| sleeper.bits & bits != 0).map(|(place, _)| *place);
        match found {
            Some(place) => {
                let sleeper = list.remove(&place);
                drop(list);
                jitter::stall();
                sleeper.inspect(|sleeper| sleeper.thread.unpark());
                (woken, from) = (woken + 1, place.order + 1);
            }
            None => match list.range(places(key, from, end)).take(PART).last() {
                Some((last, _)) => from = last.order + 1,
                None => break,
            },
        }
    }
    woken
}
