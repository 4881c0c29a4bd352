//! Asking the pager before a clean page may change.
//!
//! A file system may have to reserve space or to write a journal before a page changes. A pager that
//! [`guards_writes`](super::Pager::guards_writes) is therefore asked before the first store to each clean
//! page, by calls and through mappings. It may wait, and it may refuse.
//!
//! ```text
//! look    an operation finds that the page has no permission, and releases all locks
//! ask     Pager::make_writable(pages), without a lock
//! mark    invalidate lock R: marks the pages as dirty, unless pages of the file were removed since the question
//! again   the operation starts over, and finds the permission
//! ```
//!
//! The dirty mark of the page (`cache/marks.rs`) is the permission. It ends when a write of the page begins,
//! or when the page is removed. A page without a frame can have a permission too: it is about to be written
//! as a whole. If a removal came between the question and the mark, the pager may have lost what it has
//! reserved, so it is asked again. It is not asked about a page that it is discarding (`removal.rs`).
//!
//! An operation looks under a lock that keeps the permission until its store is recorded:
//!
//! | store | lock | why the permission stays |
//! | --- | --- | --- |
//! | `write_at`, zeroes of a truncation or a hole | content W | write-back of a guarded file begins writes under the content lock (R) |
//! | a store through an entry that a fault makes writable | the lock of the page table | write-back clears the mark and then locks every table that maps the page (`cache/marks.rs`) |
//!
//! Two kinds of stores ask only once for a page that is written back in between: stores through pinned pages,
//! and accesses of other processes. Linux has the same gap.
//!
//! Write-back writes every page in the cache with a permission, also if no store has followed. If a call has
//! failed and left an absent page with a permission, write-back tells the pager (`not_changed`). So each
//! permission ends. A page with a permission is not dropped as clean.
//!
//! A new path to the contents of a page looks with [`permits_stores`](Mapping::permits_stores) and asks with
//! [`ask_to_write`](Mapping::ask_to_write). `tests/files/permits.rs` tests every path, and the mutations that
//! begin with `permit-` (`xtask/mutants`) remove the protections.

use super::{FillError, Mapping, Stay, contents::Stop, removal::Until};
use crate::{PAGE_SIZE, platform::Platform, wait::Rounds};
use freehold_sync::{RwSemReadGuard, rank};
use freehold_vmspace::{PageIndex, PageRange};

/// Maximum number of pages of one question.
const MOST: u64 = 32;

freehold_sync::error_enum! {
    /// The reason why a pager refuses changes of pages.
    #[non_exhaustive]
    pub enum WriteRefused {
        /// The storage of the file is full.
        ///
        /// A call fails with ENOSPC, and a store through a mapping raises SIGBUS.
        NoSpace,
        /// The storage of the file has failed.
        ///
        /// A call fails with EIO, and a store through a mapping raises SIGBUS.
        Io,
    }
}

impl From<WriteRefused> for FillError {
    fn from(refused: WriteRefused) -> Self {
        match refused {
            WriteRefused::NoSpace => FillError::NoSpace,
            WriteRefused::Io => FillError::Io,
        }
    }
}

impl<P: Platform> Mapping<P> {
    /// Returns true if the pager is asked before pages change.
    #[inline]
    pub(crate) fn guards_writes(&self) -> bool {
        self.is_written_back() && self.pager().guards_writes()
    }

    /// Returns true if a store may go to this page: the page has a permission; or none is needed, and the
    /// file may have more dirty pages. The caller holds the content lock for writing, or the lock of the
    /// table whose entry is about to become writable; otherwise the result is a hint.
    #[inline]
    pub(crate) fn permits_stores(&self, rcu: &P::RcuGuard, index: PageIndex) -> bool {
        !self.is_written_back() || !(self.dirty.throttle.is_full() || self.pager().guards_writes()) || {
            self.cache.is_dirty_at_fault(Stay::within::<P>(rcu), index)
        }
    }

    /// Marks a page as dirty after an entry for it became writable. The mark of a page of a guarded file is
    /// its permission, which exists already: if a write of the page has ended it in the meantime, it stays
    /// ended. The caller holds the lock of the table.
    pub(crate) fn mark_granted(&self, rcu: &P::RcuGuard, index: PageIndex) {
        if !self.guards_writes() {
            self.mark_dirty(rcu, index);
        }
    }

    /// Checks that the pages of a store of `bytes` bytes at `at` may change. The caller holds `content` for
    /// writing.
    ///
    /// # Errors
    ///
    /// Fails with `Stop::Guarded` if the first page has no permission, and with `Stop::Removals` if the first
    /// page is being discarded.
    pub(super) fn check_permits(&self, at: u64, bytes: u64) -> Result<(), Stop> {
        let first = PageIndex::of_byte(at);
        if bytes == 0 {
            return Ok(());
        }
        self.check_discards(PageRange::one(first))?;
        if self.permits_stores(&P::rcu_read(), first) {
            return Ok(());
        }
        let end = PageIndex::new(at.saturating_add(bytes).div_ceil(PAGE_SIZE));
        Err(Stop::Guarded(PageRange::new(first, end.min(first + MOST.min(self.dirty.throttle.batch())))))
    }

    /// Waits until the file may have more dirty pages. Then asks the pager to permit changes of these pages,
    /// and marks them as dirty, if it guards writes.
    ///
    /// # Errors
    ///
    /// Fails with `NoSpace` or `Io` if the pager refuses, with `NoMemory`, or with `Killed`.
    ///
    /// # Locks
    ///
    /// The locks of `write_back`, and after the call of the pager the invalidate lock for reading, killably.
    /// The caller holds no lock.
    pub(super) fn ask_to_write(&self, pages: PageRange) -> Result<(), FillError> {
        self.ask_to_write_then(pages, || ())
    }

    /// Like [`ask_to_write`](Self::ask_to_write). Calls `before_marks` when the pager has agreed, before the
    /// pages are marked.
    pub(super) fn ask_to_write_then(
        &self,
        pages: PageRange,
        mut before_marks: impl FnMut(),
    ) -> Result<(), FillError> {
        let mut rounds = Rounds::new();
        self.throttle()?;
        while self.guards_writes() {
            // The pager would lose the permission of a page in the discard that is under way.
            let (asked, removals) = self.before_discards(pages);
            if asked.is_empty() {
                self.wait_for_removals(Until::Discarded(PageRange::one(pages.start)))?;
                rounds.again::<P>()?;
                continue;
            }
            rank::holds_none::<P>();
            self.pager().make_writable(asked)?;
            let pages_stay = self.invalidate.read_killable()?;
            if self.removals() == removals {
                before_marks();
                return asked.into_iter().try_for_each(|index| self.permit(&pages_stay, index));
            }
            drop(pages_stay);
            rounds.again::<P>()?;
        }
        Ok(())
    }

    /// Marks a page as dirty, which may be absent.
    fn permit(&self, pages_stay: &RwSemReadGuard<'_, P>, index: PageIndex) -> Result<(), FillError> {
        self.cache_word(pages_stay, index)?;
        self.mark_dirty(&P::rcu_read(), index);
        Ok(())
    }
}
