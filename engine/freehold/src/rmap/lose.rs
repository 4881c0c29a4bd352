//! Memory failure in a page of a file: the page leaves the page cache, and every space that maps it.
//! `failure.rs` handles the frame and anonymous pages, and calls `lose` for pages of files.
//!
//! The order is that of truncation (`file/change/truncate.rs`): mark the page in the cache, remove the
//! entries, and remove them again if a fault may have mapped the page in between. The invalidate lock, held
//! for writing, and the lock of the frame exclude truncation and migration of this page, and the begin of a
//! write. A write that is under way goes on without effect, and the page counts as lost, because the request
//! has a reference. This file does not wait for the write. The tests `rmap::failure`
//! (`engine/freehold/tests`) and `failure` (`shuttle_engine`) test this file.

use super::walk::Page;
use crate::{
    error::MigrateError,
    file::{Copies, LOST, Mapping, Stay},
    platform::Platform,
};
use freehold_sync::atomic::Ordering::Release;
use freehold_vmspace::PageRange;

impl<P: Platform> Mapping<P> {
    /// Removes `page`, a page of this file, from the cache and from all spaces that map it. Returns true if
    /// contents are lost. Nothing is lost if the backing store of the file has the same contents; the next
    /// access then reads these contents.
    ///
    /// A lost page of shared memory fails every access until it is truncated. For other files, spaces that
    /// did not map the page read the contents of the backing store, and the loss is reported like a failed
    /// write ([`write_back`](Self::write_back)).
    ///
    /// # Errors
    ///
    /// Fails with [`MigrateError::NoPage`] if the page is no longer in the cache, and with
    /// [`MigrateError::Busy`] if a mapping without an MMU uses it. Nothing is changed after an error.
    ///
    /// # Locks
    ///
    /// The locks that [`exchange`](Self::exchange) needs.
    pub(crate) fn lose(&self, page: &Page<'_, P>) -> Result<bool, MigrateError> {
        let (index, pfn) = (self.index_of(page.index()), page.pfn());
        let pages_go = self.invalidate.write();
        let _identity = self.files().memory().lock_frame(pfn);
        let word = self.word_of(&pages_go, index, pfn).ok_or(MigrateError::NoPage)?;
        self.regions.may_lose(PageRange::one(index)).map_err(|_| MigrateError::Busy)?;
        self.split_block(&pages_go, index, PageRange::one(index));
        self.mark_leaving(&pages_go, PageRange::one(index));
        let take_entries = || match self.huge {
            // Several spaces may share the tables, which do not record the space that used the page. The file
            // records the loss, so all spaces find it there.
            Some(_) => self.unmap(PageRange::one(index), Copies::Stay),
            None => page.poison_entries(),
        };
        take_entries();
        // The cache and the caller each have a reference.
        let frame = page.frame();
        if frame.refs_of_marked() > 2 {
            // As in truncation: a fault that found the page before the page was marked may have mapped it in
            // a table that the first walk did not find.
            take_entries();
        }
        // The loss is decided after every entry, and therefore every dirty bit, is removed. If another task
        // holds a reference, the page counts as lost, because that task may be about to write and would not
        // learn that its write is lost.
        let lost = self.is_shmem() || frame.is_dirty() || frame.refs() > 2;
        if lost && !self.is_shmem() {
            self.dirty.failed();
        }
        // Release, as in every change of a word of the cache. A fill of this page waits for the lock anyway.
        word.store(if self.is_shmem() { LOST } else { 0 }, Release);
        self.pages_went(1);
        self.clear_marks(Stay::locked(&pages_go), PageRange::one(index));
        self.prune(&pages_go, PageRange::one(index));
        match self.huge {
            Some(_) => page.report_lost(),
            None => page.resolve_poison(lost),
        }
        frame.leave_cache();
        page.retire_frame();
        self.files().memory().put_frame(pfn);
        Ok(lost)
    }
}
