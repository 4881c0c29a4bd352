//! The chores of the kernel: its build, boots under QEMU, its tests and measurements. `cargo xtask boot` and
//! `cargo xtask kernel-tests` run them; the command is `main.rs`.
#![deny(unsafe_code)]

pub mod boot;
pub mod kernel_bench;
pub mod kernel_tests;
