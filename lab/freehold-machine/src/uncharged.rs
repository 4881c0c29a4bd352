//! Operations of the platform that a simulation charges virtual time for. These versions do nothing, because
//! outside a simulation the operations take real time.
//!
//! `host_std` and `host_shuttle` compile this file as a module; `host_sim` has its own versions in `mod.rs`
//! and `frames.rs`, with the same names and parameters. `machine.rs`, `cpu.rs`, `mmu.rs` and `pool.rs` call
//! the functions. Add a function here and in `host_sim` together.

/// Charges the entry into the kernel and the return from it on a page fault.
#[inline(always)]
pub(crate) fn trap() {}

/// Charges the zeroing of frames.
#[inline(always)]
pub(crate) fn zeroed(_frames: u64) {}

/// Charges the copying of frames.
#[inline(always)]
pub(crate) fn copied(_frames: u64) {}

/// Charges the interrupts to other processors and their answers.
#[inline(always)]
pub(crate) fn interrupt<I: Iterator<Item = usize>>(_others: impl FnOnce() -> I) {}

/// Sets the number of processors. The number has no effect on this host.
#[inline(always)]
pub(crate) fn set_cpus(_cpus: usize) {}
