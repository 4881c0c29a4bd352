//! Grace periods: the state of the quiescent-state RCU of `freehold-kit`. `sched/scheduler.rs` and
//! `sched/timers.rs` report quiescent states and run the deferred functions. `platform/mod.rs` implements
//! read sections and grace periods of the engine with this RCU. A CPU is in a quiescent state where no read
//! section can be open: at a switch, at a tick, and while it idles.
//!
//! loom tests the RCU (`tests/loom_kit/qsbr.rs` of `freehold-kit`).

use crate::arch::cpu::MAX_CPUS;
use freehold_kit::{Qsbr, QsbrCpu};

/// The grace periods of the kernel.
pub static RCU: Qsbr<MAX_CPUS> = Qsbr::new([const { QsbrCpu::new() }; MAX_CPUS]);
