//! Test of the platform that the callbacks make: it passes the conformance suite of `freehold-kit`.
//!
//! The suite allocates all frames, so the test has a process of its own.
#![expect(unsafe_code, reason = "calls functions in C's calling convention")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "all calls keep the rules at the head of the header")]

#[allow(dead_code, reason = "shared with the tests of the calls")]
#[path = "calls/kernel.rs"]
mod kernel;

use freehold::engine::{Config, Engine};
use freehold_c::{Kernel as Callbacks, SpaceRecord};
use freehold_kit::conformance::{self, Kernel, NotRun};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::SeqCst;

/// The second task is a thread, and an access is a walk.
struct Threads;

impl Kernel<Callbacks> for Threads {
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        std::thread::scope(|scope| {
            scope.spawn(second);
            first();
        });
        Ok(())
    }

    fn load(&self, _: &Callbacks, space: &SpaceRecord, address: u64) -> Result<Option<u64>, NotRun> {
        Ok(kernel::try_access(space.root.get(), address, 0, |word| word.load(SeqCst)))
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }
}

#[test]
fn callbacks_pass_the_conformance_suite() {
    kernel::boot();
    let free = kernel::frames_free();
    let platform = ManuallyDrop::new(Callbacks);
    // No blocks and runs of frames, no signal to another thread, and no walks without a lock.
    let not_run = ["frames::blocks", "frames::runs", "waits::killed", "spaces::walks"];
    conformance::platform(&*platform, &Threads).assert_passed(&not_run);
    assert_eq!(kernel::frames_free(), free, "the suite frees all frames");
    let engine = Engine::new(Callbacks, Config::new()).unwrap();
    conformance::engine(&engine, &Threads).assert_passed(&["engine::charges"]);
    drop(engine);
    assert_eq!(kernel::frames_free(), free);
}
