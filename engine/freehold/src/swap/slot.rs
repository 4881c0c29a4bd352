//! One slot of a swap device: the protocol of its word, which tasks change without a lock.
//!
//! A *swap entry* names a slot. Swap entries are in page tables, in the caches of shared-memory files, and in
//! the hands of a task that is about to swap a page out. The word counts them. While a page is in a frame,
//! the word names the frame, and the frame is in the *swap cache*: the word has one of the frame's
//! references.
//!
//! | state | meaning | becomes |
//! | --- | --- | --- |
//! | free | no entry names the slot | reserved ([`reserve`](Slot::reserve)) |
//! | reserved | a task has allocated the slot, or is about to free it | cached, new, count 1 ([`insert`](Slot::insert)); free ([`cancel`](Slot::cancel)) |
//! | cached, new | the slot has no contents yet | being written ([`begin_write`](Slot::begin_write)); reserved, by the last [`release`](Slot::release) |
//! | cached, being written | a write of the frame is under way | stored, or cached and failed ([`end_write`](Slot::end_write)); cached and new if the memory of the frame failed. After the last release, the count is 0 and the word is not in the cache any more; the end of the write then makes the slot reserved, or bad |
//! | cached, failed | the only contents are in the frame | bad, by the last release |
//! | stored | the only contents are on the device | being read ([`begin_read`](Slot::begin_read)); reserved, by the last release |
//! | being read | a read into the frame is under way | cached and clean, or stored ([`end_read`](Slot::end_read)). After the last release, as during a write |
//! | cached, clean | the slot and the frame have the same contents | stored ([`drop_clean`](Slot::drop_clean)); reserved, by the last release |
//! | bad | a write to the slot has failed | nothing |
//!
//! In each state with a count, [`duplicate`](Slot::duplicate) and `release` change the count. A release that
//! is not the last changes nothing else. The task whose change ends the use of a slot passes the slot to the
//! device's `discard`, and then makes it free. Every change is one compare-and-swap, so exactly one task
//! makes the change that ends a use of the slot or takes the frame out of the cache, and that task drops the
//! cache's reference.
//!
//! # References to the frame
//!
//! | reference | from | until |
//! | --- | --- | --- |
//! | of the cache | `insert`, `begin_read` | the change of the word after which lookups do not find the frame |
//! | of a read or write | `begin_read`, `begin_write` | `end_read`, `end_write` |
//! | of a [`lookup`](Slot::lookup) | the lookup | the caller drops it, or passes it to the entry that maps the page |
//!
//! Lookups take a reference as in `frame/cached.rs` of `freehold-vmspace`: raise the count if the frame is in
//! a cache, and look at the word again. A task that takes the frame out of the cache changes the word first.
//!
//! A frame does not change while the word names it with a count above zero: an entry that maps it must not be
//! writable. The frame has at least two references then, so a store makes a copy. For this reason, the frame
//! and the slot of a clean page have the same contents, and it is right to drop one of them.
//!
//! # Orders
//!
//! | access | pairs with | so that |
//! | --- | --- | --- |
//! | device: contents of the frame, then `end_read` (release) | lookup, [`watch`](Slot::watch): load of the word (acquire) | a task that finds the page read sees its contents, or the failure in the record of the frame |
//! | `release`, `drop_clean`, `end_write`: word, then the record of the frame (release) | lookup: record (acquire), then the word again | a lookup that raises the count after the frame has left the cache finds the word changed |
//! | sleeper: counter, then the bit `waited` in the word (release) | `end_read` (acquire), then the counter | a task that sleeps is woken; see `wait/turns.rs` |
//! | `cancel`: word (release) | `reserve` (acquire) | the next use of the slot comes after this one: no read of the device begins later |
//!
//! All changes are acquire and release, so a chain of changes by several tasks keeps these orders.
//!
//! The functions here know one word and the frames. `table.rs` finds the word of a slot, and counts slots
//! that become free. `slot_loom_tests.rs` runs the changes concurrently; the mutations that begin with
//! `swap-` (`xtask/mutants`) remove the protections one by one.

use super::word::{Copy, MAX_COUNT, Shadow, State};
use crate::{Pfn, error::IoError};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};
use freehold_vmspace::frame::Frame;

/// The records of the frames that words name. Implemented by the memory of the engine, and by tests.
pub(super) trait Frames {
    /// Returns the record of a frame.
    fn frame(&self, pfn: Pfn) -> &Frame;
}

freehold_sync::error_enum! {
    /// Reason why a slot did not get another swap entry.
    pub enum DuplicateError {
        /// No swap entry names the slot.
        NotInUse,
        /// Too many swap entries name the slot.
        TooManyEntries,
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// No swap entry names the slot. The caller's entry has changed in the meantime.
    NotInUse,
    /// The contents are on the device.
    Stored(Shadow),
    /// The page is in this frame. The caller has a reference to it.
    Cached(Pfn),
    /// The page is being read into this frame. The caller has a reference to it, and waits for the read.
    Reading(Pfn),
}

/// A slot whose last use has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// The slot is reserved. The caller makes it free.
    Free,
    /// The slot is never used again.
    Bad,
}

/// The work that is left after a change of a word.
#[must_use = "the caller counts the slot and drops the reference"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// Set if the slot is not used any more. The caller counts it.
    pub unused: Option<Unused>,
    /// A reference that the caller drops. It may be the last.
    pub frame: Option<Pfn>,
    /// True if a task may sleep until the end of a read.
    pub wake: bool,
}

/// The word of a slot.
#[derive(Clone, Copy)]
pub(super) struct Slot<'t>(pub &'t AtomicU64);

impl Slot<'_> {
    /// Returns the state.
    pub fn state(self) -> State {
        // Acquire: see the module.
        State::of(self.0.load(Acquire))
    }

    /// Changes the state by compare-and-swap. Returns the old state, or the state that `next` refused.
    fn change(self, next: impl Fn(State) -> Option<State>) -> Result<State, State> {
        let next = |word| next(State::of(word)).map(State::word);
        // Both orders: see the module. Acquire on failure, because callers act on the refused state.
        self.0.fetch_update(AcqRel, Acquire, next).map(State::of).map_err(State::of)
    }

    /// Reserves a free slot. Returns false if the slot is not free.
    pub fn reserve(self) -> bool {
        // A look first: a failed compare-and-swap would take the cache line away from its user.
        self.state() == State::Free
            && self.change(|state| (state == State::Free).then_some(State::Reserved)).is_ok()
    }

    /// Makes a reserved slot free. The caller counts it.
    pub fn cancel(self) {
        let cancelled = self.change(|state| (state == State::Reserved).then_some(State::Free));
        debug_assert!(cancelled.is_ok(), "a slot was not reserved: {cancelled:?}");
    }

    /// Puts a page into the cache of a reserved slot. The caller has a reference to the frame, keeps it, and
    /// gets the only swap entry. Returns false and changes nothing if the frame is in a cache already.
    pub fn insert(self, pfn: Pfn, frames: &impl Frames) -> bool {
        if !frames.frame(pfn).enter_swap_cache() {
            return false;
        }
        let cached = State::Cached { pfn, count: 1, copy: Copy::New };
        let inserted = self.change(|state| (state == State::Reserved).then_some(cached));
        debug_assert!(inserted.is_ok(), "a slot was not reserved: {inserted:?}");
        true
    }

    /// Counts another swap entry. The caller has a swap entry that stays during the call.
    pub fn duplicate(self) -> Result<(), DuplicateError> {
        let next = |state: State| match state.count() {
            0 | MAX_COUNT => None,
            count => Some(state.with_count(count + 1)),
        };
        match self.change(next) {
            Ok(_) => Ok(()),
            Err(state) if state.count() == 0 => Err(DuplicateError::NotInUse),
            Err(_) => Err(DuplicateError::TooManyEntries),
        }
    }

    /// Drops the caller's swap entry. If it was the last, the page leaves the cache, and the slot is not used
    /// any more, or its use ends with the read or write that is under way. Returns true if it was the last.
    pub fn release(self, frames: &impl Frames) -> (bool, Rest) {
        let old = self.change(|state| match state.count() {
            0 => None,
            1 => Some(after_last(state)),
            count => Some(state.with_count(count - 1)),
        });
        let old = match old {
            Ok(old) if old.count() == 1 => old,
            Ok(_) => return (false, Rest::default()),
            Err(state) => {
                debug_assert!(false, "a swap entry was released that was not counted: {state:?}");
                return (false, Rest::default());
            }
        };
        let frame = old.frame().map(|(pfn, _)| pfn);
        if let Some(pfn) = frame {
            frames.frame(pfn).leave_swap_cache();
        }
        (true, Rest { unused: unused(after_last(old)), frame, wake: false })
    }

    /// Finds the page, and takes a reference if it is in a frame.
    ///
    /// # Errors
    ///
    /// Fails with a frame if the page has left the cache in between. The caller drops a reference to the
    /// frame, which may be the last, and tries again.
    pub fn lookup(self, frames: &impl Frames) -> Result<Lookup, Pfn> {
        let mut state = self.state();
        loop {
            let Some((pfn, _)) = state.frame() else {
                return Ok(match state {
                    State::Stored { shadow, .. } => Lookup::Stored(shadow),
                    _ => Lookup::NotInUse,
                });
            };
            if !frames.frame(pfn).get_cached() {
                // The frame has left the cache, so the word has changed. A write that changes nothing reads
                // the newest value; a load might read the old one again, because the attempt orders nothing.
                state = State::of(self.0.fetch_add(0, AcqRel));
                continue;
            }
            return match self.state().frame() {
                Some((again, true)) if again == pfn => Ok(Lookup::Reading(pfn)),
                Some((again, false)) if again == pfn => Ok(Lookup::Cached(pfn)),
                _ => Err(pfn),
            };
        }
    }

    /// Begins a read of a stored page into a frame. The caller has the only reference to the frame, keeps it,
    /// and passes a second one to the read. Returns the shadow, or `None` if the page is not stored.
    pub fn begin_read(self, pfn: Pfn, frames: &impl Frames) -> Option<Shadow> {
        // A look first, so that the usual failure does not change the record of the frame.
        let State::Stored { .. } = self.state() else { return None };
        let frame = frames.frame(pfn);
        // The record is complete before the word names the frame.
        let entered = frame.enter_swap_cache();
        debug_assert!(entered, "a new frame is in a cache");
        frame.get();
        let old = self.change(|state| match state {
            State::Stored { count, .. } => Some(State::Reading { pfn, count, waited: false }),
            _ => None,
        });
        match old {
            Ok(State::Stored { shadow, .. }) => Some(shadow),
            _ => {
                frame.leave_swap_cache();
                // Not the last: the caller has a third reference.
                let last = frame.put() || frame.put();
                debug_assert!(!last, "the caller has no reference");
                None
            }
        }
    }

    /// Ends the read of a page. The caller drops the reference of the read. After a failure, the page is
    /// stored again with this shadow, and the record of the frame says that the contents are undefined.
    pub fn end_read(self, pfn: Pfn, read: Result<(), IoError>, shadow: Shadow, frames: &impl Frames) -> Rest {
        if read.is_err() {
            // Before the change of the word, which publishes it.
            frames.frame(pfn).set_unread();
        }
        let next = |count| match (count, read) {
            (0, _) => State::Reserved,
            (count, Ok(())) => State::Cached { pfn, count, copy: Copy::Clean },
            (count, Err(IoError)) => State::Stored { shadow, count },
        };
        let old = self.change(|state| match state {
            State::Reading { pfn: named, count, .. } if named == pfn => Some(next(count)),
            _ => None,
        });
        let Ok(State::Reading { count, waited, .. }) = old else {
            debug_assert!(false, "a read ended that was not under way: {old:?}");
            return Rest::default();
        };
        if count != 0 && read.is_err() {
            let frame = frames.frame(pfn);
            frame.leave_swap_cache();
            // Not the last: the reference of the read is left.
            let last = frame.put();
            debug_assert!(!last, "the read has no reference");
        }
        Rest { unused: unused(next(count)), frame: Some(pfn), wake: waited }
    }

    /// Begins a write of a page that was not written before, and takes a reference for the write. Returns the
    /// frame, or `None` if the page is not new. The caller has a swap entry, and no entry maps the page
    /// writable.
    pub fn begin_write(self, frames: &impl Frames) -> Option<Pfn> {
        let old = self.change(|state| match state {
            State::Cached { pfn, count: count @ 1.., copy: Copy::New } => {
                Some(State::Cached { pfn, count, copy: Copy::Writing })
            }
            _ => None,
        });
        let (pfn, _) = old.ok()?.frame()?;
        // The cache has a reference: only the end of this write takes it, or the last release, and the caller
        // has a swap entry.
        frames.frame(pfn).get();
        Some(pfn)
    }

    /// Ends the write of a page. The caller drops the reference of the write. After a success, the page is
    /// stored with this shadow and leaves the cache. After a failure, the page stays in the cache. If the
    /// memory of the frame failed, the device may have stored wrong contents: the page stays in the cache, as
    /// if it was never written.
    pub fn end_write(
        self,
        pfn: Pfn,
        written: Result<(), IoError>,
        shadow: Shadow,
        frames: &impl Frames,
    ) -> Rest {
        let has_failed = frames.frame(pfn).has_failed();
        let next = |count| match (count, written) {
            (0, Ok(())) => State::Reserved,
            (0, Err(IoError)) => State::Bad,
            (count, Ok(())) if has_failed => State::Cached { pfn, count, copy: Copy::New },
            (count, Ok(())) => State::Stored { shadow, count },
            (count, Err(IoError)) => State::Cached { pfn, count, copy: Copy::Failed },
        };
        let old = self.change(|state| match state {
            State::Cached { pfn: named, count, copy: Copy::Writing } if named == pfn => Some(next(count)),
            _ => None,
        });
        let Ok(State::Cached { count, .. }) = old else {
            debug_assert!(false, "a write ended that was not under way: {old:?}");
            return Rest::default();
        };
        if let State::Stored { .. } = next(count) {
            let frame = frames.frame(pfn);
            frame.leave_swap_cache();
            // Not the last: the reference of the write is left.
            let last = frame.put();
            debug_assert!(!last, "the write has no reference");
        }
        Rest { unused: unused(next(count)), frame: Some(pfn), wake: false }
    }

    /// Returns true if the page is in the cache and the slot has the same contents.
    pub fn is_clean(self) -> bool {
        matches!(self.state(), State::Cached { count: 1.., copy: Copy::Clean, .. })
    }

    /// Drops a clean page from the cache: the page is stored with this shadow. Returns the reference of the
    /// cache, or `None` if the page is not clean.
    pub fn drop_clean(self, shadow: Shadow, frames: &impl Frames) -> Option<Pfn> {
        let old = self.change(|state| match state {
            State::Cached { count: count @ 1.., copy: Copy::Clean, .. } => {
                Some(State::Stored { shadow, count })
            }
            _ => None,
        });
        let (pfn, _) = old.ok()?.frame()?;
        frames.frame(pfn).leave_swap_cache();
        Some(pfn)
    }

    /// Returns true if the page is being read into this frame. The end of the read then wakes the caller,
    /// which has read the counter before, and has a reference to the frame.
    pub fn watch(self, pfn: Pfn) -> bool {
        let watched = self.change(|state| match state {
            State::Reading { pfn: named, count, waited: false } if named == pfn => {
                Some(State::Reading { pfn, count, waited: true })
            }
            _ => None,
        });
        let state = watched.unwrap_or_else(|state| state);
        matches!(state, State::Reading { pfn: named, .. } if named == pfn)
    }
}

/// Returns the state after the last swap entry of a slot is released.
fn after_last(state: State) -> State {
    match state {
        State::Cached { copy: Copy::Writing, .. } | State::Reading { .. } => state.with_count(0),
        State::Cached { copy: Copy::Failed, .. } => State::Bad,
        _ => State::Reserved,
    }
}

/// Returns how the slot is unused in this state, if it is.
fn unused(state: State) -> Option<Unused> {
    match state {
        State::Reserved => Some(Unused::Free),
        State::Bad => Some(Unused::Bad),
        _ => None,
    }
}

#[cfg(all(test, loom))]
#[path = "slot_loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "slot_tests.rs"]
mod tests;
