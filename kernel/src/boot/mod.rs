//! From the first instruction until all CPUs run.

pub mod madt;
pub mod smp;

use crate::arch::layout::Tables;
use core::arch::global_asm;
use freehold::platform::Format;

global_asm!(".set LEVELS, {}", include_str!("boot.s"), const Tables::LEVELS, options(att_syntax));
