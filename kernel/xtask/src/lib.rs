//! The kernel's chores: its build, boots under QEMU, its tests and measurements. `cargo xtask boot` and
//! `cargo xtask kernel-tests` run them through the command in `main.rs`. The library exists so that tests can
//! use the modules; it runs on the host and shares no code with the kernel. `kernel/PROTOCOL.md` describes
//! everything on which the two must agree.
#![deny(unsafe_code)]

pub mod boot;
pub mod kernel_bench;
pub mod kernel_tests;
