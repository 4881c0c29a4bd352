//! What the CPUs of a slab share: its chunks, in lists by what is free of them. Under the slab's lock but for
//! making and freeing them.
#![expect(unsafe_code, reason = "owns chunks, in lists through themselves")]

use super::{Item, pop, push};
use crate::error::NoMemory;
use allocator_api2::boxed::Box;
use core::{
    mem::offset_of,
    ptr::{NonNull, null_mut},
};
use freehold_sync::{
    Host, RcuHead,
    atomic::{CHECKED, Ordering::Relaxed},
};

/// Objects allocated at a time.
pub(super) const CHUNK: usize = if CHECKED { 4 } else { 32 };

/// Objects made together.
pub(super) struct Chunk<T> {
    /// For the grace period when it leaves.
    head: RcuHead,
    /// Its free objects that are in the depot. This and what follows: under the depot's lock.
    free: *mut T,
    /// How many those are.
    count: usize,
    /// Neighbours in its list.
    prev: *mut Chunk<T>,
    next: *mut Chunk<T>,
    objects: [T; CHUNK],
}

/// What all CPUs share.
pub(super) struct Depot<T> {
    pub(super) partial: *mut Chunk<T>,
    pub(super) idle: *mut Chunk<T>,
    pub(super) idle_len: usize,
}

// SAFETY: the pointers lead to chunks that the depot owns, of objects that any thread may use.
unsafe impl<T: Item> Send for Depot<T> {}

/// Chunks that nobody can take from any more, linked by `next`.
#[must_use = "a chunk that leaves is freed after a grace period"]
pub(super) struct Leaving<T>(*mut Chunk<T>);

impl<T: Item> Chunk<T> {
    /// A chunk that is idle, and in no list.
    pub(super) fn try_new() -> Result<NonNull<Self>, NoMemory> {
        let chunk = Box::leak(Box::<Self>::try_new_uninit()?).as_mut_ptr();
        let mut free = null_mut();
        // SAFETY: an address within the chunk; nothing is read.
        T::announce(unsafe { (&raw const (*chunk).objects).cast() }, CHUNK);
        // SAFETY: room for a chunk, ours alone; every field is written, none is read before it was.
        unsafe {
            (&raw mut (*chunk).head).write(RcuHead::new());
            for index in (0..CHUNK).rev() {
                // In place: a chunk is larger than some stacks.
                let object = (&raw mut (*chunk).objects).cast::<T>().add(index);
                object.write(T::blank());
                (*object).links().chunk.store(chunk, Relaxed);
                push(&mut free, NonNull::new_unchecked(object));
            }
            (&raw mut (*chunk).free).write(free);
            (&raw mut (*chunk).count).write(CHUNK);
            (&raw mut (*chunk).prev).write(null_mut());
            (&raw mut (*chunk).next).write(null_mut());
            Ok(NonNull::new_unchecked(chunk))
        }
    }
}

impl<T: Item> Depot<T> {
    pub(super) fn new() -> Self {
        Depot { partial: null_mut(), idle: null_mut(), idle_len: 0 }
    }

    pub(super) fn add_idle(&mut self, chunk: NonNull<Chunk<T>>) {
        // SAFETY: the chunk is in no list, and its objects are free.
        unsafe { link(&mut self.idle, chunk.as_ptr()) };
        self.idle_len += 1;
    }

    /// A list of up to `most` free objects; null: there are none.
    pub(super) fn take(&mut self, most: usize) -> *mut T {
        let mut list = null_mut();
        for _ in 0..most {
            // From chunks that others use, so that idle ones stay so.
            let chunk = if self.partial.is_null() { self.idle } else { self.partial };
            if chunk.is_null() {
                break;
            }
            // SAFETY: the depot's chunks are there, and their words are ours under the lock; one in a list
            // has free objects.
            unsafe {
                if (*chunk).count == CHUNK {
                    unlink(&mut self.idle, chunk);
                    self.idle_len -= 1;
                    link(&mut self.partial, chunk);
                }
                let Some(object) = pop(&mut (*chunk).free) else { break };
                (*chunk).count -= 1;
                if (*chunk).count == 0 {
                    unlink(&mut self.partial, chunk);
                }
                push(&mut list, object);
            }
        }
        list
    }

    /// Puts free objects back where they belong.
    pub(super) fn put(&mut self, mut list: *mut T) {
        while let Some(object) = pop(&mut list) {
            // SAFETY: the object's chunk is there as long as one of its objects is not in the depot; for the
            // rest as in `take`.
            unsafe {
                let chunk = object.as_ref().links().chunk.load(Relaxed);
                push(&mut (*chunk).free, object);
                (*chunk).count += 1;
                if (*chunk).count == 1 {
                    link(&mut self.partial, chunk);
                }
                if (*chunk).count == CHUNK {
                    unlink(&mut self.partial, chunk);
                    link(&mut self.idle, chunk);
                    self.idle_len += 1;
                }
            }
        }
    }

    /// Takes idle chunks out until so many are left.
    pub(super) fn let_leave(&mut self, keep: usize) -> Leaving<T> {
        let mut leaving = null_mut();
        while self.idle_len > keep && !self.idle.is_null() {
            let chunk = self.idle;
            // SAFETY: as in `take`.
            unsafe {
                unlink(&mut self.idle, chunk);
                (*chunk).next = leaving;
            }
            self.idle_len -= 1;
            leaving = chunk;
        }
        Leaving(leaving)
    }
}

/// # Safety
///
/// The chunk is in no list; the caller has the depot to itself.
unsafe fn link<T>(first: &mut *mut Chunk<T>, chunk: *mut Chunk<T>) {
    // SAFETY: the caller's promise; members of a list are there.
    unsafe {
        (*chunk).prev = null_mut();
        (*chunk).next = *first;
        if !first.is_null() {
            (**first).prev = chunk;
        }
    }
    *first = chunk;
}

/// # Safety
///
/// The chunk is in this list; the caller has the depot to itself.
unsafe fn unlink<T>(first: &mut *mut Chunk<T>, chunk: *mut Chunk<T>) {
    // SAFETY: as above.
    unsafe {
        let (prev, next) = ((*chunk).prev, (*chunk).next);
        match prev.is_null() {
            true => *first = next,
            false => (*prev).next = next,
        }
        if !next.is_null() {
            (*next).prev = prev;
        }
    }
}

impl<T: Item> Leaving<T> {
    /// With no lock held.
    pub(super) fn free_later<H: Host>(self) {
        self.each(|chunk| {
            // SAFETY: the head lies in the chunk, which is this call's until the function frees it; only
            // readers still come there.
            unsafe { H::rcu_defer(NonNull::new_unchecked(&raw mut (*chunk.as_ptr()).head), free::<T>) }
        });
    }

    /// For a caller that knows that there are no readers.
    pub(super) fn free_now(self) {
        // SAFETY: made by `Chunk::try_new`, and nobody comes there any more.
        self.each(|chunk| drop(unsafe { Box::from_raw(chunk.as_ptr()) }));
    }

    fn each(self, f: impl Fn(NonNull<Chunk<T>>)) {
        let mut at = self.0;
        while let Some(chunk) = NonNull::new(at) {
            // SAFETY: the chunks are ours until `f` has them.
            at = unsafe { (*chunk.as_ptr()).next };
            f(chunk);
        }
    }
}

/// Frees a chunk after the grace period.
///
/// # Safety
///
/// The head is that of a chunk which has left its slab, a grace period ago.
unsafe fn free<T: Item>(head: NonNull<RcuHead>) {
    // SAFETY: the caller's promise; the head came from the pointer to the whole chunk, and that from
    // `Box::leak`.
    unsafe { drop(Box::from_raw(head.byte_sub(offset_of!(Chunk<T>, head)).cast::<Chunk<T>>().as_ptr())) };
}
