//! The hardest parts of a platform of `freehold`, for kernels that do not have them yet: grace periods, and
//! flushes of the TLBs of other CPUs.
//!
//! | module | implements | the kernel provides |
//! | --- | --- | --- |
//! | [`qsbr`] | `Host::rcu_read`, `rcu_defer`, `rcu_barrier` | a call at each context switch or tick, and calls around idling |
//! | [`shootdown`] | `Platform::flush`, `runs_elsewhere`, `space_ending` | a call around each switch of address spaces, an interrupt to another CPU, and an instruction that flushes |
//!
//! Both parts are plain memory without allocation, threads or clocks; a kernel keeps one value of each in a
//! `static`. The comment at every atomic access names the access that it pairs with. loom checks the
//! protocols over every interleaving (`tests/loom_kit`). `examples/embedding` of the repository, and of the
//! package `freehold`, uses both modules. [`mask`] defines the sets of CPUs that [`shootdown`] uses. A
//! further part of a platform gets a module here, a row in the table above, and a module in `tests/loom_kit`.
//! `cargo xtask loom` runs these tests.
#![no_std]
#![deny(unsafe_code)]

pub mod mask;
pub mod qsbr;
pub mod shootdown;

pub use mask::{CpuMask, MAX_CPUS};
pub use qsbr::{Qsbr, QsbrCpu};
pub use shootdown::{CONTEXTS, Load, Processors, ShootCpu, Shootdown, SpaceCpus};
