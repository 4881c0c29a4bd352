//! Iteration over the VMAs of a range in order of address, while the caller may change the set of VMAs.
//!
//! mprotect, mlock, mseal, msync, mbind, mincore, madvise and population walk their range with `VmaRanges`,
//! under the mmap lock for reading (`ReadGuard`) or with the right of a writer (`WriteGuard`). Each step
//! looks up the tree again from the end of the last part, so a split or merge by the caller cannot skip or
//! repeat addresses. The treatment of holes decides which error a call returns, and must be Linux's; cases
//! such as `holes.txt` (`lab/freehold-model/cases`) compare it.

use crate::space::locking::{ReadGuard, WriteGuard};
use crate::{platform::Platform, vma::Vma};
use freehold_vmspace::UserRange;

/// Treatment of addresses in the range where nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolePolicy {
    /// Skips holes.
    Skip,
    /// Stops at the first hole.
    Stop,
}

/// Largest part of a VMA that [`VmaRanges::next_part`] returns, in bytes. A multiple of the size of a huge
/// page, so that no huge page is split at the edge.
const PART_BYTES: u64 = 1 << 30;

/// A guard that returns VMAs in order of address.
pub(crate) trait VmaRanges<P: Platform> {
    /// Returns the first VMA that ends above `addr`.
    fn above(&self, addr: u64) -> Option<&Vma<P>>;

    /// Returns the first VMA that overlaps `range`, and the part of the VMA inside the range.
    #[cfg_attr(feature = "inline", inline(always))]
    fn first_range(&self, range: UserRange) -> Option<(&Vma<P>, UserRange)> {
        let vma = self.above(range.start()).filter(|vma| vma.start() < range.end())?;
        Some((vma, UserRange::new(range.start().max(vma.start()), range.end().min(vma.end()))))
    }

    /// Returns the first VMA that ends above `addr`, and its part from `addr` to the next multiple of 1 GiB.
    /// For walks of a whole space that hold a lock for one part at a time.
    fn next_part(&self, addr: u64) -> Option<(&Vma<P>, UserRange)> {
        let vma = self.above(addr)?;
        let start = addr.max(vma.start());
        Some((vma, UserRange::new(start, vma.end().min((start / PART_BYTES + 1) * PART_BYTES))))
    }

    /// Returns true if a part of `range` is not mapped.
    fn has_hole(&self, mut range: UserRange) -> bool {
        while !range.is_empty() {
            match self.first_range(range) {
                Some((_, part)) if part.start() == range.start() => {
                    P::cond_resched();
                    range = range.with_start(part.end());
                }
                _ => return true,
            }
        }
        false
    }

    /// Calls `f` with each VMA in `range` and the part of the VMA inside `range`. `f` may split that VMA and
    /// merge it with its neighbours. Returns true if there was no hole.
    ///
    /// # Errors
    ///
    /// Fails with the first error of `f`. The later VMAs are then not visited.
    fn for_each_vma_range<'g, E>(
        &'g self,
        mut range: UserRange,
        holes: HolePolicy,
        mut f: impl FnMut(&'g Vma<P>, UserRange) -> Result<(), E>,
    ) -> Result<bool, E>
    where
        P: 'g,
    {
        let mut whole = true;
        while range.start() < range.end() {
            let Some((vma, part)) = self.first_range(range) else { return Ok(false) };
            if part.start() > range.start() {
                whole = false;
                if holes == HolePolicy::Stop {
                    break;
                }
            }
            range = range.with_start(part.end());
            P::cond_resched();
            f(vma, part)?;
        }
        Ok(whole)
    }
}

impl<P: Platform> VmaRanges<P> for ReadGuard<'_, P> {
    fn above(&self, addr: u64) -> Option<&Vma<P>> {
        self.next(addr)
    }
}

impl<P: Platform> VmaRanges<P> for WriteGuard<'_, P> {
    #[cfg_attr(feature = "inline", inline(always))]
    fn above(&self, addr: u64) -> Option<&Vma<P>> {
        self.next(addr)
    }
}
