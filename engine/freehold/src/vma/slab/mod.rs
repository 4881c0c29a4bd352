//! A slab: objects made in chunks, free ones kept per CPU, chunks that are wholly free given back after a
//! grace period.
//!
//! A free object is handed out again at once, without waiting for a grace period. A reader that found it in
//! its former life, in a read section (RCU), may still touch it then: it finds an object of the same type,
//! and finds out that it is not the one it wanted. The memory stays such an object until a grace period after
//! its chunk has left the slab.
//!
//! | chunk | its objects | is in | leaves it by |
//! | --- | --- | --- | --- |
//! | in use | each in use, or free in a CPU's cache | no list | partial: one comes to the depot |
//! | partial | some free in the depot | `partial` | in use: the last of those is taken; idle: the last one comes |
//! | idle | all free in the depot | `idle` | partial: one is taken; leaving: more than `IDLE` are idle, or `trim` |
//! | leaving | all free, for nobody to take | the host's list of what is deferred | freed, after a grace period |
//!
//! All of a chunk's own words (the list of its free objects, their number, its neighbours) change under the
//! depot's lock, under which nothing is allocated or freed. Free objects in a CPU's cache are not free as far
//! as their chunk knows: nobody but that CPU could take them out. So nothing is counted on the way of a
//! single object; chunks are looked at when a cache is filled or emptied, half of it at a time.
//!
//! Why nobody comes to a chunk that was freed:
//! - A holder of an object (its owner, or a lock that keeps it in use) keeps its chunk in use.
//! - A reader that found an object without any lock did so within a read section, through a place from which
//!   the object was taken before it came to its CPU's cache. The cache's owner gave it to the depot under the
//!   lock, and the task that let the chunk leave held that lock later: so sections that begin after
//!   `rcu_defer` do not find the object, and those that began before are waited for.
//! - A reader that uses nothing but the address of an object, to wake a sleeper there, does so in a read
//!   section that began when the object was certainly not free ([`VmaLock`](freehold_sync::VmaLock): a reader
//!   that leaves).
#![expect(unsafe_code, reason = "keeps lists of free objects, through themselves")]

mod depot;

use crate::error::NoMemory;
use core::ptr::{NonNull, null_mut};
use depot::{Chunk, Depot};
use freehold_sync::{
    Host, PerCpu, Rank, SpinLock,
    atomic::{AtomicPtr, AtomicUsize, CHECKED, Ordering::Relaxed},
};

/// Objects that a CPU keeps for itself before it gives half of them back.
const CACHE: usize = if CHECKED { 4 } else { 32 };
/// Idle chunks that stay for the next taker: to end one process and begin another allocates nothing.
const IDLE: usize = if CHECKED { 0 } else { 8 };

/// What a slab is made of.
pub(crate) trait Item: Send + Sync + Sized {
    /// An object as it lies in the slab.
    fn blank() -> Self;
    /// Tells the simulation's report where objects are.
    fn announce(_first: *const Self, _count: usize) {}
    /// The slab's words in it.
    fn links(&self) -> &Links<Self>;
}

/// What the slab keeps in each object.
pub(crate) struct Links<T> {
    /// Next in the list that the object is in: the slab's while it is free, else its owner's.
    chain: AtomicPtr<T>,
    /// Written before anybody can find the object.
    chunk: AtomicPtr<Chunk<T>>,
}

impl<T> Links<T> {
    pub fn new() -> Self {
        Links { chain: AtomicPtr::new(null_mut()), chunk: AtomicPtr::new(null_mut()) }
    }

    /// For the list of the object's owner.
    pub fn chain(&self) -> &AtomicPtr<T> {
        &self.chain
    }
}

/// A CPU's free objects; only that CPU reads or writes the first two, inside `with_cpu`, with plain loads and
/// stores.
struct Cache<T> {
    head: AtomicPtr<T>,
    len: AtomicUsize,
    /// How many it may have: [`CACHE`]; or 0, stored by `trim`, until this CPU has given back all it has.
    most: AtomicUsize,
}

/// The objects of one engine.
pub(crate) struct Slab<T: Item, H: Host> {
    caches: PerCpu<Cache<T>, H>,
    depot: SpinLock<Depot<T>>,
}

impl<T: Item, H: Host> Slab<T, H> {
    pub fn try_new() -> Result<Self, NoMemory> {
        let caches = PerCpu::try_new(|_| Cache::new())?;
        Ok(Slab { caches, depot: SpinLock::new(Depot::new(), Rank::Slab) })
    }

    /// An object that was free, the caller's from now on.
    pub fn take(&self) -> Result<NonNull<T>, NoMemory> {
        match self.caches.with(Cache::pop) {
            Some(object) => Ok(object),
            None => self.refill(),
        }
    }

    /// Makes an object free.
    ///
    /// # Safety
    ///
    /// It came from [`take`](Self::take) of this slab and is the caller's, which does not use it again.
    /// Others find it nowhere any more; readers that had found it before are in read sections.
    pub unsafe fn give(&self, object: NonNull<T>) {
        let surplus = self.caches.with(|cache| cache.push(object));
        if !surplus.is_null() {
            self.put_back(surplus, IDLE);
        }
    }

    /// Gives all back that is free: the calling CPU's cache, and the chunks that are idle then. Every other
    /// CPU gives its cache back when it makes an object free the next time. The memory goes after a grace
    /// period.
    pub fn trim(&self) {
        for cache in self.caches.iter() {
            // Relaxed: a wish, which may be lost beside a CPU that is just granting the last one. What is
            // empty is left alone.
            if cache.len.load(Relaxed) != 0 {
                cache.most.store(0, Relaxed);
            }
        }
        let own = self.caches.with(Cache::take_all);
        self.put_back(own, 0);
    }

    /// Takes one from the depot and moves some more to this CPU's cache; makes a chunk when the depot is
    /// empty.
    #[cold]
    fn refill(&self) -> Result<NonNull<T>, NoMemory> {
        let mut batch = self.depot.lock::<H>().take(CACHE / 2);
        if batch.is_null() {
            // With no lock held: an allocator may take its time.
            let chunk = Chunk::try_new()?;
            let mut depot = self.depot.lock::<H>();
            depot.add_idle(chunk);
            batch = depot.take(CACHE / 2);
        }
        let taken = pop(&mut batch).ok_or(NoMemory)?;
        while let Some(object) = pop(&mut batch) {
            // The thread may have moved to a CPU whose cache is full.
            let surplus = self.caches.with(|cache| cache.push(object));
            if !surplus.is_null() {
                self.put_back(surplus, IDLE);
            }
        }
        Ok(taken)
    }

    /// Puts a list of free objects into the depot; lets chunks leave until so many idle ones are left.
    #[cold]
    fn put_back(&self, surplus: *mut T, idle: usize) {
        let leaving = {
            let mut depot = self.depot.lock::<H>();
            depot.put(surplus);
            depot.let_leave(idle)
        };
        leaving.free_later::<H>();
    }
}

impl<T: Item, H: Host> Drop for Slab<T, H> {
    fn drop(&mut self) {
        let depot = self.depot.get_mut();
        for cache in self.caches.iter() {
            depot.put(cache.take_all());
        }
        // All are free by now. Readers are in sections of address spaces, which have gone: there is nobody to
        // wait for.
        depot.let_leave(0).free_now();
    }
}

/// Takes the first off a list of free objects.
fn pop<T: Item>(list: &mut *mut T) -> Option<NonNull<T>> {
    let first = NonNull::new(*list)?;
    // SAFETY: a member of a list of free objects is a live `T` that the list owns.
    *list = unsafe { first.as_ref() }.links().chain.load(Relaxed);
    Some(first)
}

/// Puts an object on a list of free ones, which owns it from now on.
fn push<T: Item>(list: &mut *mut T, object: NonNull<T>) {
    // SAFETY: a free object is a live `T`, the caller's.
    unsafe { object.as_ref() }.links().chain.store(*list, Relaxed);
    *list = object.as_ptr();
}

impl<T: Item> Cache<T> {
    fn new() -> Self {
        Cache { head: AtomicPtr::new(null_mut()), len: AtomicUsize::new(0), most: AtomicUsize::new(CACHE) }
    }

    fn pop(&self) -> Option<NonNull<T>> {
        let mut head = self.head.load(Relaxed);
        let object = pop(&mut head)?;
        self.head.store(head, Relaxed);
        self.len.store(self.len.load(Relaxed) - 1, Relaxed);
        Some(object)
    }

    /// Returns a list of what is too much for it, or null.
    #[inline]
    fn push(&self, object: NonNull<T>) -> *mut T {
        let len = self.len.load(Relaxed);
        let mut head = self.head.load(Relaxed);
        push(&mut head, object);
        self.head.store(head, Relaxed);
        self.len.store(len + 1, Relaxed);
        if len < self.most.load(Relaxed) { null_mut() } else { self.spill() }
    }

    /// Half of it, or all if somebody wishes so.
    #[cold]
    fn spill(&self) -> *mut T {
        if self.most.load(Relaxed) == 0 { self.take_all() } else { self.cut(CACHE / 2) }
    }

    fn take_all(&self) -> *mut T {
        self.most.store(CACHE, Relaxed);
        self.len.store(0, Relaxed);
        let head = self.head.load(Relaxed);
        self.head.store(null_mut(), Relaxed);
        head
    }

    /// Takes `count` off the front; it has more than that.
    fn cut(&self, count: usize) -> *mut T {
        let (mut rest, mut list) = (self.head.load(Relaxed), null_mut());
        for _ in 0..count {
            let Some(object) = pop(&mut rest) else { break };
            push(&mut list, object);
        }
        self.head.store(rest, Relaxed);
        self.len.store(self.len.load(Relaxed) - count, Relaxed);
        list
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
