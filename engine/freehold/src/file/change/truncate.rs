//! Removing pages of a file that may be mapped: truncation and hole punching.
//!
//! ```text
//! wait      for writes of the pages, without a lock; from the second attempt on, no further write begins
//! publish   a truncation stores the new size; hole punching keeps the size
//! mark      the pages are marked as leaving: later lookups do not find them
//! zap       under the i_mmap lock, shared: clears and flushes every entry that maps one of the pages
//! count     zaps again the pages that still have references besides the cache's
//! drop      the cache drops its references
//! discard   without a lock: the pager discards the pages, and none of them enters the cache before the end
//! ```
//!
//! `removal.rs` describes the first and the last step. The other steps hold the content and invalidate locks.
//! No fault can bring a page back during these steps, because filling a page waits for the invalidate lock. A
//! fault that found the page before these steps raises the page's reference count, locks the table, and reads
//! the word again (`mapping.rs`). If the zap locks that table later, the zap finds the entry. If the zap
//! locked the table earlier, the fault finds the mark.
//!
//! The zap locks every table that it finds. A fault may use a table that did not exist when the zap passed.
//! On a CPU that lets a load pass an earlier store, such a fault may miss the mark as well. The truncation
//! therefore checks the reference counts. If the fault raised the count before the check, the second zap
//! finds the fault's table, which already existed. If the fault raises the count after the check, the fault
//! finds the mark.
//!
//! Code that makes an entry without a page of the file raises no count. Under the lock of its table, such
//! code calls [`is_inside`](Mapping::is_inside), which checks the size of the file. A fence in `is_inside`
//! and a fence before the zap give the same guarantee as the count.
//!
//! `remove.rs` implements the steps from mark to drop (`cut`), and `unmap.rs` the zap. The order of the steps
//! must not change. A new call that removes pages must use `cut`, and joins the lists in
//! `cached_translations.rs` and `read_sections.rs` (`engine/freehold/tests/files`). `shuttle_files.rs` in
//! `lab/freehold-machine/tests` and `shuttle_engine/files.rs` run truncation and hole punching concurrently
//! with faults (hazards C-26, C-37).

use crate::{
    PAGE_SIZE,
    file::{
        Copies, MAX_BYTES,
        cache::radix::Stay,
        contents::Stop,
        mapping::{FillError, Mapping, zero},
        removal::{Discard, Removal},
    },
    platform::Platform,
};
use core::ops::Range;
use freehold_sync::{RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex, PageRange};

/// The order in which the cache and the storage get a new size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// A program sets the size, and the pager is told.
    Follows,
    /// The storage has the size already.
    Leads,
}

impl<P: Platform> Mapping<P> {
    /// Sets the size of the file. If the file shrinks, the pages beyond the new size are removed from the
    /// cache and from page tables, including private copies. An access beyond the new size then raises
    /// SIGBUS. If the file grows, the added bytes read as zeroes. Pages beyond the old size
    /// ([`reserve`](Self::reserve)) are also removed, unless the file grows.
    ///
    /// # Errors
    ///
    /// Fails with `BeyondEnd` if the size exceeds the largest size of a file. Fails with `Invalid` for a size
    /// inside a huge page of a pool, for a device of zeroes, and for secret memory that already has a size.
    /// Fails with `Sealed` if a seal forbids the change, and with `NoMemory` if the limit on committed memory
    /// does not allow the growth. Fails with `Busy` if a shared mapping without an MMU uses a page of which
    /// the file would lose bytes. Also fails if the page in which the old or the new size lies cannot be
    /// read. Fails with `Killed` if a fatal signal ends the wait for writes of removed pages. The file is
    /// unchanged after an error.
    ///
    /// # Locks
    ///
    /// The file's content and invalidate locks for writing, its i_mmap lock for reading, and locks of page
    /// tables one at a time. No lock is held while a page is read, while the call waits for the end of
    /// writes, or while the pager discards the pages. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap(), FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ | Prot::WRITE, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// file.mapping().truncate(PAGE_SIZE).unwrap();
    /// assert_eq!((file.mapping().present_pages(), space.rss().shmem), (0, 0));
    /// let beyond = space.handle_fault(at + PAGE_SIZE, Access::READ);
    /// assert_eq!(beyond, Err(FaultError::Bus { addr: at + PAGE_SIZE }));
    /// ```
    pub fn truncate(&self, size: u64) -> Result<(), FillError> {
        if size > MAX_BYTES {
            return Err(FillError::BeyondEnd);
        }
        if self.huge.is_some() && !size.is_multiple_of(self.page_bytes()) {
            return Err(FillError::Invalid);
        }
        let gone = self
            .with_content(|attempts| self.truncate_locked(&mut attempts.removal, size, Storage::Follows))?;
        if let Some(gone) = gone {
            gone.send();
        }
        Ok(())
    }

    /// Implements [`truncate`](Self::truncate), except the discard, which the caller sends without a lock.
    /// The caller holds `content` for writing.
    pub(super) fn truncate_locked(
        &self,
        removal: &mut Removal<'_, P>,
        size: u64,
        storage: Storage,
    ) -> Result<Option<Discard<'_, P>>, Stop> {
        let unit = self.page_bytes();
        self.may_resize(size)?;
        let old = self.size();
        if self.is_zeroes() || (self.is_secret() && old != 0) {
            return Err(FillError::Invalid.into());
        }
        let end = self.end_of_pages();
        if size > old {
            let charge = self.charge_growth(old, size)?;
            self.zero_behind(old, size)?;
            self.publish_size(size);
            charge.keep();
            return Ok(None);
        }
        let gone = PageRange::new(PageIndex::new(size.div_ceil(unit)), end);
        if size == old && gone.is_empty() {
            return Ok(None);
        }
        removal.set_pages(PageRange::new(PageIndex::new(size / unit), PageIndex::END));
        let cut_within = (!size.is_multiple_of(PAGE_SIZE)).then(|| PageIndex::of_byte(size));
        let (last, pages_go) = loop {
            // The bytes that are cut off the last page must read as zeroes if the file grows again.
            let Some(index) = cut_within else { break (None, self.invalidate.write()) };
            let last = match storage {
                Storage::Follows => self.page_to_zero(index)?,
                Storage::Leads => self.get_page(index),
            };
            let pages_go = self.invalidate.write();
            if storage == Storage::Leads {
                self.stop_read(&pages_go, index);
            }
            // Since the lookup, a page may have entered the cache, or another page may have replaced `last`
            // because the memory of `last` failed.
            let is_still = match &last {
                Some(last) => self.word_of(&pages_go, index, **last).is_some(),
                None => self.is_absent(Stay::locked(&pages_go), PageRange::one(index)),
            };
            if is_still {
                break (last, pages_go);
            }
        };
        self.no_writes(&pages_go, gone, removal)?;
        self.regions.may_lose(PageRange::new(PageIndex::new(size / unit), gone.end))?;
        self.prepare_cut()?;
        let discard = match storage {
            Storage::Follows => Some(self.begin_discard(&pages_go, gone)?),
            Storage::Leads => None,
        };
        match storage {
            Storage::Follows => self.publish_size(size),
            Storage::Leads => self.store_size(size),
        }
        self.uncharge_cut(old, size);
        if size < old {
            self.split_blocks(&pages_go, (size / PAGE_SIZE..old.div_ceil(PAGE_SIZE)).into());
        }
        self.cut(&pages_go, gone, Copies::Go, |pages| self.unmap(pages, Copies::Go));
        if let Some(last) = last {
            zero(self.files().platform(), *last, size % PAGE_SIZE..PAGE_SIZE);
            // The storage has the same zeroes already if it leads.
            if storage == Storage::Follows {
                self.set_dirty(PageIndex::of_byte(size), *last);
            }
        }
        // Relaxed: guarded by `content`.
        self.reserved_end.store(0, Relaxed);
        Ok(discard)
    }

    /// Replaces the bytes of `range` with zeroes. Whole pages leave the cache and all page tables, except
    /// private copies, also beyond the end of the file ([`reserve`](Self::reserve)). Parts of pages are
    /// overwritten. The size does not change.
    ///
    /// # Errors
    ///
    /// Fails with `Unsupported` for secret memory and for a device of zeroes. Fails if a page at the edge
    /// cannot be read, if a seal forbids the change, or if there is no memory. Fails with `Busy` if a shared
    /// mapping without an MMU uses one of the whole pages. The file is unchanged after an error.
    ///
    /// # Locks
    ///
    /// The locks of [`truncate`](Self::truncate).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 2 * PAGE_SIZE).unwrap();
    /// file.write_at(0, &[7; 2 * PAGE_SIZE as usize]).unwrap();
    /// file.punch(1..2 * PAGE_SIZE).unwrap();
    /// let mut found = [1; 2];
    /// file.read_at(0, &mut found).unwrap();
    /// assert_eq!((found, file.present_pages(), file.size()), ([7, 0], 1, 2 * PAGE_SIZE));
    /// ```
    pub fn punch(&self, range: Range<u64>) -> Result<(), FillError> {
        if self.is_secret() || self.is_zeroes() {
            return Err(FillError::Unsupported);
        }
        let gone = self.with_content(|attempts| self.punch_locked(&mut attempts.removal, range.clone()))?;
        if let Some(gone) = gone {
            gone.send();
        }
        Ok(())
    }

    /// Implements [`punch`](Self::punch), except the discard, which the caller sends without a lock. The
    /// caller holds `content` for writing.
    fn punch_locked(
        &self,
        removal: &mut Removal<'_, P>,
        range: Range<u64>,
    ) -> Result<Option<Discard<'_, P>>, Stop> {
        self.may_change()?;
        let unit = self.page_bytes();
        let all = self.end_of_pages().get().saturating_mul(unit);
        let (start, end) = (range.start, range.end.min(all.next_multiple_of(PAGE_SIZE)));
        if start >= end {
            return Ok(None);
        }
        let inner = start.next_multiple_of(unit)..end - end % unit;
        // A page beyond the end of the file is zero already.
        let size = self.size();
        if inner.start > inner.end {
            if start < size {
                self.split_at_bytes(&(start..end));
                self.zero_part(start..end)?;
            }
            return Ok(None);
        }
        removal.set_pages(PageRange::from(range.start / unit..range.end.div_ceil(unit)));
        let edges = [start..inner.start, inner.end..end];
        let edges = edges.map(|edge| Some(edge).filter(|edge| !edge.is_empty() && edge.start < size));
        // All steps that can fail come before the first change.
        let mut kept = [const { None }; 2];
        for (edge, kept) in edges.iter().zip(&mut kept) {
            if let Some(edge) = edge.as_ref().filter(|_| self.huge.is_none()) {
                *kept = self.page_to_zero(PageIndex::of_byte(edge.start))?;
            }
        }
        let pages_go = self.invalidate.write();
        for (edge, kept) in edges.iter().zip(&kept) {
            // An edge that was absent may have come into the cache, and may be swapped out by now.
            if let Some(edge) = edge.as_ref().filter(|_| self.huge.is_none() && kept.is_none()) {
                self.check_not_swapped(PageIndex::of_byte(edge.start))?;
            }
        }
        let gone = PageRange::from(inner.start / unit..inner.end / unit);
        self.no_writes(&pages_go, gone, removal)?;
        self.regions.may_lose(gone)?;
        self.prepare_cut()?;
        let discard = self.begin_discard(&pages_go, gone)?;
        self.split_blocks(&pages_go, (start / PAGE_SIZE..end.div_ceil(PAGE_SIZE)).into());
        self.cut(&pages_go, gone, Copies::Stay, |pages| self.unmap(pages, Copies::Stay));
        if self.huge.is_none() {
            for (edge, kept) in edges.iter().zip(kept) {
                // An edge that was absent may have entered the cache before the lock was acquired.
                let page = |edge: &Range<u64>| kept.or_else(|| self.get_any(PageIndex::of_byte(edge.start)));
                if let Some(edge) = edge
                    && let Some(page) = page(edge)
                {
                    self.zero_page_part(&page, edge.clone());
                }
            }
        }
        drop(pages_go);
        if self.huge.is_some() {
            edges.into_iter().flatten().for_each(|edge| self.zero_part_huge(edge));
        }
        Ok(Some(discard))
    }

    /// Checks that none of the pages that are about to be removed is being written. A page that is being
    /// written must not be discarded, because its write would follow the discard. No write begins before the
    /// lock is released. If there is a write, announces the removal, so that it waits only for the writes
    /// that have begun.
    fn no_writes(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        gone: PageRange,
        removal: &mut Removal<'_, P>,
    ) -> Result<(), Stop> {
        if self.has_writes(Stay::locked(pages_go), gone) {
            removal.announce();
            return Err(Stop::Writing(gone));
        }
        Ok(())
    }

    /// Splits the blocks of which some pages are in `cut` and others are not. The smaller blocks that remain
    /// are unmapped, as on Linux. Private copies stay mapped.
    pub(crate) fn split_blocks(&self, pages_go: &RwSemWriteGuard<'_, P>, cut: PageRange) {
        if !self.is_shmem() || cut.is_empty() {
            return;
        }
        for edge in [cut.start, cut.end - 1] {
            if let Some(block) = self.split_block(pages_go, edge, cut) {
                self.unmap(block, Copies::Stay);
            }
        }
    }

    /// Splits the block that a page is part of, because bytes of the page are about to be zeroed.
    pub(in crate::file) fn split_at_bytes(&self, bytes: &Range<u64>) {
        let index = PageIndex::of_byte(bytes.start);
        let alone = |block: PageRange| block.len() == PageCount::ONE;
        if !self.block_of(&P::rcu_read(), index).is_none_or(alone) {
            self.split_blocks(&self.invalidate.write(), PageRange::one(index));
        }
    }
}
