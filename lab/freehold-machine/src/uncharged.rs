//! What a simulation charges for, and what takes its time by itself elsewhere.

use freehold_pagetable::Pfn;

/// A page fault enters the kernel, and leaves it.
#[inline(always)]
pub(crate) fn trap() {}

/// So many frames were zeroed.
#[inline(always)]
pub(crate) fn zeroed(_frames: u64) {}

/// So many frames were copied.
#[inline(always)]
pub(crate) fn copied(_frames: u64) {}

/// Lists of free numbers for each processor, in front of the one that all share: none.
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

/// Other processors are interrupted, and have answered.
#[inline(always)]
pub(crate) fn interrupt<I: Iterator<Item = usize>>(_others: impl FnOnce() -> I) {}

/// How many processors there are makes no difference.
#[inline(always)]
pub(crate) fn set_cpus(_cpus: usize) {}
