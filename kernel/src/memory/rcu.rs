//! Grace periods: what a processor has read before its last quiescent state it does not use any more.

use crate::arch::cpu::MAX_CPUS;
use freehold_kit::{Qsbr, QsbrCpu};

/// Grace periods.
pub static RCU: Qsbr<MAX_CPUS> = Qsbr::new([const { QsbrCpu::new() }; MAX_CPUS]);
