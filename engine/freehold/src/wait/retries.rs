//! Loops whose length a user controls. A fatal signal ends them.

use crate::platform::Platform;
use freehold_sync::{Killed, check_killed};

/// Number of rounds between two checks for a signal.
const PERIOD: u32 = 64;

/// Counts the rounds of a loop that starts again whenever other tasks change its data, or that processes as
/// many pages or VMAs as its caller chooses. `docs/reference/bounds.md` lists such loops.
pub(crate) struct Rounds(u32);

impl Rounds {
    pub const fn new() -> Self {
        Rounds(0)
    }

    /// Counts the next round, and checks for a fatal signal every [`PERIOD`] rounds. The caller holds no spin
    /// lock.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal is pending.
    #[inline]
    pub fn again<P: Platform>(&mut self) -> Result<(), Killed> {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(PERIOD) { check_killed::<P>() } else { Ok(()) }
    }
}
