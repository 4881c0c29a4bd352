//! Grace periods.

use crate::arch::cpu::MAX_CPUS;
use freehold_kit::{Qsbr, QsbrCpu};

/// The grace periods of the kernel.
pub static RCU: Qsbr<MAX_CPUS> = Qsbr::new([const { QsbrCpu::new() }; MAX_CPUS]);
