//! A slab: objects are allocated in chunks, free objects are cached per CPU, and wholly free chunks are freed
//! after a grace period.
//!
//! The slab reuses a free object at once, without waiting for a grace period. A reader that found the object
//! in a read section (RCU) before the object was freed may still access the memory afterwards. The reader
//! finds an object of the same type, and notices that the object is a different one. The memory holds an
//! object of this type until a grace period after its chunk has left the slab.
//!
//! | chunk | its objects | list | next state |
//! | --- | --- | --- | --- |
//! | in use | each is in use, or free in a CPU's cache | none | partial: an object is put into the depot |
//! | partial | some are free in the depot | `partial` | in use: the last free object is taken; idle: the last object is put into the depot |
//! | idle | all are free in the depot | `idle` | partial: an object is taken; leaving: more than `IDLE` chunks are idle, or `trim` |
//! | leaving | all are free, and none can be taken | the host's list of deferred calls | freed, after a grace period |
//!
//! The depot's lock guards all words of a chunk: the list of its free objects, their number, its neighbours.
//! No memory is allocated or freed under this lock. A free object in a CPU's cache does not count as free in
//! its chunk, because only that CPU can take it. Taking or freeing a single object therefore updates no count
//! of its chunk. Chunks are updated when a cache is filled or emptied, half of the cache at a time.
//!
//! No task accesses a chunk after it is freed:
//! - A holder of an object (its owner, or a lock that keeps the object in use) keeps its chunk in use.
//! - A reader that found an object without a lock is in a read section. Before the object was put into the
//!   cache of a CPU, the pointer through which the reader found the object was removed. That CPU later put
//!   the object into the depot under the depot's lock, and the task that made the chunk leave held the same
//!   lock later. Read sections that begin after `rcu_defer` therefore do not find the object, and the grace
//!   period waits for the earlier sections.
//! - If a reader uses only the address of an object, to wake a sleeper there, the reader is in a read section
//!   that began while the object was in use ([`VmaLock`](freehold_sync::VmaLock): a reader that leaves).
//!
//! The only user is the slab of VMAs (`vma/owned.rs`). The tests are `tests.rs` and, for races,
//! `vma/loom_tests.rs`.
#![expect(unsafe_code, reason = "links free objects through their own fields")]

mod depot;

use crate::error::NoMemory;
use core::ptr::{NonNull, null_mut};
use depot::{Chunk, Depot};
use freehold_sync::{
    Host, PerCpu, Rank, SpinLock,
    atomic::{AtomicPtr, AtomicUsize, CHECKED, Ordering::Relaxed},
};

/// Number of objects that a CPU caches before it returns half of them to the depot.
const CACHE: usize = if CHECKED { 4 } else { 32 };
/// Number of idle chunks that stay allocated for reuse, so that starting a process after the end of another
/// process allocates nothing.
const IDLE: usize = if CHECKED { 0 } else { 8 };

/// An object of a slab.
pub(crate) trait Item: Send + Sync + Sized {
    /// Creates an object in the state of a free object.
    fn blank() -> Self;
    /// Announces new objects to the simulation, which names their cache lines in its report.
    fn announce(_first: *const Self, _count: usize) {}
    /// Returns the slab's words in the object.
    fn links(&self) -> &Links<Self>;
}

/// The words that the slab keeps in each object.
pub(crate) struct Links<T> {
    /// Next object in the list that the object is in. Belongs to the slab while the object is free, otherwise
    /// to the object's owner.
    chain: AtomicPtr<T>,
    /// The chunk of the object. Written before any task can find the object.
    chunk: AtomicPtr<Chunk<T>>,
}

impl<T> Links<T> {
    pub fn new() -> Self {
        Links { chain: AtomicPtr::new(null_mut()), chunk: AtomicPtr::new(null_mut()) }
    }

    /// Returns the link for a list of the object's owner.
    pub fn chain(&self) -> &AtomicPtr<T> {
        &self.chain
    }
}

/// The free objects of a CPU. Only that CPU accesses `head`, and only it writes `len`, inside `with_cpu`,
/// with plain loads and stores.
struct Cache<T> {
    head: AtomicPtr<T>,
    len: AtomicUsize,
    /// Maximum number of objects: [`CACHE`]; or 0 from a `trim` until this CPU has returned all its objects.
    most: AtomicUsize,
}

/// The objects of one engine.
pub(crate) struct Slab<T: Item, H: Host> {
    caches: PerCpu<Cache<T>, H>,
    depot: SpinLock<Depot<T>>,
}

impl<T: Item, H: Host> Slab<T, H> {
    /// Creates a slab without chunks.
    pub fn try_new() -> Result<Self, NoMemory> {
        let caches = PerCpu::try_new(|_| Cache::new())?;
        Ok(Slab { caches, depot: SpinLock::new(Depot::new(), Rank::Slab) })
    }

    /// Takes a free object. The caller owns the object from now on.
    pub fn take(&self) -> Result<NonNull<T>, NoMemory> {
        match self.caches.with(Cache::pop) {
            Some(object) => Ok(object),
            None => self.refill(),
        }
    }

    /// Frees an object.
    ///
    /// # Safety
    ///
    /// The object came from [`take`](Self::take) of this slab, and the caller owns it and does not use it
    /// again. No lookup can find the object any more. Readers that found the object earlier are in read
    /// sections.
    pub unsafe fn give(&self, object: NonNull<T>) {
        let surplus = self.caches.with(|cache| cache.push(object));
        if !surplus.is_null() {
            self.put_back(surplus, IDLE);
        }
    }

    /// Returns true if the calling CPU caches at least `count` free objects. The result holds until the task
    /// leaves the CPU or takes an object.
    #[inline]
    pub fn caches(&self, count: usize) -> bool {
        self.caches.with(|cache| cache.len.load(Relaxed) >= count)
    }

    /// Frees all free memory: the calling CPU's cache, and the chunks that are idle then. Every other CPU
    /// returns its cache when it frees an object the next time. The memory is released after a grace period.
    pub fn trim(&self) {
        for cache in self.caches.iter() {
            // Relaxed: the store is only a request, which is lost if that CPU is just completing an earlier
            // request. Empty caches are skipped.
            if cache.len.load(Relaxed) != 0 {
                cache.most.store(0, Relaxed);
            }
        }
        let own = self.caches.with(Cache::take_all);
        self.put_back(own, 0);
    }

    /// Takes an object from the depot, and moves some more to this CPU's cache. Allocates a chunk if the
    /// depot is empty.
    #[cold]
    fn refill(&self) -> Result<NonNull<T>, NoMemory> {
        let mut batch = self.depot.lock::<H>().take(CACHE / 2);
        if batch.is_null() {
            // No lock is held here, because an allocator may be slow.
            let chunk = Chunk::try_new()?;
            let mut depot = self.depot.lock::<H>();
            depot.add_idle(chunk);
            batch = depot.take(CACHE / 2);
        }
        let taken = pop(&mut batch).ok_or(NoMemory)?;
        while let Some(object) = pop(&mut batch) {
            // The thread may have migrated to a CPU whose cache is full.
            let surplus = self.caches.with(|cache| cache.push(object));
            if !surplus.is_null() {
                self.put_back(surplus, IDLE);
            }
        }
        Ok(taken)
    }

    /// Puts a list of free objects into the depot. Makes idle chunks leave until at most `idle` of them are
    /// left.
    #[cold]
    fn put_back(&self, surplus: *mut T, idle: usize) {
        let leaving = {
            let mut depot = self.depot.lock::<H>();
            depot.put(surplus);
            depot.remove_idle(idle)
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
        // All objects are free by now. A reader is in a read section of an address space. All address spaces
        // of the engine have ended, so there are no readers to wait for.
        depot.remove_idle(0).free_now();
    }
}

/// Takes the first object off a list of free objects.
fn pop<T: Item>(list: &mut *mut T) -> Option<NonNull<T>> {
    let first = NonNull::new(*list)?;
    // SAFETY: a member of a list of free objects is a live `T` that the list owns.
    *list = unsafe { first.as_ref() }.links().chain.load(Relaxed);
    Some(first)
}

/// Puts an object on a list of free objects. The list owns the object from now on.
fn push<T: Item>(list: &mut *mut T, object: NonNull<T>) {
    // SAFETY: a free object is a live `T` that the caller owns.
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

    /// Adds an object. Returns a list of surplus objects, or null.
    #[inline]
    fn push(&self, object: NonNull<T>) -> *mut T {
        let len = self.len.load(Relaxed);
        let mut head = self.head.load(Relaxed);
        push(&mut head, object);
        self.head.store(head, Relaxed);
        self.len.store(len + 1, Relaxed);
        if len < self.most.load(Relaxed) { null_mut() } else { self.spill() }
    }

    /// Takes half of the objects, or all of them if a `trim` has requested that.
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

    /// Takes `count` objects off the front. The cache has more than `count` objects.
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
