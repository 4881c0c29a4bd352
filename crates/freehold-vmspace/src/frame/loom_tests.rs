//! A walk that comes by the record of a frame finds a home that is there, whatever the frame was before.
#![expect(unsafe_code, reason = "defers a call to wait for a grace period")]

use super::Frame;
use crate::{AnonPage, PageIndex};
use core::ptr::NonNull;
use freehold_sync::{
    Host, RcuHead,
    atomic::{AtomicBool, Ordering::Relaxed},
    testing::{LoomHost, model},
};
use loom::{sync::Arc, thread};

/// A frame, and whether the homes 1 and 2 are there.
struct World {
    frame: Frame,
    homes: [AtomicBool; 2],
}

/// The frame is at home in 1, mapped once, and has a second reference; 2 is there, too.
fn mapped_and_held() -> Arc<World> {
    let world = World { frame: Frame::new(), homes: [AtomicBool::new(true), AtomicBool::new(true)] };
    world.frame.init_anon(AnonPage { home: 1, index: PageIndex::ZERO });
    world.frame.get();
    Arc::new(world)
}

/// As a walk begins: the home that the record names, if the page is mapped.
fn walk(world: &World) {
    let rcu = LoomHost::rcu_read();
    if world.frame.maps() != 0 {
        let (home, _) = world.frame.home();
        assert!(home == 0 || world.homes[home - 1].load(Relaxed), "home {home} is gone");
    }
    drop(rcu);
}

/// The entry of the first life goes, and then its home, after a grace period. The reference stays.
fn leave(world: &World) {
    world.frame.sub_map();
    assert!(!world.frame.put());
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head stays here until the barrier has seen the function run.
    unsafe { LoomHost::rcu_defer(NonNull::from(&head), nothing) };
    LoomHost::rcu_barrier();
    world.homes[0].store(false, Relaxed);
}

/// A walk beside the end of the page, after which the frame is free, and what it is used for next.
fn walk_beside(next_life: fn(&Frame)) {
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
fn the_next_life_does_not_show_the_home_of_the_last() {
    walk_beside(|frame| frame.init_anon(AnonPage { home: 2, index: PageIndex::ZERO }));
}

#[test]
fn a_page_that_moves_in_does_not_show_the_home_of_the_last() {
    walk_beside(|frame| {
        let old = Frame::new();
        old.init_anon(AnonPage { home: 2, index: PageIndex::ZERO });
        frame.take_over(&old);
        frame.get();
        frame.add_map();
    });
}

#[test]
fn fork_of_the_next_life_does_not_show_the_home_of_the_last() {
    walk_beside(|frame| {
        frame.init_anon(AnonPage { home: 2, index: PageIndex::ZERO });
        frame.share().unwrap();
    });
}
