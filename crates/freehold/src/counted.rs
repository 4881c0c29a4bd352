//! A shared pointer whose allocation may fail, which the standard `Arc` on stable Rust may not.
#![expect(unsafe_code, reason = "a reference count decides when the object is freed")]

use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{fmt, ops::Deref, ptr::NonNull};
use freehold_sync::atomic::{AtomicUsize, Ordering, fence};

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
pub struct Counted<T> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: like `Arc`: the value is shared between threads (`Sync`) and dropped by whichever is last (`Send`).
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Counted<T> {
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

    fn inner(&self) -> &Inner<T> {
        // SAFETY: the type's invariant.
        unsafe { self.inner.as_ref() }
    }
}

impl<T> Clone for Counted<T> {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones already holds a reference, so the count cannot reach zero beside it.
        self.inner().refs.fetch_add(1, Ordering::Relaxed);
        Counted { inner: self.inner }
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        // Release pairs with the fence below: every use of the object happens before its end.
        if self.inner().refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: the last reference; the pointer came from `Box::leak` of the global allocator.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: fmt::Debug> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().value.fmt(f)
    }
}
