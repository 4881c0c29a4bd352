//! The parts of the kernel that need no machine: the formats that it reads. The kernel itself is the binary
//! of this package; see its README.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod cpio;
pub mod input;
pub mod words;
