//! What the tests of this crate share: the naive map.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod model;
