//! A walk that comes by the record of a frame finds an rmap word that is there, whatever the frame was
//! before; and a lookup that comes by a cache raises the count of no frame that has left it.
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

/// A frame, and whether the linked_words 1 and 2 are there.
struct World {
    frame: Frame,
    linked_words: [AtomicBool; 2],
}

/// The frame has the rmap word 1, mapped once, and has a second reference; 2 is there, too.
fn mapped_and_held() -> Arc<World> {
    let world = World { frame: Frame::new(), linked_words: [AtomicBool::new(true), AtomicBool::new(true)] };
    world.frame.init_anon(AnonPage { rmap: 1, index: PageIndex::ZERO });
    world.frame.get();
    Arc::new(world)
}

/// As a walk begins: the rmap word that the record names, if the page is mapped.
fn walk(world: &World) {
    let rcu = LoomHost::rcu_read();
    if world.frame.maps() != 0 {
        let (rmap, _) = world.frame.rmap();
        assert!(rmap == 0 || world.linked_words[rmap - 1].load(Relaxed), "rmap word {rmap} is gone");
    }
    drop(rcu);
}

/// The entry of the first life goes, and then its rmap word, after a grace period. The reference stays.
fn leave(world: &World) {
    world.frame.sub_map();
    assert!(!world.frame.put());
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head stays here until the barrier has seen the function run.
    unsafe { LoomHost::rcu_defer(NonNull::from(&head), nothing) };
    LoomHost::rcu_barrier();
    world.linked_words[0].store(false, Relaxed);
}

/// A walk beside the end of the page, after which the frame is free, and what it is used for next.
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
    walk_during(|frame| frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO }));
}

#[test]
fn a_page_that_moves_in_does_not_show_the_old_rmap_word() {
    walk_during(|frame| {
        let old = Frame::new();
        old.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO });
        frame.inherit(&old);
        frame.get();
        frame.add_map();
    });
}

#[test]
fn fork_of_a_reused_frame_does_not_show_the_old_rmap_word() {
    walk_during(|frame| {
        frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO });
        frame.share().unwrap();
    });
}

/// A frame that is in a cache, in whose only place it stands as 1; and whose it is.
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
    /// What a lookup does, and `with` what it has found. Returns whether that was the end of the frame.
    fn look(&self, with: impl FnOnce()) -> bool {
        if self.place.load(Acquire) != 1 || !self.frame.get_cached() {
            return false;
        }
        if self.place.load(Relaxed) == 1 {
            with();
        }
        self.frame.put()
    }

    /// The cache's reference goes, as of a page that is cut off; then the frame has another life, if that was
    /// the last. Returns whether it was.
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

/// A lookup beside the end of the page, after which the frame is another's.
fn look_during(next_life: fn(&Cache)) {
    model(move || {
        let cache = cached();
        let lookup = thread::spawn({
            let cache = cache.clone();
            move || cache.look(|| assert_eq!(cache.life.load(Relaxed), FILE, "the page of another is used"))
        });
        let last = cache.cut(next_life);
        let last_there = lookup.join().unwrap();
        assert!(last || last_there, "nobody gave the frame back");
        assert!(cache.frame.is_free(), "a reference was lost, or is left");
    });
}

#[test]
fn a_lookup_during_truncation_leaves_an_anonymous_page_alone() {
    // With the plain stores of a frame that has one reference.
    look_during(|Cache { frame, .. }| {
        frame.init_anon(AnonPage { rmap: 2, index: PageIndex::ZERO });
        assert!(frame.share().is_some());
        frame.sub_map();
        assert!(!frame.put());
        frame.sub_map();
        assert!(frame.put(), "somebody has counted himself in");
    });
}

#[test]
fn a_lookup_during_truncation_does_not_take_the_page_of_another_file() {
    look_during(|Cache { frame, .. }| {
        frame.init_cache(CachePage { rmap: 2, shmem: false, secret: false }, PageIndex::ZERO);
        frame.enter_cache();
        frame.leave_cache();
        frame.put();
    });
}

/// A page is clean and alone, and so dropped; or a lookup was faster, and what it stored stays.
#[test]
fn a_store_through_a_stale_translation_keeps_a_page_dirty() {
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

/// A table that a fault hangs in, and the entry in it.
struct Tables {
    linked: AtomicBool,
    mapped: Mutex<bool>,
}

impl Tables {
    fn new() -> Arc<Tables> {
        Arc::new(Tables { linked: AtomicBool::new(false), mapped: Mutex::new(false) })
    }

    /// What a walk does that takes entries away.
    fn zap(&self, unmap: impl FnOnce()) {
        // Acquire: as a walk reads entries of upper levels.
        if self.linked.load(Acquire) {
            let mut mapped = self.mapped.lock().unwrap();
            if core::mem::take(&mut *mapped) {
                unmap();
            }
        }
    }
}

/// C-26: a fault maps a page that is being cut off, by a table that comes meanwhile. When the cut is over the
/// entry is gone.
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
        assert!(!*tables.mapped.lock().unwrap(), "the entry is left");
        assert!(cache.frame.is_free());
    });
}

/// The same for what is no page of the file, and is asked by the file's size alone.
#[test]
fn truncation_finds_a_private_page_by_a_table_that_it_missed() {
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
        assert!(!*tables.mapped.lock().unwrap(), "the entry is left");
    });
}
