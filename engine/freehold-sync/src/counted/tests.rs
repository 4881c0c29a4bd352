//! Tests of every kind of reference to a `Counted` object, on several threads, and of counts near their
//! maximum.
//!
//! [`Ends`] counts how often the object was ended and dropped: each must happen once, with the last
//! reference. A test of a limit stores a large number into the count directly, and stores the true number
//! before it drops the last reference, so that nothing leaks. Miri and the sanitizers check the memory
//! accesses of the tests that use several threads. A new kind of reference gets a test like
//! `reference_survives_conversion_to_a_word_and_back`.
#![expect(unsafe_code, reason = "converts a word back to a reference")]

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::vec::Vec;

/// Counts the calls of `end` and the drops of an object.
#[derive(Default)]
struct Ends {
    ended: AtomicU32,
    dropped: AtomicU32,
}

/// An object that counts its end and its drop in the given [`Ends`].
struct Object(Arc<Ends>);

impl Shared for Object {
    fn end(&self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn object() -> (Counted<Object>, Arc<Ends>) {
    let ends = Arc::<Ends>::default();
    (Counted::try_new(Object(ends.clone())).unwrap(), ends)
}

/// Returns true if the object was ended and dropped, each once.
fn is_gone(ends: &Ends) -> bool {
    let (ended, dropped) = (ends.ended.load(Ordering::Relaxed), ends.dropped.load(Ordering::Relaxed));
    assert_eq!(ended, dropped);
    assert!(dropped <= 1);
    dropped == 1
}

#[test]
fn reference_survives_conversion_to_a_word_and_back() {
    let (counted, ends) = object();
    let other = counted.clone();
    let word = Counted::into_raw(counted);
    assert_eq!(word.as_ptr().cast_const(), Counted::as_ptr(&other));
    drop(other);
    assert!(!is_gone(&ends));
    // SAFETY: from `into_raw`, and converted back once.
    let back = unsafe { Counted::from_raw(word) };
    assert!(Arc::ptr_eq(&back.0, &ends));
    drop(back);
    assert!(is_gone(&ends));
}

/// Upgrades weak references while another thread drops the object.
#[test]
fn weak_references_are_upgraded_while_the_object_is_dropped() {
    let (counted, ends) = object();
    let lookers: Vec<_> = (0..3)
        .map(|_| {
            let weak = Counted::downgrade(&counted);
            thread::spawn(move || while weak.upgrade().is_some() {})
        })
        .collect();
    thread::yield_now();
    drop(counted);
    lookers.into_iter().for_each(|looker| looker.join().unwrap());
    assert!(is_gone(&ends));
}

#[test]
fn saturated_count_never_frees_the_object() {
    let (counted, ends) = object();
    counted.inner().refs.store(MAX_REFS - 1, Ordering::Relaxed);
    let weak = Counted::downgrade(&counted);
    assert!(weak.upgrade().is_some());
    let clones: Vec<_> = (0..3).map(|_| counted.clone()).collect();
    let refs = || counted.inner().refs.load(Ordering::Relaxed);
    assert!(refs() > MAX_REFS);
    assert!(weak.upgrade().is_none(), "a saturated count takes no more references");
    drop(clones);
    assert!(refs() > MAX_REFS && !is_gone(&ends));
    // Sets the true number of references, so that the test leaks nothing.
    counted.inner().refs.store(1, Ordering::Relaxed);
    drop(counted);
    assert!(is_gone(&ends));
}

#[test]
fn saturated_weak_count_stays_up() {
    let (counted, _) = object();
    counted.inner().weak.store(usize::MAX - 1, Ordering::Relaxed);
    for _ in 0..4 {
        drop(Counted::downgrade(&counted));
    }
    assert!(counted.inner().weak.load(Ordering::Relaxed) > MAX_REFS);
    counted.inner().weak.store(1, Ordering::Relaxed);
}
