//! Counting the rounds in which an operation that found no memory asks the platform for help.
//!
//! An operation makes an attempt under its locks. If the attempt finds no memory, it releases all locks and
//! undoes what it has prepared, as for a final failure. The operation then calls [`ShortageRounds::ask`], at
//! its *safe point*, and makes another attempt if the result is `Ok`. Each attempt looks everything up again.
//!
//! - The task holds no lock, claim or read section at the safe point. `ask` checks the lock ranks; a range
//!   writer has the rank of the mmap lock.
//! - A failed attempt has changed nothing that another task could see, or the next attempt continues behind
//!   the change. This is the task of the callers.
//! - An operation ends, whatever the platform answers: it asks at most [`MAX_ROUNDS`] times between two steps
//!   of progress, and a fatal signal ends it.
//!
//! | operations | safe point |
//! | --- | --- |
//! | of address spaces | `space/shortage.rs` |
//! | of files: reads, writes, fills, truncation, holes | `file/shortage.rs` |
//! | of spaces without an MMU | `nommu/mod.rs` |
//! | that create an address space or a file | [`create`] |
//! | of the engine: moves of pages, sizes of pools | `rmap/migrate.rs`, `hugetlb/pools.rs` |
//!
//! A new operation that allocates calls one of these after it has released its locks. The tests are those of
//! `tests/shortage.rs`, `tests/sweep/retried.rs` and `shuttle_engine/shortage.rs`.

use crate::{
    error::{LacksMemory, NoMemory},
    platform::{MemoryShortage, PageOwner, Platform, ShortageAnswer},
};
use freehold_sync::{Killed, check_killed, rank};

/// Number of times that the platform is asked, or that closing ranges are waited for, before an operation
/// fails that makes no progress. The number is that of Linux, which also gives up after 16 rounds of reclaim
/// without progress.
pub(crate) const MAX_ROUNDS: u32 = 16;

/// The rounds of one operation that memory is short for.
pub(crate) struct ShortageRounds {
    /// Order of the block that the operation needs.
    order: u32,
    /// Number of times that the platform was asked, or that the operation was tried again for want of
    /// addresses, since the last progress.
    pub(crate) asked: u32,
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

    /// Decides whether an operation for `owner` is tried again after `error`. If memory was short, first
    /// calls `trim`, which empties the engine's caches of this CPU and returns true if frames became free.
    /// Then asks the platform. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with `error` if the operation is not tried again, or with `Killed` if a fatal signal is pending.
    ///
    /// # Panics
    ///
    /// With debug assertions, panics if the task holds a lock although memory was short.
    pub fn ask<P: Platform, E: LacksMemory>(
        &mut self,
        platform: &P,
        owner: PageOwner<'_, P::Mmu>,
        trim: impl FnOnce() -> bool,
        error: E,
    ) -> Result<(), E> {
        if !error.lacks_memory() {
            return Err(error);
        }
        rank::holds_none::<P>();
        // Frames that the last round freed may be in the cache of this CPU, where no page table and no block
        // can use them.
        if trim() && !self.trimmed {
            self.trimmed = true;
            return Ok(());
        }
        let shortage = MemoryShortage { owner, order: self.order, round: self.asked };
        if self.asked == MAX_ROUNDS || platform.memory_short(&shortage) == ShortageAnswer::Fail {
            return Err(error);
        }
        (self.asked, self.trimmed) = (self.asked + 1, false);
        Ok(check_killed::<P>()?)
    }
}

/// Error of an attempt to create an object. A fatal signal ends the attempts like a final lack of memory,
/// because a creation waits for nothing else.
struct NotCreated;

impl From<Killed> for NotCreated {
    fn from(_: Killed) -> Self {
        NotCreated
    }
}

impl LacksMemory for NotCreated {
    fn lacks_memory(&self) -> bool {
        true
    }
}

impl ShortageRounds {
    /// Decides whether an attempt that found no memory is made again, like [`ask`](Self::ask), for an
    /// operation that no signal interrupts otherwise.
    ///
    /// # Errors
    ///
    /// Fails if no attempt is made, also because a fatal signal is pending.
    #[cold]
    #[inline(never)]
    pub fn ask_unkillable<P: Platform>(
        &mut self,
        platform: &P,
        owner: PageOwner<'_, P::Mmu>,
        trim: impl FnOnce() -> bool,
    ) -> Result<(), NoMemory> {
        self.ask(platform, owner, trim, NotCreated).map_err(|NotCreated| NoMemory)
    }
}

/// Makes `attempt` to allocate what a new object needs, and repeats it while memory is short and the platform
/// can make some free. `trim` is that of [`ShortageRounds::ask`]. The caller holds no lock.
///
/// # Errors
///
/// Fails if there is no memory.
pub(crate) fn create<P: Platform, T>(
    platform: &P,
    trim: impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<T, NoMemory>,
) -> Result<T, NoMemory> {
    let mut rounds = ShortageRounds::new();
    loop {
        match attempt() {
            Ok(made) => return Ok(made),
            Err(NoMemory) => rounds.ask_unkillable(platform, PageOwner::Caller, &trim)?,
        }
    }
}
