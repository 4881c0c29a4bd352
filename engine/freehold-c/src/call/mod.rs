//! The calls of the header, one file for each kind of object.
//!
//! A call converts its arguments, calls one function of the engine, and converts the result. The names of
//! system calls, their arguments and their errors are those of Linux. `tests/calls` has a test of each call.

pub mod boot;
#[cfg(feature = "conformance")]
pub mod check;
pub mod engine;
pub mod fault;
pub mod file;
pub mod mapping;
pub mod memory;
pub mod space;
pub mod stage;
