//! Every public call of the engine with wild arguments: nothing panics, and all memory comes back.
//!
//! Run as `engine.rs` says, with overflow checks: `-Coverflow-checks=on` in RUSTFLAGS, or cargo-fuzz's own
//! debug build. The test
//! `lab/freehold-model/tests/wild.rs` plays the same lives from seeds.
#![no_main]

use freehold_model::wild;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = wild::run(data);
});
