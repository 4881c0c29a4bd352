//! Reading and writing the contents of a file through its page cache: the part of read(2) and write(2) that
//! concerns pages.
//!
//! Mappings use the same pages. A store through a mapping is therefore visible to a read at once, and a write
//! is visible through mappings at once. Pages are brought into the cache by `fill.rs`, and written back to
//! the backing store by `change/write_back.rs`.
//!
//! A write holds the content lock for writing, so writes of one file do not overlap and the size is stable. A
//! read does not take the content lock. No task waits for a pager while it holds the lock, because a
//! truncation needs the lock to remove a page whose read hangs: a step that needs an absent page returns
//! [`Stop::Absent`], and [`with_content`](Mapping::with_content) releases the lock, reads the page, and
//! starts again. A removal of pages that are being written waits in the same way ([`Stop::Writing`]), and so
//! does a write to a page that the pager is discarding ([`Stop::Removals`]). A write of a whole page does not
//! read it.
//!
//! A write must publish the size after the bytes, because a reader that sees the new size reads them without
//! a lock. `tests/files/mapped.rs` tests reads and writes together with mappings.

use super::{
    cache::{lookup::CachedPage, radix::Stay},
    kinds::direct::Named,
    mapping::{FillError, Mapping},
    removal::{Removal, Until},
};
use crate::{
    PAGE_SIZE,
    file::{MAX_BYTES, zero},
    platform::Platform,
    shortage::ShortageRounds,
    wait::Rounds,
};
use core::ops::Range;
use freehold_vmspace::{PageIndex, PageRange};

/// The reason why a step under the content lock cannot continue.
#[derive(Clone, Copy)]
pub(in crate::file) enum Stop {
    /// This page must first be read, without the lock.
    Absent(PageIndex),
    /// The writes of these pages must first end, without the lock.
    Writing(PageRange),
    /// The pager must first permit changes of these pages.
    Guarded(PageRange),
    /// A state of other removals must first end.
    Removals(Until),
    /// The storage must first name the frame of this page of a direct file.
    Unnamed(PageIndex),
    /// The operation fails.
    Failed(FillError),
}

impl<E: Into<FillError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Stop::Failed(error.into())
    }
}

/// The state of an operation that holds the content lock in each of its attempts.
pub(in crate::file) struct Attempts<'m, P: Platform> {
    /// The rounds in which memory was short.
    pub shortage: ShortageRounds,
    /// The removal of pages, if the operation is one.
    pub removal: Removal<'m, P>,
    /// The frame that the storage of a direct file has named last.
    named: Option<Named>,
}

impl<P: Platform> Mapping<P> {
    /// Reads bytes at `offset`, up to the end of the file. Returns the number of bytes read.
    ///
    /// # Errors
    ///
    /// Fails if the first page cannot be read. Fails with `Invalid` for secret memory.
    ///
    /// # Locks
    ///
    /// The locks of [`fill`](Self::fill), for pages that are not in the cache.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, PAGE_SIZE + 6).unwrap();
    /// assert_eq!(file.read_at(PAGE_SIZE + 2, &mut [0; 64]), Ok(4), "up to the end of the file");
    /// ```
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FillError> {
        self.read_by(offset, out, |index| self.retry_when_short(|| self.page(index)))
    }

    /// Reads bytes like [`read_at`](Self::read_at), but does not ask the platform for memory. The caller may
    /// hold the content lock.
    pub(crate) fn try_read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FillError> {
        self.read_by(offset, out, |index| self.page(index))
    }

    /// Implements [`read_at`](Self::read_at) with a function that returns a page.
    fn read_by<'s>(
        &'s self,
        offset: u64,
        out: &mut [u8],
        page: impl Fn(PageIndex) -> Result<CachedPage<'s, P>, FillError>,
    ) -> Result<usize, FillError> {
        if self.huge.is_some() {
            return Ok(self.read_huge(offset, out));
        }
        if self.is_secret() {
            return Err(FillError::Invalid);
        }
        if self.is_zeroes() {
            out.fill(0);
            return Ok(out.len());
        }
        self.read_pages_at(offset, out, |index, _| page(index))
    }

    /// Implements [`read_at`](Self::read_at) for pages of 4 KiB. `page` returns a page, and brings it into
    /// the cache if necessary. Its second argument is the number of pages that the rest of the read needs.
    pub(in crate::file) fn read_pages_at<'m>(
        &'m self,
        offset: u64,
        out: &mut [u8],
        page: impl Fn(PageIndex, u64) -> Result<CachedPage<'m, P>, FillError>,
    ) -> Result<usize, FillError> {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let left = self.size().saturating_sub(at);
            let start = at % PAGE_SIZE;
            let wanted = (start + left.min((out.len() - done) as u64)).div_ceil(PAGE_SIZE);
            let page = match page(PageIndex::of_byte(at), wanted) {
                _ if left == 0 => break,
                Ok(page) => page,
                // The file shrank during the read, or earlier pages were already read: return a short count.
                Err(error) if done == 0 && error != FillError::BeyondEnd => return Err(error),
                Err(_) => break,
            };
            let len = (PAGE_SIZE - start).min(left).min((out.len() - done) as u64) as usize;
            self.files().platform().frame(*page).mark_accessed();
            self.files().platform().read_frame(*page, start as usize, &mut out[done..done + len]);
            done += len;
        }
        Ok(done)
    }

    /// Writes bytes at `offset` and enlarges the file if necessary. Returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// Fails if the first page cannot be read or allocated, if a seal forbids the write, or if the file would
    /// exceed the largest size. If memory runs out, another write may come between two parts of this one.
    /// Fails with `Invalid` for secret memory and for files of huge pages, which can only be mapped.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing, which is released while a page is read; then the locks of
    /// [`fill`](Self::fill).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 0).unwrap();
    /// assert_eq!(file.write_at(8 * PAGE_SIZE, b"grown"), Ok(5));
    /// assert_eq!((file.size(), file.present_pages()), (8 * PAGE_SIZE + 5, 1));
    /// ```
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FillError> {
        if self.huge.is_some() || self.is_secret() {
            return Err(FillError::Invalid);
        }
        if self.is_zeroes() {
            return Ok(data.len());
        }
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= MAX_BYTES);
        if end.is_none() {
            return Err(FillError::BeyondEnd);
        }
        let mut done = 0;
        let written = self.with_content(|attempts| {
            self.may_change()?;
            // These pages stay in the cache until the end of the write, which is therefore not interrupted by
            // another write.
            let _kept = self.keep_parts(offset + done as u64, &data[done..])?;
            while done < data.len() {
                done += self.write_part(offset + done as u64, &data[done..], attempts.named)?;
                attempts.shortage.progressed();
            }
            Ok(())
        });
        if done == 0 { written.map(|()| 0) } else { Ok(done) }
    }

    /// Calls `step` with the content lock held for writing. If `step` must wait for something, releases the
    /// lock, waits, and calls `step` again. If `step` finds no memory, releases the lock, asks the platform
    /// and calls `step` again. `step` has then changed nothing, or continues behind its change. It reports
    /// progress in its argument. A removal of pages is announced only while it waits for writes.
    ///
    /// # Errors
    ///
    /// Fails with the error of `step`, or if the page cannot be read.
    pub(in crate::file) fn with_content<'m, R>(
        &'m self,
        mut step: impl FnMut(&mut Attempts<'m, P>) -> Result<R, Stop>,
    ) -> Result<R, FillError> {
        let (shortage, removal) = (ShortageRounds::new(), Removal::new(self));
        let (mut attempts, mut rounds) = (Attempts { shortage, removal, named: None }, Rounds::new());
        loop {
            let content = self.content.write();
            let stop = match step(&mut attempts) {
                Ok(done) => return Ok(done),
                Err(stop) => stop,
            };
            drop(content);
            let again = self.resolve(stop, &mut attempts).and_then(|()| Ok(rounds.again::<P>()?));
            if let Err(error) = again {
                attempts.named.into_iter().for_each(|named| self.discard_beyond(named.index));
                return Err(error);
            }
        }
    }

    /// Does what an operation needs before it can continue. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails if the operation fails.
    fn resolve<'m>(&'m self, stop: Stop, attempts: &mut Attempts<'m, P>) -> Result<(), FillError> {
        let removal = &mut attempts.removal;
        if !matches!(stop, Stop::Writing(_)) {
            removal.withdraw();
        }
        let ready = match stop {
            Stop::Absent(index) => self.try_fill(index),
            Stop::Guarded(pages) => self.ask_to_write_then(pages, || removal.announce()),
            Stop::Writing(pages) => self.wait_for_writes(pages).map_err(FillError::from),
            Stop::Removals(until) => self.wait_for_removals(until).map_err(FillError::from),
            Stop::Unnamed(index) => self.name_frame(index).map(|named| attempts.named = Some(named)),
            Stop::Failed(error) => Err(error),
        };
        match (ready, stop) {
            (Ok(()), _) | (Err(FillError::BeyondEnd), Stop::Absent(_)) => Ok(()),
            (Err(error), _) => {
                attempts.removal.withdraw();
                self.again_when_short(&mut attempts.shortage, error)
            }
        }
    }

    /// Returns references to the pages of which a write of `data` keeps a part: at its start, at its end, and
    /// at the end of the file. The caller holds `content` for writing.
    fn keep_parts(&self, at: u64, data: &[u8]) -> Result<[Option<CachedPage<'_, P>>; 3], Stop> {
        let (size, end) = (self.size(), at + data.len() as u64);
        let starts = !at.is_multiple_of(PAGE_SIZE) || at / PAGE_SIZE == end / PAGE_SIZE;
        let parts = [
            (starts, at),
            (!end.is_multiple_of(PAGE_SIZE), end),
            (at > size && !size.is_multiple_of(PAGE_SIZE), size),
        ];
        let mut kept = [const { None }; 3];
        let reads = !data.is_empty() && (self.waits_for_pager() || self.invalidate.swapped() != 0);
        for ((is_part, byte), kept) in parts.into_iter().zip(&mut kept).filter(|_| reads) {
            let index = PageIndex::of_byte(byte);
            if is_part && index < self.end() {
                *kept = Some(self.get_page(index).ok_or(Stop::Absent(index))?);
            }
        }
        Ok(kept)
    }

    /// Writes the part of `data` that fits into one page. `named` is the frame of a new page of a direct
    /// file. The caller holds `content` for writing.
    fn write_part(&self, at: u64, data: &[u8], named: Option<Named>) -> Result<usize, Stop> {
        let start = at % PAGE_SIZE;
        let len = data.len().min((PAGE_SIZE - start) as usize);
        let (size, end) = (self.size(), at + len as u64);
        self.may_resize(end.max(size))?;
        if at > size {
            self.zero_behind(size, at)?;
        }
        self.check_permits(at, data.len() as u64)?;
        let charge = self.charge_growth(size, end.max(size))?;
        let (index, data) = (PageIndex::of_byte(at), &data[..len]);
        let reads = self.waits_for_pager() || self.invalidate.swapped() != 0;
        let whole = len as u64 == PAGE_SIZE && reads && !self.is_direct();
        while !(whole && self.get_any(index).is_none() && self.put_whole_page(index, data)?) {
            let Some(page) = self.page_to_write(index, whole, named)? else { continue };
            let platform = self.files().platform();
            platform.frame(*page).mark_accessed();
            platform.write_frame(*page, start as usize, data);
            self.set_dirty(index, *page);
            break;
        }
        // The size is published last: a reader that sees the new size also finds the bytes.
        if end > size {
            self.publish_size(end);
            charge.keep();
        }
        Ok(len)
    }

    /// Returns a page, which may lie beyond the current end of the file. Returns `None` if the page is absent
    /// and will be overwritten as a whole. The caller holds `content` for writing.
    fn page_to_write(
        &self,
        index: PageIndex,
        whole: bool,
        named: Option<Named>,
    ) -> Result<Option<CachedPage<'_, P>>, Stop> {
        loop {
            match self.get_any(index) {
                Some(page) => return Ok(Some(page)),
                None if whole => return Ok(None),
                None if index < self.end() && self.waits_for_pager() => return Err(Stop::Absent(index)),
                None if index < self.end() => self.fill_here(index)?,
                None => self.fill_new(index, named)?,
            }
        }
    }

    /// Returns the page of which a part is to be zeroed. Returns `None` if the page is absent from shared
    /// memory whose pager returns zeroes: such a page is zero without being allocated. The caller holds
    /// `content` for writing.
    pub(super) fn page_to_zero(&self, index: PageIndex) -> Result<Option<CachedPage<'_, P>>, Stop> {
        self.check_permits(index.byte(), 1)?;
        if self.waits_for_pager() {
            return self.get_page(index).map(Some).ok_or(Stop::Absent(index));
        }
        let zeroes = self.is_shmem() && self.pager().reads_zeroes();
        let absent = zeroes && self.is_absent(Stay::within::<P>(&P::rcu_read()), PageRange::one(index));
        if absent { Ok(None) } else { Ok(Some(self.page_here(index)?)) }
    }

    /// Zeroes bytes within one page.
    pub(super) fn zero_part(&self, bytes: Range<u64>) -> Result<(), Stop> {
        if self.huge.is_some() {
            self.zero_part_huge(bytes);
            return Ok(());
        }
        let Some(page) = self.page_to_zero(PageIndex::of_byte(bytes.start))? else { return Ok(()) };
        self.zero_page_part(&page, bytes);
        Ok(())
    }

    /// Zeroes bytes within `page`, which contains them.
    pub(super) fn zero_page_part(&self, page: &CachedPage<'_, P>, bytes: Range<u64>) {
        let platform = self.files().platform();
        let offset = bytes.start % PAGE_SIZE;
        zero(platform, **page, offset..offset + (bytes.end - bytes.start));
        self.set_dirty(PageIndex::of_byte(bytes.start), **page);
    }

    /// Zeroes the bytes of the last page that lie beyond the end of the file, before the file grows from
    /// `old` to `new` bytes. Stores through mappings may have changed those bytes.
    pub(in crate::file) fn zero_behind(&self, old: u64, new: u64) -> Result<(), Stop> {
        let end = new.min(old.next_multiple_of(PAGE_SIZE));
        if old < end { self.zero_part(old..end) } else { Ok(()) }
    }
}
