//! Free numbers of each CPU: this host has none, so that the checker of schedules explores no lists of the
//! machine.

use freehold_pagetable::Pfn;

/// The free lists of a pool: none.
#[derive(Debug)]
pub(crate) struct Lists;

impl Lists {
    pub(crate) fn new(_oracles: bool) -> Lists {
        Lists
    }

    /// Takes numbers from the shared list with `refill`.
    #[inline(always)]
    pub(crate) fn take(&self, out: &mut [Pfn], refill: impl Fn(&mut [Pfn]) -> usize) -> usize {
        refill(out)
    }

    /// Returns numbers to the shared list with `spill`.
    #[inline(always)]
    pub(crate) fn give(&self, numbers: &[Pfn], spill: impl Fn(&[Pfn])) {
        spill(numbers);
    }

    /// Returns false, because there are no lists.
    pub(crate) fn drain(&self, _spill: impl Fn(&[Pfn])) -> bool {
        false
    }
}
