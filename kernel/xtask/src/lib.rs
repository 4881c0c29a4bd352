//! Builds the kernel, boots it under QEMU, and runs its tests and measurements. `cargo xtask boot` and
//! `cargo xtask kernel-tests` use the library through the command in `main.rs`. The library exists so that
//! tests can use the modules; it runs on the host and shares no code with the kernel. `kernel/PROTOCOL.md`
//! describes everything on which library and kernel must agree.
#![deny(unsafe_code)]

pub mod boot;
pub mod kernel_bench;
pub mod kernel_tests;
