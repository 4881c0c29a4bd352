//! The part of a slab that all CPUs share: its chunks, in lists by the number of free objects. `mod.rs` has
//! the caches of the CPUs and explains the states of a chunk.
//!
//! The slab's lock guards everything except the allocation and release of chunks, which take place without
//! the lock: `Chunk::try_new` runs before the lock is taken, and a `Leaving` is consumed after the lock is
//! released. Chunks are freed only after a grace period.
//! `objects_of_partial_chunks_are_taken_before_idle_ones` (`tests.rs`) tests the lists, and
//! `c22_late_reader_accesses_allocated_memory` (`vma/loom_tests.rs`) tests the grace period.
#![expect(unsafe_code, reason = "owns chunks in intrusive lists")]

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

/// Number of objects in a chunk.
pub(super) const CHUNK: usize = if CHECKED { 4 } else { 32 };

/// Objects that are allocated together.
pub(super) struct Chunk<T> {
    /// For the grace period after the chunk has left the slab.
    head: RcuHead,
    /// The chunk's free objects that are in the depot. The depot's lock guards this field and the following
    /// ones.
    free: *mut T,
    /// Number of objects in `free`.
    count: usize,
    /// Neighbours in the list that the chunk is in.
    prev: *mut Chunk<T>,
    next: *mut Chunk<T>,
    objects: [T; CHUNK],
}

/// The chunks that all CPUs share.
pub(super) struct Depot<T> {
    /// Chunks that have some free objects in the depot, and other objects elsewhere.
    pub(super) partial: *mut Chunk<T>,
    /// Chunks whose objects are all in the depot.
    pub(super) idle: *mut Chunk<T>,
    /// Number of chunks in `idle`.
    pub(super) idle_len: usize,
}

// SAFETY: the pointers refer to chunks that the depot owns, and any thread may use their objects.
unsafe impl<T: Item> Send for Depot<T> {}

/// Chunks from which no task can take an object any more, linked by `next`.
#[must_use = "a chunk that leaves is freed after a grace period"]
pub(super) struct Leaving<T>(*mut Chunk<T>);

impl<T: Item> Chunk<T> {
    /// Allocates an idle chunk that is in no list.
    pub(super) fn try_new() -> Result<NonNull<Self>, NoMemory> {
        let chunk = Box::leak(Box::<Self>::try_new_uninit()?).as_mut_ptr();
        let mut free = null_mut();
        // SAFETY: the address lies within the chunk, and nothing is read.
        T::announce(unsafe { (&raw const (*chunk).objects).cast() }, CHUNK);
        // SAFETY: the memory has the size of a chunk and only this function uses it. Every field is written,
        // and none is read before it is written.
        unsafe {
            (&raw mut (*chunk).head).write(RcuHead::new());
            for index in (0..CHUNK).rev() {
                // The objects are created in place, because a chunk is larger than some stacks.
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

    /// Adds a new chunk.
    pub(super) fn add_idle(&mut self, chunk: NonNull<Chunk<T>>) {
        // SAFETY: the chunk is in no list, and all its objects are free.
        unsafe { link(&mut self.idle, chunk.as_ptr()) };
        self.idle_len += 1;
    }

    /// Takes a list of up to `most` free objects. Returns null if there are none.
    pub(super) fn take(&mut self, most: usize) -> *mut T {
        let mut list = null_mut();
        for _ in 0..most {
            // Prefers chunks that have objects in use, so that idle chunks stay idle.
            let chunk = if self.partial.is_null() { self.idle } else { self.partial };
            if chunk.is_null() {
                break;
            }
            // SAFETY: the depot owns its chunks, and the caller holds the lock that guards their words. A
            // chunk in a list has free objects.
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

    /// Puts free objects back into their chunks.
    pub(super) fn put(&mut self, mut list: *mut T) {
        while let Some(object) = pop(&mut list) {
            // SAFETY: a chunk stays allocated as long as one of its objects is not in the depot. The caller
            // holds the lock that guards the other words, as in `take`.
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

    /// Removes idle chunks until at most `keep` of them are left.
    pub(super) fn remove_idle(&mut self, keep: usize) -> Leaving<T> {
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

/// Inserts a chunk at the front of a list.
///
/// # Safety
///
/// The chunk is in no list, and the caller holds the depot's lock.
unsafe fn link<T>(first: &mut *mut Chunk<T>, chunk: *mut Chunk<T>) {
    // SAFETY: by the caller's promise; the members of a list are allocated.
    unsafe {
        (*chunk).prev = null_mut();
        (*chunk).next = *first;
        if !first.is_null() {
            (**first).prev = chunk;
        }
    }
    *first = chunk;
}

/// Removes a chunk from a list.
///
/// # Safety
///
/// The chunk is in this list, and the caller holds the depot's lock.
unsafe fn unlink<T>(first: &mut *mut Chunk<T>, chunk: *mut Chunk<T>) {
    // SAFETY: by the caller's promise; the members of a list are allocated.
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
    /// Frees the chunks after a grace period. The caller holds no lock.
    pub(super) fn free_later<H: Host>(self) {
        self.each(|chunk| {
            // SAFETY: the head lies in the chunk, which belongs to this call until the deferred function
            // frees it. Only readers still access the chunk.
            unsafe { H::rcu_defer(NonNull::new_unchecked(&raw mut (*chunk.as_ptr()).head), free::<T>) }
        });
    }

    /// Frees the chunks at once. The caller knows that there are no readers.
    pub(super) fn free_now(self) {
        // SAFETY: `Chunk::try_new` allocated the chunk, and no task accesses it any more.
        self.each(|chunk| drop(unsafe { Box::from_raw(chunk.as_ptr()) }));
    }

    /// Passes each chunk to `f`, which frees it.
    fn each(self, f: impl Fn(NonNull<Chunk<T>>)) {
        let mut at = self.0;
        while let Some(chunk) = NonNull::new(at) {
            // SAFETY: the chunk belongs to this list until `f` gets it.
            at = unsafe { (*chunk.as_ptr()).next };
            f(chunk);
        }
    }
}

/// Frees a chunk after the grace period.
///
/// # Safety
///
/// The head belongs to a chunk that left its slab at least one grace period ago.
unsafe fn free<T: Item>(head: NonNull<RcuHead>) {
    // SAFETY: the caller's promise. The head was derived from the pointer to the whole chunk, which came from
    // `Box::leak`.
    unsafe { drop(Box::from_raw(head.byte_sub(offset_of!(Chunk<T>, head)).cast::<Chunk<T>>().as_ptr())) };
}
