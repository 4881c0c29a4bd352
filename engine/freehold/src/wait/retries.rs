//! `Rounds` ends a loop whose length a user controls, if a fatal signal arrives.
//!
//! If a caller or other tasks determine the number of rounds (pages, VMAs or attempts), the loop calls
//! `Rounds::again` in each round. The exceptions are loops for which `docs/reference/bounds.md` names another
//! bound; that page lists all loops of this kind. The tests of `every_call::hostile`
//! (`engine/freehold/tests`) fail if a loop does not end after a fatal signal.

use crate::platform::Platform;
use freehold_sync::{Killed, check_killed};

/// Number of rounds between two checks for a signal.
const PERIOD: u32 = 64;

/// A counter of the rounds of a loop. The loop starts again whenever other tasks change its data, or
/// processes as many pages or VMAs as its caller chooses.
pub(crate) struct Rounds(u32);

impl Rounds {
    /// Creates a counter for a loop that is about to start.
    pub const fn new() -> Self {
        Rounds(0)
    }

    /// Counts the next round, lets other tasks run if it is time, and checks for a fatal signal every
    /// [`PERIOD`] rounds. The caller holds no spin lock.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal is pending.
    #[inline]
    pub fn again<P: Platform>(&mut self) -> Result<(), Killed> {
        P::cond_resched();
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(PERIOD) { check_killed::<P>() } else { Ok(()) }
    }
}
