//! The parts of the kernel that need no machine: the formats of its command line (`words.rs`), its archive
//! (`cpio.rs`) and its console input (`input.rs`). They contain no unsafe code and touch no device, so their
//! unit tests run on any host. The kernel itself is the binary of this package (`main.rs`). Code that
//! interprets bytes and needs neither a device nor a lock belongs here;
//! `cargo test --package freehold-kernel` tests it.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod cpio;
pub mod input;
pub mod words;
