//! A shared pointer with fallible allocation, which the standard `Arc` lacks on stable Rust. The engine
//! shares files, address spaces, memory and statistics through this type.
//!
//! Both counts have the size of an address. So a count can hold more references than fit into memory, and a
//! count near its maximum includes references that were forgotten (`core::mem::forget`) and are never
//! released. A count that reaches half of its range is saturated: it never becomes zero again, and the object
//! is never freed. [`Weak::upgrade`] and [`Counted::get_unless_zero`] refuse to add a reference to a
//! saturated count.
//!
//! Dropping a reference may end the object and free its memory, so a task must not drop the last reference
//! under a spin lock. `counted/tests.rs` tests every kind of reference, and counts near the limit.
#![expect(unsafe_code, reason = "a reference count decides when the object is freed")]

use crate::atomic::{AtomicUsize, Ordering, fence};
use allocator_api2::{alloc::AllocError, boxed::Box};
use core::{
    fmt,
    mem::{ManuallyDrop, MaybeUninit},
    ops::Deref,
    ptr::NonNull,
};

/// An object that a [`Counted`] can point to.
pub trait Shared {
    /// Called after the last reference is dropped, before the object is dropped.
    ///
    /// At that moment other threads may still reach the object through pointers of their own. For example, a
    /// walk over a file reaches the address spaces that map the file. An implementation removes the object
    /// from all such structures here, while the object is still shared. `Drop` is too late for this, because
    /// `Drop` has exclusive access to the object.
    fn end(&self) {}
}

/// A count that reaches this value is set to [`SATURATED`].
const MAX_REFS: usize = usize::MAX / 2;
/// The value of a saturated count. It is so far above [`MAX_REFS`] and so far below `usize::MAX` that the
/// remaining drops and clones reach neither limit.
const SATURATED: usize = usize::MAX / 4 * 3;

/// An object in memory, with its counts.
struct Inner<T> {
    /// Number of `Counted` references to the object. The module head describes the limit.
    refs: AtomicUsize,
    /// Number of [`Weak`] references to the object, plus one while the object lives. The limit is that of
    /// `refs`.
    weak: AtomicUsize,
    /// Dropped with the last `Counted`. The memory is freed with the last reference of either kind.
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

/// Memory for an object that does not exist yet. A caller that must not fail after its first step allocates
/// the memory of its objects first.
///
/// ```
/// use freehold_sync::counted::{Room, Shared};
///
/// struct Node(u32);
/// impl Shared for Node {}
///
/// let room = Room::try_new()?;
/// assert_eq!(room.fill(Node(7)).0, 7);
/// # Ok::<(), freehold_sync::AllocError>(())
/// ```
#[must_use = "the memory is freed if it is not filled"]
pub struct Room<T: Shared>(Box<MaybeUninit<Inner<T>>>);

impl<T: Shared> Room<T> {
    /// Allocates memory for an object.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn try_new() -> Result<Self, AllocError> {
        Ok(Room(Box::try_new_uninit()?))
    }

    /// Moves `value` into the memory.
    pub fn fill(self, value: T) -> Counted<T> {
        let inner =
            Inner { refs: AtomicUsize::new(1), weak: AtomicUsize::new(1), value: ManuallyDrop::new(value) };
        Counted { inner: NonNull::from(Box::leak(Box::write(self.0, inner))) }
    }
}

// SAFETY: the bounds of `Arc`: threads share the value (`Sync`), and any thread may drop it last (`Send`).
unsafe impl<T: Shared + Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Shared + Send + Sync> Sync for Counted<T> {}

impl<T: Shared> Counted<T> {
    /// Moves `value` to the heap.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; `value` is dropped.
    pub fn try_new(value: T) -> Result<Self, AllocError> {
        // Allocates first: once the value is in `ManuallyDrop`, an error path would leak it.
        let room = Room::try_new()?;
        Ok(room.fill(value))
    }

    /// Returns true if both references point to the same object.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.inner == b.inner
    }

    /// Returns the address of the object.
    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: the type's invariant keeps the object. No reference is created, so the pointer keeps access
        // to the whole `Inner`, which `get_unless_zero` needs to find the count.
        unsafe { (&raw const (*this.inner.as_ptr()).value).cast() }
    }

    /// Returns a reference that does not keep the object alive.
    pub fn downgrade(this: &Self) -> Weak<T> {
        // The object's own share keeps the weak count above zero during this call.
        add(&this.inner().weak);
        Weak { inner: this.inner }
    }

    /// Converts the reference to the address of the object, to be stored in a word that is not a `Counted`.
    /// [`from_raw`](Self::from_raw) converts it back.
    ///
    /// ```
    /// use freehold_sync::counted::{Counted, Shared};
    ///
    /// struct Node(u32);
    /// impl Shared for Node {}
    ///
    /// let word = Counted::into_raw(Counted::try_new(Node(7))?);
    /// // SAFETY: from `into_raw`, and converted back once.
    /// let node = unsafe { Counted::from_raw(word) };
    /// assert_eq!(node.0, 7);
    /// # Ok::<(), freehold_sync::AllocError>(())
    /// ```
    pub fn into_raw(this: Self) -> NonNull<T> {
        let object = Self::as_ptr(&this).cast_mut();
        core::mem::forget(this);
        // SAFETY: the address of an object is not null.
        unsafe { NonNull::new_unchecked(object) }
    }

    /// Converts an address from [`into_raw`](Self::into_raw) back to a reference.
    ///
    /// # Safety
    ///
    /// The pointer comes from `into_raw` for this type, and is converted back once.
    pub unsafe fn from_raw(object: NonNull<T>) -> Self {
        // SAFETY: the reference that `into_raw` converted keeps the object alive.
        Counted { inner: unsafe { Self::inner_of(object) } }
    }

    /// Returns the `Inner` of an object.
    ///
    /// # Safety
    ///
    /// The object lies in an `Inner` whose memory is not freed. The pointer may access all of the `Inner`,
    /// like a pointer from [`as_ptr`](Self::as_ptr).
    unsafe fn inner_of(object: NonNull<T>) -> NonNull<Inner<T>> {
        // SAFETY: the result stays inside the `Inner`, by the caller's promise.
        unsafe { object.byte_sub(core::mem::offset_of!(Inner<T>, value)).cast() }
    }

    /// Returns a new reference to an object that is not freed, or `None` if its last reference is already
    /// dropped.
    ///
    /// # Safety
    ///
    /// The pointer comes from [`as_ptr`](Self::as_ptr), and the object's [`end`](Shared::end) has not
    /// returned.
    pub unsafe fn get_unless_zero(object: NonNull<T>) -> Option<Self> {
        // SAFETY: the `Inner` is freed only after `end`, which has not returned.
        let inner = unsafe { Self::inner_of(object) };
        // SAFETY: as above, the `Inner` is not freed.
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
        // The caller holds a reference, so the count cannot reach zero during this call.
        add(&self.inner().refs);
        Counted { inner: self.inner }
    }
}

impl<T: Shared> Drop for Counted<T> {
    fn drop(&mut self) {
        if drop_reference(&self.inner().refs) {
            self.inner().value.end();
            // Only the value is borrowed, because other threads may read the counts through a `Weak`.
            // SAFETY: this was the last reference, so no thread uses the value any more or drops it again.
            unsafe { ManuallyDrop::drop(&mut (*self.inner.as_ptr()).value) };
            // Drops the object's own share of the weak count.
            drop(Weak { inner: self.inner });
        }
    }
}

/// Drops a reference that `count` includes. Returns true if it was the last one. All uses of the object by
/// other threads then happen before the caller's next access.
#[inline]
pub fn drop_reference(count: &AtomicUsize) -> bool {
    // Release: pairs with the fence below. Every use of the object happens before its end.
    let is_last = count.fetch_sub(1, Ordering::Release) == 1;
    if is_last {
        fence(Ordering::Acquire);
    }
    is_last
}

/// Adds one to a count that cannot reach zero during the call.
#[inline]
fn add(count: &AtomicUsize) {
    // Relaxed: orders nothing. The object's own locks order accesses to it.
    if count.fetch_add(1, Ordering::Relaxed) >= MAX_REFS {
        saturate(count);
    }
}

/// Saturates a count that has become too large, so that the object is never freed.
#[cold]
fn saturate(count: &AtomicUsize) {
    // Relaxed: a saturated count never frees the object. Concurrent additions and subtractions are fewer than
    // the distance between `SATURATED` and the limits.
    count.store(SATURATED, Ordering::Relaxed);
}

/// Adds one to a count that is neither zero nor near its maximum. Returns false otherwise.
fn raise(refs: &AtomicUsize) -> bool {
    let mut seen = refs.load(Ordering::Relaxed);
    while seen != 0 && seen < MAX_REFS {
        // Relaxed: orders nothing. The object's own locks order accesses to it.
        match refs.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// A reference to a [`Counted`] object. It keeps the memory of the object allocated, but does not keep the
/// object alive.
///
/// # Invariants
///
/// `inner` points to an `Inner` whose `weak` includes this reference.
pub struct Weak<T: Shared> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: as for `Counted`, because a `Weak` can be upgraded to a `Counted`.
unsafe impl<T: Shared + Send + Sync> Send for Weak<T> {}
// SAFETY: as above.
unsafe impl<T: Shared + Send + Sync> Sync for Weak<T> {}

impl<T: Shared> Weak<T> {
    /// Returns a reference to the object, or `None` if its last reference is dropped.
    pub fn upgrade(&self) -> Option<Counted<T>> {
        // SAFETY: the type's invariant keeps the memory, and the counts in it are never dropped.
        let refs = unsafe { &(*self.inner.as_ptr()).refs };
        raise(refs).then(|| Counted { inner: self.inner })
    }

    /// Returns true if this reference points to `object`.
    pub fn is_of(&self, object: &T) -> bool {
        // SAFETY: the type's invariant keeps the memory. No reference to the value is created.
        let value: *const T = unsafe { (&raw const (*self.inner.as_ptr()).value).cast() };
        core::ptr::eq(value, object)
    }
}

impl<T: Shared> Drop for Weak<T> {
    fn drop(&mut self) {
        // SAFETY: the type's invariant keeps the memory.
        let weak = unsafe { &(*self.inner.as_ptr()).weak };
        // Release: pairs with the fence below. Every use of the memory happens before it is freed. The load
        // avoids a locked instruction for the last reference; its acquire pairs with the releases of the
        // other references.
        if weak.load(Ordering::Acquire) == 1 || weak.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: this was the last reference of either kind, so the value is already dropped. The
            // pointer comes from `Box::leak` with the global allocator.
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
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
