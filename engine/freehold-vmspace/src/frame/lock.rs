//! The lock of a frame: what the page in it is, and where it belongs, stays as it is (Linux: the folio lock).
//!
//! Tasks that move a page, or take it away everywhere, hold it; faults meet it only at a page that is being
//! moved.

use crate::{Memory, Pfn, platform::Platform};
use freehold_sync::{Killed, Rank, WordGuard};

#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Locks a frame to which the caller has a reference, for as long as the guard lives.
    pub fn lock_frame(&self, pfn: Pfn) -> WordGuard<'_, P> {
        self.platform().frame(pfn).lock.lock(Rank::Folio)
    }

    /// Locks the frame that a page is about to move into, beside that of [`lock_frame`](Self::lock_frame):
    /// a task that finds the page there before the move is over waits for its end.
    pub fn lock_new_frame(&self, pfn: Pfn) -> WordGuard<'_, P> {
        self.platform().frame(pfn).lock.lock(Rank::FolioNested)
    }

    /// Locks a frame if nobody has it locked; for a task that holds the lock of the table whose entry keeps
    /// it, or is in a read section.
    pub fn try_lock_frame(&self, pfn: Pfn) -> Option<WordGuard<'_, P>> {
        self.platform().frame(pfn).lock.try_lock(Rank::Folio)
    }

    /// Waits until the holder of the frame's lock has released it. The caller holds no lock. The frame may be
    /// another page's by now, and the wait in vain.
    ///
    /// # Errors
    ///
    /// A fatal signal ended the wait.
    pub fn wait_for_frame(&self, pfn: Pfn) -> Result<(), Killed> {
        self.platform().frame(pfn).lock.wait_killable::<P>(Rank::Folio)
    }

    /// As [`wait_for_frame`](Self::wait_for_frame), for a task that cannot give up, because it settles what
    /// has happened already.
    pub fn wait_out_frame(&self, pfn: Pfn) {
        self.platform().frame(pfn).lock.wait::<P>(Rank::Folio);
    }
}
