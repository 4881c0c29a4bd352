//! What the command `freehold` does, for the binary and the tests.
#![deny(unsafe_code)]

pub mod locking;
pub mod replay;
pub mod report;
pub mod units;
