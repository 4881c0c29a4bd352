//! Moving a page of a file to another frame: the part of a page migration that concerns the file.
//!
//! `rmap/migrate.rs` allocates the new frame and calls [`exchange`](Mapping::exchange). The page is hidden
//! first, so that lookups do not find it, and then unmapped. The page moves only if the cache and the caller
//! hold the only references: any other reference is valid only for the old frame. A fault on the hidden page
//! waits for the lock of the old frame, so this lock must be held until the word is visible again.
//!
//! `c26_c37_frame_stays_until_a_fault_has_copied_it` in `tests/files/cached_translations.rs` fails without
//! the check of references. `shuttle_engine/file_moves.rs` moves pages concurrently with stores, write-back
//! and truncation.

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
    /// Moves the page `index` from the frame `old` to the frame `new`. The caller has a reference to `old`.
    /// The caller also owns `new`, which the cache owns afterwards. All entries for the page are cleared;
    /// faults map the page again.
    ///
    /// # Errors
    ///
    /// Fails if the page is no longer in `old`, or if another task has a reference to the page. The page then
    /// stays in `old`, but entries may have been cleared.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, so that no truncation removes the page. For huge pages, the
    /// invalidate lock for writing, because shared page tables must be unshared. The frame's lock; a task
    /// that fills the page or begins to write it back waits for this lock. The i_mmap lock for reading; locks
    /// of page tables.
    pub(crate) fn exchange(&self, index: PageIndex, old: Pfn, new: Pfn) -> Result<(), MigrateError> {
        match self.huge {
            Some(_) => self.exchange_under(&self.invalidate.write(), index, old, new),
            None => self.exchange_under(&self.invalidate.read(), index, old, new),
        }
    }

    /// Implements [`exchange`](Self::exchange) under the invalidate lock in either mode.
    fn exchange_under(
        &self,
        lock: &impl Locked,
        index: PageIndex,
        old: Pfn,
        new: Pfn,
    ) -> Result<(), MigrateError> {
        // With both locks held, no other task changes the word of a page that is in this frame.
        let _identity = self.files().memory().lock_frame(old);
        let word = self.word_of(lock, index, old).ok_or(MigrateError::NoPage)?;
        // Hide the page and then unmap it, as for a page that is cut off. Relaxed: as in `mark_leaving`.
        word.fetch_or(LEAVING, Relaxed);
        self.unmap_present(index);
        let platform = self.files().platform();
        let frame = platform.frame(old);
        // The cache and the caller have one reference each. An entry that the walk missed has a further
        // reference.
        let alone = frame.refs_of_marked() == 2;
        if alone {
            platform.copy_frames(new, old, self.page_bytes() / PAGE_SIZE);
            platform.frame(new).inherit(frame);
            platform.frame(new).enter_cache();
            frame.leave_cache();
        }
        // Release pairs with the acquire of lookups. Relaxed: this task holds the locks that guard the word.
        let order = Word(word.load(Relaxed)).order();
        word.store(Word::present(if alone { new } else { old }).in_block(order).0, Release);
        if !alone {
            return Err(MigrateError::Busy);
        }
        self.files().memory().put_frame(old);
        Ok(())
    }
}
