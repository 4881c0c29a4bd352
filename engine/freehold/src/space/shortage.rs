//! The safe point of operations on address spaces: the one place where an operation that found no memory asks
//! the platform for help and is tried again (`shortage.rs` at the root of the crate has the rules). An
//! operation that found no free addresses waits here for the end of a closing range.
//!
//! Faults (`fault/mod.rs`), access to pages by other tasks (`remote/page.rs`), population
//! (`fault/populate.rs`), and the fills and moves of a userfaultfd call `again` in their loops. They keep the
//! pages that they have completed. mmap, brk, fork, pins and MADV_COLLAPSE repeat a whole attempt by
//! [`AddressSpace::retry_when_short`] or [`AddressSpace::retry_after`]. mprotect, munmap, mlock, mbind,
//! mseal, the advice that changes flags of VMAs, and the registration of a userfaultfd continue behind the
//! part that is done, because other tasks may have changed that part in the meantime. mremap is not repeated
//! after it has unmapped something.

use super::AddressSpace;
pub(crate) use crate::shortage::ShortageRounds;
use crate::{
    error::LacksMemory,
    platform::{PageOwner, Platform},
    shortage::MAX_ROUNDS,
};
use freehold_sync::rank;

impl ShortageRounds {
    /// Decides whether an operation on `space` is tried again after `error`, like [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// Fails with `error` if the operation is not tried again, or with `Killed` if a fatal signal is pending.
    ///
    /// # Panics
    ///
    /// With debug assertions, panics if the task holds a lock although memory was short.
    #[cold]
    #[inline(never)]
    pub fn again<P: Platform, E: LacksMemory>(&mut self, space: &AddressSpace<P>, error: E) -> Result<(), E> {
        if error.lacks_addresses() {
            return self.again_after_closing(space, error);
        }
        let owner = PageOwner::Space(space.vm.mmu());
        self.ask(space.platform(), owner, || space.engine.trim_own(), error)
    }

    /// Decides whether an operation that found no free addresses is tried again. Waits for the end of a
    /// closing range, because exec closes all addresses. If no range is closing, one may have ended since the
    /// operation searched, so the operation is tried once more.
    fn again_after_closing<P: Platform, E: LacksMemory>(
        &mut self,
        space: &AddressSpace<P>,
        error: E,
    ) -> Result<(), E> {
        rank::holds_none::<P>();
        if self.asked == MAX_ROUNDS || !space.wait_for_closing()? && self.asked > 0 {
            return Err(error);
        }
        self.asked += 1;
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Makes `attempt`, and repeats it while memory is short and the platform can make some free. A failed
    /// attempt leaves no lock held and nothing changed. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with the error of the last attempt, or with `Killed` if a fatal signal is pending.
    #[inline]
    pub(crate) fn retry_when_short<T, E: LacksMemory>(
        &self,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        self.retry_when_short_by(ShortageRounds::new(), attempt)
    }

    /// Repeats `attempt` like [`retry_when_short`](Self::retry_when_short), after a first attempt that has
    /// failed with `error`. A caller for which instructions count makes its first attempt outside the loop.
    #[cold]
    #[inline(never)]
    pub(crate) fn retry_after<T, E: LacksMemory>(
        &self,
        error: E,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut rounds = ShortageRounds::new();
        rounds.again(self, error)?;
        self.retry_when_short_by(rounds, attempt)
    }

    /// Repeats `attempt` like [`retry_when_short`](Self::retry_when_short), with this counter of rounds.
    #[inline]
    pub(crate) fn retry_when_short_by<T, E: LacksMemory>(
        &self,
        mut rounds: ShortageRounds,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => rounds.again(self, error)?,
            }
        }
    }
}
