//! The engine, which all address spaces of this kernel share. `start.rs` makes the engine once at boot, with
//! the settings of this kernel. The engine is never dropped. `proc/settings.rs` changes the settings that
//! programs may change at run time. A setting that never changes belongs in [`start`].

use super::Machine;
use crate::memory::bytes_for_programs;
use crate::options;
use alloc::boxed::Box;
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};
use freehold::counted::Counted;
use freehold::engine::{Config, Engine};
use freehold::reclaim::ReclaimPolicy;
use freehold::{PAGE_SIZE, PageCount};

/// The engine: a pointer from `Box::into_raw` that is never freed.
static ENGINE: AtomicPtr<Counted<Engine<Machine>>> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the engine.
pub fn engine() -> &'static Counted<Engine<Machine>> {
    // Acquire pairs with the release of `start`. SAFETY: the pointer is set before the first program runs,
    // and the engine is never freed.
    unsafe { ENGINE.load(Acquire).as_ref() }.expect("the engine is started")
}

/// Returns the maximum number of pages in files of memory and in segments: half of the memory that programs can
/// have, as in a tmpfs of Linux. Files may outlive every program. With the limits of names (`sched/charge.rs`)
/// and of stacks (`memory/stacks.rs`), a quarter of memory stays for the private memory of programs.
pub fn most_file_pages() -> u64 {
    bytes_for_programs() / PAGE_SIZE / 2
}

/// Makes the engine. Called once, at boot.
pub fn start() {
    // Linux's default, if the distribution sets no other value: programs may map everything except the first
    // page.
    let config =
        Config::new().mmap_min_addr(PAGE_SIZE).max_file_pages(Some(PageCount::new(most_file_pages())));
    let policy =
        if options::has_generations() { ReclaimPolicy::Generations } else { ReclaimPolicy::default() };
    let engine = Engine::new(Machine, config.reclaim(policy)).expect("memory for the engine");
    // Release pairs with the acquire of `engine`.
    ENGINE.store(Box::into_raw(Box::new(engine)), Release);
}
