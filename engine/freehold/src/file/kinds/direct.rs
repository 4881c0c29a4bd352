//! Files whose pages are frames of the storage itself (DAX, once called xip): nothing is copied, and there is
//! no cache.
//!
//! The storage's frames stand in the file's index like those of a cache, are counted in their records like
//! others while they do, and are mapped, zapped and found beyond repair by the same code. What differs:
//!
//! ```text
//! comes       the pager names the frame; its record is the file's from now on, with one reference
//! dirty       the first store faults, and makes page and entry dirty, as for every file
//! write_back  every entry loses the right to write, and is flushed, under the i_mmap lock, shared; then the pager makes each dirty
//!             page last, with the frame locked. A store after that faults again, and makes the page dirty again
//! goes        hidden and zapped as by every truncation; then everybody else's reference is waited for; the record is clean;
//!             the pager may free the frame
//! ```
//!
//! The last line is what copies in a cache do not need: those stay as long as anybody refers to them, and
//! storage has to be the storage's again. Those that may have a reference then: a munmap that has taken an
//! entry and not flushed it yet (hazard C-58), a transfer in the midst of a page (process_vm_readv), a read
//! of the file. None of them waits for a lock of the file with that reference in hand, and nobody gets one by
//! the number of a frame (`rmap/walk.rs`), so the wait is short.
//!
//! A page is never both clean and writable: a store fault makes the entry dirty as well as the page, and
//! write-back, or a call that takes the entry away, makes the page what its entry was, after the flush.

use crate::{
    PAGE_SIZE, Pfn,
    counted::Counted,
    error::NoMemory,
    file::{
        HasFiles, Mapping, Pager,
        cache::entry::Word,
        mapping::{FillError, Kind, zero},
    },
    platform::Platform,
};
use freehold_sync::{
    RwSemReadGuard,
    atomic::Ordering::{Relaxed, Release},
};
use freehold_vmspace::PageIndex;

impl<P: Platform> Mapping<P> {
    /// A file of `size` bytes whose pages are frames of the storage, which `pager` names: see
    /// [`Pager::direct_access`].
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn direct(
        files: &impl HasFiles<P>,
        pager: impl Pager<P>,
        size: u64,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::of_kind(files.files(), pager, size, Kind::Direct, None, false)
    }

    /// Brings a page of which `used` bytes belong to the file into the index. Under the invalidate lock.
    ///
    /// # Locks
    ///
    /// The frame's lock: the second fault on the same page finds it there.
    pub(in crate::file) fn fill_direct(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        used: u64,
    ) -> Result<(), FillError> {
        let word = self.cache_word(pages_stay, index)?;
        // Relaxed, here and below: what decides is the compare-and-swap.
        if word.load(Relaxed) != 0 {
            return Ok(());
        }
        let platform = self.files().platform();
        let pfn = self.pager().direct_access(platform, index).map_err(|_| FillError::Io)?.first();
        if !platform.has_frame(pfn) {
            return Err(FillError::Io);
        }
        let _identity = self.files().memory().lock_frame(pfn);
        if word.load(Relaxed) != 0 {
            return Ok(());
        }
        let frame = platform.frame(pfn);
        if !frame.is_free() {
            // Another page's, or the engine's: a storage in disorder.
            return Err(FillError::Io);
        }
        if used < PAGE_SIZE {
            zero(platform, pfn, used..PAGE_SIZE);
        }
        frame.init_cache(self.cache_page(), index);
        frame.enter_cache();
        // Release pairs with the acquire in `find`.
        match word.compare_exchange(0, Word::present(pfn).0, Release, Relaxed) {
            Ok(_) => self.invalidate.came(1),
            Err(_) => self.let_go_of(pfn),
        }
        Ok(())
    }

    /// Gives a frame back to the storage, once nobody else has a reference. No entry maps it, and nobody
    /// finds it any more.
    pub(in crate::file) fn let_go_of(&self, pfn: Pfn) {
        let frame = self.files().platform().frame(pfn);
        while !frame.try_leave_cache() {
            // A holder of one is about to flush, or in the midst of a page.
            P::relax();
        }
        let last = frame.put();
        debug_assert!(last, "a frame of storage was found after it had left its file");
    }
}
