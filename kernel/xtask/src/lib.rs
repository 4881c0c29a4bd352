//! The kernel's chores: its build, boots under QEMU, its tests and measurements. `cargo xtask boot` and
//! `cargo xtask kernel-tests` run them through the command in `main.rs`.
#![deny(unsafe_code)]

pub mod boot;
pub mod kernel_bench;
pub mod kernel_tests;
