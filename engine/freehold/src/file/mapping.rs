//! The pages of a file: its page cache, and the rules for adding and removing pages.
//!
//! Each page has a word in a radix tree:
//!
//! | word | meaning | becomes |
//! | --- | --- | --- |
//! | 0 | not in the cache | being read (`cache/reading.rs` has the table of these states); present, by compare-and-swap, under the invalidate lock held for reading; or under the lock held for writing (`in_place.rs`, `cache/mthp.rs`) |
//! | frame, `PRESENT` | in the cache; the cache holds one reference | leaving, under the invalidate lock held for writing. If the page moves: under the lock held for reading, with the frame locked (`change/exchange.rs`) |
//! | frame, `PRESENT`, `LEAVING` | being removed or moved: lookups do not see the page, page tables may still map it | 0 after a zap, under the same locks; or lost; or present again, in another frame or in the same one if the page turns out to be in use (`change/exchange.rs`, `remove.rs`) |
//! | swapped out | shared memory only: lookups do not find the page; `swapped.rs` | being read, under the invalidate lock held for reading; 0, under the lock held for writing |
//! | `LOST` | the memory of the only copy failed: no task gets the page until a truncation removes it | 0, under the invalidate lock held for writing |
//! | being read, or failed | no lookup sees the page; `cache/reading.rs` | present or 0, without a lock; 0, under the invalidate lock held for writing |
//!
//! The bits above the frame number hold the order of the block of shared memory with which the page was added
//! (`cache/mthp.rs`).
//!
//! A lookup takes no lock. The RCU guard keeps the word in place, but nothing else: the page may leave the
//! cache at any moment, and its frame may then hold another page. A task that wants the frame therefore
//! raises the frame's reference count as the frame's record describes ([`frame`](freehold_vmspace::frame))
//! and then reads the word again. A task that maps the page raises the count and reads the word under the
//! lock of the page table.
//!
//! A call that removes pages marks their words, zaps the entries that map the pages, and then checks their
//! reference counts. A fault that races with a truncation therefore either sees the mark in its second read
//! of the word, or its entry is zapped (hazards C-26, C-37; `change/truncate.rs`). No step waits for a grace
//! period.
//!
//! Lock order, outermost first: `content` (one truncation or write at a time), `invalidate` (shared while
//! pages are added, exclusive while pages are removed), `i_mmap`. A fault that finds its page in the cache
//! takes none of these locks.
//!
//! In a direct file (`kinds/direct.rs`), the frames belong to the storage. Everything else is the same.
//!
//! This file has the fields of a file, their locks, and simple queries. The operations on a file are in the
//! other files of this folder; `mod.rs` lists them. A new operation that changes a word must use the lock of
//! the table above. [`check`](Mapping::check) recounts the pages.

use super::{
    Pager, Zeroes,
    cache::{invalidate_lock::Invalidate, radix::Radix},
    dirty::Dirty,
    file_list::FileListLink,
    sealing::Sealing,
};
pub use crate::error::FillError;
use crate::{
    PAGE_SHIFT, PAGE_SIZE, Pfn,
    counted::{Counted, Room, Shared},
    error::NoMemory,
    file::{Files, HasFiles},
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
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    publish::{EventCounter, PublishedNumber},
};
use freehold_vmspace::{CachePage, HugePageSize, PageCount, PageIndex};

/// The pages of a file and the VMAs that map it: the counterpart of Linux's inode and address_space.
///
/// Dropping the last reference to the file frees its pages, dirty or not. Open files and VMAs hold
/// references. A file system whose [`Pager`] has a backing store writes the pages back before it drops its
/// own reference.
///
/// # Examples
///
/// A new file has none of the properties that a file system can set:
///
/// ```
/// # use freehold::{counted::Counted, engine::SharedHuge, file::Mapping};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// let file = Mapping::memfd(&engine, 8 << 20).unwrap();
/// assert!(Counted::ptr_eq(file.files(), engine.files()));
/// assert!(!file.is_direct() && !file.aligns_to_huge_pages() && file.mount_huge().is_none());
/// file.align_to_huge_pages(true);
/// file.set_mount_huge(Some(SharedHuge::Always));
/// assert!(file.aligns_to_huge_pages() && file.mount_huge() == Some(SharedHuge::Always));
/// ```
pub struct Mapping<P: Platform> {
    /// Size in bytes. Written under `content` held for writing. Shrinks only under `invalidate` held for
    /// writing as well.
    size: PublishedNumber,
    /// The tree of words that the module's table describes.
    pub(super) cache: Radix,
    /// Kind of the file. Never changes.
    pub(super) kind: Kind,
    /// The rule that says which of the file's memory is committed. Never changes.
    pub(super) committed: Committed,
    /// State of a file of huge pages. `None` for any other file. Never changes.
    pub(crate) huge: Option<HugeFile>,
    /// Seals, and the number of VMAs and mmap calls that can write.
    pub(super) sealing: Sealing,
    /// The marks of dirty pages, late stores, and failed writes.
    pub(crate) dirty: Dirty,
    /// Index after the last page beyond the end of the file that [`reserve`](Self::reserve) added, or any
    /// smaller number if there is none. Changed under `content` held for writing.
    pub(super) reserved_end: AtomicU64,
    /// True if mappings of the file are aligned to huge pages. Read and written atomically, without a lock.
    pub(super) aligns: AtomicBool,
    /// Value of [`set_mount_huge`](Self::set_mount_huge), or `NO_MOUNT`. Read and written atomically, without
    /// a lock.
    pub(super) mount_huge: AtomicU8,
    /// Maximum number of pages of a window of readahead. Read and written atomically, without a lock.
    pub(super) readahead: AtomicU32,
    /// Number of revocations so far; see `change/revoke.rs`. Atomic, without a lock.
    pub(super) revoked: EventCounter,
    /// The backing store. Never changes.
    pager: Box<dyn Pager<P>>,
    /// The content lock. Guards the size, and the contents against concurrent writers.
    pub(crate) content: RwSem<P>,
    /// The invalidate lock and the count of pages in the cache. The lock is held for reading while a page
    /// enters the cache, and for writing while pages leave.
    pub(crate) invalidate: Invalidate<P>,
    /// The i_mmap lock, and the VMAs that map the file.
    home: RmapRootRef<P, IMmap>,
    /// Regions of address spaces without an MMU that use the file's pages.
    pub(crate) regions: FileRegions<P>,
    /// Link in the engine's list of files.
    pub(crate) list_link: FileListLink<P>,
    /// The engine's shared state. The last field, because dropping the other fields frees pages into this
    /// state.
    files: Counted<Files<P>>,
}

/// Largest size of a file in bytes.
pub(crate) const MAX_BYTES: u64 = i64::MAX as u64;

/// Value of `mount_huge` if no mount has set an option.
pub(in crate::file) const NO_MOUNT: u8 = u8::MAX;

/// The memory of a file that counts as committed ([`committed`](crate::committed)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// No memory: the file has a backing store, or its pages come from a pool.
    Nothing,
    /// Each page in the cache.
    Pages,
    /// The whole size of the file.
    Size,
}

/// The properties of a file that is created.
pub(super) struct NewFile {
    /// Size in bytes.
    pub size: u64,
    pub kind: Kind,
    pub committed: Committed,
    /// State of a file of huge pages.
    pub huge: Option<HugeFile>,
    /// True if the file can be sealed.
    pub sealable: bool,
    /// True if the platform is asked for memory. The caller then holds no lock.
    pub asks: bool,
}

impl NewFile {
    /// Returns the properties of a file of this kind that is created without a lock. The pages of shared
    /// memory are committed one by one.
    pub fn new(size: u64, kind: Kind) -> Self {
        let committed = if kind == Kind::Memory { Committed::Pages } else { Committed::Nothing };
        NewFile { size, kind, committed, huge: None, sealable: false, asks: true }
    }

    /// Returns the properties of shared memory that has no name. With `committed` the whole size is committed
    /// until the file is destroyed. Otherwise each page is committed while it is in the cache.
    pub fn nameless(size: u64, committed: bool) -> Self {
        let committed = if committed { Committed::Size } else { Committed::Pages };
        NewFile { committed, ..NewFile::new(size, Kind::Memory) }
    }

    /// Returns the properties of a file of huge pages.
    pub fn of_huge_pages(size: u64, page: HugePageSize) -> Self {
        let committed = Committed::Nothing;
        NewFile { huge: HugeFile::new(page), committed, ..NewFile::new(size, Kind::Memory) }
    }
}

/// Owner of a file's frames, and whether the file has a backing store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The engine owns the frames, which hold copies of the contents of a backing store.
    Cached,
    /// The engine owns the frames. The file has no backing store.
    Memory,
    /// The engine owns the frames, as for `Memory`. Only programs that map the file can access the contents.
    Secret,
    /// The backing store owns the frames.
    Direct,
    /// The file has no frames: it is a device of zeroes.
    Zeroes,
}

impl<P: Platform> Mapping<P> {
    /// Creates a file of `size` bytes whose pages come from `pager`. With `shmem` the pages count as shared
    /// memory and are never written back. A size above the largest file size, `i64::MAX`, counts as the
    /// largest, here and in all other functions that create files.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, Pfn, file::{IoError, Mapping, Pager}, platform::Platform};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// struct Disk;
    /// impl<P: Platform> Pager<P> for Disk {
    ///     fn read_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
    ///         platform.zero_frame(frame);
    ///         platform.write_frame(frame, 0, &[index.get() as u8]);
    ///         Ok(())
    ///     }
    /// }
    /// let file = Mapping::new(&engine, Disk, 8 * PAGE_SIZE, false).unwrap();
    /// let mut found = [0];
    /// file.read_at(5 * PAGE_SIZE, &mut found).unwrap();
    /// assert_eq!(found, [5]);
    /// ```
    pub fn new(
        files: &impl HasFiles<P>,
        pager: impl Pager<P>,
        size: u64,
        shmem: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let kind = if shmem { Kind::Memory } else { Kind::Cached };
        Self::make(files.files(), pager, NewFile::new(size, kind))
    }

    /// Creates shared memory of `size` bytes that can be sealed: a memfd.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Seals}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// assert_eq!((memory.size(), memory.present_pages()), (4 * PAGE_SIZE, 0));
    /// assert!(memory.is_shmem() && memory.seals() == Some(Seals::empty()));
    /// ```
    pub fn memfd(files: &impl HasFiles<P>, size: u64) -> Result<Counted<Self>, NoMemory> {
        let new = NewFile { sealable: true, ..NewFile::new(size, Kind::Memory) };
        Self::make(files.files(), Zeroes, new)
    }

    /// Creates a file, and adds a file with a backing store to the engine's list.
    pub(super) fn make(
        files: &Counted<Files<P>>,
        pager: impl Pager<P>,
        new: NewFile,
    ) -> Result<Counted<Self>, NoMemory> {
        let NewFile { kind, committed, huge, sealable, asks, .. } = new;
        let (pager_room, home, room) = files.allocate(asks, || {
            let lock = FileLock::new(files.file_rmap, files.lock_stats.clone());
            Ok((Box::try_new_uninit()?, RmapRoot::try_new(lock)?, Room::try_new()?))
        })?;
        let readahead = if pager.read_pages() > 1 { files.readahead } else { 0 };
        let pager: Box<dyn Pager<P>> = unsize_box!(Box::write(pager_room, pager));
        // The largest size of a file of huge pages is a multiple of the page size.
        let unit = huge.as_ref().map_or(1, HugeFile::page_bytes);
        let largest = MAX_BYTES - MAX_BYTES % unit;
        let size = new.size.min(largest);
        if committed == Committed::Size {
            // The drop of the file uncommits these pages.
            files.committed.charge(pages_to_commit(size))?.keep();
        }
        let mapping = room.fill(Mapping {
            size: PublishedNumber::new(size),
            cache: Radix::new(),
            kind,
            committed,
            huge,
            sealing: Sealing::new(sealable),
            dirty: Dirty::new(files.dirty_limit),
            reserved_end: AtomicU64::new(0),
            aligns: AtomicBool::new(false),
            mount_huge: AtomicU8::new(NO_MOUNT),
            readahead: AtomicU32::new(readahead),
            revoked: EventCounter::new(),
            pager,
            content: RwSem::new(Rank::IRwsem),
            invalidate: Invalidate::new(),
            home,
            regions: FileRegions::new(),
            list_link: FileListLink::new(),
            files: files.clone(),
        });
        mapping.home.set_mapping(&mapping);
        mapping.start_counting_late_stores();
        if mapping.has_store() {
            files.list.add(&mapping);
        }
        Ok(mapping)
    }

    /// Returns the word that the records of the file's pages store as their home.
    pub(crate) fn rmap_word(&self) -> usize {
        core::ptr::from_ref::<RmapRoot<P, IMmap>>(&self.home).expose_provenance() | FILE
    }

    /// Returns the probes in the file's text.
    pub(crate) fn probes(&self) -> &Registry {
        &self.home.probes
    }

    /// Returns the home of the file's pages: the i_mmap lock and the VMAs that map the file.
    pub(crate) fn home(&self) -> &RmapRoot<P, IMmap> {
        &self.home
    }

    /// Returns the state that all files of the engine share.
    pub fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }

    /// Returns the backing store.
    pub(super) fn pager(&self) -> &dyn Pager<P> {
        &*self.pager
    }

    /// Returns true if the file is shared memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// assert!(Mapping::new(&engine, Zeroes, PAGE_SIZE, true).unwrap().is_shmem());
    /// assert!(!Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap().is_shmem());
    /// ```
    pub fn is_shmem(&self) -> bool {
        self.kind == Kind::Memory
    }

    /// Returns true if the file's frames hold copies of pages of a backing store.
    pub(crate) fn has_store(&self) -> bool {
        self.kind == Kind::Cached
    }

    /// Returns true if the file's frames are the storage itself (DAX).
    pub fn is_direct(&self) -> bool {
        self.kind == Kind::Direct
    }

    /// Returns the current size in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 10).unwrap();
    /// file.write_at(8, b"four").unwrap();
    /// assert_eq!(file.size(), 12);
    /// ```
    pub fn size(&self) -> u64 {
        // A reader that sees a larger size also sees the bytes written before the store.
        self.size.get()
    }

    /// Returns the size in pages, rounded up. Counts huge pages if the file consists of huge pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, PAGE_SIZE + 1).unwrap();
    /// assert_eq!(file.pages(), 2);
    /// ```
    pub fn pages(&self) -> u64 {
        self.pages_of(self.size())
    }

    /// Returns the number of pages that are currently in the cache. For memory files this is the memory in
    /// use (st_blocks). Reads a counter, so the cost does not depend on the size.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 8 * PAGE_SIZE).unwrap();
    /// file.write_at(PAGE_SIZE - 1, b"ab").unwrap();
    /// assert_eq!(file.present_pages(), 2);
    /// ```
    pub fn present_pages(&self) -> u64 {
        self.invalidate.pages()
    }

    /// Returns the index after the last page.
    pub(crate) fn end(&self) -> PageIndex {
        PageIndex::new(self.pages())
    }

    /// Returns the number of pages that `size` bytes need. Uses shifts instead of a division, because every
    /// file fault calls this.
    pub(super) fn pages_of(&self, size: u64) -> u64 {
        let shift = self.page_shift();
        (size >> shift) + u64::from(size & ((1 << shift) - 1) != 0)
    }

    /// Returns the size of a page in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping, hugetlb::HugePageSize};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let huge = Mapping::of_huge_pages(&engine, HugePageSize::Gib1, 0, false).unwrap();
    /// assert_eq!(huge.page_bytes(), 1 << 30);
    /// ```
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift()
    }

    /// Returns the index of the file's page that holds `pgoff`, the offset in 4 KiB pages that VMAs use.
    pub(crate) fn index_of(&self, pgoff: PageIndex) -> PageIndex {
        pgoff.block(self.page_shift() - PAGE_SHIFT)
    }

    /// Stores a new size in bytes, after the pager has recorded it. The caller holds `content` for writing.
    pub(crate) fn publish_size(&self, size: u64) {
        if size != self.size() {
            self.pager().resized(size);
        }
        self.store_size(size);
    }

    /// Stores a size that the pager knows. The caller holds `content` for writing.
    pub(super) fn store_size(&self, size: u64) {
        self.size.publish(size);
    }

    /// Returns a guard. While the guard lives, no VMA is linked to the file or unlinked from the file.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for reading.
    pub(crate) fn mappers(&self) -> RmapReadGuard<'_, P, IMmap> {
        self.home.read()
    }

    /// Returns the right to link and unlink VMAs that map the file. Other tasks see all changes within one
    /// guard as one step. Use one guard wherever a page passes from one VMA to another (split, merge, moved
    /// borders), so that no walk misses the page in between.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for writing.
    pub(crate) fn edit(&self) -> RmapWriteGuard<'_, P, IMmap> {
        self.home.edit()
    }

    /// Returns the home and the kind of the pages in the file's cache, as the records of their frames store
    /// them.
    pub(crate) fn cache_page(&self) -> CachePage {
        CachePage { rmap: self.rmap_word(), shmem: self.is_shmem(), secret: self.is_secret() }
    }

    /// Sets whether the file system can map the file by huge pages; initially false. If true, mappings of at
    /// least 2 MiB are placed so that offset and address agree modulo the huge page size. Existing mappings
    /// do not change.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let mapping = Mapping::new(&engine, Zeroes, 8 << 20, false).unwrap();
    /// mapping.align_to_huge_pages(true);
    /// let file = File::new(&mapping, FileAccess::READ, "/it").unwrap();
    /// let at = space.mmap(0, 4 << 20, Prot::READ, MapFlags::PRIVATE, Some(&file), PAGE_SIZE).unwrap();
    /// assert_eq!(at % (2 << 20), PAGE_SIZE);
    /// ```
    pub fn align_to_huge_pages(&self, aligns: bool) {
        // Relaxed: a concurrent mmap may see either value.
        self.aligns.store(aligns, Relaxed);
    }

    /// Returns true if mappings of the file [are aligned](Self::align_to_huge_pages) to huge pages.
    pub fn aligns_to_huge_pages(&self) -> bool {
        // Relaxed: see `align_to_huge_pages`.
        self.aligns.load(Relaxed)
    }

    /// Returns true if the file is [secret memory](Self::secret).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let secret = Mapping::secret(&engine).unwrap();
    /// assert!(secret.is_secret() && !secret.is_shmem());
    /// ```
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Returns true if a read fault maps only the page that it needs. True for secret memory and direct
    /// files.
    pub(crate) fn is_mapped_singly(&self) -> bool {
        self.is_direct() || self.is_secret()
    }

    /// Returns true if the file is [a device of zeroes](Self::zeroes).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// assert!(Mapping::zeroes(&engine).unwrap().is_zeroes());
    /// assert!(!Mapping::memfd(&engine, PAGE_SIZE).unwrap().is_zeroes());
    /// ```
    pub fn is_zeroes(&self) -> bool {
        self.kind == Kind::Zeroes
    }

    /// Returns the file's identity for the hash of fault mutexes.
    #[inline]
    pub(crate) fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Returns the size of the file's pages if they are huge pages of a pool.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping, hugetlb::HugePageSize};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, 4 << 20, false).unwrap();
    /// assert_eq!((file.huge_page_size(), file.pages()), (Some(HugePageSize::Mib2), 2));
    /// assert_eq!(Mapping::memfd(&engine, PAGE_SIZE).unwrap().huge_page_size(), None);
    /// ```
    pub fn huge_page_size(&self) -> Option<HugePageSize> {
        self.huge.as_ref().map(|huge| huge.size)
    }

    /// Returns log2 of the page size in bytes.
    pub(crate) fn page_shift(&self) -> u32 {
        self.huge.as_ref().map_or(PAGE_SHIFT, |huge| huge.size.level().shift())
    }
}

/// Zeroes the given bytes of a frame.
pub(crate) fn zero<P: Platform>(platform: &P, pfn: Pfn, bytes: Range<u64>) {
    static ZEROES: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
    platform.write_frame(pfn, bytes.start as usize, &ZEROES[..(bytes.end - bytes.start) as usize]);
}

impl<P: Platform> Shared for Mapping<P> {
    /// Removes the file from the engine's lists. No reverse-map walk that starts at a page finds the file
    /// afterwards.
    fn end(&self) {
        self.home().clear_mapping();
        if self.list_link.is_linked() {
            let files = self.files();
            if self.has_store() { files.list.remove(self) } else { files.swapped.remove(self) }
        }
    }
}

/// Returns the number of pages that a file of `bytes` bytes commits if the file commits its whole size.
pub(super) fn pages_to_commit(bytes: u64) -> PageCount {
    PageCount::new(bytes.div_ceil(PAGE_SIZE))
}
