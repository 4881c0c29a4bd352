//! The tests of the range map and the interval tree, one program.
#![cfg(not(loom))]

mod claims;
mod interval;
mod map;
mod refused;
mod shared;
mod support;
