//! The pages of a file: its page cache, and the rules by which pages come and go.
//!
//! Each page has a word in a tree of words:
//!
//! | word | meaning | becomes |
//! | --- | --- | --- |
//! | 0 | not in the cache | present, by compare-and-swap, under the invalidate lock held for reading; or held for writing (`in_place.rs`, `block.rs`) |
//! | frame, `PRESENT` | in the cache, which holds one reference | leaving, under the invalidate lock held for writing; or held for reading, with the frame locked, of a page that moves (`exchange.rs`) |
//! | frame, `PRESENT`, `LEAVING` | cut off; lookups do not see it any more, page tables may still map it | 0, after a zap, under the same locks; or lost; or present, in another frame, or again, where it turns out to be used (`exchange.rs`, `drop_clean.rs`) |
//! | `LOST` | the memory of the only copy failed: nobody gets a page, until this one is cut off | 0, under the invalidate lock held for writing |
//!
//! Above the frame, the word says how many pages of shared memory came together (`block.rs`).
//!
//! A lookup takes no lock. The RCU guard keeps the word where it is, and nothing else: the page may leave the
//! cache at any moment, and its frame be another page's. So a task that wants the frame raises the count of
//! its references as the frame's record says ([`frame`](freehold_vmspace::frame)), and looks at the word
//! again. A task that maps the page does both under the lock of the table. A call that takes pages away marks
//! their words, zaps what maps them, and then counts who has a reference: a fault can neither lose the race
//! with a truncation nor win it too late (hazards C-26, C-37; `truncate.rs`). Nobody waits for a grace
//! period.
//!
//! Locks, outermost first: `content` (one truncation or write at a time), `invalidate` (pages come, shared;
//! or go, exclusive), `i_mmap`. A fault that finds a page in the cache takes none of them.
//!
//! Of a file that is mapped directly (`direct.rs`), the frames are those of the storage; everything else is
//! the same.

use super::{
    Pager, Zeroes,
    cache::{
        entry::{LEAVING, LOST, Word},
        invalidate_lock::Invalidate,
        mthp::NO_MOUNT,
        new_page::NewPage,
        radix::{Alone, Locked, Radix, Stay},
    },
    committed::{Committed, pages_to_commit},
    open_file::MAX_BYTES,
    seals::Sealing,
};
use super::{file_list::FileListLink, kinds::huge::HugeFile};
pub use crate::error::FillError;
use crate::file::{Files, HasFiles};
use crate::{
    PAGE_SHIFT, PAGE_SIZE, Pfn,
    counted::Counted,
    error::NoMemory,
    nommu::state::FileRegions,
    platform::Platform,
    rmap::tree::{
        IMmap, RmapReadGuard, RmapWriteGuard,
        lock::FileLock,
        root::{FILE, RmapRoot, RmapRootRef},
    },
    uprobe::state::Registry,
};
use allocator_api2::{boxed::Box, unsize_box};
use core::ops::{ControlFlow, Range};
use freehold_sync::{
    Rank, RwSem, RwSemReadGuard, RwSemWriteGuard,
    atomic::{
        AtomicBool, AtomicU8, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use freehold_vmspace::{PageCount, PageIndex, PageRange};

/// A file's pages and the VMAs that map them: what Linux calls an inode and its address_space.
///
/// When the last reference goes (of open files, and of VMAs that map it) the pages go too, dirty or not: a
/// file system with a store behind the [`Pager`] calls [`write_back`](Self::write_back) before it drops its
/// own reference.
pub struct Mapping<P: Platform> {
    /// Bytes; written under `content` held for writing. Shrinks under `invalidate` held for writing as well.
    size: AtomicU64,
    /// See the module's table.
    pub(super) cache: Radix,
    /// Fixed.
    pub(super) kind: Kind,
    /// Which of its memory is committed. Fixed.
    pub(super) committed: Committed,
    /// Of huge pages, if it is a file of those. Fixed.
    pub(crate) huge: Option<HugeFile>,
    /// What is sealed, and how many can write.
    pub(super) sealing: Sealing,
    /// A page that had been written is lost, and nobody has been told yet. Set under `invalidate` held for
    /// writing.
    pub(crate) lost: AtomicBool,
    /// Its mappings begin where huge pages may. Written and read alone.
    pub(super) aligns: AtomicBool,
    /// See [`set_mount_huge`](Self::set_mount_huge). Written and read alone.
    pub(super) mount_huge: AtomicU8,
    /// Revocations so far; see `revoke.rs`. Atomic by itself.
    pub(super) revoked: AtomicU64,
    /// Fixed.
    pager: Box<dyn Pager<P>>,
    /// Guards the size, and the contents against two writers.
    pub(crate) content: RwSem<P>,
    /// Held for reading while a page enters the cache, for writing while pages leave; counts them.
    pub(crate) invalidate: Invalidate<P>,
    /// The i_mmap lock, and the VMAs that map the file.
    home: RmapRootRef<P, IMmap>,
    /// Regions that have the file's pages without an MMU.
    pub(crate) regions: FileRegions<P>,
    /// Its place among the engine's files.
    pub(crate) list_link: FileListLink<P>,
    /// Last: pages go back to it.
    files: Counted<Files<P>>,
}

/// Whose the frames are, and what is behind them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The engine's; they hold copies of what a store has.
    Cached,
    /// The engine's; nothing is behind them.
    Memory,
    /// The engine's, as `Memory`; only programs that map it come to what they hold.
    Secret,
    /// The store's own.
    Direct,
    /// There are none: it is a device of zeroes.
    Zeroes,
}

impl<P: Platform> Mapping<P> {
    /// A file of `size` bytes whose pages come from `pager`; with `shmem` they count as shared memory, and
    /// are never written back. A size beyond the largest that a file can have, `i64::MAX`, counts as that
    /// one, here and wherever files are made.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(
        files: &impl HasFiles<P>,
        pager: impl Pager<P>,
        size: u64,
        shmem: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::of_kind(
            files.files(),
            pager,
            size,
            if shmem { Kind::Memory } else { Kind::Cached },
            None,
            false,
        )
    }

    /// Shared memory of `size` bytes that can be sealed: a memfd.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn memfd(files: &impl HasFiles<P>, size: u64) -> Result<Counted<Self>, NoMemory> {
        Self::of_kind(files.files(), Zeroes, size, Kind::Memory, None, true)
    }

    pub(crate) fn of_kind(
        files: &Counted<Files<P>>,
        pager: impl Pager<P>,
        size: u64,
        kind: Kind,
        huge: Option<HugeFile>,
        sealable: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let committed = match kind == Kind::Memory && huge.is_none() {
            true => Committed::Pages,
            false => Committed::Nothing,
        };
        Self::of_kind_committed(files, pager, size, kind, huge, sealable, committed)
    }

    pub(super) fn of_kind_committed(
        files: &Counted<Files<P>>,
        pager: impl Pager<P>,
        size: u64,
        kind: Kind,
        huge: Option<HugeFile>,
        sealable: bool,
        committed: Committed,
    ) -> Result<Counted<Self>, NoMemory> {
        let pager: Box<dyn Pager<P>> = unsize_box!(Box::try_new(pager)?);
        // In whole pages, if it is a file of huge ones.
        let unit = huge.as_ref().map_or(1, HugeFile::page_bytes);
        let largest = MAX_BYTES - MAX_BYTES % unit;
        let size = size.min(largest);
        let home = RmapRoot::try_new(FileLock::new(files.file_rmap, files.lock_stats.clone()))?;
        if committed == Committed::Size {
            // The file returns them when it is dropped, also if there is no memory for it.
            files.committed.charge(pages_to_commit(size))?.keep();
        }
        let mapping = Counted::try_new(Mapping {
            size: AtomicU64::new(size),
            cache: Radix::new(),
            kind,
            committed,
            huge,
            sealing: Sealing::new(sealable),
            lost: AtomicBool::new(false),
            aligns: AtomicBool::new(false),
            mount_huge: AtomicU8::new(NO_MOUNT),
            revoked: AtomicU64::new(0),
            pager,
            content: RwSem::new(Rank::IRwsem),
            invalidate: Invalidate::new(),
            home,
            regions: FileRegions::new(),
            list_link: FileListLink::new(),
            files: files.clone(),
        })?;
        mapping.home.set_mapping(&mapping);
        if mapping.has_store() {
            files.list.add(&mapping);
        }
        Ok(mapping)
    }

    /// How the records of its pages name their home.
    pub(crate) fn rmap_word(&self) -> usize {
        core::ptr::from_ref::<RmapRoot<P, IMmap>>(&self.home).expose_provenance() | FILE
    }

    /// The probes in its text.
    pub(crate) fn probes(&self) -> &Registry {
        &self.home.probes
    }

    /// Where its pages are at home.
    pub(crate) fn home(&self) -> &RmapRoot<P, IMmap> {
        &self.home
    }

    /// Returns what it has in common with the other files of its engine.
    pub fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }

    pub(super) fn pager(&self) -> &dyn Pager<P> {
        &*self.pager
    }

    /// Whether it is shared memory.
    pub fn is_shmem(&self) -> bool {
        self.kind == Kind::Memory
    }

    /// Whether what its frames hold is a copy of what a store has, or will have.
    pub(crate) fn has_store(&self) -> bool {
        self.kind == Kind::Cached
    }

    /// Whether its frames are the storage itself (DAX).
    pub fn is_direct(&self) -> bool {
        self.kind == Kind::Direct
    }

    /// The size in bytes at this moment.
    pub fn size(&self) -> u64 {
        // Acquire pairs with the release in `publish_size`: a reader that sees a larger size finds the bytes
        // written before it.
        self.size.load(Acquire)
    }

    /// Pages, counting the last even if the file ends inside it: huge ones, if it is a file of those.
    pub fn pages(&self) -> u64 {
        self.pages_of(self.size())
    }

    /// How many of its pages are in the cache at this moment: of memory, what it takes (st_blocks). It is not
    /// counted for this, so it costs the same whatever the size.
    pub fn present_pages(&self) -> u64 {
        self.invalidate.pages()
    }

    /// The page behind the last one.
    pub(crate) fn end(&self) -> PageIndex {
        PageIndex::new(self.pages())
    }

    /// Pages of so many bytes. Every fault on a file asks, so nothing is divided.
    fn pages_of(&self, size: u64) -> u64 {
        let shift = self.page_shift();
        (size >> shift) + u64::from(size & ((1 << shift) - 1) != 0)
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift()
    }

    /// The number of the page, among its pages, that holds the offset `pgoff`, by which VMAs count, in 4 KiB.
    pub(crate) fn index_of(&self, pgoff: PageIndex) -> PageIndex {
        pgoff.block(self.page_shift() - PAGE_SHIFT)
    }

    /// Under `content` held for writing.
    pub(crate) fn publish_size(&self, size: u64) {
        self.size.store(size, Release);
    }

    /// Brings a page inside the file into the cache, unless it is there.
    ///
    /// # Errors
    ///
    /// See [`FillError`]; nothing happened.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably: a truncation may wait for another page's pager. The pager
    /// is called under it. The caller holds no lock of an address space.
    pub fn fill(&self, index: PageIndex) -> Result<(), FillError> {
        loop {
            let pages_stay = self.stay_to_fill(index)?;
            let size = self.size();
            if index.get() >= self.pages_of(size) {
                return Err(FillError::BeyondEnd);
            }
            let Some(huge) = &self.huge else {
                return self.fill_inside(&pages_stay, index, size - index.byte());
            };
            match self.fill_huge(&pages_stay, huge, index) {
                Ok(()) => return Ok(()),
                Err(not_made) => {
                    drop(pages_stay);
                    huge.after(self.files.memory(), not_made)?;
                }
            }
        }
    }

    /// As [`fill`](Self::fill), of a page of 4 KiB, with which so many bytes of the file begin.
    fn fill_inside(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        bytes: u64,
    ) -> Result<(), FillError> {
        if self.is_direct() {
            return self.fill_direct(pages_stay, index, bytes);
        }
        self.fill_page(pages_stay, index, |platform, pfn| {
            self.pager.read_page(platform, index, pfn).map_err(|_| FillError::Io)?;
            // The last page reads as zeroes beyond the end of the file.
            if bytes < PAGE_SIZE {
                zero(platform, pfn, bytes..PAGE_SIZE);
            }
            Ok(())
        })
    }

    /// Makes a page with these contents, and lets `put` publish it, unless the file has that page already.
    /// `put` runs in one read section, in which it may lock a page table: a fault that finds the page waits
    /// for that lock, and then meets the entry.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill); `put` did not run.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading. Of shared memory alone, so that nobody waits for storage behind it.
    pub(crate) fn insert_page(
        &self,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn),
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        debug_assert!(self.is_shmem());
        let pages_stay = self.invalidate.read_killable()?;
        if index >= self.end() {
            return Err(FillError::BeyondEnd);
        }
        let fill = |platform: &P, pfn| {
            contents(platform, pfn);
            Ok(())
        };
        self.add_page(&pages_stay, index, fill, |page| {
            // Locked, so that it does not move before it is mapped; nobody else knows of it yet.
            let identity = self.files.memory().try_lock_frame(page.pfn());
            debug_assert!(identity.is_some(), "a new page is locked by somebody");
            if identity.is_some() {
                put(page);
            }
        })
    }

    /// As [`fill`](Self::fill), for a page that lies beyond the end and that the caller, which holds
    /// `content` for writing, is about to make part of the file: it starts as zeroes.
    pub(super) fn fill_new(&self, index: PageIndex) -> Result<(), FillError> {
        let pages_stay = self.stay_to_fill(index)?;
        if self.is_direct() {
            return self.fill_direct(&pages_stay, index, 0);
        }
        self.fill_page(&pages_stay, index, |platform, pfn| {
            platform.zero_frame(pfn);
            Ok(())
        })
    }

    fn fill_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        // The page of a faster fault is as good.
        self.add_page(pages_stay, index, contents, |page| {
            page.publish();
        })
    }

    /// Makes a page with these contents, and lets `put` publish it, unless there is one in the cache.
    fn add_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        contents: impl FnOnce(&P, Pfn) -> Result<(), FillError>,
        put: impl FnOnce(&mut NewPage<'_>),
    ) -> Result<(), FillError> {
        // Made only when there is something to be put there: a call for pages that cannot be had leaves no
        // nodes behind.
        let word = self.word(pages_stay, index);
        // Relaxed: a hint that saves work; the compare-and-swap decides. What is lost stays so under the
        // lock.
        match word.map_or(0, |word| word.load(Relaxed)) {
            0 => {}
            LOST => return Err(FillError::Lost),
            _ => return Ok(()),
        }
        let platform = self.files.platform();
        let charge = self.charge_pages(PageCount::ONE)?;
        let pfn = self.files.memory().alloc_cache(self.cache_page(), index)?;
        let filled = contents(platform, pfn).and_then(|()| match word {
            Some(word) => Ok(word),
            None => Ok(self.cache_word(pages_stay, index)?),
        });
        let published = filled.map(|word| NewPage::put(platform, word, pfn, put));
        match published {
            Ok(true) => {
                self.invalidate.came(1);
                charge.keep();
            }
            _ => self.files.memory().put_frame(pfn),
        }
        published.map(drop)
    }

    /// The word of a page, made if need be.
    pub(crate) fn cache_word<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
    ) -> Result<&'m AtomicU64, NoMemory> {
        Ok(self.cache.make(lock, index)?)
    }

    /// The word of a page that is, or was, in the cache.
    pub(crate) fn word<'m>(&'m self, lock: &'m impl Locked, index: PageIndex) -> Option<&'m AtomicU64> {
        self.cache.get(Stay::locked(lock), index)
    }

    /// The word of the page `index` if that is in this frame, as it stays under `invalidate` held for
    /// writing; or held for reading, with the frame locked.
    pub(crate) fn word_of<'m>(
        &'m self,
        lock: &'m impl Locked,
        index: PageIndex,
        pfn: Pfn,
    ) -> Option<&'m AtomicU64> {
        // Acquire pairs with the release of the task that put it there.
        self.word(lock, index).filter(|word| Word(word.load(Acquire)).visible() == Some(pfn))
    }

    /// Hides the pages of `range` from lookups; returns whether there was any. Under `invalidate` held for
    /// writing.
    pub(crate) fn mark_leaving(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) -> bool {
        let mut any = false;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |_, word| {
            // Relaxed: words change under `invalidate`, which the caller holds for writing. Which
            // lookups find the mark is decided by locks of tables, and by the counts of references.
            if word.load(Relaxed) != 0 {
                word.fetch_or(LEAVING, Relaxed);
                any = true;
            }
            ControlFlow::Continue(())
        });
        any
    }

    /// The pages of `range`, which were marked, from the first to the last that somebody besides the cache
    /// has a reference to. Under `invalidate` held for writing.
    pub(super) fn marked_in_use(&self, pages_go: &impl Locked, range: PageRange) -> Option<PageRange> {
        let mut used: Option<PageRange> = None;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |index, word| {
            // Relaxed: as above.
            let held = Word(word.load(Relaxed)).held();
            if held.is_some_and(|pfn| self.files.platform().frame(pfn).refs_of_marked() > 1) {
                used = Some(PageRange::new(used.map_or(index, |used| used.start), index + 1));
            }
            ControlFlow::Continue(())
        });
        used
    }

    /// Drops the pages of `range` that were marked, and zapped, under `invalidate` held for writing. Returns
    /// how many.
    pub(super) fn drop_leaving(&self, pages_go: &impl Locked, range: PageRange) -> u64 {
        let (mut count, mut held) = (0, 0);
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |_, word| {
            // Relaxed: as above.
            let old = Word(word.load(Relaxed));
            if old != Word(0) {
                word.store(0, Relaxed);
                count += 1;
            }
            if let Some(pfn) = old.held() {
                held += 1;
                if self.is_direct() {
                    self.let_go_of(pfn);
                } else {
                    self.files.platform().frame(pfn).leave_cache();
                    self.files.memory().put_frame(pfn);
                }
            }
            ControlFlow::Continue(())
        });
        self.pages_went(held);
        count
    }

    /// Gives back what the index needs for pages of `range`, as far as there are none any more. Under
    /// `invalidate` held for writing.
    pub(crate) fn prune(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) {
        self.cache.prune(pages_go, range);
    }

    /// Indices of the pages of `range` that are in the cache at this moment, ascending, until `f` breaks.
    /// Under `invalidate`.
    pub(super) fn each_page<B>(
        &self,
        pages_stay: &impl Locked,
        range: PageRange,
        mut f: impl FnMut(PageIndex) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        // Relaxed: hints, to be looked up again.
        self.cache.each(Stay::locked(pages_stay), range, |index, word| {
            match Word(word.load(Relaxed)).held() {
                Some(_) => f(index),
                None => ControlFlow::Continue(()),
            }
        })
    }

    /// The VMAs that map the file, kept as they are.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for reading.
    pub(crate) fn mappers(&self) -> RmapReadGuard<'_, P, IMmap> {
        self.home.read()
    }

    /// The right to change which VMAs are linked and where. Several changes within one guard are one step for
    /// all others: use it wherever a page passes from one VMA to another (split, merge, moved borders),
    /// so that no walk misses it in between.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing.
    pub(crate) fn edit(&self) -> RmapWriteGuard<'_, P, IMmap> {
        self.home.edit()
    }

    /// Verifies the tree of VMAs and, where nobody brings or takes pages, their number.
    ///
    /// # Panics
    ///
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        if let Some(lock) = self.invalidate.try_write() {
            let mut pages = 0;
            let _: ControlFlow<()> = self.each_page(&lock, PageRange::ALL, |_| {
                pages += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(self.present_pages(), pages, "pages of a file were miscounted");
        }
        self.mappers().check();
    }
}

impl<P: Platform> Drop for Mapping<P> {
    fn drop(&mut self) {
        let pages = self.drop_leaving(&Alone, PageRange::ALL);
        if let Some(huge) = &self.huge {
            huge.cut(self.files().memory(), PageRange::ALL, pages);
        }
        self.uncharge_cut(self.size(), 0);
    }
}

/// Zeroes a part of a frame.
pub(crate) fn zero<P: Platform>(platform: &P, pfn: Pfn, bytes: Range<u64>) {
    static ZEROES: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
    platform.write_frame(pfn, bytes.start as usize, &ZEROES[..(bytes.end - bytes.start) as usize]);
}
