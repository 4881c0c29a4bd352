//! Going over a range VMA by VMA, left to right, while the set of VMAs may change under way.

use crate::space::locking::{ReadGuard, WriteGuard};
use crate::{platform::Platform, vma::Vma};
use freehold_vmspace::UserRange;

/// What a call does about addresses where nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolePolicy {
    /// Goes on behind them.
    Skip,
    /// Ends there.
    Stop,
}

/// A guard that shows VMAs in order.
pub(crate) trait VmaRanges<P: Platform> {
    /// The first VMA that ends above `addr`.
    fn above(&self, addr: u64) -> Option<&Vma<P>>;

    /// The first VMA that overlaps `range`, and the part of it inside.
    #[inline(always)]
    fn first_range(&self, range: UserRange) -> Option<(&Vma<P>, UserRange)> {
        let vma = self.above(range.start()).filter(|vma| vma.start() < range.end())?;
        Some((vma, UserRange::new(range.start().max(vma.start()), range.end().min(vma.end()))))
    }

    /// Whether something in `range` is not mapped.
    fn has_hole(&self, mut range: UserRange) -> bool {
        while !range.is_empty() {
            match self.first_range(range) {
                Some((_, part)) if part.start() == range.start() => range = range.with_start(part.end()),
                _ => return true,
            }
        }
        false
    }

    /// Calls `f` with each VMA in `range` and the part of it inside; `f` may cut and merge that VMA, and join
    /// it to its neighbours, which is why each step looks up what now lies behind the part before.
    /// Returns whether there was no hole.
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
    #[inline(always)]
    fn above(&self, addr: u64) -> Option<&Vma<P>> {
        self.next(addr)
    }
}
