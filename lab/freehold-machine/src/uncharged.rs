//! Operations that a simulation charges time for. Outside a simulation they take real time, so these
//! functions do nothing.

use freehold_pagetable::Pfn;

/// Charges the entry into the kernel and the return from it on a page fault.
#[inline(always)]
pub(crate) fn trap() {}

/// Charges the zeroing of frames.
#[inline(always)]
pub(crate) fn zeroed(_frames: u64) {}

/// Charges the copying of frames.
#[inline(always)]
pub(crate) fn copied(_frames: u64) {}

/// Per-CPU lists of free numbers in front of the shared list. This host has none.
#[derive(Debug)]
pub(crate) struct Lists;

impl Lists {
    pub(crate) fn new() -> Lists {
        Lists
    }

    #[inline(always)]
    pub(crate) fn take(&self, out: &mut [Pfn], refill: impl Fn(&mut [Pfn]) -> usize) -> usize {
        refill(out)
    }

    #[inline(always)]
    pub(crate) fn give(&self, numbers: &[Pfn], spill: impl Fn(&[Pfn])) {
        spill(numbers);
    }
}

/// Charges the interrupts to other processors and their answers.
#[inline(always)]
pub(crate) fn interrupt<I: Iterator<Item = usize>>(_others: impl FnOnce() -> I) {}

/// Sets the number of processors. The number has no effect on this host.
#[inline(always)]
pub(crate) fn set_cpus(_cpus: usize) {}
