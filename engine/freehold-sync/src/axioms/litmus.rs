//! Tests of the checker itself: programs from the literature whose allowed results are known.
//!
//! A test passes threads and one result of each thread to [`allows`], and asserts whether the model allows
//! these results together. The tests of message passing call [`explore`] or [`check`] directly, because they
//! expect a data race instead of a result. If an axiom in `graph.rs` is wrong, a test here fails. The tests
//! in `slots.rs` rely on these axioms.
//!
//! To add a case, write each thread as a closure that returns its result, a number below `u32::MAX`.

use super::{Explored, Plain, Thread, atomics::fence, check, explore};
use crate::atomic::{
    AtomicU32,
    Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use core::cell::Cell;
use std::{string::String, vec::Vec};

/// Returns true if some execution ends with exactly these results. Each thread stores its result in a word of
/// its own, and one more thread waits until all results are stored.
fn allows(threads: &[&dyn Fn() -> u32], results: &[u32]) -> bool {
    let words: Vec<AtomicU32> = threads.iter().map(|_| AtomicU32::new(0)).collect();
    let reached = Cell::new(false);
    let ending: Vec<_> =
        threads.iter().zip(&words).map(|(thread, word)| move || word.store(thread() + 1, Relaxed)).collect();
    let witness = || {
        let end = |word: &AtomicU32| {
            word.wait_until_not(0);
            word.load(Relaxed) - 1
        };
        let ends: Vec<u32> = words.iter().map(end).collect();
        reached.set(reached.get() || ends == results);
    };
    let mut all: Vec<Thread<'_>> = ending.iter().map(|thread| thread as Thread<'_>).collect();
    all.push(&witness);
    explore(&all).unwrap();
    reached.get()
}

/// Each thread stores to its own word and reads the word of the other thread. Returns true if both may read
/// the initial value.
fn store_buffering(store: Ordering, load: Ordering, between: Option<Ordering>) -> bool {
    let words = [AtomicU32::new(0), AtomicU32::new(0)];
    let thread = |own: usize| {
        words[own].store(1, store);
        if let Some(order) = between {
            fence(order);
        }
        words[1 - own].load(load)
    };
    allows(&[&|| thread(0), &|| thread(1)], &[0, 0])
}

#[test]
fn store_buffering_is_excluded_by_the_total_order() {
    assert!(store_buffering(Release, Acquire, None));
    assert!(store_buffering(SeqCst, Acquire, None));
    assert!(store_buffering(Release, SeqCst, None));
    assert!(!store_buffering(SeqCst, SeqCst, None));
    assert!(!store_buffering(Relaxed, Relaxed, Some(SeqCst)));
    assert!(store_buffering(Relaxed, Relaxed, Some(AcqRel)));
}

/// Checks store buffering with an update as the first access of each thread. The slots rely on this case.
#[test]
fn store_buffering_with_updates_is_excluded_by_the_total_order() {
    let crosswise = |update: [Ordering; 2], load: [Ordering; 2]| {
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        let thread = |own: usize| {
            words[own].fetch_add(1, update[own]);
            words[1 - own].load(load[own])
        };
        allows(&[&|| thread(0), &|| thread(1)], &[0, 0])
    };
    assert!(!crosswise([SeqCst; 2], [SeqCst; 2]));
    for weak in 0..2 {
        let mut orders = [SeqCst; 2];
        orders[weak] = AcqRel;
        assert!(crosswise(orders, [SeqCst; 2]));
        orders[weak] = Acquire;
        assert!(crosswise([SeqCst; 2], orders));
    }
}

/// Passes a message: a field, and a word that announces that the field is written.
fn message(store: Ordering, load: Ordering) -> Result<Explored, String> {
    let (field, word) = (Plain::new(0), AtomicU32::new(0));
    let writer = || {
        field.set(7);
        word.store(1, store);
    };
    let reader = || {
        if word.load(load) == 1 {
            assert_eq!(field.get(), 7);
        }
    };
    explore(&[&writer, &reader])
}

#[test]
fn message_passing_needs_release_and_acquire() {
    message(Release, Acquire).unwrap();
    message(Relaxed, Acquire).unwrap_err();
    message(Release, Relaxed).unwrap_err();
}

/// An update of another thread continues the release sequence; a store of another thread ends it.
#[test]
fn update_continues_a_release_sequence_and_store_ends_it() {
    let (field, word) = (Plain::new(0), AtomicU32::new(0));
    let writer = || {
        field.set(7);
        word.store(1, Release);
    };
    let reader = || {
        if word.load(Acquire) == 2 {
            assert_eq!(field.get(), 7);
        }
    };
    let update = || {
        let _ = word.compare_exchange(1, 2, Relaxed, Relaxed);
    };
    let store = || {
        if word.load(Relaxed) == 1 {
            word.store(2, Relaxed);
        }
    };
    check(&[&writer, &reader, &update]);
    explore(&[&writer, &reader, &store]).unwrap_err();
}

#[test]
fn fences_order_message_passing() {
    let (field, word) = (Plain::new(0), AtomicU32::new(0));
    let writer = || {
        field.set(7);
        fence(Release);
        word.store(1, Relaxed);
    };
    let reader = || {
        if word.load(Relaxed) == 1 {
            fence(Acquire);
            assert_eq!(field.get(), 7);
        }
    };
    check(&[&writer, &reader]);
}

/// Two readers of two words agree on which word was written first, if all accesses are `SeqCst` (independent
/// reads of independent writes).
#[test]
fn readers_agree_on_the_order_of_independent_seq_cst_writes() {
    let agree = |store: Ordering, load: Ordering| {
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        let write = |own: usize| {
            words[own].store(1, store);
            0
        };
        let read = |first: usize| words[first].load(load) * 2 + words[1 - first].load(load);
        !allows(&[&|| write(0), &|| write(1), &|| read(0), &|| read(1)], &[0, 0, 2, 2])
    };
    assert!(agree(SeqCst, SeqCst));
    assert!(!agree(Release, Acquire));
}

/// Updates of one word are never lost, and reads of one word never go back to an older value.
#[test]
fn accesses_to_one_word_are_coherent() {
    let word = AtomicU32::new(0);
    let add = || word.fetch_add(1, Relaxed);
    assert!(allows(&[&add, &add], &[0, 1]));
    assert!(!allows(&[&add, &add], &[0, 0]));
    let two = || {
        let first = word.load(Relaxed);
        first * 2 + word.load(Relaxed)
    };
    let set = || {
        word.store(1, Relaxed);
        0
    };
    assert!(allows(&[&set, &two], &[0, 1]));
    assert!(!allows(&[&set, &two], &[0, 2]));
}
