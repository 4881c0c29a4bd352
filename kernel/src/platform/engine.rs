//! The engine: what all address spaces share.

use super::Machine;
use alloc::boxed::Box;
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::engine::{Config, Engine};

/// From `Box::into_raw`, and never given back.
static ENGINE: AtomicPtr<Counted<Engine<Machine>>> = AtomicPtr::new(core::ptr::null_mut());

/// What all address spaces share.
pub fn engine() -> &'static Counted<Engine<Machine>> {
    // Acquire pairs with the release of `start`.
    // SAFETY: set before the first program, and kept for ever.
    unsafe { ENGINE.load(Acquire).as_ref() }.expect("the engine")
}

/// Makes the engine. Called once, at boot.
pub fn start() {
    // Linux's default where a distribution sets no other: programs may map all but the first page.
    let config = Config { mmap_min_addr: PAGE_SIZE, ..Config::default() };
    let engine = Engine::new(Machine, config).expect("memory for the engine");
    // Release pairs with the acquire of `engine`.
    ENGINE.store(Box::into_raw(Box::new(engine)), Release);
}
