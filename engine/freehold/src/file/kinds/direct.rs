//! Files whose pages are frames of the storage itself (DAX). Nothing is copied, and there is no cache.
//!
//! The index of the file contains frames of the storage, as the index of another file contains frames of the
//! cache. While a frame is in the index, the frame's record counts references as for any other frame. The
//! same code maps these frames, zaps them and handles their memory failures. The differences:
//!
//! ```text
//! fill        the pager names the frame, without a lock; the frame enters the index under the invalidate
//!             lock (R), if no page was removed from the file since the question; its record belongs to the
//!             file from then on, with one reference
//! store       the first store faults and makes page and entry dirty, as for every file
//! write_back  under the i_mmap lock, shared: every entry loses its write permission and is flushed;
//!             then the pager makes each dirty page durable, without a lock;
//!             a later store faults again and makes the page dirty again
//! truncate    waits for the end of such writes, without a lock;
//!             hides and zaps the page like every truncation; waits for all other references;
//!             clears the record; then the pager is told, without a lock, and may free the frame
//! ```
//!
//! A frame that the pager has named may be discarded before it enters the index, and may then belong to
//! another file. The frame is therefore used only if the number of removals of the file is unchanged. No
//! frame is named for a page that the pager is discarding (`file/removal.rs`). A page that was named and lies
//! beyond the end of the file by then is discarded again.
//!
//! Only direct files need the wait in the last step. A frame of a cache stays allocated until its last
//! reference is dropped, but a storage frame must return to the storage. Three kinds of tasks may still hold
//! a reference in this step: a munmap that has removed an entry and not flushed it yet (hazard C-58), a
//! transfer that is copying a page (process_vm_readv), and a read of the file. The wait for these tasks is
//! short, because they wait for no lock of the file while they hold the reference. No other task can get a
//! reference by frame number (`rmap/walk.rs`).
//!
//! A page is never both clean and writable. A store fault makes both the entry and the page dirty.
//! Write-back, or a call that removes the entry, transfers the entry's dirty bit to the page after the flush.
//!
//! `tests/files/direct.rs` uses a storage (`tests/support/storage.rs`) that loses stores which were not made
//! durable, and `shuttle_engine/direct.rs` returns frames while other tasks use them.

use crate::{
    PAGE_SIZE, Pfn,
    counted::Counted,
    error::NoMemory,
    file::{
        HasFiles, Mapping, Pager,
        cache::{entry::Word, radix::Stay},
        mapping::{FillError, Kind, NewFile, zero},
    },
    platform::Platform,
};
use freehold_sync::{
    RwSemReadGuard,
    atomic::Ordering::{Relaxed, Release},
    rank,
};
use freehold_vmspace::{PageIndex, PageRange};

/// The frame that the storage has named for a page.
#[derive(Clone, Copy)]
pub(in crate::file) struct Named {
    pub index: PageIndex,
    pfn: Pfn,
    /// The number of removals of the file before the question.
    removals: u64,
}

impl<P: Platform> Mapping<P> {
    /// Creates a file of `size` bytes whose pages are frames of the storage. `pager` names the frames; see
    /// [`Pager::direct_access`].
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, Pfn, engine::{Config, Engine}, file::{ForeignFrames, IoError, Mapping, Pager}};
    /// # use freehold::platform::{FramePurpose, FrameRequest, Platform};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// # let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    /// # let mut frames = [Pfn::new(0)];
    /// # assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), 1);
    /// struct Storage(Pfn);
    /// impl<P: Platform> Pager<P> for Storage {
    /// #     fn read_page(&self, _: &P, _: PageIndex, _: Pfn) -> Result<(), IoError> {
    /// #         Err(IoError)
    /// #     }
    ///     fn direct_access(&self, _: &P, _: PageIndex) -> Result<ForeignFrames, IoError> {
    ///         // SAFETY: the frame is allocated from the machine for this file and is never freed.
    ///         Ok(unsafe { ForeignFrames::new(self.0, 1) })
    ///     }
    /// }
    /// let file = Mapping::direct(&engine, Storage(frames[0]), PAGE_SIZE).unwrap();
    /// file.write_at(0, b"stored").unwrap();
    /// let mut found = [0; 6];
    /// machine.read_frame(frames[0], 0, &mut found);
    /// assert_eq!(&found, b"stored");
    /// ```
    pub fn direct(
        files: &impl HasFiles<P>,
        pager: impl Pager<P>,
        size: u64,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::make(files.files(), pager, NewFile::new(size, Kind::Direct))
    }

    /// Asks the storage for the frame of a page.
    ///
    /// # Errors
    ///
    /// Fails with `Io` if the storage fails, and with `Killed` if a fatal signal ends a wait.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, briefly. No lock is held while the pager is called. The caller holds
    /// no lock.
    pub(in crate::file) fn name_frame(&self, index: PageIndex) -> Result<Named, FillError> {
        let pages_stay = self.stay_to_fill(index)?;
        let removals = self.removals();
        drop(pages_stay);
        rank::holds_none::<P>();
        let platform = self.files().platform();
        let pfn = self.pager().direct_access(platform, index).map_err(|_| FillError::Io)?.first();
        if platform.has_frame(pfn) { Ok(Named { index, pfn, removals }) } else { Err(FillError::Io) }
    }

    /// Makes the storage discard a page that it has named in vain: the page lies beyond the end of the file,
    /// because the file has shrunk or a write has failed. Does nothing if the page is part of the file again.
    ///
    /// # Locks
    ///
    /// The content and invalidate locks for writing, which are released before the pager is called. The
    /// caller holds no lock.
    #[cold]
    pub(in crate::file) fn discard_beyond(&self, index: PageIndex) {
        let page = PageRange::one(index);
        let discard = self.with_content(|_| {
            let pages_go = self.invalidate.write();
            if index < self.end() || !self.is_absent(Stay::locked(&pages_go), page) {
                return Ok(None);
            }
            let discard = self.begin_discard(&pages_go, page)?;
            // A task to which the storage has named the same frame asks again.
            self.clear_marks(Stay::locked(&pages_go), page);
            Ok(Some(discard))
        });
        if let Ok(Some(discard)) = discard {
            discard.send();
        }
    }

    /// Brings a page into the index, in the frame that the storage has named for the page. The first `used`
    /// bytes of the page belong to the file; the remaining bytes are zeroed. Returns false if the storage has
    /// not named a frame for the page, or if pages were removed since. The caller holds the invalidate lock.
    ///
    /// # Errors
    ///
    /// Fails with `Io` if the frame is in use, and with `NoMemory`.
    ///
    /// # Locks
    ///
    /// The frame's lock, so that a second fault on the same page finds the page in the index.
    pub(in crate::file) fn fill_direct(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        used: u64,
        named: Option<Named>,
    ) -> Result<bool, FillError> {
        // Relaxed, here and below: the value 0 is a hint, which the compare-and-swap checks again.
        if self.word(pages_stay, index).is_some_and(|word| word.load(Relaxed) != 0) {
            return Ok(true);
        }
        let is_current = |named: &Named| named.index == index && named.removals == self.removals();
        let Some(Named { pfn, .. }) = named.filter(is_current) else { return Ok(false) };
        let platform = self.files().platform();
        let word = self.cache_word(pages_stay, index)?;
        let _identity = self.files().memory().lock_frame(pfn);
        if word.load(Relaxed) != 0 {
            return Ok(true);
        }
        let frame = platform.frame(pfn);
        if !frame.is_free() {
            // The frame is in use by another page or by the engine: the storage is inconsistent.
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
            Err(_) => self.release_frame(pfn),
        }
        Ok(true)
    }

    /// Returns a frame to the storage after all other references are dropped. No entry maps the frame, and
    /// lookups do not find it any more.
    pub(in crate::file) fn release_frame(&self, pfn: Pfn) {
        let frame = self.files().platform().frame(pfn);
        while !frame.try_leave_cache() {
            // A holder of a reference is about to flush, or is copying the page.
            P::relax();
        }
        let last = frame.put();
        debug_assert!(last, "a task found a frame of the storage after the frame left its file");
    }
}
