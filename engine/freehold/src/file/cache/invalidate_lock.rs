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
    atomic::{AtomicU64, Ordering::Relaxed},
    publish::ActiveCount,
};

/// A file's invalidate lock. Held for reading while a page enters the cache or its read begins, for writing
/// while pages leave.
///
/// The number of pages shares a cache line with the lock word, which a task that adds a page has just
/// written. A fault that finds its page in the cache accesses neither the number nor the lock.
#[repr(C, align(64))]
pub(crate) struct Invalidate<P: Platform> {
    lock: RwSem<P>,
    /// Number of pages that the cache holds, including pages that are being read or are swapped out. Changes
    /// together with the words of the pages, in the same hold of the lock, with one exception: a read that
    /// fails uncounts its page without the lock. The number is therefore exact while no task holds the lock
    /// and no read fails. All accesses are Relaxed, because no other data depends on the number.
    pages: AtomicU64,
    /// Number of pages that are swapped out, which `pages` includes. Incremented under the lock held for
    /// writing, and decremented by the task that changes the word of such a page, under the lock.
    swapped: AtomicU64,
    /// Number of removals whose pages are being discarded (`file/removal.rs`). Changed under the lock of the
    /// marks. Incremented under the invalidate lock held for writing.
    discards: ActiveCount,
}

impl<P: Platform> Invalidate<P> {
    pub fn new() -> Self {
        let lock = RwSem::new(Rank::Invalidate);
        let [pages, swapped] = [(); 2].map(|()| AtomicU64::new(0));
        Invalidate { lock, pages, swapped, discards: ActiveCount::new() }
    }

    /// Returns the number of pages that are swapped out, or are coming back. If it is 0 and the caller holds
    /// the lock, no word of the file says that its page is swapped out.
    #[inline]
    pub fn swapped(&self) -> u64 {
        // Relaxed: the lock orders the changes.
        self.swapped.load(Relaxed)
    }

    /// Counts a page that is swapped out. The caller holds the lock for writing.
    pub fn swapped_out(&self) {
        self.swapped.fetch_add(1, Relaxed);
    }

    /// Uncounts pages that are not swapped out any more. The caller has changed their words.
    pub fn swapped_back(&self, pages: u64) {
        self.swapped.fetch_sub(pages, Relaxed);
    }

    /// Returns true if pages of the file are being discarded. Exact while the caller holds the lock, except
    /// that a discard may end.
    #[inline]
    pub fn has_discards(&self) -> bool {
        self.discards.any()
    }

    /// Counts a discard that begins. The caller holds the lock for writing, and the lock of the marks.
    pub fn discards_begin(&self) {
        // The invalidate lock orders this change before later looks.
        self.discards.begin();
    }

    /// Uncounts a discard that has ended. The caller holds the lock of the marks.
    pub fn discards_end(&self) {
        self.discards.end();
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
