//! The tests of the range map and of the interval tree with ordinary threads, in one program.
//!
//! `interval.rs` tests the interval tree; the other files test the map. The tests under loom (`loom_map.rs`,
//! `loom_claims.rs`) and those with an allocator of their own (`out_of_memory.rs`, `stress.rs`) are separate
//! programs. A new file gets a `mod` line here.
#![cfg(not(loom))]

mod claims;
mod concurrent_claims;
mod interval;
mod map;
mod refused;
mod support;
