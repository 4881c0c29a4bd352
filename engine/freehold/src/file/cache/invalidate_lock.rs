//! The lock under which pages come and go, and how many are there.

use crate::platform::Platform;
use core::ops::Deref;
use freehold_sync::{
    Rank, RwSem,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A file's invalidate lock. Held for reading while a page enters the cache, for writing while pages leave.
///
/// The count lies in the line of the lock's word, which a page that comes has just written; a fault that
/// finds its page touches neither.
#[repr(C, align(64))]
pub(crate) struct Invalidate<P: Platform> {
    lock: RwSem<P>,
    /// Pages that the cache holds. Changed under the lock, held as the page's word needs it; so it is exact
    /// where nobody has the lock. Relaxed throughout: a number.
    pages: AtomicU64,
}

impl<P: Platform> Invalidate<P> {
    pub fn new() -> Self {
        Invalidate { lock: RwSem::new(Rank::Invalidate), pages: AtomicU64::new(0) }
    }

    /// So many pages have come, under the lock.
    pub fn came(&self, pages: u64) {
        self.pages.fetch_add(pages, Relaxed);
    }

    /// So many pages have gone, under the lock.
    pub fn went(&self, pages: u64) {
        self.pages.fetch_sub(pages, Relaxed);
    }

    /// How many are there.
    pub fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }
}

impl<P: Platform> Deref for Invalidate<P> {
    type Target = RwSem<P>;

    fn deref(&self) -> &RwSem<P> {
        &self.lock
    }
}
