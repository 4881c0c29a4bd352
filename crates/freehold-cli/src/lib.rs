//! What the command `freehold` does, for the binary and the tests.
#![deny(unsafe_code)]

pub mod replay;
