//! Reading and writing the contents of a file through its page cache: the part of read(2) and write(2) that
//! concerns pages.
//!
//! Mappings use the same pages. A store through a mapping is therefore visible to a read at once, and a write
//! is visible through mappings at once. Pages are brought into the cache by `fill.rs`, and written back to
//! the backing store by `change/write_back.rs`.
//!
//! A write holds the content lock for writing, so writes of one file do not overlap and the size is stable. A
//! read does not take the content lock.
//!
//! A write must publish the size after the bytes, because a reader that sees the new size reads them without
//! a lock. `tests/files/mapped.rs` tests reads and writes together with mappings.

use super::{
    cache::{lookup::CachedPage, radix::Stay},
    mapping::{FillError, Mapping},
};
use crate::{
    PAGE_SIZE,
    file::{MAX_BYTES, zero},
    platform::Platform,
};
use core::ops::Range;
use freehold_vmspace::{PageIndex, PageRange};

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
        let mut done = 0;
        while done < out.len() {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let left = self.size().saturating_sub(at);
            let page = match self.page(PageIndex::of_byte(at)) {
                _ if left == 0 => break,
                Ok(page) => page,
                // The file shrank during the read, or earlier pages were already read: return a short count.
                Err(error) if done == 0 && error != FillError::BeyondEnd => return Err(error),
                Err(_) => break,
            };
            let start = at % PAGE_SIZE;
            let len = (PAGE_SIZE - start).min(left).min((out.len() - done) as u64) as usize;
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
    /// exceed the largest size. Fails with `Invalid` for secret memory and for files of huge pages, which can
    /// only be mapped.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing; then the locks of [`fill`](Self::fill).
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
        let _content = self.content.write();
        self.may_change()?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            match self.write_part(at, &data[done..]) {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes the part of `data` that fits into one page. The caller holds `content` for writing.
    fn write_part(&self, at: u64, data: &[u8]) -> Result<usize, FillError> {
        let start = at % PAGE_SIZE;
        let len = data.len().min((PAGE_SIZE - start) as usize);
        let (size, end) = (self.size(), at + len as u64);
        self.may_resize(end.max(size))?;
        if at > size {
            self.zero_behind(size, at)?;
        }
        let charge = self.charge_growth(size, end.max(size))?;
        let page = self.page_to_write(PageIndex::of_byte(at))?;
        let platform = self.files().platform();
        platform.write_frame(*page, start as usize, &data[..len]);
        platform.frame(*page).set_dirty();
        // The size is published last: a reader that sees the new size also finds the bytes.
        if end > size {
            self.publish_size(end);
            charge.keep();
        }
        Ok(len)
    }

    /// Returns a page, which may lie beyond the current end of the file. The caller holds `content` for
    /// writing.
    fn page_to_write(&self, index: PageIndex) -> Result<CachedPage<'_, P>, FillError> {
        loop {
            match self.get_any(index) {
                Some(page) => return Ok(page),
                None if index < self.end() => self.fill(index)?,
                None => self.fill_new(index)?,
            }
        }
    }

    /// Returns the page of which a part is to be zeroed. Returns `None` if the page is absent from shared
    /// memory whose pager returns zeroes: such a page is zero without being allocated.
    pub(super) fn page_to_zero(&self, index: PageIndex) -> Result<Option<CachedPage<'_, P>>, FillError> {
        let zeroes = self.is_shmem() && self.pager().reads_zeroes();
        let absent = zeroes && self.is_absent(Stay::within::<P>(&P::rcu_read()), PageRange::one(index));
        if absent { Ok(None) } else { self.page(index).map(Some) }
    }

    /// Zeroes bytes within one page.
    pub(super) fn zero_part(&self, bytes: Range<u64>) -> Result<(), FillError> {
        if self.huge.is_some() {
            self.zero_part_huge(bytes);
            return Ok(());
        }
        let Some(page) = self.page_to_zero(PageIndex::of_byte(bytes.start))? else { return Ok(()) };
        let platform = self.files().platform();
        let offset = bytes.start % PAGE_SIZE;
        zero(platform, *page, offset..offset + (bytes.end - bytes.start));
        platform.frame(*page).set_dirty();
        Ok(())
    }

    /// Zeroes the bytes of the last page that lie beyond the end of the file, before the file grows from
    /// `old` to `new` bytes. Stores through mappings may have changed those bytes.
    pub(in crate::file) fn zero_behind(&self, old: u64, new: u64) -> Result<(), FillError> {
        let end = new.min(old.next_multiple_of(PAGE_SIZE));
        if old < end { self.zero_part(old..end) } else { Ok(()) }
    }
}
