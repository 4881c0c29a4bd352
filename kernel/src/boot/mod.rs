//! From the start to all processors running.

pub mod madt;
pub mod smp;
pub mod start_info;

use core::arch::global_asm;

global_asm!(include_str!("boot.s"), options(att_syntax));
