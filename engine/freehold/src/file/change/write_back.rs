//! Writing the dirty pages of a file back to its backing store.
//!
//! msync (`call/msync.rs`) calls [`write_back`](Mapping::write_back). The embedder calls this function for
//! fsync, and before it drops a file. Write-back has two steps. First, every entry through which stores reach
//! the file loses its write permission and its dirty bit, and the frame is marked dirty if the entry was
//! dirty. Then the pager writes each dirty page, with its frame locked. The steps must have this order: a
//! store during the write then faults and makes the page dirty again.
//!
//! A page must stay dirty if its write fails. `tests/files/mapped.rs` tests write-back of cached files, and
//! `tests/files/direct.rs` tests write-back of direct files. The number of visited entries must depend on the
//! cached pages and not on the size of mappings: `write_back_visits_cached_pages_instead_of_mapped_ranges`
//! fails otherwise.

use crate::{
    file::{IoError, Mapping, cache::lookup::CachedPage},
    platform::Platform,
    rmap::tree::Mapper,
    vma::{Vma, flags::VmFlags},
};
use core::ops::ControlFlow;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageIndex, PageRange};

/// Number of pages whose entries write-back cleans in one walk. Each walk starts at a page that is in the
/// cache.
const TOGETHER: u64 = 1 << 13;

impl<P: Platform> Mapping<P> {
    /// Writes back the pages of this range that were written since the last write-back, by stores or by
    /// [`write_at`](Self::write_at). Stores to a direct file are already in its storage; write-back makes
    /// these stores durable.
    ///
    /// # Errors
    ///
    /// Fails if some page cannot be written. That page stays dirty, and the other pages are written. Also
    /// fails once after the file has lost a dirty page, inside or outside this range, because the memory of
    /// the page failed.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, so that no page is written after a truncation has removed the page.
    /// Under the invalidate lock, the i_mmap lock for reading and the locks of page tables. These locks are
    /// released before the pager is called. Also the lock of each frame while the frame's page is written.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, PageRange, Pfn, file::{IoError, Mapping, Pager}, platform::Platform};
    /// # use std::sync::{Arc, atomic::{AtomicU64, Ordering::SeqCst}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # #[derive(Clone, Default)]
    /// # struct Disk(Arc<AtomicU64>);
    /// impl<P: Platform> Pager<P> for Disk {
    /// #     fn read_page(&self, platform: &P, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
    /// #         platform.zero_frame(frame);
    /// #         Ok(())
    /// #     }
    ///     fn write_page(&self, _: &P, _: PageIndex, _: Pfn) -> Result<(), IoError> {
    ///         self.0.fetch_add(1, SeqCst);
    ///         Ok(())
    ///     }
    /// }
    /// let disk = Disk::default();
    /// let file = Mapping::new(&engine, disk.clone(), 4 * PAGE_SIZE, false).unwrap();
    /// file.write_at(PAGE_SIZE, b"new").unwrap();
    /// file.write_back(PageRange::ALL).unwrap();
    /// file.write_back(PageRange::ALL).unwrap();
    /// assert_eq!(disk.0.load(SeqCst), 1, "the page was clean the second time");
    /// ```
    pub fn write_back(&self, pages: PageRange) -> Result<(), IoError> {
        if self.is_shmem() || self.is_secret() {
            return Ok(());
        }
        let pages_stay = self.invalidate.read();
        // Entries lose their write permission first, so that a later store makes its page dirty again. Pages
        // outside the cache are not mapped, and a mapping may be far larger than the cached pages, so the
        // walks visit only cached pages.
        let mut at = pages.start;
        while let ControlFlow::Break(first) =
            self.each_page(&pages_stay, PageRange::new(at, pages.end), ControlFlow::Break)
        {
            at = pages.end.min(first.saturating_add(TOGETHER));
            self.home().each_mapper(PageRange::new(first, at), clean);
        }
        let mut result = Ok(());
        let _: ControlFlow<()> = self.each_page(&pages_stay, pages, |index| {
            if let Some(page) = self.get_after_move(&pages_stay, index) {
                result = result.and(self.write_back_page(index, &page));
            }
            ControlFlow::Continue(())
        });
        // Relaxed: the invalidate lock guards the flag.
        if self.lost.swap(false, Relaxed) { Err(IoError) } else { result }
    }

    /// Writes one page if it is dirty. If the write fails, the page stays dirty.
    fn write_back_page(&self, index: PageIndex, page: &CachedPage<'_, P>) -> Result<(), IoError> {
        // A second write-back waits for this lock, so it finds the page clean only after the page is written.
        let _identity = self.files().memory().lock_frame(**page);
        let platform = self.files().platform();
        let frame = platform.frame(**page);
        if !frame.take_dirty() {
            return Ok(());
        }
        let written = self.pager().write_page(platform, index, **page);
        if written.is_err() {
            frame.set_dirty();
        }
        written
    }
}

/// Clears the write permission and the dirty bit of every entry through which stores reach the file.
fn clean<P: Platform>(mapper: &Mapper<'_, P, Vma<P>>) {
    if mapper.vma.flags().contains(VmFlags::SHARED) {
        mapper.vm.clean(mapper.range);
    }
}
