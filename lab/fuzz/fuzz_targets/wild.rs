//! Checks every public call of the engine with arbitrary arguments: no call panics, and all memory is freed.
//!
//! `freehold_model::wild` decodes and makes the calls; the test `lab/freehold-model/tests/wild.rs` runs the
//! same sequences from seeds. `engine.rs` describes how to run a target. Overflow checks must be on: add
//! `-Coverflow-checks=on` to RUSTFLAGS, or use the debug build of cargo-fuzz.
#![no_main]

use freehold_model::wild;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = wild::run(data);
});
