//! Tests of the calls, as a kernel in C makes them, on a kernel of threads ([`kernel`]).
//!
//! All tests share one kernel, because a process can call `fh_init` once. Tests that need little memory take
//! it from the thread that makes the calls ([`kernel::with_frames`]). `tests/c.rs` has the tests of the
//! static library.
#![expect(unsafe_code, reason = "calls functions in C's calling convention")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "all calls keep the rules at the head of the header")]

mod contents;
mod files;
#[allow(dead_code, reason = "other tests share the module")]
mod kernel;
mod mappings;
mod shortage;
mod stages;
mod threads;
