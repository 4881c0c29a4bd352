//! The hardest parts of a platform of `freehold`, for kernels that have nothing of the kind yet: grace
//! periods, and flushes of other processors' TLBs.
//!
//! | module | serves | asks of the kernel |
//! | --- | --- | --- |
//! | [`qsbr`] | `Host::rcu_read`, `rcu_defer`, `rcu_barrier` | a call at each context switch or tick, and around idling |
//! | [`shootdown`] | `Platform::flush`, `runs_elsewhere`, `space_ending` | a call around each switch of address spaces, an interrupt to a processor, and an instruction that flushes |
//!
//! Both are plain memory: no allocation, no thread, no clock; a kernel keeps one of each in a `static`. Every
//! atomic access names its partner, and loom checks the protocols over every interleaving (`tests/loom_kit`).
//! `examples/embedding` is built on both.
#![no_std]
#![deny(unsafe_code)]

pub mod mask;
pub mod qsbr;
pub mod shootdown;

pub use mask::{CpuMask, MAX_CPUS};
pub use qsbr::{Qsbr, QsbrCpu};
pub use shootdown::{CONTEXTS, Load, Processors, ShootCpu, Shootdown, SpaceCpus};
