//! Pages of a file of huge pages, made before anybody touches them (fallocate).

use crate::{
    file::{FillError, LOST, MAX_BYTES, Mapping, Word},
    hugetlb::state::{huge_file::HugeFile, index_set::IndexSet},
    platform::Platform,
};
use core::ops::Range;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageIndex, PageRange};

impl<P: Platform> Mapping<P> {
    /// Makes sure that a file of huge pages has every page of `bytes`, which becomes part of the file
    /// (fallocate).
    ///
    /// # Errors
    ///
    /// The pool has no page left, a seal forbids it, the file would become larger than any may be, or no
    /// memory. The size is what it was, and beyond it there is no page. Pages that came inside the file
    /// stay, as on Linux.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing; then as [`fill`](Self::fill). On failure the invalidate lock for
    /// writing.
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), FillError> {
        let Some(huge) = self.huge.as_ref().filter(|_| !bytes.is_empty()) else {
            return Err(FillError::Invalid);
        };
        let _content = self.content.write();
        let end = bytes.end.checked_next_multiple_of(self.page_bytes()).filter(|&end| end <= MAX_BYTES);
        let end = end.ok_or(FillError::BeyondEnd)?;
        let (old, shift) = (self.size(), self.page_shift());
        self.may_resize(end.max(old))?;
        let [from, to, inside] = [bytes.start, end, old].map(|byte| PageIndex::new(byte >> shift));
        PageRange::new(from, to.min(inside)).into_iter().try_for_each(|index| self.fill(index))?;
        // Which of the pages beyond the end were not reserved before.
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

    /// Makes a page beyond the end of the file, where nobody finds it, and notes in `fresh` whether it was
    /// not reserved before.
    fn fill_beyond(&self, huge: &HugeFile, index: PageIndex, fresh: &IndexSet) -> Result<(), FillError> {
        if !huge.reserves.is_reserved::<P>(index) {
            fresh.insert::<P>(PageRange::one(index))?;
        }
        loop {
            let made = self.fill_huge(&self.invalidate.read_killable()?, huge, index);
            match made {
                Ok(()) => return Ok(()),
                Err(not_made) => huge.after(self.files().memory(), not_made)?,
            }
        }
    }

    /// Takes pages away that [`fill_beyond`](Self::fill_beyond) made. No fault has found one: the size was
    /// never published.
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
                // Without memory to forget the page, its place stays reserved: then the pool keeps the
                // reservation as well.
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
