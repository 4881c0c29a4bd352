//! Accounting of a file's memory as committed memory. `engine/freehold/src/committed.rs` has the rules and
//! the count. The file is also the owner of its pages for the platform ([`file_id`](Mapping::file_id)).
//!
//! Files that commit each page in their caches can outlive every program. If
//! [`Config::max_file_pages`](crate::engine::Config) limits the number of their pages, the pages are counted
//! a second time, except those of a file whose pager has contents: a program that only reads must not fail.
//!
//! A file commits nothing, each page in its cache, or its whole size (`Committed` in `mapping.rs`). `fill.rs`
//! and `cache/mthp.rs` charge pages before they enter the cache, and [`pages_went`](Mapping::pages_went)
//! uncharges them. `change/truncate.rs`, `contents.rs` and `remove.rs` charge and uncharge the size, with the
//! content lock held for writing. Each charge needs a matching uncharge: a missing uncharge makes the count
//! wrong until the engine ends. `tests/mmap/committed.rs` has the tests.

use super::mapping::{FillError, Mapping};
use crate::{
    committed::Charge,
    error::NoMemory,
    file::mapping::{Committed, pages_to_commit},
    platform::{FileId, Platform},
};
use freehold_vmspace::PageCount;

/// Pages that are charged because they are about to enter a file's cache.
#[must_use = "dropping a charge releases its pages"]
pub(super) struct PageCharge<'e, P: Platform> {
    /// The charge to committed memory.
    committed: Charge<'e, P>,
    /// The charge to the pages of files, if their number is limited.
    kept: Option<Charge<'e, P>>,
}

impl<P: Platform> PageCharge<'_, P> {
    /// Leaves the pages charged, because they are in the cache.
    pub(super) fn keep(self) {
        self.committed.keep();
        if let Some(kept) = self.kept {
            kept.keep();
        }
    }
}

impl<P: Platform> Mapping<P> {
    /// Returns the identifier of the file in [`PageOwner::File`](crate::platform::PageOwner::File).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::file::Mapping;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 8 << 20).unwrap();
    /// let other = Mapping::memfd(&engine, 8 << 20).unwrap();
    /// assert_ne!(file.file_id(), other.file_id());
    /// ```
    pub fn file_id(&self) -> FileId {
        FileId::new(self.rmap_word())
    }

    /// Commits `pages` that are about to enter the cache, if the file commits its pages one by one.
    ///
    /// # Errors
    ///
    /// Fails with `NoSpace` if the limit on committed memory, or on the pages of files, does not allow the
    /// pages.
    pub(super) fn charge_pages(&self, pages: PageCount) -> Result<PageCharge<'_, P>, FillError> {
        let (commit, kept) = (&self.files().committed, &self.files().kept);
        match self.committed {
            Committed::Pages => {
                let committed = commit.charge(pages).map_err(|_| FillError::NoSpace)?;
                let kept = kept.as_ref().filter(|_| self.is_kept());
                let kept = kept.map(|kept| kept.charge(pages)).transpose();
                Ok(PageCharge { committed, kept: kept.map_err(|_| FillError::NoSpace)? })
            }
            Committed::Nothing | Committed::Size => {
                Ok(PageCharge { committed: commit.no_charge(), kept: None })
            }
        }
    }

    /// Returns true if the pages of the file count against the limit on pages of files.
    fn is_kept(&self) -> bool {
        self.pager().reads_zeroes()
    }

    /// Counts `pages` that left the cache, or whose read failed, and uncommits them if they were committed.
    /// For pages that left the cache, the caller holds the invalidate lock.
    pub(crate) fn pages_went(&self, pages: u64) {
        self.invalidate.went(pages);
        if self.committed == Committed::Pages && pages != 0 {
            self.files().committed.uncharge(PageCount::new(pages));
            if let Some(kept) = self.files().kept.as_ref().filter(|_| self.is_kept()) {
                kept.uncharge(PageCount::new(pages));
            }
        }
    }

    /// Commits the pages that the file gains when it grows from `old` to `new` bytes, if the file commits its
    /// size. The caller holds `content` for writing.
    ///
    /// # Errors
    ///
    /// Fails with `NoMemory` if the limit on committed memory does not allow the pages.
    pub(super) fn charge_growth(&self, old: u64, new: u64) -> Result<Charge<'_, P>, FillError> {
        let commit = &self.files().committed;
        match self.committed {
            Committed::Size => {
                let more = pages_to_commit(new).saturating_sub(pages_to_commit(old));
                Ok(commit.charge(more).map_err(NoMemory::from)?)
            }
            Committed::Nothing | Committed::Pages => Ok(commit.no_charge()),
        }
    }

    /// Uncommits the pages that the file loses when it shrinks from `old` to `new` bytes, if the file commits
    /// its size. The caller holds `content` for writing.
    pub(super) fn uncharge_cut(&self, old: u64, new: u64) {
        if self.committed == Committed::Size {
            self.files().committed.uncharge(pages_to_commit(old).saturating_sub(pages_to_commit(new)));
        }
    }
}
