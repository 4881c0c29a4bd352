//! Reads of pages that are under way: the protocol of a page's word between the start of its read and the
//! end. No lock is held in between.
//!
//! A page that is being read is visible to no lookup. A removal of the page (truncation, hole) does not wait
//! for the read: it removes the word, and the read then ends without effect. Each task that needs the page
//! sleeps until the word changes, and then looks again.
//!
//! | word | meaning | becomes |
//! | --- | --- | --- |
//! | 0 | not in the cache | being read ([`begin`]), under the invalidate lock held for reading |
//! | frame, `READING` | being read into this frame, which belongs to the read | *present* or 0 ([`end`]), by the owner of the read, without a lock; 0 ([`remove`]), under the invalidate lock held for writing; the next state ([`watch`]), by a task that is about to sleep |
//! | frame, `READING`, `WAITED` | the same, and a task may sleep until the read ends | the same, or *failed* |
//! | either of the two | | *present* in another frame ([`replace`]), by a task that writes the whole page, under the invalidate lock held for reading |
//! | *present* or being read, with the mark of readahead | the first access starts the reads of the next window | the same, without the mark ([`take_mark`]), by the task that starts these reads, without a lock. A task that changes the word in another way may drop the mark or bring it back: it is a hint |
//! | *swapped out* | shared memory only (`file/swapped.rs`) | being read ([`claim`]), by the task that returns the page, under the invalidate lock held for reading; *present* in another frame ([`replace`]) |
//! | *failed* | the last read failed, and a task waited for it | being read; 0, by the task that has seen the failure ([`forget`]), or by `remove` |
//!
//! The word is the cookie of the read. The frame in the word belongs to one read until this read ends, so no
//! other read has the same word in the meantime. Every change is a compare-and-swap or a swap, and exactly
//! one task changes the word of a read to something else: either the page becomes visible, or the removal
//! wins and the read frees its frame. After a removal, another read of the same page may begin at once.
//!
//! A task that changes the word of a read frees or publishes the page, and uncounts the page if it does not
//! publish it. If the old word had `WAITED`, it then wakes the sleepers ([`Turns`]).
//!
//! Sleepers of all files share a few counters (`wait/turns.rs`), because a word in the tree cannot be slept
//! on. The counters and the words pair as follows:
//!
//! | access | pairs with | so that |
//! | --- | --- | --- |
//! | waker: swap of the word (acquire), then increment of the counter (release) | sleeper: load of the counter (acquire), then the word | a sleeper that has seen the new counter sees the new word |
//! | sleeper: load of the counter, then compare-and-swap that sets `WAITED` (release) | waker: swap of the word (acquire) | a waker that sees `WAITED` increments the counter after the sleeper has read it, so the sleeper does not sleep, or is woken |
//! | reader of the storage: contents and record of the frame, then `end` (release) | lookup: load of the word (acquire) in `lookup.rs` | a lookup that finds the page sees its contents |
//!
//! A word stays allocated during `begin` and `remove` by the invalidate lock, and during the other functions
//! by a read section of RCU. A node of the tree is freed only if all its words are zero, so none of the
//! functions changes a word in a freed node: each expects a word that is not zero.
//!
//! `file/read.rs` has the requests that own a read, and `file/fill.rs` starts reads and waits for them. A new
//! state needs a row above and an arm in `watch`. `reading_loom_tests.rs` runs ends, removals and sleepers
//! concurrently. `files::reads` (`engine/freehold/tests`) and `reads` (`shuttle_engine`) test whole files.

use super::entry::{SwappedOut, Word};
use crate::Pfn;
pub(in crate::file) use crate::wait::{Turn, Turns};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// The state of a page for a task that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum State {
    /// A read is under way. Its end wakes a task that sleeps on the page's counter.
    Reading,
    /// The page is visible.
    Visible,
    /// The last read failed.
    Failed,
    /// There is neither a page nor a read, or the page is moving, being removed or lost.
    Other,
}

/// The result of an attempt to end a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum End {
    /// The word changed as the caller wanted. `wake` is true if a task may sleep.
    Ended { wake: bool },
    /// The page was removed during the read, so the word is not that of the read.
    Removed,
}

/// Starts a read of a page into `pfn`, which belongs to the caller until the read ends. The page will be part
/// of a block of this order, and has the mark of readahead if `marked` is true. Returns false if the page is
/// in the cache, lost, or being read. The caller holds the invalidate lock.
pub(in crate::file) fn begin(word: &AtomicU64, pfn: Pfn, order: u32, marked: bool) -> bool {
    // Relaxed: the frame's contents and record are published when the read ends.
    let next = Word::reading(pfn).in_block(order).with_mark(marked).0;
    word.fetch_update(Relaxed, Relaxed, |old| Word(old).is_vacant().then_some(next)).is_ok()
}

/// Ends the read of a page into `pfn`. If `visible`, lookups find the page from now on, so its contents and
/// record must be complete. Otherwise the read has failed, and the failure is stored in the word if a task
/// waits for the page or if `watched` is true.
pub(in crate::file) fn end(word: &AtomicU64, pfn: Pfn, visible: bool, watched: bool) -> End {
    let next = |old: Word| match old.is_waited() {
        _ if visible => Word::present(pfn).in_block(old.order()).with_mark(old.is_marked()).0,
        waited if waited || watched => Word::failed(waited).0,
        _ => 0,
    };
    let change = |old| Word(old).reads_into(pfn).then(|| next(Word(old)));
    // Release pairs with the acquire in `Found::at`, and acquire with the release of `watch`; see the module.
    match word.fetch_update(AcqRel, Relaxed, change) {
        Ok(old) => End::Ended { wake: Word(old).is_waited() },
        Err(_) => End::Removed,
    }
}

/// Begins the return of a page that is swapped out: the page counts as being read into `pfn`, in which the
/// swap cache has it. Returns false if the page is not at this place any more. After success, the caller has
/// the count that the word had, and calls [`end`]. The caller holds the invalidate lock for reading.
pub(in crate::file) fn claim(word: &AtomicU64, page: SwappedOut, pfn: Pfn) -> bool {
    let (old, new) = (Word::swapped(page).0, Word::reading(pfn).0);
    // Acquire pairs with the release of the task that swapped the page out.
    word.compare_exchange(old, new, Acquire, Relaxed).is_ok()
}

/// Removes the word of a page that is being read, or whose read has failed. Returns `None` if the word is
/// neither. The caller holds the invalidate lock for writing, so that no read begins.
pub(in crate::file) fn remove(word: &AtomicU64) -> Option<Removed> {
    // Acquire pairs with the release of `watch`.
    let change = |old| (Word(old).is_reading() || Word(old).has_failed()).then_some(0);
    let old = Word(word.fetch_update(AcqRel, Relaxed, change).ok()?);
    Some(Removed { reading: old.is_reading(), wake: old.is_waited(), swapped: None })
}

/// Publishes a page in `pfn`, whose contents and record are complete, unless the cache has the page. Replaces
/// a read of the page, or its failure, or a page that is swapped out. The caller holds the invalidate lock
/// for reading.
pub(in crate::file) fn replace(word: &AtomicU64, pfn: Pfn) -> Option<Removed> {
    // As in `end`.
    let replaceable = |old: Word| old.is_vacant() || old.is_reading() || old.swapped_out().is_some();
    let change = |old| replaceable(Word(old)).then(|| Word::present(pfn).0);
    let old = Word(word.fetch_update(AcqRel, Relaxed, change).ok()?);
    Some(Removed { reading: old.is_reading(), wake: old.is_waited(), swapped: old.swapped_out() })
}

/// The word that [`remove`] or [`replace`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) struct Removed {
    /// True if the page was being read, and therefore counted.
    pub reading: bool,
    /// True if a task may sleep.
    pub wake: bool,
    /// The place of the page, if it was swapped out, and therefore counted. The caller ends this state.
    pub swapped: Option<SwappedOut>,
}

/// Returns the state of a page. If the page is being read, its end will wake the caller, which then sleeps.
/// The caller has read the counter before.
pub(in crate::file) fn watch(word: &AtomicU64) -> State {
    // Acquire pairs with the release in `end`: a task that sees a visible page may use it.
    let mut seen = Word(word.load(Acquire));
    while seen.is_reading() && !seen.is_waited() {
        // Release pairs with the acquire of the task that ends or removes the read; see the module.
        match word.compare_exchange_weak(seen.0, seen.waited().0, Release, Acquire) {
            Ok(_) => return State::Reading,
            Err(now) => seen = Word(now),
        }
    }
    match seen {
        _ if seen.is_reading() => State::Reading,
        _ if seen.has_failed() => State::Failed,
        _ if seen.visible().is_some() => State::Visible,
        _ => State::Other,
    }
}

/// Returns the state of a page, like [`watch`], or `None` while the page is being read. For [`Turn::wait`].
pub(in crate::file) fn ended(state: State) -> Option<State> {
    (state != State::Reading).then_some(state)
}

/// Takes the mark of readahead from a page. Returns false if the page has no mark, or if another task has
/// taken it.
pub(in crate::file) fn take_mark(word: &AtomicU64) -> bool {
    // Relaxed: no data depends on the mark.
    let change = |old| Word(old).is_marked().then(|| Word(old).with_mark(false).0);
    word.fetch_update(Relaxed, Relaxed, change).is_ok()
}

/// Removes the failure of a read from the word, if no other task has waited for that read. Returns true if
/// the word is now zero.
pub(in crate::file) fn forget(word: &AtomicU64) -> bool {
    // Relaxed: no data depends on a failure.
    word.compare_exchange(Word::failed(false).0, 0, Relaxed, Relaxed).is_ok()
}

#[cfg(all(test, loom))]
#[path = "reading_loom_tests.rs"]
mod loom_tests;
