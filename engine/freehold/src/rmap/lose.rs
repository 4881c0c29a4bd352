//! A page of a file whose memory failed.

use super::walk::Page;
use crate::{
    error::MigrateError,
    file::{Copies, LOST, Mapping},
    platform::Platform,
};
use freehold_sync::atomic::Ordering::{Relaxed, Release};
use freehold_vmspace::PageRange;

impl<P: Platform> Mapping<P> {
    /// Takes `page`, which is one of this file, out of the cache and away from all spaces that map it.
    /// Returns whether anything is lost: not if the store behind the file has the same contents, which is
    /// where the next access finds them.
    ///
    /// What is lost of shared memory is missed at each access until the page is cut off. Of another file what
    /// its store has comes back for spaces that did not map the page, and [`write_back`](Self::write_back)
    /// reports the loss, once.
    ///
    /// # Errors
    ///
    /// The page is not there any more, or a mapping without an MMU has it; nothing has happened.
    ///
    /// # Locks
    ///
    /// As for a page that [moves](Self::exchange).
    pub(crate) fn lose(&self, page: &Page<'_, P>) -> Result<bool, MigrateError> {
        let (index, pfn) = (self.index_of(page.index()), page.pfn());
        let pages_go = self.invalidate.write();
        let _identity = self.files().memory().lock_frame(pfn);
        let word = self.word_of(&pages_go, index, pfn).ok_or(MigrateError::NoPage)?;
        self.regions.may_lose(PageRange::one(index)).map_err(|_| MigrateError::Busy)?;
        self.split_block(&pages_go, index, PageRange::one(index));
        self.mark_leaving(&pages_go, PageRange::one(index));
        let take_entries = || match self.huge {
            // Tables of several spaces cannot say of each whether it had the page; all find it lost in the
            // file.
            Some(_) => self.unmap(PageRange::one(index), Copies::Stay),
            None => page.poison_entries(),
        };
        take_entries();
        // The cache and the caller have a reference.
        let frame = page.frame();
        if frame.refs_of_marked() > 2 {
            // As where pages are cut off: in a table that the walk found not there yet.
            take_entries();
        }
        // With every entry and its dirty bit gone. Another holder may be about to write, and would not hear
        // that it was in vain.
        let lost = self.is_shmem() || frame.is_dirty() || frame.refs() > 2;
        if lost && !self.is_shmem() {
            // Relaxed: asked for under the lock that we hold.
            self.lost.store(true, Relaxed);
        }
        // Release: as wherever a word changes; a fill of the page waits for the lock all the same.
        word.store(if self.is_shmem() { LOST } else { 0 }, Release);
        self.pages_went(1);
        self.prune(&pages_go, PageRange::one(index));
        match self.huge {
            Some(_) => page.tell_lost(),
            None => page.resolve_poison(lost),
        }
        frame.leave_cache();
        page.retire_frame();
        self.files().memory().put_frame(pfn);
        Ok(lost)
    }
}
