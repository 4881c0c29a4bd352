//! What read, write and msync see of a file: its page cache.

use super::{
    IoError,
    cache::{entry::LOST, lookup::CachedPage, radix::Stay},
    mapping::{FillError, Mapping},
};
use crate::{PAGE_SIZE, platform::Platform, rmap::tree::Mapper, vma::flags::VmFlags, wait::Rounds};
use core::ops::ControlFlow;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{CachePage, PageIndex, PageRange};

/// Pages that write-back cleans at a time, from one that is in the cache on.
const TOGETHER: u64 = 1 << 13;

impl<P: Platform> Mapping<P> {
    /// What the pages of its cache are, and where they are known.
    pub(crate) fn cache_page(&self) -> CachePage {
        CachePage { home: self.rmap_word(), shmem: self.is_shmem(), secret: self.is_secret() }
    }

    /// Its file system can have it mapped by huge pages, or cannot, as at first: then mappings of 2 MiB and
    /// more go where offset and address agree within huge pages. Of those that are there nothing changes.
    pub fn align_to_huge_pages(&self, aligns: bool) {
        // Relaxed: an mmap meanwhile may see either.
        self.aligns.store(aligns, Relaxed);
    }

    /// Whether [its mappings are aligned](Self::align_to_huge_pages).
    pub fn aligns_to_huge_pages(&self) -> bool {
        // Relaxed: see `align_to_huge_pages`.
        self.aligns.load(Relaxed)
    }

    /// A page inside the file, brought into the cache if need be.
    pub(super) fn page(&self, index: PageIndex) -> Result<CachedPage<'_, P>, FillError> {
        let mut rounds = Rounds::new();
        loop {
            match self.get_page(index) {
                Some(page) => return Ok(page),
                None => self.fill(index)?,
            }
            rounds.again::<P>()?;
        }
    }

    /// Whether the memory of a page failed, so that nobody gets it.
    pub(crate) fn is_lost(&self, index: PageIndex) -> bool {
        let rcu = P::rcu_read();
        // Relaxed: nothing is followed that the word names.
        self.cache.get(Stay::within::<P>(&rcu), index).is_some_and(|word| word.load(Relaxed) == LOST)
    }

    /// Reads at `offset`, as far as the file goes; returns how many bytes were read.
    ///
    /// # Errors
    ///
    /// The first page could not be read.
    ///
    /// # Locks
    ///
    /// As [`fill`](Self::fill), for pages that are not in the cache.
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
                // It shrank meanwhile, or some bytes were read.
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

    /// Writes at `offset`, enlarging the file if need be; returns how many bytes were written.
    ///
    /// # Errors
    ///
    /// The first page could not be had, a seal forbids it, the file would become larger than any may be, or
    /// it is one of huge pages, which can only be mapped.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing; then as [`fill`](Self::fill).
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FillError> {
        if self.huge.is_some() || self.is_secret() {
            return Err(FillError::Invalid);
        }
        if self.is_zeroes() {
            return Ok(data.len());
        }
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= super::open_file::MAX_BYTES);
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

    /// Writes what fits into one page. Under `content` held for writing.
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
        // Last: a reader that sees the size finds the bytes.
        if end > size {
            self.publish_size(end);
            charge.keep();
        }
        Ok(len)
    }

    /// A page that may lie beyond the end of the file so far. Under `content` held for writing.
    fn page_to_write(&self, index: PageIndex) -> Result<CachedPage<'_, P>, FillError> {
        loop {
            match self.get_any(index) {
                Some(page) => return Ok(page),
                None if index < self.end() => self.fill(index)?,
                None => self.fill_new(index)?,
            }
        }
    }

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
fn clean<P: Platform>(mapper: &Mapper<'_, P>) {
    if mapper.vma.flags().contains(VmFlags::SHARED) {
        mapper.vm.clean(mapper.range);
    }
}
