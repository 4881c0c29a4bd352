//! What a simulation charges for, and what takes its time by itself elsewhere.

/// A page fault enters the kernel, and leaves it.
#[inline(always)]
pub(crate) fn trap() {}

/// So many frames were zeroed.
#[inline(always)]
pub(crate) fn zeroed(_frames: u64) {}

/// So many frames were copied.
#[inline(always)]
pub(crate) fn copied(_frames: u64) {}

/// So many frames were taken.
#[inline(always)]
pub(crate) fn frames_taken(_frames: u64) {}

/// So many frames were given back.
#[inline(always)]
pub(crate) fn frames_given(_frames: u64) {}

/// Other processors are interrupted, and have answered.
#[inline(always)]
pub(crate) fn interrupt(_others: impl Iterator<Item = usize>) {}

/// How many processors there are makes no difference.
#[inline(always)]
pub(crate) fn set_cpus(_cpus: usize) {}
