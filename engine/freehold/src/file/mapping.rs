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
    cache::{invalidate_lock::Invalidate, radix::Radix},
    file_list::FileListLink,
    sealing::Sealing,
};
pub use crate::error::FillError;
use crate::{
    PAGE_SHIFT, PAGE_SIZE, Pfn,
    counted::{Counted, Shared},
    error::NoMemory,
    file::{Files, HasFiles, kinds::shmem_huge::SharedHuge},
    hugetlb::state::huge_file::HugeFile,
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
use core::ops::Range;
use freehold_sync::{
    Rank, RwSem,
    atomic::{
        AtomicBool, AtomicU8, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use freehold_vmspace::{CachePage, HugePageSize, PageCount, PageIndex};

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

/// Largest size of a file in bytes.
pub(crate) const MAX_BYTES: u64 = i64::MAX as u64;

/// No mount has said anything.
pub(in crate::file) const NO_MOUNT: u8 = u8::MAX;

/// Which memory of a file counts as committed ([`committed`](crate::committed)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// None: a store is behind it, or a pool.
    Nothing,
    /// Each page in the cache.
    Pages,
    /// Its size.
    Size,
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
    pub(super) fn pages_of(&self, size: u64) -> u64 {
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

    /// What the pages of its cache are, and where they are known.
    pub(crate) fn cache_page(&self) -> CachePage {
        CachePage { rmap: self.rmap_word(), shmem: self.is_shmem(), secret: self.is_secret() }
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

    /// It is shared memory in a file of a mounted file system, which says where it has huge pages (tmpfs's
    /// option `huge`); `None`: it has no name, as at first, and the engine's
    /// [`SharedBlocks`](crate::engine::SharedBlocks) say more.
    /// What is in the cache stays.
    pub fn set_mount_huge(&self, huge: Option<SharedHuge>) {
        // Relaxed, here and below: a fault meanwhile comes before or after.
        self.mount_huge.store(huge.map_or(NO_MOUNT, |huge| huge as u8), Relaxed);
    }

    /// What the mount says where it has huge pages.
    pub fn mount_huge(&self) -> Option<SharedHuge> {
        let number = self.mount_huge.load(Relaxed);
        (number != NO_MOUNT).then(|| SharedHuge::of(number))
    }

    /// Whether it is [secret memory](Self::secret).
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Whether a read fault maps its page alone: of secret memory, and of storage.
    pub(crate) fn is_mapped_singly(&self) -> bool {
        self.is_direct() || self.is_secret()
    }

    /// Whether it is [a device of zeroes](Self::zeroes).
    pub fn is_zeroes(&self) -> bool {
        self.kind == Kind::Zeroes
    }

    /// What tells the file from others, in the hash of fault mutexes.
    #[inline]
    pub(crate) fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// The size of its pages, if they are huge ones of a pool.
    pub fn huge_page_size(&self) -> Option<HugePageSize> {
        self.huge.as_ref().map(|huge| huge.size)
    }

    /// log2 of the bytes of a page.
    pub(crate) fn page_shift(&self) -> u32 {
        self.huge.as_ref().map_or(PAGE_SHIFT, |huge| huge.size.level().shift())
    }

    /// Shared memory of `size` bytes that has no name. With `committed` all of it is committed from now until
    /// it ends, else each page while it is in the cache.
    ///
    /// # Errors
    ///
    /// No memory, or more would be committed than [allowed](Engine::set_overcommit).
    pub(crate) fn nameless(
        files: &impl HasFiles<P>,
        size: u64,
        committed: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let rule = if committed { Committed::Size } else { Committed::Pages };
        Self::of_kind_committed(files.files(), Zeroes, size, Kind::Memory, None, false, rule)
    }
}

/// Zeroes a part of a frame.
pub(crate) fn zero<P: Platform>(platform: &P, pfn: Pfn, bytes: Range<u64>) {
    static ZEROES: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
    platform.write_frame(pfn, bytes.start as usize, &ZEROES[..(bytes.end - bytes.start) as usize]);
}

impl<P: Platform> Shared for Mapping<P> {
    /// After this nobody comes here from a page any more.
    fn end(&self) {
        self.home().clear_mapping();
        if self.has_store() {
            self.files().list.remove(self);
        }
    }
}

/// Pages that a file of `bytes` bytes commits, if its size counts.
pub(super) fn pages_to_commit(bytes: u64) -> PageCount {
    PageCount::new(bytes.div_ceil(PAGE_SIZE))
}
