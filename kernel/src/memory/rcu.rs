//! Grace periods: the state of `freehold-kit`'s quiescent-state RCU. The scheduler reports quiescent states,
//! and `platform/mod.rs` implements read sections and deferred functions with it.

use crate::arch::cpu::MAX_CPUS;
use freehold_kit::{Qsbr, QsbrCpu};

/// The grace periods of the kernel.
pub static RCU: Qsbr<MAX_CPUS> = Qsbr::new([const { QsbrCpu::new() }; MAX_CPUS]);
