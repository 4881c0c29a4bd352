//! Another frame for a page of a file.

use crate::{
    PAGE_SIZE, Pfn,
    error::MigrateError,
    file::{
        Mapping,
        cache::{
            entry::{LEAVING, Word},
            radix::Locked,
        },
    },
    platform::Platform,
};
use freehold_sync::atomic::Ordering::{Relaxed, Release};
use freehold_vmspace::PageIndex;

impl<P: Platform> Mapping<P> {
    /// Moves the page `index` from the frame `old`, to which the caller has a reference, to `new`, which is
    /// the caller's alone and becomes the cache's. Every entry goes; faults bring those back that are
    /// needed.
    ///
    /// # Errors
    ///
    /// The page is not there any more, or somebody else has it; nothing has happened, but that entries are
    /// gone.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, so that nothing is cut off; of huge pages, whose tables have to be
    /// left, for writing. The frame's lock, for which a task waits that wants to fill the page, or write it
    /// back. The i_mmap lock for reading; tables' locks.
    pub(crate) fn exchange(&self, index: PageIndex, old: Pfn, new: Pfn) -> Result<(), MigrateError> {
        match self.huge {
            Some(_) => self.exchange_under(&self.invalidate.write(), index, old, new),
            None => self.exchange_under(&self.invalidate.read(), index, old, new),
        }
    }

    fn exchange_under(
        &self,
        lock: &impl Locked,
        index: PageIndex,
        old: Pfn,
        new: Pfn,
    ) -> Result<(), MigrateError> {
        // With both, nobody else changes the word of a page that is in this frame.
        let _identity = self.files().memory().lock_frame(old);
        let word = self.word_of(lock, index, old).ok_or(MigrateError::NoPage)?;
        // As for a page that is cut off: hidden, not mapped any more. Relaxed: as in `mark_leaving`.
        word.fetch_or(LEAVING, Relaxed);
        self.unmap_present(index);
        let platform = self.files().platform();
        let frame = platform.frame(old);
        // The cache's and the caller's. An entry that the walk missed counts as well.
        let alone = frame.refs_of_marked() == 2;
        if alone {
            platform.copy_frames(new, old, self.page_bytes() / PAGE_SIZE);
            platform.frame(new).inherit(frame);
            platform.frame(new).enter_cache();
            frame.leave_cache();
        }
        // Release pairs with the acquire of lookups. Relaxed: as above.
        let order = Word(word.load(Relaxed)).order();
        word.store(Word::present(if alone { new } else { old }).in_block(order).0, Release);
        if !alone {
            return Err(MigrateError::Busy);
        }
        self.files().memory().put_frame(old);
        Ok(())
    }
}
