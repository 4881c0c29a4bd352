//! Writing the dirty pages of a file back to its backing store.
//!
//! ```text
//! begin   invalidate lock R, briefly: clears the marks of dirty pages and marks the pages as being written;
//!         removes the right to write from their entries; takes the dirty bits of their frames
//! write   Pager::write(request), without a lock: the pager stores the pages, now or later, here or elsewhere
//! end     request.complete(page, result): the page is not being written any more; after an error it is dirty
//! wait    killably, without a lock, until no page of the range is being written
//! ```
//!
//! The steps of the begin must have this order: a store after the first two faults and marks the page as
//! dirty again, and the third finds every store before that. A page that turns out to be clean ends at once.
//!
//! A page that is dirty again while it is being written is not written a second time at once. The write-back
//! that needs it waits for the first write and then looks again. Either that look begins the second write, or
//! another task has begun one in the meantime, which includes every store before this write-back.
//!
//! msync (`call/msync.rs`) and `File::sync` call [`write_back`](Mapping::write_back), and the embedder calls
//! it before it drops a file. `dirty.rs` (in the folder above) has the rule by which pages are found,
//! `cache/marks.rs` the marks, and `write.rs` the requests. A page must stay dirty if its write fails.
//! `tests/files/mapped.rs`, `tests/files/writes.rs` and `tests/files/direct.rs` test write-back. The number
//! of visited entries must depend on the dirty pages and not on the size of mappings:
//! `write_back_visits_cached_pages_instead_of_mapped_ranges` fails otherwise.

use crate::{
    Pfn,
    counted::Counted,
    error::SyncError,
    file::{
        File, Mapping, WriteRequest,
        cache::radix::{Stay, marks::Begun},
        removal::Until,
    },
    platform::Platform,
    rmap::tree::Mapper,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_sync::{Killed, RwSemReadGuard};
use freehold_vmspace::{PageIndex, PageRange};

/// Pages of one leaf of the cache whose writes have begun, and which no request has yet.
#[must_use = "the pages never end being written unless `send_writes` passes them to the pager"]
struct Writes {
    /// The page of bit 0.
    base: PageIndex,
    /// The pages.
    left: u64,
    /// Absent pages with a permission of the pager.
    unused: u64,
    /// The frames, with a reference to each frame whose bit is set.
    frames: [Pfn; u64::BITS as usize],
}

/// Result of a step that begins writes.
#[derive(Default)]
struct Started {
    /// Number of pages whose writes have begun, or that turned out to be clean.
    count: u64,
    /// True if a page is dirty again during an earlier write, which is still under way.
    again: bool,
    /// True if an announced removal holds back the write of a dirty page.
    held: bool,
}

impl<P: Platform> Mapping<P> {
    /// Writes back the pages of this range that were written since the last write-back, by stores or by
    /// [`write_at`](Self::write_at), and waits until they are stored. Several requests may be under way at a
    /// time. Stores to a direct file are already in its storage; write-back makes these stores durable.
    ///
    /// # Errors
    ///
    /// Fails with `Io` if a write of the file failed during the call, and once after an error that no caller
    /// of this function has seen: a failed write, or the loss of a dirty page, inside or outside this range.
    /// A page whose write failed stays dirty, and the other pages are written. Fails with `Killed` if a fatal
    /// signal arrives; writes that have begun go on.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably and for a few pages at a time. Under the invalidate lock,
    /// the i_mmap lock for reading and the locks of page tables. No lock is held while the pager is called,
    /// or while the call waits. The caller holds no lock.
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
    pub fn write_back(&self, pages: PageRange) -> Result<(), SyncError> {
        let before = self.dirty.failures();
        self.write_dirty(pages)?;
        if self.dirty.reports(before) { Err(SyncError::Io) } else { Ok(()) }
    }

    /// Starts writes of dirty pages of a range, and does not wait for them. Begins no more writes after
    /// `most` pages. Returns the number of pages. Later callers of [`write_back`](Self::write_back) and
    /// `File::sync` learn of a failure.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal arrives. The other pages stay dirty.
    ///
    /// # Locks
    ///
    /// The locks of `write_back`.
    pub(in crate::file) fn start_some_writes(&self, pages: PageRange, most: u64) -> Result<u64, Killed> {
        let Some(file) = self.home().hold_borrowed(self).filter(|_| self.is_written_back()) else {
            return Ok(0);
        };
        self.mark_late_stores(|| self.invalidate.read_killable())?;
        Ok(self.begin_writes(&file, pages, most)?.count)
    }

    /// Begins writes of the pages of a range that are dirty and are not being written, for reclaim. Returns
    /// the number of pages whose writes have begun.
    ///
    /// # Locks
    ///
    /// The locks of `write_back`, if the invalidate lock is free.
    pub(crate) fn start_writes(&self, pages: PageRange) -> u64 {
        // A hint: reclaim does not wait for a change of the file.
        if self.invalidate.try_read().is_none() {
            return 0;
        }
        // A fatal signal ends the call; the pages stay dirty.
        self.start_some_writes(pages, pages.len().get()).unwrap_or(0)
    }

    /// Implements [`write_back`](Self::write_back), apart from the report of failures.
    fn write_dirty(&self, pages: PageRange) -> Result<(), SyncError> {
        if !self.is_written_back() {
            return Ok(());
        }
        let file = self.home().hold_borrowed(self).ok_or(SyncError::Io)?;
        self.mark_late_stores(|| self.invalidate.read_killable())?;
        // The second round writes the pages that were being written in the first round and were dirty again.
        for _ in 0..2 {
            let again = self.begin_all_writes(&file, pages)?;
            self.wait_for_writes(pages)?;
            if !again {
                break;
            }
        }
        Ok(())
    }

    /// Begins writes of all dirty pages of a range. If an announced removal holds a write back, waits until
    /// the removal has removed the page, or has failed. Returns true if a page is dirty again during an
    /// earlier write, which is still under way.
    fn begin_all_writes(&self, file: &Counted<Self>, pages: PageRange) -> Result<bool, Killed> {
        let (mut rounds, mut again) = (Rounds::new(), false);
        loop {
            let started = self.begin_writes(file, pages, u64::MAX)?;
            again |= started.again;
            if !started.held {
                return Ok(again);
            }
            self.wait_for_removals(Until::NotAnnounced(pages))?;
            rounds.again::<P>()?;
        }
    }

    /// Begins writes of the dirty pages of a range and passes them to the pager. Begins no more writes after
    /// `most` pages.
    fn begin_writes(&self, file: &Counted<Self>, pages: PageRange, most: u64) -> Result<Started, Killed> {
        let (mut at, mut started, mut rounds) = (pages.start, Started::default(), Rounds::new());
        let guarded = self.guards_writes();
        while at < pages.end && started.count < most {
            rounds.again::<P>()?;
            // A guarded page keeps its permission until a store under the content lock is recorded.
            let content = if guarded { Some(self.content.read_killable()?) } else { None };
            let pages_stay = self.invalidate.read_killable()?;
            let (stay, rest) = (Stay::locked(&pages_stay), PageRange::new(at, pages.end));
            let (begun, next) = self.cache.begin_writes(&mut self.marks(), stay, rest);
            at = next;
            let Some(begun) = begun else { continue };
            started.again |= begun.again != 0;
            started.held |= begun.held != 0;
            started.count += u64::from(begun.pages.count_ones());
            if begun.pages != 0 {
                self.home().each_mapper(begun.range(), if guarded { clean_locked } else { clean });
            }
            self.write_begun(file, (pages_stay, content), &begun);
        }
        Ok(started)
    }

    /// Takes the dirty bits of the frames of pages whose writes have begun and whose later stores fault.
    /// Releases the locks, and passes the dirty pages to the pager.
    // A function of its own: the walk that makes the stores fault needs much stack, and `Writes` too.
    #[inline(never)]
    fn write_begun(
        &self,
        file: &Counted<Self>,
        locks: (RwSemReadGuard<'_, P>, Option<RwSemReadGuard<'_, P>>),
        begun: &Begun,
    ) {
        let writes = self.take_dirty(&locks.0, begun);
        drop(locks);
        self.send_writes(file, &writes);
        self.end_permissions(&writes);
    }

    /// Takes the dirty bits of the frames of the pages. Ends the writes of the pages that are clean.
    fn take_dirty(&self, pages_stay: &RwSemReadGuard<'_, P>, begun: &Begun) -> Writes {
        let mut writes =
            Writes { base: begun.base, left: 0, unused: 0, frames: [Pfn::new(0); u64::BITS as usize] };
        let guarded = self.guards_writes();
        for place in (0..u64::BITS as usize).filter(|place| begun.pages >> place & 1 != 0) {
            let index = begun.base + place as u64;
            match self.get_after_move(pages_stay, index) {
                Some(page) if self.files().platform().frame(*page).take_dirty() || guarded => {
                    writes.frames[place] = *page;
                    writes.left |= 1 << place;
                    // The request gets the reference.
                    core::mem::forget(page);
                }
                None if guarded => writes.unused |= 1 << place,
                clean => {
                    drop(clean);
                    self.end_write_mark(index);
                }
            }
        }
        writes
    }

    /// Tells the pager about pages whose permissions end without a change. The caller holds no lock.
    fn end_permissions(&self, writes: &Writes) {
        let mut left = writes.unused;
        while left != 0 {
            let index = writes.base + u64::from(left.trailing_zeros());
            left &= left - 1;
            self.pager().not_changed(index);
            self.end_write_mark(index);
        }
    }

    /// Passes pages to the pager, in requests of consecutive pages that are as large as the pager wants.
    fn send_writes(&self, file: &Counted<Self>, writes: &Writes) {
        let most = self.pager().write_pages().clamp(1, WriteRequest::<P>::MAX_PAGES);
        let mut left = writes.left;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let pages = u64::from((left >> first).trailing_ones()).min(most) as usize;
            left &= !(u64::MAX >> (u64::BITS as usize - pages) << first);
            let frames = &writes.frames[first..first + pages];
            self.send_write(WriteRequest::new(file.clone(), writes.base + first as u64, frames));
        }
    }
}

impl<P: Platform> File<P> {
    /// Writes back the dirty pages of this range and waits until they are stored (fsync), like
    /// [`Mapping::write_back`]. Reports each failure once per open file, as Linux does.
    ///
    /// # Errors
    ///
    /// Fails with `Io` if a page of the file, inside or outside this range, could not be written, or if a
    /// dirty page was lost, since this function last reported a failure for this open file. The failure may
    /// have happened in another call, or in a write-back that no program asked for. A failure that no open
    /// file has reported is also reported by a file that is opened later. Fails with `Killed` if a fatal
    /// signal arrives; failures are then reported by the next call.
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::write_back`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, PageRange, Pfn, error::SyncError, file::*, platform::Platform};
    /// # use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// static FULL: AtomicBool = AtomicBool::new(true);
    /// struct Disk;
    /// impl<P: Platform> Pager<P> for Disk {
    /// #   fn reads_zeroes(&self) -> bool {
    /// #       true
    /// #   }
    ///     fn write_page(&self, _: &P, _: PageIndex, _: Pfn) -> Result<(), IoError> {
    ///         if FULL.load(SeqCst) { Err(IoError) } else { Ok(()) }
    ///     }
    /// }
    /// let mapping = Mapping::new(&engine, Disk, PAGE_SIZE, false).unwrap();
    /// let [a, b] = ["/a", "/a"].map(|name| File::new(&mapping, FileAccess::READ_WRITE, name).unwrap());
    /// mapping.write_at(0, b"new").unwrap();
    /// assert_eq!(a.sync(PageRange::ALL), Err(SyncError::Io));
    /// FULL.store(false, SeqCst);
    /// assert_eq!(a.sync(PageRange::ALL), Ok(()));
    /// assert_eq!(b.sync(PageRange::ALL), Err(SyncError::Io), "once per open file");
    /// assert_eq!(b.sync(PageRange::ALL), Ok(()));
    /// ```
    pub fn sync(&self, pages: PageRange) -> Result<(), SyncError> {
        self.mapping().write_dirty(pages)?;
        if self.mapping().dirty.tell(&self.told) { Err(SyncError::Io) } else { Ok(()) }
    }
}

/// Clears the write permission and the dirty bit of every entry through which stores reach the file.
fn clean<P: Platform>(mapper: &Mapper<'_, P, Vma<P>>) {
    if mapper.vma.flags().contains(VmFlags::SHARED) {
        mapper.vm.clean(mapper.range);
    }
}

/// Like [`clean`], but locks every page table.
fn clean_locked<P: Platform>(mapper: &Mapper<'_, P, Vma<P>>) {
    if mapper.vma.flags().contains(VmFlags::SHARED) {
        mapper.vm.clean_locked(mapper.range);
    }
}
