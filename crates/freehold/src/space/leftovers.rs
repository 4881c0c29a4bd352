//! What the steps of one call have unmapped, and what is retired when the lock is gone.

use super::unmap::Unmapped;
use crate::platform::Platform;

/// What goes once the lock is gone.
pub(crate) struct Leftovers<'s, P: Platform>(Option<Unmapped<'s, P>>);

impl<'s, P: Platform> Leftovers<'s, P> {
    /// Nothing yet.
    pub fn new() -> Self {
        Leftovers(None)
    }

    /// This, too.
    pub fn add(&mut self, unmapped: Unmapped<'s, P>) {
        self.0 = Some(match self.0.take() {
            Some(before) => before.join(unmapped),
            None => unmapped,
        });
    }

    /// Step 5 of all.
    pub fn retire(self) {
        if let Some(unmapped) = self.0 {
            unmapped.retire();
        }
    }
}
