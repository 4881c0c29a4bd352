//! The part of the boot that differs between CPUs. `boot.s` is the entry of all CPUs: the boot protocol PVH
//! starts the first CPU there, and a start-up interrupt starts each other CPU there. [`madt`] lists the CPUs
//! that the firmware reports, and [`smp`] starts them. The first CPU continues in `start.rs`.
//!
//! `boot.s` also contains the kernel's own page tables: the direct map of the first 4 GiB, the tables of the
//! kernel stacks, the kernel's image, and an identity map that `memory::forget_low_memory` removes.

pub mod madt;
pub mod smp;

use crate::arch::layout::Tables;
use core::arch::global_asm;
use freehold::platform::Format;

global_asm!(".set LEVELS, {}", include_str!("boot.s"), const Tables::LEVELS, options(att_syntax));
