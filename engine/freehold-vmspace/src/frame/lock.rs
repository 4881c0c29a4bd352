//! The lock of a frame (Linux: the folio lock). While the lock is held, the page in the frame, and the place
//! of the page in its file or address space, do not change.
//!
//! A task holds the lock while it moves a page or unmaps the page everywhere. A fault waits for the lock only
//! if the page is being moved or its memory is failing. A task locks two frames only in a move of an
//! anonymous page: first the frame of the page, then the new frame.
//! `word_lock.rs` of `freehold-sync` has the protocol of the lock word.

use crate::{Memory, Pfn, platform::Platform};
use freehold_sync::{Killed, Rank, WordGuard};

/// Frame locks, for the crate `freehold`, whose rules determine which tasks may lock a frame or wait for it.
#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Locks a frame until the guard is dropped. The caller has a reference to the frame during that time.
    pub fn lock_frame(&self, pfn: Pfn) -> WordGuard<'_, P> {
        self.platform().frame(pfn).lock.lock(Rank::Folio)
    }

    /// Locks the frame that a page is about to move into. The caller has already locked the page's own frame
    /// by [`lock_frame`](Self::lock_frame). If a task finds the page there during the move, the task waits
    /// until the move has finished.
    pub fn lock_new_frame(&self, pfn: Pfn) -> WordGuard<'_, P> {
        self.platform().frame(pfn).lock.lock(Rank::FolioNested)
    }

    /// Locks a frame if it is not locked. The caller holds the lock of a table whose entry keeps the frame,
    /// or is in a read section.
    pub fn try_lock_frame(&self, pfn: Pfn) -> Option<WordGuard<'_, P>> {
        self.platform().frame(pfn).lock.try_lock(Rank::Folio)
    }

    /// Waits until the holder of the frame's lock releases it. The caller holds no lock. The frame may
    /// already hold another page, and then the wait was not necessary.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub fn wait_for_frame(&self, pfn: Pfn) -> Result<(), Killed> {
        self.platform().frame(pfn).lock.wait_killable::<P>(Rank::Folio)
    }

    /// Waits like [`wait_for_frame`](Self::wait_for_frame), but not killably, for a caller that cannot fail.
    pub fn wait_out_frame(&self, pfn: Pfn) {
        self.platform().frame(pfn).lock.wait::<P>(Rank::Folio);
    }
}
