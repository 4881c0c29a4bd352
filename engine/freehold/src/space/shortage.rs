//! The safe point: the one place where an operation that found no memory asks the platform for help and is
//! tried again. An operation that found no free addresses waits here for the end of a closing range.
//!
//! An operation makes an attempt under its locks. If the attempt finds no memory, it releases all locks and
//! undoes what it has prepared, as for a final failure. The operation then calls [`ShortageRounds::again`],
//! and makes another attempt if the result is `Ok`. Each attempt looks everything up again.
//!
//! - The task holds no lock, claim or read section at the safe point. `again` checks the lock ranks; a range
//!   writer has the rank of the mmap lock.
//! - A failed attempt has changed nothing that another task could see, or the next attempt continues behind
//!   the change. This is the task of the callers, listed below.
//! - An operation ends, whatever the platform answers: it asks at most [`MAX_ROUNDS`] times between two steps
//!   of progress, and a fatal signal ends it.
//!
//! Faults (`fault/mod.rs`), access to pages by other tasks (`remote/page.rs`), population
//! (`fault/populate.rs`), and the fills and moves of a userfaultfd call `again` in their loops. They keep the
//! pages that they have completed. mmap, brk, fork, pins and MADV_COLLAPSE repeat a whole attempt by
//! [`AddressSpace::retry_when_short`]. mprotect, munmap, mlock, mbind, mseal, and the advice that changes
//! flags of VMAs continue behind the part that is done, because other tasks may have changed that part in the
//! meantime. mremap is not repeated after it has unmapped something.
//!
//! A new operation that allocates calls one of the two functions after it has released its locks. The tests
//! are those of `tests/shortage.rs`, `tests/sweep/retried.rs` and `shuttle_engine/shortage.rs`.

use super::AddressSpace;
use crate::{
    error::LacksMemory,
    platform::{MemoryShortage, Platform, ShortageAnswer},
};
use freehold_sync::{check_killed, rank};

/// Number of times that the platform is asked, or that closing ranges are waited for, before an operation
/// fails that makes no progress. The number is that of Linux, which also gives up after 16 rounds of reclaim
/// without progress.
const MAX_ROUNDS: u32 = 16;

/// The rounds of one operation that memory is short for.
pub(crate) struct ShortageRounds {
    /// Order of the block that the operation needs.
    order: u32,
    /// Number of times that the platform was asked, or that the operation was tried again for want of
    /// addresses, since the last progress.
    asked: u32,
    /// True if the caches were emptied since the platform was last asked.
    trimmed: bool,
}

impl ShortageRounds {
    /// Creates a counter for an operation that needs single frames, page tables or records.
    #[inline]
    pub const fn new() -> Self {
        Self::of_order(0)
    }

    /// Creates a counter for an operation that needs a block of 2 to the power of `order` frames.
    #[inline]
    pub const fn of_order(order: u32) -> Self {
        ShortageRounds { order, asked: 0, trimmed: false }
    }

    /// Records that the operation has completed a part, such as a page.
    #[inline]
    pub const fn progressed(&mut self) {
        *self = Self::of_order(self.order);
    }

    /// Decides whether an operation on `space` is tried again after `error`. If memory was short, first
    /// empties the engine's caches of this CPU, and then asks the platform. The caller holds no lock.
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
        if !error.lacks_memory() {
            return Err(error);
        }
        rank::holds_none::<P>();
        // Frames that the last round freed may be in the cache of this CPU, where no page table and no block
        // can use them.
        if space.engine.trim_own() && !self.trimmed {
            self.trimmed = true;
            return Ok(());
        }
        let shortage = MemoryShortage { space: space.vm.mmu(), order: self.order, round: self.asked };
        if self.asked == MAX_ROUNDS || space.platform().memory_short(&shortage) == ShortageAnswer::Fail {
            return Err(error);
        }
        (self.asked, self.trimmed) = (self.asked + 1, false);
        Ok(check_killed::<P>()?)
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
