//! The engine behind a small interface in C's calling convention: 16 operations, on a platform whose services
//! are all external functions. `cargo xtask size` measures the code of this library; nothing calls it.
#![no_std]
#![deny(unsafe_code)]

mod kernel;
