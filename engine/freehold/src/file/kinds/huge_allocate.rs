//! fallocate of a file of huge pages: allocates pages before their first access.
//!
//! Pages inside the file are allocated like those of a fault (`fill.rs`). Pages beyond the end are created
//! where no lookup finds them, and become visible when the new size is published. The size must be published
//! last, because a fallocate that fails must not change the length of the file, and must leave no pages
//! beyond its end. `failed_fallocate_does_not_enlarge_the_file` in `tests/hugetlb/failed_calls.rs` tests
//! that.

use crate::{
    file::{FillError, LOST, MAX_BYTES, Mapping, Word},
    hugetlb::state::{huge_file::HugeFile, index_set::IndexSet},
    platform::Platform,
};
use core::ops::Range;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageIndex, PageRange};

impl<P: Platform> Mapping<P> {
    /// Allocates every missing page of `bytes` in a file of huge pages, and enlarges the file to include
    /// `bytes` (fallocate).
    ///
    /// # Errors
    ///
    /// Fails if the pool has no page left, a seal forbids the change, the file would exceed the largest size,
    /// or there is no memory. The size is then unchanged, and there is no page beyond the end. Pages that
    /// were allocated inside the file stay, as on Linux.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing; then the locks of [`fill`](Self::fill). On failure also the
    /// invalidate lock for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::FillError, file::Mapping, hugetlb::HugePageSize};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// # engine.resize_huge_pool(HugePageSize::Mib2, 2, None);
    /// let huge = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, 0, false).unwrap();
    /// huge.allocate(0..4 << 20).unwrap();
    /// assert_eq!((huge.size(), huge.present_pages()), (4 << 20, 2));
    /// assert_eq!(huge.allocate(4 << 20..6 << 20), Err(FillError::NoHugePages));
    /// ```
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), FillError> {
        let Some(huge) = self.huge.as_ref().filter(|_| !bytes.is_empty()) else {
            return Err(FillError::Invalid);
        };
        self.retry_when_short(|| self.try_allocate(huge, bytes.clone()))
    }

    /// Implements [`allocate`](Self::allocate).
    fn try_allocate(&self, huge: &HugeFile, bytes: Range<u64>) -> Result<(), FillError> {
        let _content = self.content.write();
        let end = bytes.end.checked_next_multiple_of(self.page_bytes()).filter(|&end| end <= MAX_BYTES);
        let end = end.ok_or(FillError::BeyondEnd)?;
        let (old, shift) = (self.size(), self.page_shift());
        self.may_resize(end.max(old))?;
        let [from, to, inside] = [bytes.start, end, old].map(|byte| PageIndex::new(byte >> shift));
        PageRange::new(from, to.min(inside)).into_iter().try_for_each(|index| self.try_fill(index))?;
        // `fresh` lists the pages beyond the end that were not reserved before this call.
        let (first, fresh) = (from.max(inside), IndexSet::new());
        for index in PageRange::new(first, to) {
            if let Err(error) = self.fill_beyond(huge, index, &fresh) {
                self.take_back(huge, PageRange::new(first, index + 1), &fresh);
                return Err(error);
            }
        }
        if end > old {
            self.publish_size(end);
        }
        Ok(())
    }

    /// Creates a page beyond the end of the file, where no lookup finds it. Records the page in `fresh` if it
    /// was not reserved before.
    fn fill_beyond(&self, huge: &HugeFile, index: PageIndex, fresh: &IndexSet) -> Result<(), FillError> {
        if !huge.reserves.is_reserved::<P>(index) {
            fresh.insert::<P>(PageRange::one(index))?;
        }
        loop {
            let made = self.fill_huge(&self.invalidate.read_killable()?, huge, index, 0);
            match made {
                Ok(()) => return Ok(()),
                Err(not_made) => huge.after(self.files().memory(), not_made)?,
            }
        }
    }

    /// Removes pages that [`fill_beyond`](Self::fill_beyond) created. No fault has found such a page, because
    /// the size was never published.
    fn take_back(&self, huge: &HugeFile, pages: PageRange, fresh: &IndexSet) {
        let pages_go = self.invalidate.write();
        for index in pages {
            let Some(word) = self.word(&pages_go, index) else { continue };
            // Relaxed: words change under `invalidate`, which is held for writing.
            let old = Word(word.load(Relaxed));
            if old == Word(0) {
                continue;
            }
            let lost = old == Word(LOST);
            let forgotten = (lost || fresh.contains::<P>(index)) && huge.reserves.forget::<P>(index).is_ok();
            if lost && !forgotten {
                continue;
            }
            word.store(0, Relaxed);
            if let Some(pfn) = old.held() {
                self.invalidate.went(1);
                // If there was no memory for `forget`, the index of the page counts as reserved. The pool
                // then keeps a reservation for it as well.
                if !forgotten {
                    self.files().memory().restore_reservation(pfn, huge.size);
                }
                self.files().platform().frame(pfn).leave_cache();
                self.files().memory().put_huge_page(pfn);
            }
        }
        self.prune(&pages_go, pages);
    }
}
