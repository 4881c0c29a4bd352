//! Checks every public call of the engine with arbitrary arguments: no call panics, and all memory is freed.
//!
//! `freehold_model::wild` decodes and makes the calls; the test `lab/freehold-model/tests/wild.rs` runs the
//! same sequences from seeds. Run as described in `engine.rs`, with overflow checks: `-Coverflow-checks=on`
//! in RUSTFLAGS, or cargo-fuzz's own debug build.
#![no_main]

use freehold_model::wild;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = wild::run(data);
});
