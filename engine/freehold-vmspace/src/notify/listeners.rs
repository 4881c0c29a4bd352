//! The listeners of one space, and the delivery of notifications to them.
//!
//! A space has a fixed number of slots for listeners. A change remembers the slots of the listeners for which
//! it has begun ([`Heard`]), and ends for exactly these.
//!
//! | state of a slot | its changes in progress | next |
//! | --- | --- | --- |
//! | empty | none | taken, by `add` |
//! | taken | any number; a new change begins for the listener | leaving, by `remove` |
//! | leaving | no new change; the others end | empty, by `remove`, which has seen the number become 0 |
//!
//! The spin lock guards the slots and the increments of the numbers of changes. Without a listener no task
//! takes this lock: every gather loads the flag `any`, which is beside the pointer to the space's memory.
//! `loom_tests.rs` checks removal concurrent with a change.

use super::{Listener, Refused};
use crate::UserRange;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::marker::PhantomData;
use freehold_sync::{
    Host, Rank, SpinLock,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

/// Maximum number of listeners of a space.
const MAX_LISTENERS: usize = 8;

freehold_sync::error_enum! {
    /// The reason why a listener was not registered.
    #[non_exhaustive]
    pub enum ListenError {
        /// The space has the maximum number of listeners, which is 8.
        TooMany,
        /// A fatal signal arrived while waiting for changes in progress.
        Killed,
    }
}

impl From<freehold_sync::Killed> for ListenError {
    fn from(_: freehold_sync::Killed) -> Self {
        ListenError::Killed
    }
}

/// Identifies a registered listener in its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerId(u64);

/// The slots of the listeners for which a change has begun, one bit each. Zero if there are none.
pub(crate) type Heard = u32;

/// A listener in its slot.
struct Taken {
    id: ListenerId,
    listener: Arc<dyn Listener>,
    leaving: bool,
}

/// The slots, and the number of the next listener.
struct Slots {
    slots: [Option<Taken>; MAX_LISTENERS],
    next: u64,
}

/// The listeners of a change.
type Chosen = ArrayVec<(usize, Arc<dyn Listener>), MAX_LISTENERS>;

/// The listeners of a space.
// In this order, so that the flag is next to the field before this value.
#[repr(C)]
pub(crate) struct Listeners<H> {
    /// True if a slot is taken and not leaving.
    any: AtomicBool,
    slots: SpinLock<Slots>,
    /// For each slot, the number of changes that have begun for its listener and not ended. Incremented under
    /// the spin lock.
    changes: [AtomicU32; MAX_LISTENERS],
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Listeners<H> {
    pub fn new() -> Self {
        let slots = Slots { slots: [const { None }; MAX_LISTENERS], next: 0 };
        Listeners {
            any: AtomicBool::new(false),
            slots: SpinLock::new(slots, Rank::Leaf),
            changes: core::array::from_fn(|_| AtomicU32::new(0)),
            host: PhantomData,
        }
    }

    /// Returns true if a listener is registered.
    #[inline]
    pub fn any(&self) -> bool {
        // Relaxed: registration stores the flag before it takes the locks under which entries are changed. A
        // task that takes such a lock later finds the flag set.
        self.any.load(Ordering::Relaxed)
    }

    /// Adds a listener. Changes that are in progress may continue without a notification.
    pub fn add(&self, listener: Arc<dyn Listener>) -> Result<ListenerId, ListenError> {
        let mut slots = self.slots.lock::<H>();
        let id = ListenerId(slots.next);
        let Some(empty) = slots.slots.iter_mut().find(|slot| slot.is_none()) else {
            // The listener is dropped after the lock is released.
            drop(slots);
            return Err(ListenError::TooMany);
        };
        *empty = Some(Taken { id, listener, leaving: false });
        slots.next += 1;
        self.any.store(true, Ordering::Relaxed);
        Ok(id)
    }

    /// Removes a listener, and waits until no change is in progress that has begun for it. The listener is
    /// not called afterwards. Does nothing if the listener is not registered.
    pub fn remove(&self, id: ListenerId) {
        let find = |slots: &Slots| {
            slots.slots.iter().position(|slot| slot.as_ref().is_some_and(|taken| taken.id == id))
        };
        let mut slots = self.slots.lock::<H>();
        let Some(at) = find(&slots) else { return };
        slots.slots[at].iter_mut().for_each(|taken| taken.leaving = true);
        self.any.store(slots.slots.iter().flatten().any(|taken| !taken.leaving), Ordering::Relaxed);
        drop(slots);
        self.wait_alone(at);
        // Another task may have removed the same listener.
        let mut slots = self.slots.lock::<H>();
        let gone = find(&slots).and_then(|at| slots.slots[at].take());
        drop(slots);
        drop(gone);
    }

    /// Waits until no change is in progress that has begun for the listener of a slot, which is leaving.
    fn wait_alone(&self, at: usize) {
        loop {
            // Acquire: pairs with the release in `leave`.
            let changes = self.changes[at].load(Ordering::Acquire);
            if changes == 0 {
                return;
            }
            H::wait(&self.changes[at], changes);
        }
    }

    /// Ends a change for the listener of a slot.
    fn leave(&self, at: usize) {
        // Release: pairs with the acquire in `wait_alone`, so the last call of the listener comes before the
        // return of `remove`.
        if self.changes[at].fetch_sub(1, Ordering::Release) == 1 {
            H::wake_all(&self.changes[at]);
        }
    }

    /// Tells every listener that the space ends, and removes all listeners.
    pub fn release(&self) {
        if !self.any() {
            return;
        }
        let ids: ArrayVec<_, MAX_LISTENERS> = {
            let slots = self.slots.lock::<H>();
            slots.slots.iter().flatten().map(|taken| (taken.id, taken.listener.clone())).collect()
        };
        // Each listener drops its translations before it is removed, because a change that begins afterwards
        // does not notify it.
        for (id, listener) in ids {
            listener.release();
            self.remove(id);
        }
    }

    /// Counts a change for every listener, and returns the listeners.
    fn enter(&self) -> Chosen {
        let slots = self.slots.lock::<H>();
        let taken = slots.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?)));
        let chosen = taken.filter(|(_, taken)| !taken.leaving).map(|(at, taken)| {
            // Relaxed: the lock orders the increment before `remove`.
            self.changes[at].fetch_add(1, Ordering::Relaxed);
            (at, taken.listener.clone())
        });
        chosen.collect()
    }

    /// Begins a change for every listener. Returns the listeners for which [`end`](Self::end) ends it.
    #[cold]
    #[inline(never)]
    pub fn begin(&self, range: UserRange) -> Heard {
        let chosen = self.enter();
        chosen.iter().for_each(|(_, listener)| listener.range_start(range));
        chosen.iter().fold(0, |heard, (at, _)| heard | 1 << at)
    }

    /// Begins a change for every listener, without sleeping. If one refuses, ends the change for those before
    /// it.
    #[cold]
    #[inline(never)]
    pub fn try_begin(&self, range: UserRange) -> Result<Heard, Refused> {
        let chosen = self.enter();
        let accepted =
            chosen.iter().take_while(|(_, listener)| listener.try_range_start(range).is_ok()).count();
        let heard = chosen[..accepted].iter().fold(0, |heard, (at, _)| heard | 1 << at);
        if accepted < chosen.len() {
            chosen[accepted..].iter().for_each(|(at, _)| self.leave(*at));
            self.end(range, heard);
            return Err(Refused);
        }
        Ok(heard)
    }

    /// Ends a change for the listeners for which it has begun.
    #[cold]
    #[inline(never)]
    pub fn end(&self, range: UserRange, heard: Heard) {
        let chosen: Chosen = {
            let slots = self.slots.lock::<H>();
            // A slot keeps its listener until the change ends.
            let taken = slots.slots.iter().enumerate().filter(|(at, _)| heard & 1 << at != 0);
            taken.filter_map(|(at, slot)| Some((at, slot.as_ref()?.listener.clone()))).collect()
        };
        for (at, listener) in chosen {
            listener.range_end(range);
            drop(listener);
            self.leave(at);
        }
    }

    /// Calls `young` for all listeners, under the spin lock. Returns true if one call returned true.
    fn ask(&self, young: impl Fn(&dyn Listener) -> bool) -> bool {
        let slots = self.slots.lock::<H>();
        let present = slots.slots.iter().flatten().filter(|taken| !taken.leaving);
        present.filter(|taken| young(&*taken.listener)).count() > 0
    }

    /// Calls [`Listener::clear_young`] of every listener.
    #[inline]
    pub fn clear_young(&self, range: UserRange) -> bool {
        self.any() && self.ask(|listener| listener.clear_young(range))
    }

    /// Calls [`Listener::test_young`] of every listener.
    #[inline]
    pub fn test_young(&self, range: UserRange) -> bool {
        self.any() && self.ask(|listener| listener.test_young(range))
    }
}
