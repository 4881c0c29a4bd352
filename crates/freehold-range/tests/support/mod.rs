//! What the tests of this crate share: a host with real grace periods, and the naive map.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod host;
pub mod model;
