//! A shared pointer whose allocation may fail, which the standard `Arc` on stable Rust may not.
//!
//! Both counts have the size of an address, so there are more numbers than references that lie in memory. A
//! count near the end has references that were forgotten, which can never be given back. From half of the
//! range on a count stays up, and the object is never freed. References that are counted from zero up
//! ([`Weak::upgrade`], [`Counted::get_unless_zero`]) are refused there.
#![expect(unsafe_code, reason = "a reference count decides when the object is freed")]

use crate::atomic::{AtomicUsize, Ordering, fence};
use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{fmt, mem::ManuallyDrop, ops::Deref, ptr::NonNull};

/// What may live behind a [`Counted`].
pub trait Shared {
    /// Called once the last reference is gone, before the object is dropped. Others may still look at the
    /// object through pointers of their own, as walkers of a file look at the address spaces that map it:
    /// whatever keeps them away from now on belongs here, where the object is still shared, and not into
    /// `Drop`, where it is not.
    fn end(&self) {}
}

/// A count that has come so far is put up to [`SATURATED`].
const MAX_REFS: usize = usize::MAX / 2;
/// So far above what may still be given back, and so far below the end, that it comes to neither.
const SATURATED: usize = usize::MAX / 4 * 3;

struct Inner<T> {
    /// How many `Counted` point here; see the module for how many there may be.
    refs: AtomicUsize,
    /// How many [`Weak`] point here, and one more while the object lives; as `refs`.
    weak: AtomicUsize,
    /// Dropped with the last `Counted`; the memory goes with the last of both.
    value: ManuallyDrop<T>,
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
        // Before the value is wrapped, which nobody would drop from then on.
        let room = Box::try_new_uninit()?;
        let inner =
            Inner { refs: AtomicUsize::new(1), weak: AtomicUsize::new(1), value: ManuallyDrop::new(value) };
        Ok(Counted { inner: NonNull::from(Box::leak(Box::write(room, inner))) })
    }

    /// Whether two references point to the same object.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.inner == b.inner
    }

    /// Where the object lies.
    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: the type's invariant; no reference is made, so that `get_unless_zero` may find the count
        // around the object.
        unsafe { (&raw const (*this.inner.as_ptr()).value).cast() }
    }

    /// A reference that does not keep the object alive.
    pub fn downgrade(this: &Self) -> Weak<T> {
        // The object's own share keeps the count from reaching zero beside this.
        add(&this.inner().weak);
        Weak { inner: this.inner }
    }

    /// Hands the reference over as the address of the object, to be kept in a word that is no `Counted`. It
    /// is given back by [`from_raw`](Self::from_raw).
    ///
    /// ```
    /// use freehold_sync::counted::{Counted, Shared};
    ///
    /// struct Node(u32);
    /// impl Shared for Node {}
    ///
    /// let word = Counted::into_raw(Counted::try_new(Node(7))?);
    /// // SAFETY: from `into_raw`, and given back once.
    /// let node = unsafe { Counted::from_raw(word) };
    /// assert_eq!(node.0, 7);
    /// # Ok::<(), freehold_sync::AllocError>(())
    /// ```
    pub fn into_raw(this: Self) -> NonNull<T> {
        let object = Self::as_ptr(&this).cast_mut();
        core::mem::forget(this);
        // SAFETY: the address of an object.
        unsafe { NonNull::new_unchecked(object) }
    }

    /// Takes a reference back that [`into_raw`](Self::into_raw) has handed over.
    ///
    /// # Safety
    ///
    /// The pointer came from `into_raw` for this type, and is given back once.
    pub unsafe fn from_raw(object: NonNull<T>) -> Self {
        // SAFETY: the reference that was handed over keeps the object.
        Counted { inner: unsafe { Self::inner_of(object) } }
    }

    /// The `Inner` of an object.
    ///
    /// # Safety
    ///
    /// The object lies in one, whose memory is still there; the pointer may access all of it, as one from
    /// [`as_ptr`](Self::as_ptr).
    unsafe fn inner_of(object: NonNull<T>) -> NonNull<Inner<T>> {
        // SAFETY: stays inside the `Inner`.
        unsafe { object.byte_sub(core::mem::offset_of!(Inner<T>, value)).cast() }
    }

    /// One reference more to an object that is still there, though its last reference may be gone; then there
    /// is none.
    ///
    /// # Safety
    ///
    /// The pointer came from [`as_ptr`](Self::as_ptr), and the object's [`end`](Shared::end) has not
    /// returned.
    pub unsafe fn get_unless_zero(object: NonNull<T>) -> Option<Self> {
        // SAFETY: the `Inner` is freed only after `end`.
        let inner = unsafe { Self::inner_of(object) };
        // SAFETY: as above.
        let refs = unsafe { &(*inner.as_ptr()).refs };
        raise(refs).then(|| Counted { inner })
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: the type's invariant.
        unsafe { self.inner.as_ref() }
    }
}

impl<T: Shared> Clone for Counted<T> {
    fn clone(&self) -> Self {
        // The caller already holds a reference, so the count cannot reach zero meanwhile.
        add(&self.inner().refs);
        Counted { inner: self.inner }
    }
}

impl<T: Shared> Drop for Counted<T> {
    fn drop(&mut self) {
        // Release pairs with the fence below: every use of the object happens before its end.
        if self.inner().refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.inner().value.end();
            // The value alone is borrowed: others may look at the counts beside it, by a `Weak`.
            // SAFETY: the last reference: nobody uses the value any more, and nobody drops it a second time.
            unsafe { ManuallyDrop::drop(&mut (*self.inner.as_ptr()).value) };
            // The object's own share.
            drop(Weak { inner: self.inner });
        }
    }
}

/// Adds one to a count that cannot reach zero meanwhile.
#[inline]
fn add(count: &AtomicUsize) {
    // Relaxed: what the object is, its locks say.
    if count.fetch_add(1, Ordering::Relaxed) >= MAX_REFS {
        saturate(count);
    }
}

#[cold]
fn saturate(count: &AtomicUsize) {
    // Relaxed: the count decides nothing any more. Others may have added or subtracted beside this, but less
    // than lies between.
    count.store(SATURATED, Ordering::Relaxed);
}

/// Adds one to a count that is neither zero nor near its end.
fn raise(refs: &AtomicUsize) -> bool {
    let mut seen = refs.load(Ordering::Relaxed);
    while seen != 0 && seen < MAX_REFS {
        // Relaxed: what the object is, its locks say.
        match refs.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// A reference to a [`Counted`] object that does not keep it alive, only its memory.
///
/// # Invariants
///
/// `inner` points to an `Inner` whose `weak` includes this reference.
pub struct Weak<T: Shared> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: as for `Counted`, which it can become.
unsafe impl<T: Shared + Send + Sync> Send for Weak<T> {}
// SAFETY: as above.
unsafe impl<T: Shared + Send + Sync> Sync for Weak<T> {}

impl<T: Shared> Weak<T> {
    /// The object, unless its last reference is gone.
    pub fn upgrade(&self) -> Option<Counted<T>> {
        // SAFETY: the type's invariant keeps the memory; the counts in it are never dropped.
        let refs = unsafe { &(*self.inner.as_ptr()).refs };
        raise(refs).then(|| Counted { inner: self.inner })
    }

    /// Whether it is a reference to this object.
    pub fn is_of(&self, object: &T) -> bool {
        // SAFETY: the memory is there; no reference is made.
        let value: *const T = unsafe { (&raw const (*self.inner.as_ptr()).value).cast() };
        core::ptr::eq(value, object)
    }
}

impl<T: Shared> Drop for Weak<T> {
    fn drop(&mut self) {
        // SAFETY: the type's invariant.
        let weak = unsafe { &(*self.inner.as_ptr()).weak };
        // Release pairs with the fence below: every use of the memory happens before its end. Alone, no
        // locked instruction is needed: the acquire finds what others did before they let go.
        if weak.load(Ordering::Acquire) == 1 || weak.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: the last of all, so the value is dropped already; the pointer came from `Box::leak` of
            // the global allocator.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl<T: Shared> fmt::Debug for Weak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Weak")
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
