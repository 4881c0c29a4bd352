//! Code shared by the tests of this crate: a naive map, and a map that is compared with it.
#![allow(dead_code, reason = "each test file uses only some of the items")]

pub mod model;
#[cfg(not(loom))]
pub mod pair;
