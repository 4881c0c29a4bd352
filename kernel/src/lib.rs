//! What of the kernel needs no machine: formats that it reads. The kernel itself is the program of this
//! package; see its README.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod cpio;
pub mod input;
pub mod words;
