//! An open file ([`File`]): the part of a file descriptor's target that a mapping needs.
//!
//! The pages belong to [`Mapping`] (`mapping.rs`), which all open files of one file share. An open file adds
//! the access that it was opened for, its name, and its driver or segment. The embedder keeps the rest:
//! descriptors, file positions, status flags. `object.rs` says how a VMA refers to an open file.
//!
//! An open file never changes, so no lock guards it. The exceptions are changed atomically: the hints of
//! readahead (`readahead/`), and the failures of write-back that `sync` (`change/write_back.rs`) has
//! reported. An open file is freed with its last reference.
//!
//! mmap checks the access of an open file (`resolve_file` in `call/mmap/mod.rs`, and `may_map` in
//! `nommu/mmap.rs`); this file only records the access. A new field of [`FileAccess`] needs its check in both
//! functions, except `shows_cache`, which mincore and MADV_PAGEOUT check. VMAs merge only if they map the
//! same open file, so a mapping that must not merge gets an open file of its own (`kinds/segment.rs`).

use super::{Driver, Mapping, Segment, readahead::Readahead};
use crate::{
    PAGE_SHIFT,
    counted::{Counted, Room, Shared},
    error::NoMemory,
    file::{HasFiles, MAX_BYTES, Zeroes, mapping::NewFile},
    platform::Platform,
};
use allocator_api2::{boxed::Box, unsize_box, vec::Vec};
use freehold_sync::atomic::AtomicU64;
use freehold_vmspace::{HugePageSize, PageIndex, PageRange};

settings! {
    /// Access that an open file permits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MmapError, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let file = File::new(&memory, FileAccess::READ.noexec(true), "/it").unwrap();
    /// let map = |prot| space.mmap(0, PAGE_SIZE, prot, MapFlags::PRIVATE, Some(&file), 0);
    /// assert!(map(Prot::READ).is_ok());
    /// assert_eq!(map(Prot::READ | Prot::EXEC), Err(MmapError::NotPermitted));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FileAccess {
        /// The file was opened for reading.
        pub read: bool,
        /// The file was opened for writing.
        pub write: bool,
        /// The file can only be appended to.
        pub append: bool,
        /// The file system forbids execution.
        pub noexec: bool,
        /// The file can be mapped.
        pub mappable: bool,
        /// The program owns the file, or may write to it. Only then mincore reports which pages of a mapping
        /// are in the page cache, and MADV_PAGEOUT takes pages away. Otherwise the use of the cache would
        /// show what other programs read (CVE-2019-5489), and mincore reports every page as resident.
        pub shows_cache: bool,
    }
}

impl FileAccess {
    /// Access of a file opened for reading, which another user owns.
    pub const READ: FileAccess = FileAccess {
        read: true,
        write: false,
        append: false,
        noexec: false,
        mappable: true,
        shows_cache: false,
    };
    /// Access of a file opened for reading and writing.
    pub const READ_WRITE: FileAccess = FileAccess { write: true, shows_cache: true, ..FileAccess::READ };
}

/// An open file. Two separate open calls make two `File`s over one [`Mapping`]. Adjacent VMAs merge only if
/// they map the same `File`. Immutable, except for hints of readahead and the failures that
/// [`sync`](Self::sync) has reported.
pub struct File<P: Platform> {
    /// The pages of the file, which other open files may share.
    mapping: Counted<Mapping<P>>,
    /// The segment of System V shared memory that this file attaches.
    segment: Option<Counted<Segment<P>>>,
    /// The driver that handles mmap. `None` if mappings show the pages of `mapping`.
    driver: Option<Box<dyn Driver<P>>>,
    /// A value of the embedder, which the file drops at its end.
    _owned: Option<Box<dyn Send + Sync>>,
    /// The access that the file was opened for.
    access: FileAccess,
    /// The name that reports show, in UTF-8.
    name: Box<[u8]>,
    /// The window and the hints of readahead. Atomic, without a lock.
    pub(super) readahead: Readahead,
    /// The number of failures of the file's write-back that `sync` has reported. Atomic, without a lock.
    pub(super) told: AtomicU64,
}

/// The parts of an open file that only some files have.
struct Parts<P: Platform> {
    segment: Option<Counted<Segment<P>>>,
    driver: Option<Box<dyn Driver<P>>>,
    owned: Option<Box<dyn Send + Sync>>,
}

impl<P: Platform> Default for Parts<P> {
    fn default() -> Self {
        Parts { segment: None, driver: None, owned: None }
    }
}

impl<P: Platform> Shared for File<P> {}

impl<P: Platform> File<P> {
    /// Opens `mapping`. Reports show `name`.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MmapError, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let file = File::new(&memory, FileAccess::READ, "/memfd:it").unwrap();
    /// let map = |prot| space.mmap(0, PAGE_SIZE, prot, MapFlags::SHARED, Some(&file), 0);
    /// assert_eq!(map(Prot::WRITE), Err(MmapError::AccessDenied));
    /// assert!(space.maps(map(Prot::READ).unwrap()).next().unwrap().to_string().ends_with(" /memfd:it"));
    /// ```
    pub fn new(
        mapping: &Counted<Mapping<P>>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::open(mapping, Parts::default(), access, name, true)
    }

    /// Opens `mapping` like [`new`](Self::new). The file owns `value` until no VMA and no other holder refers
    /// to the file. The drop of `value` must not sleep and must not call the engine.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, space::*};
    /// # use std::sync::Arc;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let in_use = Arc::new(());
    /// let file = File::with_owned(&memory, in_use.clone(), FileAccess::READ, "/it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// drop(file);
    /// assert_eq!(Arc::strong_count(&in_use), 2);
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// ```
    pub fn with_owned(
        mapping: &Counted<Mapping<P>>,
        value: impl Send + Sync + 'static,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        let room = mapping.files().allocate(true, || Ok(Box::try_new_uninit()?))?;
        let value: Box<dyn Send + Sync> = unsize_box!(Box::write(room, value));
        Self::open(mapping, Parts { owned: Some(value), ..Parts::default() }, access, name, true)
    }

    /// Opens a device. `driver` decides what a mapping of the device maps. `mapping` has no pages of its own;
    /// its reverse map lists the device's VMAs, for [`Mapping::revoke`].
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, error::MmapError, file::*, platform::Platform, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// struct Console;
    /// impl<P: Platform> Driver<P> for Console {
    ///     fn mmap(&self, _: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError> {
    ///         Err(MmapError::NotMappable)
    ///     }
    /// }
    /// let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let device = File::with_driver(&mapping, Console, FileAccess::READ_WRITE, "/dev/console").unwrap();
    /// let mapped = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&device), 0);
    /// assert_eq!(mapped, Err(MmapError::NotMappable));
    /// ```
    pub fn with_driver(
        mapping: &Counted<Mapping<P>>,
        driver: impl Driver<P>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        let room = mapping.files().allocate(true, || Ok(Box::try_new_uninit()?))?;
        let driver: Box<dyn Driver<P>> = unsize_box!(Box::write(room, driver));
        Self::open(mapping, Parts { driver: Some(driver), ..Parts::default() }, access, name, true)
    }

    /// Opens the file that one attach of a segment maps.
    pub(super) fn of_segment(
        segment: &Counted<Segment<P>>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        let parts = Parts { segment: Some(segment.clone()), ..Parts::default() };
        Self::open(segment.mapping(), parts, access, name, false)
    }

    /// Creates an open file, which copies `name`. If `asks`, the caller holds no lock, and the platform is
    /// asked for memory.
    fn open(
        mapping: &Counted<Mapping<P>>,
        parts: Parts<P>,
        access: FileAccess,
        name: &str,
        asks: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let (mut bytes, room) = mapping.files().allocate(asks, || {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(name.len()).map_err(|_| NoMemory)?;
            Ok((bytes, Room::try_new()?))
        })?;
        bytes.extend_from_slice(name.as_bytes());
        let name = bytes.into_boxed_slice();
        let (readahead, told) = (Readahead::new(), AtomicU64::new(mapping.dirty.seen()));
        let Parts { segment, driver, owned } = parts;
        let mapping = mapping.clone();
        Ok(room.fill(File { mapping, segment, driver, _owned: owned, access, name, readahead, told }))
    }

    /// Creates the file of a shared anonymous mapping of `bytes` bytes. No other name refers to the file.
    /// With `committed` the whole size counts as committed memory until the file is destroyed. Without
    /// `committed` (MAP_NORESERVE), only the pages that were touched count.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if more would be committed than
    /// [allowed](crate::engine::Engine::set_overcommit).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, file::File};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = File::shared_memory(&engine, 4 * PAGE_SIZE, true).unwrap();
    /// assert_eq!(engine.committed_pages(), PageCount::new(4));
    /// drop(memory);
    /// assert_eq!(engine.committed_pages(), PageCount::new(0));
    /// ```
    pub fn shared_memory(
        files: &impl HasFiles<P>,
        bytes: u64,
        committed: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::nameless(files, bytes, committed, true)
    }

    /// Creates a file like [`shared_memory`](Self::shared_memory). If `asks`, the caller holds no lock, and
    /// the platform is asked for memory.
    pub(crate) fn nameless(
        files: &impl HasFiles<P>,
        bytes: u64,
        committed: bool,
        asks: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let new = NewFile { asks, ..NewFile::nameless(bytes, committed) };
        let mapping = Mapping::make(files.files(), Zeroes, new)?;
        Self::open(&mapping, Parts::default(), FileAccess::READ_WRITE, "/dev/zero (deleted)", asks)
    }

    /// Returns the file's pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let [a, b] = ["/a", "/b"].map(|name| File::new(&memory, FileAccess::READ_WRITE, name).unwrap());
    /// a.mapping().write_at(0, b"both").unwrap();
    /// let mut found = [0; 4];
    /// b.mapping().read_at(0, &mut found).unwrap();
    /// assert_eq!(&found, b"both");
    /// ```
    pub fn mapping(&self) -> &Counted<Mapping<P>> {
        &self.mapping
    }

    /// Removes the clean and unused pages of this range from the cache; see [`Mapping::drop_clean`].
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::drop_clean`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, file::{File, FileAccess, Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let mapping = Mapping::new(&engine, Zeroes, 4 * PAGE_SIZE, false).unwrap();
    /// let file = File::new(&mapping, FileAccess::READ, "/it").unwrap();
    /// mapping.read_at(0, &mut [0; 16]).unwrap();
    /// assert_eq!(file.drop_clean(PageRange::ALL), 1);
    /// ```
    pub fn drop_clean(&self, pages: PageRange) -> u64 {
        self.mapping.drop_clean(pages)
    }

    /// Returns the segment of System V shared memory that this file attaches.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # use freehold::report::maps::MapName;
    /// let segment = Segment::new(&engine, 7, PAGE_SIZE).unwrap();
    /// let at = space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// let MapName::Object(object) = space.maps(at).next().unwrap().name else { unreachable!() };
    /// assert_eq!(object.file().unwrap().segment().unwrap().key(), 7);
    /// ```
    pub fn segment(&self) -> Option<&Counted<Segment<P>>> {
        self.segment.as_ref()
    }

    /// Returns true if a mapping of the file is new zeroed memory. A device with a driver returns false.
    pub(crate) fn is_zeroes(&self) -> bool {
        self.mapping.is_zeroes() && self.driver.is_none()
    }

    /// Returns the driver that handles mmap, for a device whose mappings do not show pages of a file.
    pub(crate) fn driver(&self) -> Option<&dyn Driver<P>> {
        self.driver.as_deref()
    }

    /// Returns the access that the file permits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let log = FileAccess::READ_WRITE.append(true);
    /// assert!(File::new(&memory, log, "/log").unwrap().access().append);
    /// ```
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// Returns the name that reports show.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let file = File::new(&memory, FileAccess::READ, "/memfd:it").unwrap();
    /// assert_eq!((file.name(), file.access().write), ("/memfd:it", false));
    /// ```
    pub fn name(&self) -> &str {
        // The bytes came from a `str`.
        core::str::from_utf8(&self.name).unwrap_or_default()
    }

    /// Returns true if `pages` pages at page offset `pgoff` lie within the largest size of a file. A device
    /// of zeroes extends to the largest offset.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::{File, FileAccess, Mapping}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let file = File::new(&memory, FileAccess::READ, "/memfd:it").unwrap();
    /// assert!(file.fits(PageIndex::new(1 << 40), 8), "beyond the end of the file, but possible");
    /// assert!(!file.fits(PageIndex::new(i64::MAX as u64 / PAGE_SIZE), 8));
    /// ```
    pub fn fits(&self, pgoff: PageIndex, pages: u64) -> bool {
        fits(if self.mapping.is_zeroes() { u64::MAX } else { MAX_BYTES }, pgoff, pages)
    }

    /// Creates the file that a MAP_HUGETLB mapping of `bytes` bytes maps. No other name refers to the file.
    /// Does not ask the platform for memory.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub(crate) fn anonymous_huge(
        files: &impl HasFiles<P>,
        page: HugePageSize,
        bytes: u64,
    ) -> Result<Counted<Self>, NoMemory> {
        let new = NewFile { asks: false, ..NewFile::of_huge_pages(bytes, page) };
        let mapping = Mapping::make(files.files(), Zeroes, new)?;
        Self::open(&mapping, Parts::default(), FileAccess::READ_WRITE, "/anon_hugepage (deleted)", false)
    }
}

/// Returns true if `pages` pages at page offset `pgoff` lie within the first `bytes` bytes of a file.
fn fits(bytes: u64, pgoff: PageIndex, pages: u64) -> bool {
    let room = (bytes >> PAGE_SHIFT).checked_sub(pages);
    room.is_some_and(|room| pgoff.get() <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_accepts_ranges_within_the_largest_file() {
        // The largest file ends one byte before the end of page `1 << 51`.
        const LAST: u64 = (1 << 51) - 1;
        for (pgoff, pages, fit) in [
            (0, 1, true),
            (0, LAST, true),
            (0, LAST + 1, false),
            (LAST - 1, 1, true),
            (LAST, 1, false),
            (u64::MAX, 1, false),
            (0, u64::MAX, false),
        ] {
            assert_eq!(fits(MAX_BYTES, PageIndex::new(pgoff), pages), fit, "{pages} pages at {pgoff:#x}");
        }
    }
}
