//! Files of huge pages: hugetlbfs, memfd_create(MFD_HUGETLB), and what MAP_HUGETLB maps.
//!
//! Their pages come and go by the rules of every file ([`object`](crate::file)), in units of huge pages.
//! What differs is where a page is taken from, what was reserved of it, and that page tables are left and not
//! only emptied when it goes.

use crate::{
    PAGE_SHIFT, PAGE_SIZE, Pfn,
    counted::Counted,
    file::{CachedPage, FillError, HasFiles, Kind, LOST, Mapping, NewPage, Zeroes},
    hugetlb::state::{
        HugePageSize, TakeError,
        huge_file::{HugeFile, NotMade},
    },
    platform::Platform,
};
use core::ops::Range;
use freehold_sync::{Killed, RwSemReadGuard, RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::PageIndex;

/// The right to reserve pages of a file of huge pages to a shared mapping, and to enlarge the file: its
/// content lock for writing.
///
/// That lock comes before the locks of address spaces. So mmap takes it first, then asks everything that can
/// be refused, and uses the right last: a call that fails leaves no reservation and no new size behind.
pub(crate) struct Reserving<'m, P: Platform> {
    mapping: &'m Mapping<P>,
    huge: &'m HugeFile,
    _content: RwSemWriteGuard<'m, P>,
}

impl<P: Platform> Reserving<'_, P> {
    /// Reserves every page of `bytes`, if `reserved`; with `enlarge` the file reaches at least that far from
    /// now on.
    ///
    /// # Errors
    ///
    /// The pool has not so many, or no memory; nothing was reserved.
    pub fn reserve(&self, bytes: Range<u64>, reserved: bool, enlarge: bool) -> Result<(), FillError> {
        let (mapping, shift) = (self.mapping, self.mapping.page_shift());
        let pages = (bytes.start >> shift..bytes.end >> shift).into();
        if reserved && !self.huge.reserves.reserve(mapping.files().memory(), self.huge.size, pages)? {
            return Err(FillError::NoHugePages);
        }
        if enlarge && bytes.end > mapping.size() && mapping.may_resize(bytes.end).is_ok() {
            mapping.publish_size(bytes.end);
        }
        Ok(())
    }
}

impl<P: Platform> Mapping<P> {
    /// A file of huge pages of `size` bytes, of hugetlbfs or, if it can be sealed, of
    /// memfd_create(MFD_HUGETLB). Its pages come from the [pool](crate::engine::Engine::huge_pool); it has
    /// none yet, and has none reserved before it is mapped.
    ///
    /// # Errors
    ///
    /// `size` is not a multiple of the page's; or no memory.
    pub fn of_huge_pages(
        files: &impl HasFiles<P>,
        page: HugePageSize,
        size: u64,
        sealable: bool,
    ) -> Result<Counted<Self>, FillError> {
        if !size.is_multiple_of(page.bytes()) {
            return Err(FillError::Invalid);
        }
        Ok(Self::of_kind(files.files(), Zeroes, size, Kind::Memory, Some(HugeFile::new(page)), sealable)?)
    }

    /// Brings a page of zeroes into the cache, unless it is there: from its reservation, or from what the
    /// pool has not reserved. Under the invalidate lock, inside the file.
    ///
    /// # Locks
    ///
    /// The page's fault mutex: the second fault finds the page, and does not ask for another.
    pub(crate) fn fill_huge(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        huge: &HugeFile,
        index: PageIndex,
    ) -> Result<(), NotMade> {
        let zeroes = |platform: &P, pfn| platform.zero_frames(pfn, huge.size.level().frames());
        // Under the mutex nobody else makes one.
        self.add_huge(pages_stay, huge, index, zeroes, |page| {
            page.publish();
        })
    }

    /// As [`fill_huge`](Self::fill_huge), with these contents, and published by `put`: as
    /// [`insert_page`](Self::insert_page) for small pages.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably; the page's fault mutex.
    pub(crate) fn insert_huge_page(
        &self,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), NotMade> {
        let pages_stay = self.invalidate.read_killable().map_err(FillError::from)?;
        match &self.huge {
            Some(huge) if index < self.end() => self.add_huge(&pages_stay, huge, index, contents, put),
            _ => Err(FillError::BeyondEnd.into()),
        }
    }

    fn add_huge(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        huge: &HugeFile,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), NotMade> {
        let (memory, platform) = (self.files().memory(), self.files().platform());
        let _maker = self.files().hugetlb.fault_mutex(self.key(), index);
        // Relaxed: words of pages that are made change under the mutex.
        let word = self.word(pages_stay, index);
        match word.map_or(0, |word| word.load(Relaxed)) {
            0 => {}
            LOST => return Err(FillError::Lost.into()),
            _ => return Ok(()),
        }
        let reserved = huge.reserves.is_reserved::<P>(index);
        let first = memory.take_huge_page(huge.size, reserved).map_err(|error| match error {
            TakeError::NoHugePage => NotMade::Failed(FillError::NoHugePages),
            TakeError::Returning(seen) => NotMade::Returning(seen),
        })?;
        let give_back = |reserved| memory.huge_pool(huge.size).put(platform, first, reserved);
        // Made only now: a call for pages that cannot be had leaves no nodes behind.
        let made = word.map_or_else(|| self.cache_word(pages_stay, index), Ok).and_then(|word| {
            if !reserved {
                huge.reserves.add_page::<P>(index)?;
            }
            Ok(word)
        });
        let word = match made {
            Ok(word) => word,
            Err(error) => {
                give_back(reserved);
                return Err(FillError::from(error).into());
            }
        };
        contents(platform, first);
        let level = huge.size.level();
        let frame = platform.frame(first);
        frame.init_cache(self.cache_page(), index.first_in_block(level.shift() - PAGE_SHIFT));
        frame.set_hugetlb(level);
        if NewPage::put(platform, word, first, put) {
            self.invalidate.came(1);
        } else {
            // Without memory to forget the page, its place counts as reserved from now on.
            if reserved || huge.reserves.forget::<P>(index).is_err() {
                memory.restore_reservation(first, huge.size);
            }
            memory.put_huge_page(first);
        }
        Ok(())
    }

    /// The right to reserve pages of a file of huge pages; `None` for any other file.
    ///
    /// # Errors
    ///
    /// A fatal signal ended the wait.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing, until the value is dropped. The caller holds no lock of an
    /// address space.
    pub(crate) fn reserving(&self) -> Result<Option<Reserving<'_, P>>, Killed> {
        let Some(huge) = &self.huge else { return Ok(None) };
        Ok(Some(Reserving { mapping: self, huge, _content: self.content.write_killable()? }))
    }

    /// As [`read_at`](Self::read_at): where there is no page there are zeroes, and none is made.
    pub(crate) fn read_huge(&self, offset: u64, out: &mut [u8]) -> usize {
        let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = out.len().min(left);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE_SIZE) as usize;
            let part = (PAGE_SIZE as usize - start).min(len - done);
            let piece = &mut out[done..done + part];
            match self.get_huge(PageIndex::new(at >> self.page_shift())) {
                Some(page) => {
                    let frame = page.add(at % self.page_bytes() / PAGE_SIZE);
                    self.files().platform().read_frame(frame, start, piece);
                }
                None => piece.fill(0),
            }
            done += part;
        }
        len
    }

    /// A page inside the file, if it has one, with a reference.
    fn get_huge(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        // It may be moving: then it is looked for again when it has.
        self.get_page(index).or_else(|| self.get_after_move(&self.invalidate.read(), index))
    }

    /// Zeroes bytes within one page, if it is there.
    pub(crate) fn zero_part_huge(&self, bytes: Range<u64>) {
        let Some(page) = self.get_huge(PageIndex::new(bytes.start >> self.page_shift())) else { return };
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min((at / PAGE_SIZE + 1) * PAGE_SIZE);
            let offset = at % PAGE_SIZE;
            let frame = page.add(at % self.page_bytes() / PAGE_SIZE);
            crate::file::zero(self.files().platform(), frame, offset..offset + (end - at));
            at = end;
        }
    }
}
