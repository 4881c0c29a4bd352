//! The waiters of a context: tasks whose faults or events it has, and its readers.
//!
//! A waiter lies on its task's stack and hangs in one of three lists. Lists and links are guarded by one spin
//! lock, of the context.
//!
//! | list | holds | leaves it by |
//! | --- | --- | --- |
//! | pending | faults that were not read | reading: delivered; a wake; the task itself |
//! | delivered | faults that were | a wake; the task itself |
//! | events | events that were not read | reading, which is a wake as well; the task itself |
//!
//! | word of a waiter | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | it sleeps, or is about to | 1: the task that takes it out of its list, still under the lock |
//! | 1 | woken | the task takes the lock once more before its waiter ends, so its waker has let go of it |
//!
//! Nobody is woken under the lock, and without it a waiter may be gone. So waiters sleep on words of the
//! queue, its *turns*, which the context keeps for waker and waiter: each on that of its page. A turn counts.
//! The waiter reads it, then its own word, and sleeps while the turn is the same; a waker has set the word,
//! moves the turn once the lock is gone, and wakes all that sleep on it. Those that were not meant find their
//! own word as it was, and sleep again.
//!
//! Readers sleep on the `bell`, which counts, and so do tasks that poll. Such a task looks at the lists, and
//! reads the bell and arms it, under the lock. A task rings after it has queued its waiter: an armed bell
//! moves, and all that sleep on it look again. So either the reader finds the waiter, or the bell has moved,
//! or rings.
#![expect(unsafe_code, reason = "lists of waiters that lie on the stacks of their tasks")]

use super::{Change, FaultReason, Message};
use crate::{PAGE_SIZE, error::UffdReadError, platform::Platform};
use core::{
    cell::{Cell, UnsafeCell},
    ptr::null,
};
use freehold_sync::{
    Interrupted, Rank, SpinGuard, SpinLock,
    atomic::{
        AtomicU32, CHECKED,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use freehold_vmspace::UserRange;

const ASLEEP: u32 = 0;
const WOKEN: u32 = 1;

/// Words that waiters sleep on.
const TURNS: usize = if CHECKED { 2 } else { 16 };

/// Turns with sleepers that were woken under the lock: a bit each.
#[derive(Clone, Copy, Default)]
#[must_use = "they sleep on until the turns move"]
struct Woken(u32);

/// Which list a waiter hangs in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaiterState {
    Nowhere,
    Pending,
    Delivered,
    Events,
}

/// What a waiter waits with.
enum What<P: Platform> {
    Fault {
        addr: u64,
        reason: FaultReason,
        write: bool,
    },
    /// Gone when it was read, and the change with it.
    Event(Option<(Message<P>, Change<P>)>),
}

/// A task that waits.
///
/// # Invariants
///
/// While `place` is not `Nowhere` it hangs in that list of one queue, and links and `what` are that queue's
/// lock's.
pub(crate) struct Waiter<P: Platform> {
    word: AtomicU32,
    /// Which of the queue's turns its task sleeps on.
    turn: usize,
    place: Cell<WaiterState>,
    prev: Cell<*const Waiter<P>>,
    next: Cell<*const Waiter<P>>,
    what: UnsafeCell<What<P>>,
}

impl<P: Platform> Waiter<P> {
    fn new(what: What<P>, turn: usize) -> Self {
        Waiter {
            word: AtomicU32::new(ASLEEP),
            turn,
            place: Cell::new(WaiterState::Nowhere),
            prev: Cell::new(null()),
            next: Cell::new(null()),
            what: UnsafeCell::new(what),
        }
    }

    /// One that waits for the page at `addr`.
    pub fn for_page(addr: u64, reason: FaultReason, write: bool) -> Self {
        Self::new(What::Fault { addr, reason, write }, (addr / PAGE_SIZE) as usize % TURNS)
    }

    /// One that waits until its event was read.
    pub fn for_event(event: Message<P>, change: Change<P>) -> Self {
        Self::new(What::Event(Some((event, change))), 0)
    }
}

/// One list, oldest first.
///
/// # Invariants
///
/// Members are alive, and have the list's `WaiterState`.
struct List<P: Platform> {
    first: *const Waiter<P>,
    last: *const Waiter<P>,
}

impl<P: Platform> List<P> {
    const fn new() -> Self {
        List { first: null(), last: null() }
    }

    fn push(&mut self, waiter: &Waiter<P>, place: WaiterState) {
        waiter.place.set(place);
        waiter.prev.set(self.last);
        waiter.next.set(null());
        // SAFETY: null or a member.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(waiter),
            None => self.first = waiter,
        }
        self.last = waiter;
    }

    fn unlink(&mut self, waiter: &Waiter<P>) {
        waiter.place.set(WaiterState::Nowhere);
        // SAFETY: null or members, here and below.
        match unsafe { waiter.prev.get().as_ref() } {
            Some(prev) => prev.next.set(waiter.next.get()),
            None => self.first = waiter.next.get(),
        }
        // SAFETY: as above.
        match unsafe { waiter.next.get().as_ref() } {
            Some(next) => next.prev.set(waiter.prev.get()),
            None => self.last = waiter.prev.get(),
        }
    }
}

struct Lists<P: Platform> {
    closed: bool,
    /// Tasks sleep on the bell, or may: it rings at the next message.
    armed: bool,
    pending: List<P>,
    delivered: List<P>,
    events: List<P>,
}

// SAFETY: the pointers lead to waiters, which are made to be reached from any thread under the lock; events
// may be sent.
unsafe impl<P: Platform> Send for Lists<P> {}

impl<P: Platform> Lists<P> {
    fn list(&mut self, place: WaiterState) -> Option<&mut List<P>> {
        match place {
            WaiterState::Nowhere => None,
            WaiterState::Pending => Some(&mut self.pending),
            WaiterState::Delivered => Some(&mut self.delivered),
            WaiterState::Events => Some(&mut self.events),
        }
    }

    /// Takes a waiter out of its list, whose task is to be woken; under the lock.
    fn release(&mut self, waiter: &Waiter<P>, woken: &mut Woken) {
        if let Some(list) = self.list(waiter.place.get()) {
            list.unlink(waiter);
        }
        woken.0 |= 1 << waiter.turn;
        // Release pairs with the acquire in `Queued::wait`: the task goes on with what the waker did.
        waiter.word.store(WOKEN, Release);
    }

    /// Releases all in a list whose fault lies in `range`.
    fn release_in(&mut self, place: WaiterState, range: UserRange, woken: &mut Woken) {
        let mut at = self.list(place).map_or(null(), |list| list.first);
        // SAFETY: null or a member, whose task waits for the lock before it ends.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            // SAFETY: a member's `what` is the lock's.
            let meant = match unsafe { &*waiter.what.get() } {
                What::Fault { addr, .. } => range.contains(addr & !(PAGE_SIZE - 1)),
                What::Event(_) => true,
            };
            if meant {
                self.release(waiter, woken);
            }
        }
    }

    /// The oldest fault that was not read, or else the oldest event.
    fn take(&mut self, woken: &mut Woken) -> Option<Message<P>> {
        // SAFETY: null or a member.
        if let Some(waiter) = unsafe { self.pending.first.as_ref() } {
            self.pending.unlink(waiter);
            self.delivered.push(waiter, WaiterState::Delivered);
            // SAFETY: a member's `what` is the lock's.
            if let What::Fault { addr, reason, write } = unsafe { &*waiter.what.get() } {
                return Some(Message::Fault { addr: *addr, reason: *reason, write: *write });
            }
        }
        // SAFETY: as above.
        let waiter = unsafe { self.events.first.as_ref() }?;
        // SAFETY: a member's `what` is the lock's, and its task does not look at it while it hangs in the
        // list.
        let message = match unsafe { &mut *waiter.what.get() } {
            // The reader has a reference to the context, so the change does not let go of the last one.
            What::Event(event) => event.take().map(|(message, _change)| message),
            What::Fault { .. } => None,
        };
        self.release(waiter, woken);
        message
    }
}

/// The queue of one context.
pub(crate) struct Queue<P: Platform> {
    lists: SpinLock<Lists<P>>,
    bell: AtomicU32,
    turns: [AtomicU32; TURNS],
}

/// The result of one attempt to read.
enum ReadAttempt<P: Platform> {
    /// A message.
    Read(Message<P>),
    /// The userfaultfd is closed.
    Closed,
    /// There is no message. The reader sleeps while the bell is as it was seen.
    Sleep {
        /// The bell.
        seen: u32,
    },
}

impl<P: Platform> Queue<P> {
    pub fn new() -> Self {
        let lists = Lists {
            closed: false,
            armed: false,
            pending: List::new(),
            delivered: List::new(),
            events: List::new(),
        };
        Queue {
            lists: SpinLock::new(lists, Rank::Leaf),
            bell: AtomicU32::new(0),
            turns: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn lock(&self) -> SpinGuard<'_, Lists<P>, P> {
        self.lists.lock::<P>()
    }

    /// Hangs a waiter in. `None`: the context is closed, and nobody would ever wake it.
    pub fn enter<'q>(&'q self, waiter: &'q Waiter<P>) -> Option<Queued<'q, P>> {
        let mut lists = self.lock();
        if lists.closed {
            return None;
        }
        // SAFETY: it hangs nowhere yet, so it is the caller's alone.
        match unsafe { &*waiter.what.get() } {
            What::Fault { .. } => lists.pending.push(waiter, WaiterState::Pending),
            What::Event(_) => lists.events.push(waiter, WaiterState::Events),
        }
        drop(lists);
        Some(Queued { queue: self, waiter })
    }

    /// Tells readers that there is something.
    fn ring(&self) {
        let mut lists = self.lock();
        let armed = core::mem::take(&mut lists.armed);
        if armed {
            // Relaxed: under the lock; what sleepers compare it with they read under it, too.
            self.bell.store(self.bell.load(Relaxed).wrapping_add(1), Relaxed);
        }
        drop(lists);
        if armed {
            P::wake_all(&self.bell);
        }
    }

    /// Moves the turns of those that were woken; without the lock.
    fn move_turns(&self, woken: Woken) {
        for (n, turn) in self.turns.iter().enumerate() {
            if woken.0 & 1 << n != 0 {
                // Release pairs with the acquire in `Queued::wait`: a waiter that reads the new count reads
                // its own word as it is now.
                turn.fetch_add(1, Release);
                P::wake_all(turn);
            }
        }
    }

    /// Does something under the lock that may wake.
    fn waking<R>(&self, f: impl FnOnce(&mut Lists<P>, &mut Woken) -> R) -> R {
        let mut woken = Woken::default();
        let result = f(&mut self.lock(), &mut woken);
        self.move_turns(woken);
        result
    }

    /// See [`Userfaultfd::try_read`](super::Userfaultfd::try_read).
    pub fn take(&self) -> Option<Message<P>> {
        self.waking(Lists::take)
    }

    /// See [`Userfaultfd::read`](super::Userfaultfd::read).
    pub fn read(&self) -> Result<Message<P>, UffdReadError> {
        loop {
            let seen = match self.waking(|lists, woken| self.try_read(lists, woken)) {
                ReadAttempt::Read(message) => return Ok(message),
                ReadAttempt::Closed => return Err(UffdReadError::Closed),
                ReadAttempt::Sleep { seen } => seen,
            };
            P::wait_interruptible(&self.bell, seen).map_err(|Interrupted| UffdReadError::Interrupted)?;
        }
    }

    /// See [`Userfaultfd::poll`](super::Userfaultfd::poll).
    pub fn poll(&self) -> Poll<'_> {
        let mut lists = self.lock();
        lists.armed = true;
        let readable = !lists.pending.first.is_null() || !lists.events.first.is_null();
        Poll { readable, closed: lists.closed, bell: &self.bell, seen: self.bell.load(Relaxed) }
    }

    /// Reads a message, or prepares the reader to sleep.
    fn try_read(&self, lists: &mut Lists<P>, woken: &mut Woken) -> ReadAttempt<P> {
        if lists.closed {
            return ReadAttempt::Closed;
        }
        if let Some(message) = lists.take(woken) {
            return ReadAttempt::Read(message);
        }
        lists.armed = true;
        ReadAttempt::Sleep { seen: self.bell.load(Relaxed) }
    }

    /// Wakes those that wait for a page in `range`, read or not.
    pub fn wake(&self, range: UserRange) {
        self.waking(|lists, woken| {
            lists.release_in(WaiterState::Pending, range, woken);
            lists.release_in(WaiterState::Delivered, range, woken);
        });
    }

    /// Nobody queues any more.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Wakes everybody; after [`close`](Self::close).
    pub fn wake_everybody(&self) {
        self.waking(|lists, woken| {
            for place in [WaiterState::Pending, WaiterState::Delivered, WaiterState::Events] {
                lists.release_in(place, UserRange::ALL, woken);
            }
        });
        self.ring();
    }
}

/// What poll(2) says of a userfaultfd, and what to sleep on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Poll<'u> {
    /// A message is there (POLLIN).
    pub readable: bool,
    /// The userfaultfd is closed.
    pub closed: bool,
    /// Moves with the next message, and when the userfaultfd is closed; those that sleep on it are woken, as
    /// by [`Host::wake_all`](crate::platform::Host::wake_all).
    pub bell: &'u AtomicU32,
    /// Its value before that: what to wait with.
    pub seen: u32,
}

/// A waiter in its queue; dropping this takes it out.
#[must_use]
pub(crate) struct Queued<'q, P: Platform> {
    queue: &'q Queue<P>,
    waiter: &'q Waiter<P>,
}

impl<P: Platform> Queued<'_, P> {
    /// Tells readers, and sleeps until the waiter is woken.
    ///
    /// # Errors
    ///
    /// A signal arrived first by which `sleep` ends: a wait of the host's.
    pub fn wait<E>(&self, sleep: impl Fn(&AtomicU32, u32) -> Result<(), E>) -> Result<(), E> {
        self.queue.ring();
        let turn = &self.queue.turns[self.waiter.turn];
        loop {
            // Acquire, first the turn: as `Queue::move_turns` and `Lists::release` say.
            let seen = turn.load(Acquire);
            if self.waiter.word.load(Acquire) == WOKEN {
                return Ok(());
            }
            sleep(turn, seen)?;
        }
    }
}

impl<P: Platform> Drop for Queued<'_, P> {
    fn drop(&mut self) {
        let mut lists = self.queue.lock();
        if let Some(list) = lists.list(self.waiter.place.get()) {
            list.unlink(self.waiter);
        }
    }
}
