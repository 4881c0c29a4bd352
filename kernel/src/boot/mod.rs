//! From the first instruction until all CPUs run: `boot.s` (entry of the first CPU), the list of CPUs from
//! the firmware, and the start of the other CPUs.

pub mod madt;
pub mod smp;

use crate::arch::layout::Tables;
use core::arch::global_asm;
use freehold::platform::Format;

global_asm!(".set LEVELS, {}", include_str!("boot.s"), const Tables::LEVELS, options(att_syntax));
