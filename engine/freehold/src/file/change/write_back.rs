//! Writing the dirty pages of a file back to its store.

use crate::{
    file::{IoError, Mapping, cache::lookup::CachedPage},
    platform::Platform,
    rmap::tree::Mapper,
    vma::{Vma, flags::VmFlags},
};
use core::ops::ControlFlow;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageIndex, PageRange};

/// Pages that write-back cleans at a time, from one that is in the cache on.
const TOGETHER: u64 = 1 << 13;

impl<P: Platform> Mapping<P> {
    /// Writes pages back that were written since the last time, by stores or by [`write_at`](Self::write_at).
    /// Of a direct file, whose stores are in the storage already, it makes them last.
    ///
    /// # Errors
    ///
    /// Some page could not be written; it stays dirty, and the rest was written. Or a page that had been
    /// written, of whatever part of the file, was lost with its memory since this was last asked; the first
    /// caller is told.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, so that no page is written that was cut off; under it the i_mmap lock
    /// for reading and the tables' locks, which are let go of before the pager is called; and each
    /// frame's lock while its page is written.
    pub fn write_back(&self, pages: PageRange) -> Result<(), IoError> {
        if self.is_shmem() || self.is_secret() {
            return Ok(());
        }
        let pages_stay = self.invalidate.read();
        // First the rights to write go, so that a store after this makes its page dirty again. What is not in
        // the cache is not mapped, and a mapping may be far larger than what is.
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
        // Relaxed: set and asked under the invalidate lock.
        if self.lost.swap(false, Relaxed) { Err(IoError) } else { result }
    }

    fn write_back_page(&self, index: PageIndex, page: &CachedPage<'_, P>) -> Result<(), IoError> {
        // A second write-back waits, and finds the page clean when it has been written, not as soon as that
        // has begun.
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

/// Takes the right to write, and the dirty bit, from every entry by which stores reach the file.
fn clean<P: Platform>(mapper: &Mapper<'_, P, Vma<P>>) {
    if mapper.vma.flags().contains(VmFlags::SHARED) {
        mapper.vm.clean(mapper.range);
    }
}
