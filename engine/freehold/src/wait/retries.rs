//! Loops that are as long as a user makes them: a fatal signal ends them.

use crate::platform::Platform;
use freehold_sync::{Killed, check_killed};

/// Rounds from one look for a signal to the next.
const PERIOD: u32 = 64;

/// Counts the rounds of a loop that begins again whenever others change what it looks at, or that goes over
/// as many pages or VMAs as its caller likes. The list of such loops is `docs/bounds.md`.
pub(crate) struct Rounds(u32);

impl Rounds {
    pub const fn new() -> Self {
        Rounds(0)
    }

    /// Another one begins; the caller holds no spin lock.
    ///
    /// # Errors
    ///
    /// A fatal signal is pending.
    #[inline]
    pub fn again<P: Platform>(&mut self) -> Result<(), Killed> {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(PERIOD) { check_killed::<P>() } else { Ok(()) }
    }
}
