//! What of the kernel needs no machine: formats that it reads. The kernel itself is the program of this
//! package; see its README.
#![no_std]
#![deny(unsafe_code)]

pub mod cpio;
pub mod words;
