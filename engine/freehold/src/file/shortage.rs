//! The safe point of operations on files (`shortage.rs` at the root of the crate has the rules).
//!
//! Reads, writes, fills, truncation, holes, and the addition and removal of probes ask here. Faults on files,
//! and all other operations of an address space, bring pages into the cache by `try_fill` and ask at the safe
//! point of the space. `read_ahead` and `start_read` of optional pages do not ask. The creation of a file
//! asks on behalf of the calling task ([`Files::allocate`](super::Files::allocate)), if no lock is held.

use super::{FillError, Mapping};
use crate::{
    error::LacksMemory,
    platform::{PageOwner, Platform},
    shortage::ShortageRounds,
};

impl LacksMemory for FillError {
    fn lacks_memory(&self) -> bool {
        *self == FillError::NoMemory
    }
}

impl<P: Platform> Mapping<P> {
    /// Decides whether an operation on this file is tried again after `error`. If memory was short, asks the
    /// platform. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with `error` if the operation is not tried again, or with `Killed` if a fatal signal is pending.
    #[cold]
    #[inline(never)]
    pub(in crate::file) fn again_when_short<E: LacksMemory>(
        &self,
        rounds: &mut ShortageRounds,
        error: E,
    ) -> Result<(), E> {
        let owner = PageOwner::File(self.file_id());
        rounds.ask(self.files().platform(), owner, || self.files().memory().trim(), error)
    }

    /// Makes `attempt`, and repeats it while memory is short and the platform can make some free. A failed
    /// attempt leaves no lock held and nothing changed. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with the error of the last attempt, or with `Killed` if a fatal signal is pending.
    #[inline]
    pub(crate) fn retry_when_short<T, E: LacksMemory>(
        &self,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut rounds = ShortageRounds::new();
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => self.again_when_short(&mut rounds, error)?,
            }
        }
    }
}
