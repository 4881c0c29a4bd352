//! Code shared by the tests of this crate: `model.rs`, a naive map, and `pair.rs`, a map that is changed
//! together with the naive map and compared with it. The tests under loom use only the function `entry` of
//! `model.rs`.
#![allow(dead_code, reason = "each test file uses only some of the items")]

pub mod model;
#[cfg(not(loom))]
pub mod pair;
