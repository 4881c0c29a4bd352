//! Tests of the rules of `frame/mod.rs` and `frame/cached.rs` under loom, which tries all schedules and the
//! results that the memory model allows.
//!
//! - A walk that reads the record of a frame finds an rmap word whose object exists, whatever page the frame
//!   held before. The walk takes no lock, so the object must outlive every walk that has read the word.
//! - A lookup in a cache never raises the count of a frame that has left the cache. Otherwise the frame could
//!   have two owners: the lookup and the task that uses the frame next.
//! - A task that maps a frame whose memory fails finds the failure, or the failure finds the entry.
//!
//! The tests call only methods of [`Frame`]. A flag stands for an object or for a cached page, and the loom
//! host implements the grace periods.
#![expect(unsafe_code, reason = "defers a call to wait for a grace period")]

use super::{Frame, NotMapped};
use crate::{AnonPage, CachePage, PageIndex};
use core::ptr::NonNull;
use freehold_sync::{
    Host, RcuHead,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
    testing::{LoomHost, model},
};
use loom::{
    sync::{Arc, Mutex},
    thread,
};

/// A frame, and two flags that say whether the objects of the rmap words 1 and 2 exist.
struct World {
    frame: Frame,
    linked_words: [AtomicBool; 2],
}

/// Returns a frame that has the rmap word 1, is mapped once, and has a second reference. The object of word 2
/// also exists.
fn mapped_and_held() -> Arc<World> {
    let world = World { frame: Frame::new(), linked_words: [AtomicBool::new(true), AtomicBool::new(true)] };
    world.frame.init_anon(AnonPage { rmap: 1, index: PageIndex::ZERO, policy: 0 });
    world.frame.get();
    Arc::new(world)
}

/// Begins a walk of the reverse map: reads the rmap word in the record if the page is mapped.
fn walk(world: &World) {
    let rcu = LoomHost::rcu_read();
    if world.frame.maps() != 0 {
        let (rmap, _) = world.frame.rmap();
        assert!(rmap == 0 || world.linked_words[rmap - 1].load(Relaxed), "rmap word {rmap} does not exist");
    }
    drop(rcu);
}

/// Removes the entry of the first use and, after a grace period, the object of the rmap word. The second
/// reference stays.
fn leave(world: &World) {
    world.frame.sub_map();
    assert!(!world.frame.put());
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head lives on this stack frame until the barrier has waited for the function.
    unsafe { LoomHost::rcu_defer(NonNull::from(&head), nothing) };
    LoomHost::rcu_barrier();
    world.linked_words[0].store(false, Relaxed);
}

/// Runs a walk concurrently with the end of the page, after which the frame is free and `next_life` uses it.
fn walk_during(next_life: fn(&Frame)) {
    model(move || {
        let world = mapped_and_held();
        let walker = thread::spawn({
            let world = world.clone();
            move || walk(&world)
        });
        leave(&world);
        assert!(world.frame.put());
        next_life(&world.frame);
        walker.join().unwrap();
    });
}

#[test]
fn a_reused_frame_does_not_show_the_old_rmap_word() {
    walk_during(|frame| frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO, policy: 0 }));
}

#[test]
fn a_page_that_moves_in_does_not_show_the_old_rmap_word() {
    walk_during(|frame| {
        let old = Frame::new();
        old.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO, policy: 0 });
        frame.inherit(&old);
        frame.get();
        frame.add_map();
    });
}

#[test]
fn fork_of_a_reused_frame_does_not_show_the_old_rmap_word() {
    walk_during(|frame| {
        frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO, policy: 0 });
        frame.share().unwrap();
    });
}

/// A page cache with one place, and its frame. `place` is 1 while the cache has the frame; `life` is the
/// current owner of the frame.
struct Cache {
    frame: Frame,
    place: AtomicU64,
    life: AtomicU32,
}

const FILE: u32 = 1;
const NEXT: u32 = 2;

fn cached() -> Arc<Cache> {
    let cache = Cache { frame: Frame::new(), place: AtomicU64::new(1), life: AtomicU32::new(FILE) };
    let kind = CachePage { rmap: 1, shmem: false, secret: false };
    cache.frame.init_cache(kind, PageIndex::ZERO);
    cache.frame.enter_cache();
    Arc::new(cache)
}

impl Cache {
    /// Does a lookup, and calls `with` if the lookup found the frame. Returns true if the lookup dropped the
    /// last reference.
    fn look(&self, with: impl FnOnce()) -> bool {
        if self.place.load(Acquire) != 1 || !self.frame.get_cached() {
            return false;
        }
        if self.place.load(Relaxed) == 1 {
            with();
        }
        self.frame.put()
    }

    /// Drops the cache's reference, as truncation does. If that reference was the last, the frame gets its
    /// next use, and the function returns true.
    fn cut(&self, next_life: fn(&Cache)) -> bool {
        self.place.store(0, Relaxed);
        self.frame.refs_of_marked();
        self.frame.leave_cache();
        let last = self.frame.put();
        if last {
            self.life.store(NEXT, Relaxed);
            next_life(self);
        }
        last
    }
}

/// Runs a lookup concurrently with the end of the page, after which the frame has another use.
fn look_during(next_life: fn(&Cache)) {
    model(move || {
        let cache = cached();
        let lookup = thread::spawn({
            let cache = cache.clone();
            move || cache.look(|| assert_eq!(cache.life.load(Relaxed), FILE, "the lookup used another page"))
        });
        let last = cache.cut(next_life);
        let last_there = lookup.join().unwrap();
        assert!(last || last_there, "no task freed the frame");
        assert!(cache.frame.is_free(), "a reference is missing or left over");
    });
}

#[test]
fn lookup_during_truncation_takes_no_reference_to_a_new_anonymous_page() {
    // The calls below use plain stores where the frame has only one reference.
    look_during(|Cache { frame, .. }| {
        frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO, policy: 0 });
        assert!(frame.share().is_some());
        frame.sub_map();
        assert!(!frame.put());
        frame.sub_map();
        assert!(frame.put(), "a lookup has taken a reference");
    });
}

#[test]
fn lookup_during_truncation_does_not_find_a_page_of_another_file() {
    look_during(|Cache { frame, .. }| {
        frame.init_cache(CachePage { rmap: 2, shmem: false, secret: false }, PageIndex::ZERO);
        frame.enter_cache();
        frame.leave_cache();
        frame.put();
    });
}

/// If the page is clean and has no other reference, the cache drops the page. If a lookup came first, the
/// cache keeps the page and the store of the lookup.
#[test]
fn page_with_a_concurrent_store_is_not_dropped_as_clean() {
    model(|| {
        let cache = cached();
        let stored = Arc::new(AtomicBool::new(false));
        let lookup = thread::spawn({
            let (cache, stored) = (cache.clone(), stored.clone());
            move || {
                cache.look(|| {
                    stored.store(true, Relaxed);
                    cache.frame.set_dirty();
                })
            }
        });
        let alone = cache.frame.try_leave_cache();
        let dropped = alone && !cache.frame.is_dirty();
        if dropped {
            cache.place.store(0, Relaxed);
            assert!(cache.frame.put());
        } else if alone {
            cache.frame.enter_cache();
        }
        assert!(!lookup.join().unwrap());
        assert!(!dropped || !stored.load(Relaxed), "a store is lost");
    });
}

/// A table that a fault links, and the entry in it.
struct Tables {
    linked: AtomicBool,
    mapped: Mutex<bool>,
}

impl Tables {
    fn new() -> Arc<Tables> {
        Arc::new(Tables { linked: AtomicBool::new(false), mapped: Mutex::new(false) })
    }

    /// Removes the entry if the table is found, like a zap.
    fn zap(&self, unmap: impl FnOnce()) {
        // Acquire, as when a walk reads entries of upper levels.
        if self.linked.load(Acquire) {
            let mut mapped = self.mapped.lock().unwrap();
            if core::mem::take(&mut *mapped) {
                unmap();
            }
        }
    }
}

/// C-26: a fault maps a page that is being truncated, in a table that is linked during the truncation. The
/// entry does not exist when the truncation has finished.
#[test]
fn truncation_finds_a_page_mapped_by_a_table_that_it_missed() {
    model(|| {
        let (cache, tables) = (cached(), Tables::new());
        let fault = thread::spawn({
            let (cache, tables) = (cache.clone(), tables.clone());
            move || {
                tables.linked.store(true, Release);
                let mut mapped = tables.mapped.lock().unwrap();
                if cache.place.load(Acquire) != 1 {
                    return;
                }
                match cache.frame.try_map_cached(|| cache.place.load(Relaxed) == 1) {
                    Ok(()) => *mapped = true,
                    Err(NotMapped::Stale) => {
                        drop(mapped);
                        cache.frame.put();
                    }
                    Err(_) => {}
                }
            }
        });
        let unmap = || {
            cache.frame.sub_map();
            cache.frame.put();
        };
        cache.place.store(0, Relaxed);
        tables.zap(unmap);
        if cache.frame.refs_of_marked() > 1 {
            tables.zap(unmap);
        }
        cache.frame.leave_cache();
        cache.frame.put();
        fault.join().unwrap();
        assert!(!*tables.mapped.lock().unwrap(), "an entry is left");
        assert!(cache.frame.is_free());
    });
}

/// Checks the race of the previous test for a private page, whose fault checks only the file's size.
#[test]
fn truncation_finds_a_private_page_in_a_table_that_it_missed() {
    model(|| {
        let (size, tables) = (Arc::new(AtomicU64::new(1)), Tables::new());
        let fault = thread::spawn({
            let (size, tables) = (size.clone(), tables.clone());
            move || {
                tables.linked.store(true, Release);
                let mut mapped = tables.mapped.lock().unwrap();
                fence(SeqCst);
                *mapped = size.load(Acquire) == 1;
            }
        });
        size.store(0, Release);
        fence(SeqCst);
        tables.zap(|| {});
        fault.join().unwrap();
        assert!(!*tables.mapped.lock().unwrap(), "an entry is left");
    });
}

/// A frame that moves from the swap cache to the cache of a file. `slot` is 1 while the swap cache has the
/// frame.
struct Moving {
    frame: Frame,
    slot: AtomicU64,
}

#[test]
fn page_returns_to_its_file_during_lookups_and_a_write() {
    model(|| {
        let moving = Moving { frame: Frame::new(), slot: AtomicU64::new(1) };
        // The first reference is that of a write.
        moving.frame.init_run();
        assert!(moving.frame.enter_swap_cache());
        let moving = Arc::new(moving);
        let swap_lookup = thread::spawn({
            let moving = moving.clone();
            move || {
                let Moving { frame, slot } = &*moving;
                if slot.load(Acquire) == 1 && frame.get_cached() {
                    // A reference that is not good is dropped, too.
                    let _is_good = slot.load(Relaxed) == 1;
                    assert!(!frame.put(), "the frame was freed");
                }
                // The end of the write.
                assert!(!frame.put(), "the frame was freed");
            }
        });
        let Moving { frame, slot } = &*moving;
        assert!(frame.get_cached());
        slot.store(0, Release);
        frame.leave_swap_cache();
        assert!(!frame.put());
        frame.become_shared(CachePage { rmap: 1, shmem: true, secret: false }, PageIndex::ZERO);
        frame.return_to_cache();
        swap_lookup.join().unwrap();
        assert!(frame.is_shmem() && !frame.is_anon() && frame.rmap().0 == 1);
        assert_eq!(frame.refs(), 1);
        frame.leave_cache();
        assert!(frame.put());
    });
}

/// A fault maps a page from the swap cache, while its memory fails. An atomic word stands for the entry.
#[test]
fn failure_finds_the_entry_or_the_fault_finds_the_failure() {
    model(|| {
        let world = Arc::new((Frame::new(), AtomicU64::new(0)));
        let fault = {
            let world = world.clone();
            thread::spawn(move || {
                world.1.store(1, Release);
                world.0.has_failed_after_map()
            })
        };
        world.0.set_failed();
        world.0.fence_failure();
        let is_found = world.1.load(Acquire) != 0;
        assert!(fault.join().unwrap() || is_found, "an entry maps a frame whose memory failed");
    });
}
