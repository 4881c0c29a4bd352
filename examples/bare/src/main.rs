//! The smallest kernel that runs a program in user mode on an address space of the engine, for riscv64 and
//! aarch64. `cargo xtask bare` builds and runs it in QEMU, on two emulated CPUs. The commands that build it
//! are in `xtask/src/bare.rs`.
//!
//! | file | contents |
//! | --- | --- |
//! | `memory.rs`, `lock.rs` | frames, their records, and the heap; a spin lock |
//! | `platform.rs` | the traits that the engine needs |
//! | `task.rs` | processes and threads, their system calls and faults |
//! | `conformance.rs` | the run of the suite of `freehold-kit` at the start |
//! | `riscv64/`, `aarch64/` | the boot, the entry to user mode, TLBs |
//! | `bin/program.rs` | the program, which tests its memory; linked separately (`program.ld`) |
//!
//! The kernel is not preemptive. Each CPU takes a task from the queue and runs it until the task ends or
//! waits. When no task is left, the kernel destroys the engine, and compares the number of free frames with
//! the number at the start.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![deny(unsafe_code)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
#[path = "aarch64/mod.rs"]
mod arch;
#[cfg(all(target_os = "none", target_arch = "riscv64"))]
#[path = "riscv64/mod.rs"]
mod arch;
#[cfg(target_os = "none")]
mod conformance;
#[cfg(target_os = "none")]
mod lock;
#[cfg(target_os = "none")]
mod memory;
#[cfg(target_os = "none")]
mod platform;
#[cfg(target_os = "none")]
mod start;
#[cfg(target_os = "none")]
mod task;

#[cfg(target_os = "none")]
use {platform::Board, start::*};

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This kernel runs on bare metal: cargo xtask bare");
}
