//! Changes of a file's size that the storage has made first, for example on behalf of another machine.
//!
//! The storage has the new size, and maybe other bytes. So nothing is written back or discarded here: the
//! cache only loses what it must not show any more. A smaller size is a truncation that does not notify the
//! pager (`truncate.rs`). With a larger size, the last page of the file may have bytes that the cache lacks.
//! The page is dropped, as in `drop_clean.rs`, and the next access reads it again. A read of that page that
//! began with the old size ends without effect.
//!
//! The size is stored before the invalidate lock is released. Otherwise a read of the last page could begin
//! with the old size and zero the new bytes. `tests/files/adopt_size.rs` tests this file.

use super::truncate::Storage;
use crate::{
    PAGE_SIZE,
    file::{Copies, FillError, MAX_BYTES, Mapping, cache::radix::Stay, zero},
    platform::Platform,
};
use freehold_sync::RwSemWriteGuard;
use freehold_vmspace::{PageIndex, PageRange};

impl<P: Platform> Mapping<P> {
    /// Adopts a size that the storage already has, for example because another machine has changed the file.
    /// A smaller size removes pages as [`truncate`](Self::truncate) does; dirty pages beyond the end are
    /// lost. A larger size also removes the page in which the old size lies, because the storage may have
    /// more bytes of this page. If that page is dirty or in use, it stays, and its new bytes are zeroes; a
    /// file system that needs the bytes of the storage writes the page back before the storage grows. The
    /// pager is not told about the new size or the removed pages.
    ///
    /// # Errors
    ///
    /// Fails with `Unsupported` for a file without a pager that reads: shared memory, secret memory, direct
    /// files and pools. Fails with `BeyondEnd` and `Busy` like `truncate`. The file is unchanged after an
    /// error.
    ///
    /// # Locks
    ///
    /// The locks of `truncate`. The caller holds no lock of an address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Pager}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # use freehold::{PageIndex, Pfn, file::IoError, platform::Platform};
    /// /// A remote file.
    /// struct Remote;
    /// impl<P: Platform> Pager<P> for Remote {
    ///     fn read_page(&self, platform: &P, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
    ///         platform.zero_frame(frame);
    ///         Ok(())
    ///     }
    ///     fn discard(&self, _: freehold::PageRange) {
    ///         unreachable!("the server has truncated the file itself");
    ///     }
    /// }
    /// let file = Mapping::new(&engine, Remote, 4 * PAGE_SIZE, false).unwrap();
    /// file.read_at(0, &mut [0; 4 * PAGE_SIZE as usize]).unwrap();
    /// file.adopt_size(PAGE_SIZE).unwrap();
    /// assert_eq!((file.size(), file.present_pages()), (PAGE_SIZE, 1));
    /// ```
    pub fn adopt_size(&self, size: u64) -> Result<(), FillError> {
        if !self.has_store() || !self.waits_for_pager() {
            return Err(FillError::Unsupported);
        }
        if size > MAX_BYTES {
            return Err(FillError::BeyondEnd);
        }
        self.with_content(|attempts| match self.size() {
            old if size > old => {
                self.adopt_growth(old, size);
                Ok(())
            }
            _ => self.truncate_locked(&mut attempts.removal, size, Storage::Leads).map(drop),
        })
    }

    /// Removes the last page, if the file ends inside it, and stores the larger size. No page can be read
    /// with the old size in between. The caller holds `content` for writing.
    fn adopt_growth(&self, old: u64, size: u64) {
        let pages_go = self.invalidate.write();
        let index = PageIndex::of_byte(old);
        if !old.is_multiple_of(PAGE_SIZE) && !self.drop_page(&pages_go, index) {
            let platform = self.files().platform();
            if let Some(page) = self.get_page(index) {
                zero(platform, *page, old % PAGE_SIZE..PAGE_SIZE);
            }
        }
        self.store_size(size);
    }

    /// Removes a page from page tables and from the cache. Returns false if the page is in the cache and
    /// stays, because it is dirty, in use, or mapped again. The caller holds `invalidate` for writing.
    fn drop_page(&self, pages_go: &RwSemWriteGuard<'_, P>, index: PageIndex) -> bool {
        self.stop_read(pages_go, index);
        self.unmap(PageRange::one(index), Copies::Stay);
        let Some(word) = self.word(pages_go, index) else { return true };
        if let Some(pfn) = self.drop_if_clean(pages_go, index, word) {
            self.pages_went(1);
            self.files().memory().put_frame(pfn);
        }
        self.is_absent(Stay::locked(pages_go), PageRange::one(index))
    }

    /// Ends a read of this page without effect. The caller holds `invalidate` for writing.
    pub(super) fn stop_read(&self, pages_go: &RwSemWriteGuard<'_, P>, index: PageIndex) {
        if let Some(word) = self.word(pages_go, index) {
            self.remove_reading(index, word);
        }
    }
}
