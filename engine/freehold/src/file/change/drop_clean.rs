//! Dropping clean pages from a cache: pages that are not in use, and whose contents the backing store of the
//! file also has.
//!
//! ```text
//! mark      a page that seems unused is marked as leaving: later lookups do not find it
//! unused?   the cache drops its reference if no other reference is left: no lookup raises the count any more
//! clean?    if not, the page becomes visible again
//! release?  the pager may keep the page, which then becomes visible again; otherwise the page is dropped
//! ```
//!
//! This operation zaps nothing and waits for nothing. An entry that maps a page holds a reference, so mapped
//! pages stay in the cache, and so do pages that are pinned, locked or being written back. A lookup that has
//! just found the page either has raised the count, or fails to raise it and learns that the page is gone.
//! The frame's dirty flag is reliable once no other reference is left: every store goes through a reference,
//! which is kept until the frame is marked as dirty.
//!
//! These steps run under the invalidate lock held for writing; `remove.rs` has the steps for one page
//! (`drop_if_clean`). The call takes the lock only if it is free, because a truncation may hold it for long,
//! and because a pager that is asked to release a page may call this function. A page that is being read or
//! written stays, and its read or write goes on. A fault that needs a page that is being dropped waits for
//! the lock, and then finds the page in the cache or reads it again.
//!
//! The embedder calls [`Mapping::drop_clean`], and `engine/trim.rs` calls
//! [`drop_clean_up_to`](Mapping::drop_clean_up_to) for all files. Each of the mutations `memory-drop-dirty`,
//! `memory-drop-only-copy`, `memory-drop-release` and `memory-drop-waits` in `xtask/mutants` removes one
//! check, and a test of `tests/files/drop_clean.rs` then fails. `shuttle_engine/drop_clean.rs` drops pages
//! while other tasks begin to use them.

use crate::{
    Pfn,
    file::{Mapping, cache::radix::Stay},
    platform::Platform,
};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_sync::{RwSemWriteGuard, atomic::CHECKED};
use freehold_vmspace::{PageIndex, PageRange};

/// Number of pages checked in one hold of the lock. Bounds the wait of a fault that fills a page.
const LOOKS: u64 = if CHECKED { 2 } else { 1 << 12 };

/// Frames that are freed together.
type Free = ArrayVec<Pfn, 64>;

impl<P: Platform> Mapping<P> {
    /// Drops the clean pages of this range from the cache, unless they are mapped or in use, or the pager
    /// [keeps](crate::file::Pager::release) them. The next access to such a page reads it from the backing
    /// store again. Returns the number of dropped pages. Implements
    /// POSIX_FADV_DONTNEED and /proc/sys/vm/drop_caches.
    ///
    /// Does not drop pages of shared memory, which have no other copy, or pages of direct files, which are
    /// the storage itself. This call never waits for a pager. If another task is removing pages of this
    /// file, the rest of the range therefore stays in the cache. Pages that are being read or written stay
    /// too.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing. The call never waits for the lock, and releases it after a few
    /// thousand pages. The caller holds no lock of the engine and is in no read section.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, file::{Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap();
    /// file.read_at(0, &mut [0; 3 * PAGE_SIZE as usize]).unwrap();
    /// file.write_at(PAGE_SIZE, b"new").unwrap();
    ///
    /// // Pages that were only read are dropped. A written page stays until it is written back.
    /// assert_eq!(file.drop_clean(PageRange::ALL), 2);
    /// file.write_back(PageRange::ALL).unwrap();
    /// assert_eq!(file.drop_clean(PageRange::ALL), 1);
    /// ```
    pub fn drop_clean(&self, pages: PageRange) -> u64 {
        self.drop_clean_up_to(u64::MAX, pages)
    }

    /// Like [`drop_clean`](Self::drop_clean), but drops at most `most` pages.
    pub(crate) fn drop_clean_up_to(&self, most: u64, pages: PageRange) -> u64 {
        let (mut at, mut dropped) = (pages.start, 0);
        while at < pages.end && dropped < most && self.has_store() {
            let Some(pages_go) = self.invalidate.try_write() else { break };
            let (gone, end) = self.drop_some(&pages_go, PageRange::new(at, pages.end), most - dropped);
            if gone > 0 {
                self.prune(&pages_go, PageRange::new(at, end));
            }
            (dropped, at) = (dropped + gone, end);
        }
        dropped
    }

    /// Drops up to `most` unused pages. Returns the number of dropped pages and the index where the search
    /// stopped. The caller holds `invalidate` for writing.
    fn drop_some(&self, pages_go: &RwSemWriteGuard<'_, P>, pages: PageRange, most: u64) -> (u64, PageIndex) {
        let (mut count, mut looks, mut free) = (0, 0, Free::new());
        let end = self.cache.each(Stay::locked(pages_go), pages, |index, word| {
            if count == most || looks == LOOKS {
                return ControlFlow::Break(index);
            }
            looks += 1;
            let Some(pfn) = self.drop_if_clean(pages_go, index, word) else {
                return ControlFlow::Continue(());
            };
            count += 1;
            if self.files().platform().frame(pfn).put() {
                free.push(pfn);
            }
            if free.is_full() {
                self.files().memory().free_frames(&mut free);
            }
            ControlFlow::Continue(())
        });
        self.files().memory().free_frames(&mut free);
        self.pages_went(count);
        (count, end.break_value().unwrap_or(pages.end))
    }
}
