//! The waiters of a context, which are tasks with a fault or an event, and the readers of its messages.
//!
//! A waiter is a value on its task's stack and is linked into one of three lists. One spin lock of the
//! context guards the lists and their links.
//!
//! | list | contents | leaves it by |
//! | --- | --- | --- |
//! | pending | unread faults | being read: moves to delivered; a wake; the task itself |
//! | delivered | read faults | a wake; the task itself |
//! | events | unread events | being read, which also wakes the sender; the task itself |
//!
//! | word of a waiter | meaning | becomes |
//! | --- | --- | --- |
//! | 0 | the task sleeps or is about to sleep | 1, by the task that unlinks the waiter, under the lock |
//! | 1 | woken | the waiter ends; before that, its task takes the lock once more, so that the waker no longer uses the waiter |
//!
//! No task is woken under the lock, and after the lock is released a waiter may no longer exist. Waiters
//! therefore sleep on counters in the queue, its `turns`, which exist as long as the context. The page of a
//! fault selects the counter. A waiter reads the counter, then its own word, and sleeps while the counter is
//! unchanged. A waker sets the word, releases the lock, increments the counter, and wakes all tasks that
//! sleep on it. A task whose own word is unchanged sleeps again. `wait/turns.rs` has this protocol.
//!
//! Readers, and tasks that poll, sleep on another counter, the `bell`. Such a task takes the lock, checks the
//! lists, reads the bell and arms it. A task that has queued its waiter increments the bell if the bell is
//! armed, and wakes all tasks that sleep on the bell. Either the reader finds the waiter, or the bell changes
//! before the reader sleeps or while it sleeps.
//!
//! No task may sleep, allocate, free or wake a task under the queue's lock, which is a spin lock of rank
//! `Leaf`. The tests are `uffd::sleepers` and `uffd::polls` (`engine/freehold/tests`), and
//! `c54_faults_sharing_a_wait_word_are_all_woken` (`shuttle_engine`).
#![expect(unsafe_code, reason = "lists of waiters on the stacks of their tasks")]

use super::{Change, FaultReason, Message};
use crate::{PAGE_SIZE, error::UffdReadError, platform::Platform, wait::Turn};
use core::{
    cell::{Cell, UnsafeCell},
    ptr::null,
};
use freehold_sync::{
    Interrupted, Rank, SpinGuard, SpinLock,
    atomic::{AtomicU32, CHECKED, Ordering::Relaxed},
    publish::PublishedNumber,
};
use freehold_vmspace::UserRange;

/// Value of a waiter's word while its task sleeps or is about to sleep.
const ASLEEP: u64 = 0;
/// Value of a waiter's word after it was woken.
const WOKEN: u64 = 1;

/// Number of counters that waiters sleep on.
const TURNS: usize = if CHECKED { 2 } else { 16 };

/// Set of indices in `turns`, one bit each. These counters must be incremented after the lock is released,
/// because their waiters were marked as woken under the lock.
#[derive(Clone, Copy, Default)]
#[must_use = "the waiters sleep until their counters are incremented"]
struct Woken(u32);

/// The list that a waiter is linked into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaiterState {
    /// None: not queued yet, or unlinked.
    Nowhere,
    /// Unread faults.
    Pending,
    /// Read faults.
    Delivered,
    /// Unread events.
    Events,
}

/// The fault or event of a waiter.
enum Cause<P: Platform> {
    Fault {
        addr: u64,
        reason: FaultReason,
        write: bool,
        thread: u32,
    },
    /// `None` after the message was read; reading also ends the change.
    Event(Option<(Message<P>, Change<P>)>),
}

/// A waiting task.
///
/// # Invariants
///
/// While `place` is not `Nowhere`, the waiter is linked into that list of one queue, and the lock of that
/// queue guards the links and `what`.
pub(crate) struct Waiter<P: Platform> {
    word: PublishedNumber,
    /// Index of the counter in `turns` that the task sleeps on.
    turn: usize,
    place: Cell<WaiterState>,
    prev: Cell<*const Waiter<P>>,
    next: Cell<*const Waiter<P>>,
    what: UnsafeCell<Cause<P>>,
}

impl<P: Platform> Waiter<P> {
    fn new(what: Cause<P>, turn: usize) -> Self {
        Waiter {
            word: PublishedNumber::new(ASLEEP),
            turn,
            place: Cell::new(WaiterState::Nowhere),
            prev: Cell::new(null()),
            next: Cell::new(null()),
            what: UnsafeCell::new(what),
        }
    }

    /// Creates a waiter for the page at `addr`, whose message names `thread`.
    pub fn for_page(addr: u64, reason: FaultReason, write: bool, thread: u32) -> Self {
        Self::new(Cause::Fault { addr, reason, write, thread }, (addr / PAGE_SIZE) as usize % TURNS)
    }

    /// Creates a waiter that waits until its event is read.
    pub fn for_event(event: Message<P>, change: Change<P>) -> Self {
        Self::new(Cause::Event(Some((event, change))), 0)
    }
}

/// A list of waiters, oldest first.
///
/// # Invariants
///
/// All members are alive and have the list's `WaiterState`.
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
        // SAFETY: the pointer is null or refers to a member of the list, which is alive.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(waiter),
            None => self.first = waiter,
        }
        self.last = waiter;
    }

    fn unlink(&mut self, waiter: &Waiter<P>) {
        waiter.place.set(WaiterState::Nowhere);
        // SAFETY: here and below, the pointers are null or refer to members of the list, which are alive.
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

/// The lists of a queue. The spin lock of the queue guards all fields.
struct Lists<P: Platform> {
    /// True once the context is closed. From then on no waiter enters the queue.
    closed: bool,
    /// True if a task sleeps on the bell or is about to sleep on it. The next message then rings the bell.
    armed: bool,
    pending: List<P>,
    delivered: List<P>,
    events: List<P>,
}

// SAFETY: the pointers refer to waiters, which any thread may access under the lock. Messages and changes are
// `Send`.
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

    /// Unlinks a waiter whose task is to be woken. Called under the lock.
    fn release(&mut self, waiter: &Waiter<P>, woken: &mut Woken) {
        if let Some(list) = self.list(waiter.place.get()) {
            list.unlink(waiter);
        }
        woken.0 |= 1 << waiter.turn;
        // The woken task sees the waker's changes.
        waiter.word.publish(WOKEN);
    }

    /// Releases those waiters of the list `place` that have an event, or a fault in `range`.
    fn release_in(&mut self, place: WaiterState, range: UserRange, woken: &mut Woken) {
        let mut at = self.list(place).map_or(null(), |list| list.first);
        // SAFETY: the pointer is null or refers to a member. The member's task takes the lock before the
        // member ends.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            // SAFETY: the lock, which is held, guards a member's `what`.
            let meant = match unsafe { &*waiter.what.get() } {
                Cause::Fault { addr, .. } => range.contains(addr & !(PAGE_SIZE - 1)),
                Cause::Event(_) => true,
            };
            if meant {
                self.release(waiter, woken);
            }
        }
    }

    /// Takes the oldest unread fault. If there is none, takes the oldest event.
    fn take(&mut self, woken: &mut Woken) -> Option<Message<P>> {
        // SAFETY: the pointer is null or refers to a member of the list, which is alive.
        if let Some(waiter) = unsafe { self.pending.first.as_ref() } {
            self.pending.unlink(waiter);
            self.delivered.push(waiter, WaiterState::Delivered);
            // SAFETY: the lock, which is held, guards a member's `what`.
            if let Cause::Fault { addr, reason, write, thread } = unsafe { &*waiter.what.get() } {
                return Some(Message::Fault { addr: *addr, reason: *reason, write: *write, thread: *thread });
            }
        }
        // SAFETY: as above.
        let waiter = unsafe { self.events.first.as_ref() }?;
        // SAFETY: the lock, which is held, guards a member's `what`. The member's task does not access `what`
        // while the waiter is linked.
        let message = match unsafe { &mut *waiter.what.get() } {
            // Drops the change under the lock. The reader holds a reference to the context, so this is not
            // the last reference.
            Cause::Event(event) => event.take().map(|(message, _change)| message),
            Cause::Fault { .. } => None,
        };
        self.release(waiter, woken);
        message
    }
}

/// The queue of one context.
pub(crate) struct Queue<P: Platform> {
    lists: SpinLock<Lists<P>>,
    /// The counter that readers and polling tasks sleep on.
    bell: AtomicU32,
    /// The counters that waiters sleep on.
    turns: [AtomicU32; TURNS],
}

/// The result of one attempt to read.
enum ReadAttempt<P: Platform> {
    /// A message.
    Read(Message<P>),
    /// The userfaultfd is closed.
    Closed,
    /// There is no message. The reader sleeps while the bell has the value `seen`.
    Sleep {
        /// The value of the bell.
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

    /// Links a waiter into its list. Returns `None` if the context is closed, because no task would wake the
    /// waiter.
    pub fn enter<'q>(&'q self, waiter: &'q Waiter<P>) -> Option<Queued<'q, P>> {
        let mut lists = self.lock();
        if lists.closed {
            return None;
        }
        // SAFETY: the waiter is not linked yet, so only the caller accesses it.
        match unsafe { &*waiter.what.get() } {
            Cause::Fault { .. } => lists.pending.push(waiter, WaiterState::Pending),
            Cause::Event(_) => lists.events.push(waiter, WaiterState::Events),
        }
        drop(lists);
        Some(Queued { queue: self, waiter })
    }

    /// Notifies readers that there is a message.
    fn ring(&self) {
        let mut lists = self.lock();
        let armed = core::mem::take(&mut lists.armed);
        if armed {
            // Relaxed: accessed under the lock. Sleepers also hold the lock when they read the value with
            // which they compare later.
            self.bell.store(self.bell.load(Relaxed).wrapping_add(1), Relaxed);
        }
        drop(lists);
        if armed {
            P::wake_all(&self.bell);
        }
    }

    /// Increments the counters of the woken waiters, and wakes the tasks that sleep on them. Called without
    /// the lock.
    fn move_turns(&self, woken: Woken) {
        for (n, turn) in self.turns.iter().enumerate() {
            if woken.0 & 1 << n != 0 {
                Turn::on(turn).wake::<P>();
            }
        }
    }

    /// Runs `f` under the lock, then wakes the waiters that `f` released.
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

    /// Wakes the faults that wait for a page in `range`, read or unread.
    pub fn wake(&self, range: UserRange) {
        self.waking(|lists, woken| {
            lists.release_in(WaiterState::Pending, range, woken);
            lists.release_in(WaiterState::Delivered, range, woken);
        });
    }

    /// Closes the queue: no waiter can enter any more.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Wakes all waiters and readers. Called after [`close`](Self::close).
    pub fn wake_all(&self) {
        self.waking(|lists, woken| {
            for place in [WaiterState::Pending, WaiterState::Delivered, WaiterState::Events] {
                lists.release_in(place, UserRange::ALL, woken);
            }
        });
        self.ring();
    }
}

/// The state of a userfaultfd for poll(2), and the counter to sleep on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Poll<'u> {
    /// A message can be read (POLLIN).
    pub readable: bool,
    /// The userfaultfd is closed.
    pub closed: bool,
    /// Changes with the next message, and when the userfaultfd is closed. Tasks that sleep on the bell are
    /// then woken by [`Host::wake_all`](crate::platform::Host::wake_all).
    pub bell: &'u AtomicU32,
    /// The bell's value at the time of the call, to be passed to the wait.
    pub seen: u32,
}

/// A waiter in its queue. Dropping this unlinks the waiter.
#[must_use]
pub(crate) struct Queued<'q, P: Platform> {
    queue: &'q Queue<P>,
    waiter: &'q Waiter<P>,
}

impl<P: Platform> Queued<'_, P> {
    /// Notifies readers, and sleeps until the waiter is woken.
    ///
    /// # Errors
    ///
    /// Fails if `sleep`, a wait of the host, fails because a signal arrived first.
    pub fn wait<E>(&self, sleep: impl Fn(&AtomicU32, u32) -> Result<(), E>) -> Result<(), E> {
        self.queue.ring();
        let woken = || (self.waiter.word.get() == WOKEN).then_some(());
        Turn::on(&self.queue.turns[self.waiter.turn]).wait_by(sleep, woken)
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
