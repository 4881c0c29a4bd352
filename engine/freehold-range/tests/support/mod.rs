//! What the tests of this crate share: the naive map, and the map beside it.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod model;
#[cfg(not(loom))]
pub mod pair;
