//! The invalidate lock of a file ([`Invalidate`]), under which pages enter and leave the file's cache, and
//! the number of pages in the cache.
//!
//! The lock comes after the content lock and before the i_mmap lock. Pagers discard pages and name frames of
//! storage under the lock, so a wait for the lock may be long. No page is read or written under the lock.
//! A fault therefore waits killably and with no lock of an address space. Code that adds or removes a page
//! must also change the number: `Mapping::check` recounts the pages, and `tests/files/page_counts.rs` calls
//! it.

use crate::platform::Platform;
use core::ops::Deref;
use freehold_sync::{
    Rank, RwSem,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A file's invalidate lock. Held for reading while a page enters the cache or its read begins, for writing
/// while pages leave.
///
/// The number of pages shares a cache line with the lock word, which a task that adds a page has just
/// written. A fault that finds its page in the cache accesses neither the number nor the lock.
#[repr(C, align(64))]
pub(crate) struct Invalidate<P: Platform> {
    lock: RwSem<P>,
    /// Number of pages that the cache holds, including pages that are being read. Changes together with the
    /// words of the pages, in the same hold of the lock, with one exception: a read that fails uncounts its
    /// page without the lock. The number is therefore exact while no task holds the lock and no read fails.
    /// All accesses are Relaxed, because no other data depends on the number.
    pages: AtomicU64,
}

impl<P: Platform> Invalidate<P> {
    pub fn new() -> Self {
        Invalidate { lock: RwSem::new(Rank::Invalidate), pages: AtomicU64::new(0) }
    }

    /// Counts pages that entered the cache. The caller holds the lock.
    pub fn came(&self, pages: u64) {
        self.pages.fetch_add(pages, Relaxed);
    }

    /// Uncounts pages that left the cache, or whose read has failed.
    pub fn went(&self, pages: u64) {
        self.pages.fetch_sub(pages, Relaxed);
    }

    /// Returns the number of pages in the cache.
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
