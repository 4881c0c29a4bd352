//! The conformance suite (`freehold_kit::conformance`) on the formats of this repository and on the machine,
//! and on formats and platforms with one mistake each: `cargo test --package freehold-machine-tests --test
//! conformance`.
//!
//! The suite must accept what is right and name what is wrong. `formats.rs` has all formats, and
//! `wrong_formats.rs` wraps a format and breaks one function of it. `machine.rs` has the machine,
//! `wrong_platforms.rs` wraps it and breaks one function of it, and `threads.rs` is the kernel around both.

mod formats;
mod machine;
mod threads;
mod wrong_formats;
mod wrong_platforms;
