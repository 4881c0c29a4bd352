//! A unikernel: one address space, whose program runs in kernel mode beside the kernel's own memory.
//!
//! `kernel.rs` has the memory calls of the kernel and its page fault. `tables.rs` has the kernel's page
//! tables, which exist before the engine. `README.md` explains both, and `main.rs` is a program.
#![deny(unsafe_code)]

mod kernel;
mod tables;

pub use kernel::{Kernel, PROGRAM};
pub use tables::KERNEL_WORD;
