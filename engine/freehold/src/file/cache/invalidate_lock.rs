//! The invalidate lock of a file ([`Invalidate`]), under which pages enter and leave the file's cache, and
//! the number of pages in the cache.
//!
//! The lock comes after the content lock and before the i_mmap lock. No task waits for a pager under the
//! lock. But a removal zaps its pages under the lock, so a wait for the lock may be long, and a fault waits
//! killably and with no lock of an address space. Code that adds or removes a page must also change the
//! number: `Mapping::check` recounts the pages, and `tests/files/page_counts.rs` calls it.

use crate::platform::Platform;
use core::ops::Deref;
use freehold_sync::{
    Rank, RwSem,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
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
    /// Number of removals whose pages are being discarded (`file/removal.rs`). Changed under the lock of the
    /// marks. Incremented under the invalidate lock held for writing.
    discards: AtomicU32,
}

impl<P: Platform> Invalidate<P> {
    pub fn new() -> Self {
        let lock = RwSem::new(Rank::Invalidate);
        Invalidate { lock, pages: AtomicU64::new(0), discards: AtomicU32::new(0) }
    }

    /// Returns true if pages of the file are being discarded. Exact while the caller holds the lock, except
    /// that a discard may end.
    #[inline]
    pub fn has_discards(&self) -> bool {
        // Acquire pairs with the release in `discards_end`.
        self.discards.load(Acquire) != 0
    }

    /// Counts a discard that begins. The caller holds the lock for writing, and the lock of the marks.
    pub fn discards_begin(&self) {
        // Relaxed: the invalidate lock orders this change before later loads.
        self.discards.fetch_add(1, Relaxed);
    }

    /// Uncounts a discard that has ended. The caller holds the lock of the marks.
    pub fn discards_end(&self) {
        // Release pairs with the acquire in `has_discards`.
        self.discards.fetch_sub(1, Release);
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
