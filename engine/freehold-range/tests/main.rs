//! The tests of the range map and of the interval tree, in one program.
#![cfg(not(loom))]

mod claims;
mod concurrent_claims;
mod interval;
mod map;
mod refused;
mod support;
