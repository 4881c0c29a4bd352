//! Words through which a task makes earlier accesses visible to tasks that hold no lock.
//!
//! Each type fixes the memory orders of one pattern, so a field of such a type cannot be accessed with an
//! order that is too weak:
//!
//! | type | the first task | the second task | the second task then sees |
//! | --- | --- | --- | --- |
//! | [`Published`], [`PublishedNumber`] | stores a value | reads the value | what the first task did before the store |
//! | [`EventCounter`] | counts an event | reads the count | what the first task did before it counted |
//! | [`ActiveCount`] | ends an activity | finds no activity | what the first task did during the activity |
//!
//! Each release of this file pairs with each acquire of the same type. `tests/loom_publish.rs` tests every
//! type; the mutations `sync-publish-*` weaken every order. A field whose order depends on another word needs
//! a type and a test of its own.

use crate::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use core::ptr::null_mut;

/// A pointer to an object that readers use without a lock. Other rules keep the object alive while readers
/// use it, for example grace periods.
#[derive(Debug)]
#[repr(transparent)]
pub struct Published<T>(AtomicPtr<T>);

impl<T> Published<T> {
    /// Returns a null pointer.
    #[inline]
    pub fn new() -> Self {
        Published(AtomicPtr::new(null_mut()))
    }

    /// Stores a pointer. The object is initialised.
    #[inline]
    pub fn publish(&self, object: *mut T) {
        self.0.store(object, Release);
    }

    /// Stores a pointer if there is none. Of several tasks, one succeeds.
    ///
    /// # Errors
    ///
    /// Fails with the pointer that another task has stored, whose object the caller may use.
    #[inline]
    pub fn publish_first(&self, object: *mut T) -> Result<(), *mut T> {
        self.0.compare_exchange(null_mut(), object, Release, Acquire).map(drop)
    }

    /// Stores a pointer and returns the old one. The caller may use the old object.
    #[inline]
    pub fn replace(&self, object: *mut T) -> *mut T {
        self.0.swap(object, AcqRel)
    }

    /// Returns the pointer, which may be null.
    #[inline]
    pub fn get(&self) -> *mut T {
        self.0.load(Acquire)
    }

    /// Returns true if the pointer is null. This is a hint, and orders nothing.
    #[inline]
    pub fn is_null(&self) -> bool {
        // Relaxed: the result is a hint.
        self.0.load(Relaxed).is_null()
    }
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that readers use without a lock, with the data that it describes.
#[derive(Debug)]
#[repr(transparent)]
pub struct PublishedNumber(AtomicU64);

impl PublishedNumber {
    /// Returns a word with this value.
    #[inline]
    pub fn new(number: u64) -> Self {
        PublishedNumber(AtomicU64::new(number))
    }

    /// Stores a number. The data that the number describes is in place.
    #[inline]
    pub fn publish(&self, number: u64) {
        self.0.store(number, Release);
    }

    /// Stores a number if the value is 0. Of several tasks, one succeeds.
    ///
    /// # Errors
    ///
    /// Fails with the number that another task has stored, whose data the caller may use.
    #[inline]
    pub fn publish_first(&self, number: u64) -> Result<(), u64> {
        self.0.compare_exchange(0, number, Release, Acquire).map(drop)
    }

    /// Returns the number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Returns the number to a caller that does not use the data, or sees the data for another reason. Orders
    /// nothing.
    #[inline]
    pub fn peek(&self) -> u64 {
        // Relaxed: see above.
        self.0.load(Relaxed)
    }
}

/// The number of events of one kind.
#[derive(Debug)]
#[repr(transparent)]
pub struct EventCounter(AtomicU64);

impl EventCounter {
    /// Returns a counter with the value 0.
    #[inline]
    pub fn new() -> Self {
        EventCounter(AtomicU64::new(0))
    }

    /// Counts an event that has occurred.
    #[inline]
    pub fn record(&self) {
        self.0.fetch_add(1, Release);
    }

    /// Returns the number of events.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Acquire)
    }
}

impl Default for EventCounter {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of activities of one kind that are in progress. A lock or a grace period makes the beginning of
/// an activity visible.
#[derive(Debug)]
#[repr(transparent)]
pub struct ActiveCount(AtomicU32);

impl ActiveCount {
    /// Returns a count with the value 0.
    #[inline]
    pub fn new() -> Self {
        ActiveCount(AtomicU32::new(0))
    }

    /// Counts an activity that begins.
    #[inline]
    pub fn begin(&self) {
        // Relaxed: a lock or a grace period makes the count visible.
        self.0.fetch_add(1, Relaxed);
    }

    /// Uncounts an activity that has ended.
    #[inline]
    pub fn end(&self) {
        let before = self.0.fetch_sub(1, Release);
        debug_assert!(before > 0, "the end of an activity that has not begun");
    }

    /// Returns true if an activity is in progress.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Acquire) != 0
    }
}

impl Default for ActiveCount {
    fn default() -> Self {
        Self::new()
    }
}
