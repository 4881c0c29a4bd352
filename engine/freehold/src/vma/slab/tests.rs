//! Tests of the slab: how many objects stay allocated after objects are freed or the slab is trimmed.
//!
//! The objects count themselves in a counter of the test's thread (`THERE`), which `there` reads after it has
//! waited for grace periods. A test that needs a second CPU starts a second thread with the same counter.
//! `CHUNK`, `CACHE` and `IDLE` are the sizes of the slab in this build. Races are tested in
//! `vma/loom_tests.rs`.

extern crate std;

use super::{depot::CHUNK, *};
use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::AtomicI64;
use freehold_machine::Machine;
use std::cell::RefCell;

std::thread_local! {
    /// Number of existing objects that this test's thread has created.
    static THERE: RefCell<Arc<AtomicI64>> = RefCell::default();
}

/// An object of the slab that counts itself in `there`.
struct Object {
    links: Links<Object>,
    there: Arc<AtomicI64>,
}

impl Item for Object {
    fn blank() -> Self {
        let there = THERE.with_borrow(Arc::clone);
        there.fetch_add(1, Relaxed);
        Object { links: Links::new(), there }
    }

    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.there.fetch_sub(1, Relaxed);
    }
}

type Objects = Slab<Object, Machine>;

/// Returns the number of objects that exist after all pending grace periods.
fn there() -> usize {
    <Machine>::rcu_barrier();
    THERE.with_borrow(|there| there.load(Relaxed)) as usize
}

/// Takes `count` objects.
fn take(slab: &Objects, count: usize) -> Vec<NonNull<Object>> {
    (0..count).map(|_| slab.take().unwrap()).collect()
}

/// Frees objects that the test has taken.
fn give(slab: &Objects, objects: impl IntoIterator<Item = NonNull<Object>>) {
    // SAFETY: the test took the objects and does not use them again.
    objects.into_iter().for_each(|object| unsafe { slab.give(object) });
}

#[test]
fn surplus_idle_chunks_are_freed_and_trim_frees_all() {
    let slab = Objects::try_new().unwrap();
    let taken = take(&slab, 100 * CHUNK);
    assert_eq!(there(), 100 * CHUNK);
    give(&slab, taken);
    // Each object in the CPU's cache may keep a different chunk allocated.
    assert!(there() <= (IDLE + CACHE) * CHUNK, "{} objects still exist", there());
    slab.trim();
    assert_eq!(there(), 0);
    // The slab can still be used.
    let taken = take(&slab, 3 * CHUNK);
    assert_eq!(there(), 3 * CHUNK);
    give(&slab, taken);
    drop(slab);
    assert_eq!(there(), 0);
}

#[test]
fn object_in_use_keeps_only_its_own_chunk() {
    let slab = Objects::try_new().unwrap();
    let (kept, free): (Vec<_>, Vec<_>) =
        take(&slab, 50 * CHUNK).into_iter().enumerate().partition(|(n, _)| n % (5 * CHUNK) == 0);
    give(&slab, free.into_iter().map(|(_, object)| object));
    slab.trim();
    assert_eq!(there(), 10 * CHUNK);
    // Existing free objects are used before new ones are allocated.
    let more = take(&slab, 10 * (CHUNK - 1));
    assert_eq!(there(), 10 * CHUNK);
    give(&slab, more);
    give(&slab, kept.into_iter().map(|(_, object)| object));
    slab.trim();
    assert_eq!(there(), 0);
}

#[test]
fn trimmed_cache_of_another_cpu_empties_at_its_next_free() {
    let slab = &Objects::try_new().unwrap();
    let ours = THERE.with_borrow(Arc::clone);
    let barrier = &std::sync::Barrier::new(2);
    // The assertions come after the scope: a failure inside the scope would leave the other thread waiting at
    // the barrier.
    let (before, after) = std::thread::scope(|scope| {
        scope.spawn(move || {
            THERE.set(ours);
            let taken = take(slab, 2);
            give(slab, taken);
            let one = take(slab, 1);
            barrier.wait();
            barrier.wait();
            give(slab, one);
            barrier.wait();
            barrier.wait();
        });
        barrier.wait();
        slab.trim();
        let before = there();
        barrier.wait();
        barrier.wait();
        slab.trim();
        let after = there();
        barrier.wait();
        (before, after)
    });
    assert_eq!(before, CHUNK, "objects in a cache or in use were freed");
    assert_eq!(after, 0);
}

#[test]
fn objects_of_partial_chunks_are_taken_before_idle_ones() {
    let mut depot = Depot::<Object>::new();
    let [used, idle] = [(); 2].map(|()| Chunk::try_new().unwrap());
    depot.add_idle(used);
    let most = depot.take(CHUNK - 1);
    depot.add_idle(idle);
    assert_eq!((depot.partial, depot.idle_len), (used.as_ptr(), 1));
    let last = depot.take(1);
    assert_eq!((depot.partial, depot.idle_len), (null_mut(), 1), "an object of an idle chunk was taken");
    depot.put(last);
    depot.put(most);
    assert_eq!((depot.partial, depot.idle_len), (null_mut(), 2));
    depot.remove_idle(1).free_now();
    assert_eq!(there(), CHUNK);
    depot.remove_idle(0).free_now();
    assert_eq!(there(), 0);
}
