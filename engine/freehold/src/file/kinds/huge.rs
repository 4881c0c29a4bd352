//! Files of huge pages: hugetlbfs, memfd_create(MFD_HUGETLB), and the files that MAP_HUGETLB maps.
//!
//! The rules of every file ([`file`](crate::file)) apply to their pages, in units of huge pages. Three things
//! differ. The pages come from a pool. The file can have reservations in the pool. Removing a page also
//! unshares page tables.
//!
//! `hugetlb/mod.rs` has the locks and the reading order. `hugetlb/fault/` maps the pages, `huge_allocate.rs`
//! allocates them in advance, and `hugetlb/state/reserves.rs` keeps the reservations. A page that is taken
//! from the pool and not published must return to the pool. If the page used a reservation, the reservation
//! must return too. The tests compare the counts of the pool: `tests/hugetlb/pools.rs`, and
//! `tests/hugetlb/failed_calls.rs` for calls that fail.

use crate::{
    PAGE_SHIFT, PAGE_SIZE, Pfn,
    counted::Counted,
    features::Hugetlb,
    file::{CachedPage, FillError, HasFiles, LOST, Mapping, NewPage, Zeroes, mapping::NewFile},
    hugetlb::state::{
        HugePageSize, TakeError,
        huge_file::{HugeFile, NotMade},
    },
    platform::{NodeChoice, PageOwner, Platform},
};
use core::ops::Range;
use freehold_sync::{Killed, RwSemReadGuard, RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::PageIndex;

/// The right to reserve pages of a file of huge pages for a shared mapping, and to enlarge the file. Holds
/// the file's content lock for writing.
///
/// The content lock comes before the locks of address spaces. mmap therefore takes the lock first, then makes
/// every check that can fail, and uses the right last. A call that fails leaves no reservation and no new
/// size behind.
pub(crate) struct Reserving<'m, P: Platform> {
    mapping: &'m Mapping<P>,
    huge: &'m HugeFile,
    _content: RwSemWriteGuard<'m, P>,
    _feature: Hugetlb,
}

impl<P: Platform> Reserving<'_, P> {
    /// Reserves every page of `bytes` if `reserved` is true. With `enlarge`, the file grows to at least the
    /// end of `bytes`.
    ///
    /// # Errors
    ///
    /// Fails if the pool has too few pages or if there is no memory; nothing is then reserved.
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
    /// Creates a file of huge pages of `size` bytes. With `sealable`, the file is one of
    /// memfd_create(MFD_HUGETLB), otherwise one of hugetlbfs. Pages come from the
    /// [pool](crate::engine::Engine::huge_pool). The new file has no pages, and no reservations until it is
    /// mapped.
    ///
    /// # Errors
    ///
    /// Fails if `size` is not a multiple of the page size, or if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, hugetlb::HugePageSize, space::*};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let huge = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, 4 << 20, false).unwrap();
    /// let file = File::new(&huge, FileAccess::READ_WRITE, "/huge").unwrap();
    /// engine.resize_huge_pool(HugePageSize::Mib2, 2, None);
    /// space.mmap(0, 4 << 20, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// assert_eq!(engine.huge_pool(HugePageSize::Mib2).counts(None).reserved, 2);
    /// ```
    #[cfg(feature = "hugetlb")]
    pub fn of_huge_pages(
        files: &impl HasFiles<P>,
        page: HugePageSize,
        size: u64,
        sealable: bool,
    ) -> Result<Counted<Self>, FillError> {
        if !size.is_multiple_of(page.bytes()) {
            return Err(FillError::Invalid);
        }
        let new = NewFile { sealable, ..NewFile::of_huge_pages(size, page) };
        Ok(Self::make(files.files(), Zeroes, new)?)
    }

    /// Brings a zeroed page into the cache, unless the page is already there. The page comes from the file's
    /// reservation or from the unreserved pages of the pool, on the nodes of this policy of a mapping. The
    /// caller holds the invalidate lock; `index` is inside the file.
    ///
    /// # Locks
    ///
    /// The page's fault mutex, so that a second fault finds the page instead of taking another from the pool.
    pub(crate) fn fill_huge(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        huge: &HugeFile,
        index: PageIndex,
        policy: u64,
    ) -> Result<(), NotMade> {
        let zeroes = |platform: &P, pfn| platform.zero_frames(pfn, huge.size.level().frames());
        // The mutex keeps other tasks from making the page.
        self.add_huge(pages_stay, huge, (index, policy), zeroes, |page| {
            page.publish();
        })
    }

    /// Like [`fill_huge`](Self::fill_huge), but calls `contents` to fill the page and `put` to publish the
    /// page. [`insert_page`](Self::insert_page) is the counterpart for small pages.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably; the page's fault mutex.
    pub(crate) fn insert_huge_page(
        &self,
        index: PageIndex,
        policy: u64,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), NotMade> {
        let pages_stay = self.invalidate.read_killable().map_err(FillError::from)?;
        match &self.huge {
            Some(huge) if index < self.end() => {
                self.add_huge(&pages_stay, huge, (index, policy), contents, put)
            }
            _ => Err(FillError::BeyondEnd.into()),
        }
    }

    /// Takes a page from the pool, fills it with `contents`, and calls `put` to publish it. Does nothing if
    /// the cache already has the page. If `put` does not publish the page, the page returns to the pool with
    /// its reservation.
    fn add_huge(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        huge: &HugeFile,
        (index, policy): (PageIndex, u64),
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), NotMade> {
        let (memory, platform) = (self.files().memory(), self.files().platform());
        let _maker = self.files().hugetlb.fault_mutex(self.key(), index);
        // Relaxed: the mutex orders changes of the words of new pages.
        let word = self.word(pages_stay, index);
        match word.map_or(0, |word| word.load(Relaxed)) {
            0 => {}
            LOST => return Err(FillError::Lost.into()),
            _ => return Ok(()),
        }
        let reserved = huge.reserves.is_reserved::<P>(index);
        let owner = PageOwner::File(self.file_id());
        let nodes = NodeChoice::of_policy(platform, policy, index.get());
        let first =
            memory.take_huge_page(huge.size, reserved, owner, nodes).map_err(|error| match error {
                TakeError::NoHugePage => NotMade::Failed(FillError::NoHugePages),
                TakeError::Refused => NotMade::Failed(FillError::NoMemory),
                TakeError::Returning(seen) => NotMade::Returning(seen),
            })?;
        let give_back = |reserved| memory.return_huge_page(huge.size, first, reserved);
        // The word is made only now, so that a call that cannot get a page leaves no tree nodes behind.
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
            // `forget` may need memory. If there is none, the index of the page counts as reserved from now
            // on.
            if reserved || huge.reserves.forget::<P>(index).is_err() {
                memory.restore_reservation(first, huge.size);
            }
            memory.put_huge_page(first);
        }
        Ok(())
    }

    /// Returns the right to reserve pages of a file of huge pages. Returns `None` for any other file.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing, until the value is dropped. The caller holds no lock of an
    /// address space.
    pub(crate) fn reserving(&self) -> Result<Option<Reserving<'_, P>>, Killed> {
        let Some(huge) = &self.huge else { return Ok(None) };
        let content = self.content.write_killable()?;
        Ok(Some(Reserving { mapping: self, huge, _content: content, _feature: huge.feature }))
    }

    /// Like [`read_at`](Self::read_at). Absent pages read as zeroes and are not created.
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

    /// Returns a page inside the file, with a reference, if the page is in the cache.
    fn get_huge(&self, index: PageIndex) -> Option<CachedPage<'_, P>> {
        // The page may be moving: wait for the move and look again.
        self.get_page(index).or_else(|| self.get_after_move(&self.invalidate.read(), index))
    }

    /// Zeroes bytes within one page, if the page is in the cache.
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
