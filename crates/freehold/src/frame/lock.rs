//! The lock of a frame: what the page in it is, and where it belongs, stays as it is (Linux: the folio lock).
//!
//! Taken by who moves a page or takes it away from all who have it; faults meet it only at a page that is being moved.

use super::Frame;
use crate::{Pfn, engine::Engine, platform::Platform};
use freehold_sync::{
    Rank,
    atomic::Ordering::{Acquire, Relaxed, Release},
    rank,
};

const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and somebody sleeps.
const WANTED: u32 = 2;

/// A locked frame.
pub(crate) struct FrameGuard<'e, P: Platform> {
    engine: &'e Engine<P>,
    pfn: Pfn,
}

impl<P: Platform> Engine<P> {
    /// Locks a frame to which the caller has a reference, for as long as the guard lives.
    pub(crate) fn lock_frame(&self, pfn: Pfn) -> FrameGuard<'_, P> {
        let frame = self.platform().frame(pfn);
        rank::will_wait::<P>(Rank::Folio);
        // Acquire pairs with the release of the one before.
        if frame.lock.compare_exchange(FREE, LOCKED, Acquire, Relaxed).is_err() {
            while frame.lock.swap(WANTED, Acquire) != FREE {
                P::wait(&frame.lock, WANTED);
            }
        }
        rank::acquired::<P>(Rank::Folio);
        FrameGuard { engine: self, pfn }
    }

    /// Waits until whoever has the frame locked is done with it. The caller holds no lock; the frame may be another page's by
    /// now, and the wait in vain.
    pub(crate) fn wait_for_frame(&self, pfn: Pfn) {
        rank::will_wait::<P>(Rank::Folio);
        let frame: &Frame = self.platform().frame(pfn);
        loop {
            // Acquire: who waited sees what was done.
            let seen = frame.lock.load(Acquire);
            if seen == FREE {
                return;
            }
            // Relaxed: nothing but the sleep depends on it.
            if seen == WANTED || frame.lock.compare_exchange(LOCKED, WANTED, Relaxed, Relaxed).is_ok() {
                P::wait(&frame.lock, WANTED);
            }
        }
    }
}

impl<P: Platform> Drop for FrameGuard<'_, P> {
    fn drop(&mut self) {
        rank::released::<P>(Rank::Folio);
        let lock = &self.engine.platform().frame(self.pfn).lock;
        // Release pairs with the acquires above.
        if lock.swap(FREE, Release) == WANTED {
            P::wake_all(lock);
        }
    }
}
