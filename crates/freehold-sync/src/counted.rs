//! A shared pointer whose allocation may fail, which the standard `Arc` on stable Rust may not.
#![expect(unsafe_code, reason = "a reference count decides when the object is freed")]

use crate::atomic::{AtomicUsize, Ordering, fence};
use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{fmt, ops::Deref, ptr::NonNull};

/// What may live behind a [`Counted`].
pub trait Shared {
    /// Called once the last reference is gone, before the object is dropped. Others may still look at the object through
    /// pointers of their own, as walkers of a file look at the address spaces that map it: whatever keeps them away from now
    /// on belongs here, where the object is still shared, and not into `Drop`, where it is not.
    fn end(&self) {}
}

struct Inner<T> {
    /// How many `Counted` point here.
    refs: AtomicUsize,
    value: T,
}

/// A counted reference to a shared, immutable `T`.
///
/// # Invariants
///
/// `inner` points to a live `Inner` whose count includes this reference.
pub struct Counted<T: Shared> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: like `Arc`: the value is shared between threads (`Sync`) and dropped by whichever is last (`Send`).
unsafe impl<T: Shared + Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Shared + Send + Sync> Sync for Counted<T> {}

impl<T: Shared> Counted<T> {
    /// Moves `value` to the heap.
    ///
    /// # Errors
    ///
    /// No memory; `value` is dropped.
    pub fn try_new(value: T) -> Result<Self, AllocError> {
        let inner = Box::try_new(Inner { refs: AtomicUsize::new(1), value })?;
        Ok(Counted { inner: NonNull::from(Box::leak(inner)) })
    }

    /// Whether two references point to the same object.
    pub fn same(a: &Self, b: &Self) -> bool {
        a.inner == b.inner
    }

    /// Where the object lies.
    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: the type's invariant; no reference is made, so that `try_hold` may find the count around the object.
        unsafe { &raw const (*this.inner.as_ptr()).value }
    }

    /// One reference more to an object that is still there, though its last reference may be gone; then there is none.
    ///
    /// # Safety
    ///
    /// The pointer came from [`as_ptr`](Self::as_ptr), and the object's [`end`](Shared::end) has not returned.
    pub unsafe fn try_hold(object: NonNull<T>) -> Option<Self> {
        // SAFETY: the object lies in an `Inner`, which is freed only after `end`.
        let inner = unsafe { object.byte_sub(core::mem::offset_of!(Inner<T>, value)).cast::<Inner<T>>() };
        // SAFETY: as above.
        let refs = unsafe { &(*inner.as_ptr()).refs };
        let mut seen = refs.load(Ordering::Relaxed);
        while seen != 0 {
            // Relaxed: what the object is, its locks say.
            match refs.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Counted { inner }),
                Err(now) => seen = now,
            }
        }
        None
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: the type's invariant.
        unsafe { self.inner.as_ref() }
    }
}

impl<T: Shared> Clone for Counted<T> {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones already holds a reference, so the count cannot reach zero beside it.
        self.inner().refs.fetch_add(1, Ordering::Relaxed);
        Counted { inner: self.inner }
    }
}

impl<T: Shared> Drop for Counted<T> {
    fn drop(&mut self) {
        // Release pairs with the fence below: every use of the object happens before its end.
        if self.inner().refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.inner().value.end();
            // SAFETY: the last reference; the pointer came from `Box::leak` of the global allocator.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl<T: Shared> Deref for Counted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: Shared + fmt::Debug> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().value.fmt(f)
    }
}
