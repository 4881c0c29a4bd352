//! The tests of the range map and the interval tree, one program.
#![cfg(not(loom))]

mod claims;
mod concurrent_claims;
mod interval;
mod map;
mod refused;
mod support;
