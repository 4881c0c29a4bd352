//! mmap without an MMU: selects or creates the frames of a mapping.
//!
//! The steps are: decode the arguments and check the rights of the file; find or create the region; insert
//! the mapping into the space. The second step depends on the kind of mapping:
//!
//! | mapping | region |
//! | --- | --- |
//! | anonymous | new zeroed frames |
//! | shared | the file's own frames (`in_place`), or the call fails |
//! | private, writable | a new copy |
//! | private, read-only | the file's own frames, else a copy that such mappings share (`text`) |
//!
//! The region exists before the space is locked, because no page is read, zeroed or copied under a space's
//! lock. `regions.rs` finds and shares regions, `area.rs` has the set of mappings, and `file/in_place.rs`
//! finds the pages of a file in place. [`nommu`](super) describes the locks.
//!
//! `nommu::files` and `nommu::anonymous` test the kinds of mappings, and `nommu::oom` tests that a failed
//! call has no effect (`engine/freehold/tests`).

use super::{
    NoMmuSpace, Regions,
    area::Area,
    region::{FilePages, RegionUse},
};
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    counted::Counted,
    error::{MmapError, NoMemory},
    file::{File, FillError, Mapping, Writing},
    platform::Platform,
    shortage::ShortageRounds,
    space::{MapFlags, Prot},
    vma::flags::VmFlags,
};
use allocator_api2::boxed::Box;
use freehold_vmspace::{PageCount, PageIndex, PageRange, Run};

/// Mask of the sharing type, which is a number and not a set of bits.
const TYPE: u64 = 0x0f;

/// Validated arguments.
struct Request<'f, P: Platform> {
    /// Number of pages, which is not zero.
    pages: PageCount,
    prot: Prot,
    shared: bool,
    file: Option<&'f Counted<File<P>>>,
    /// First page in the file; zero for anonymous memory.
    first: PageIndex,
}

impl<P: Platform> Request<'_, P> {
    /// Keeps the file from being sealed against writing, if the mapping is shared and writable.
    fn begin_writing(&self) -> Result<Option<Writing<P>>, MmapError> {
        let mut flags = VmFlags::SHARED | VmFlags::MAYWRITE | VmFlags::WRITE;
        match self.file.filter(|_| self.shared && self.prot.contains(Prot::WRITE)) {
            Some(file) => {
                Mapping::begin_writing(file.mapping(), &mut flags).map_err(|_| MmapError::NotPermitted)
            }
            None => Ok(None),
        }
    }
}

impl From<FillError> for MmapError {
    fn from(error: FillError) -> Self {
        match error {
            FillError::NoMemory => MmapError::OutOfMemory,
            FillError::Io | FillError::Lost => MmapError::Io,
            FillError::Killed => MmapError::Killed,
            FillError::BeyondEnd
            | FillError::Sealed
            | FillError::Busy
            | FillError::NoSpace
            | FillError::NoHugePages
            | FillError::Unsupported
            | FillError::Invalid => MmapError::NotMappable,
        }
    }
}

impl<P: Platform> NoMmuSpace<P> {
    /// Maps `len` bytes of anonymous memory, or of `file` from byte `offset` on. Returns the address. Memory
    /// is mapped in whole pages; bytes that do not come from a file are zero.
    ///
    /// The hint `addr` is ignored, as are flags that have no meaning without an MMU. Anonymous memory with
    /// `MAP_SHARED` is private too. A private mapping of a file may extend beyond the end of the file and
    /// contains zeroes there.
    ///
    /// # Errors
    ///
    /// See [`MmapError`]. Nothing is changed after an error. The following causes exist only without an MMU:
    /// - [`Invalid`](MmapError::Invalid): the address is fixed; or a read-only copy of some of the pages, but
    ///   not of all, is already mapped;
    /// - [`NotMappable`](MmapError::NotMappable): the mapping is shared, and the file does not lie in
    ///   contiguous frames or ends before the end of the mapping;
    /// - [`OutOfMemory`](MmapError::OutOfMemory): no contiguous memory is left, and the platform could make
    ///   none free;
    /// - [`Io`](MmapError::Io): the file could not be read.
    ///
    /// # Locks
    ///
    /// For a file, its invalidate lock for reading, or once for writing to fill shared memory. Under this
    /// lock, the lock of all regions for writing. Under both locks, the file's i_mmap lock: for reading to
    /// find a region, for writing to link a region. After these locks are released, the space's lock for
    /// writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MmapError, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 100, rw, private, None, 0).unwrap();
    /// assert_eq!((at % PAGE_SIZE, space.pages()), (0, 1));
    /// let fixed = space.mmap(at, PAGE_SIZE, rw, private | MapFlags::FIXED, None, 0);
    /// assert_eq!(fixed, Err(MmapError::Invalid));
    /// ```
    pub fn mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<u64, MmapError> {
        // An address hint cannot be honoured without an MMU.
        let _ = addr;
        let request = self.decode(len, prot, flags, file, offset)?;
        let order = request.pages.get().checked_next_power_of_two().map_or(0, u64::ilog2);
        self.retry_when_short(ShortageRounds::of_order(order), || self.try_mmap(&request))
    }

    /// Makes one attempt of [`mmap`](Self::mmap).
    fn try_mmap(&self, request: &Request<'_, P>) -> Result<u64, MmapError> {
        // `_writing` is held until the frames have references. A call that seals the file recognizes used
        // pages by their references.
        let _writing = request.begin_writing()?;
        let (region, start) = self.region(request)?;
        let range = start..start + request.pages.bytes();
        let mut area = Area::new(region, range, request.prot, request.shared);
        area.file = request.file.cloned();
        area.offset = request.first.byte();
        let area = Box::try_new(area).map_err(NoMemory::from)?;
        let full = {
            let mut areas = self.areas.write_killable()?;
            if areas.count() < self.regions.engine().max_map_count() {
                areas.insert(area);
                None
            } else {
                Some(area)
            }
        };
        // A mapping that was not inserted is dropped after the lock is released.
        full.map_or(Ok(start), |_| Err(MmapError::TooManyVmas))
    }

    /// Validates the arguments and converts them to a request.
    fn decode<'f>(
        &self,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&'f Counted<File<P>>>,
        offset: u64,
    ) -> Result<Request<'f, P>, MmapError> {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return Err(MmapError::Invalid);
        }
        let anonymous = flags.contains(MapFlags::ANONYMOUS);
        let file = file.filter(|_| !anonymous);
        if file.is_none() && !anonymous {
            return Err(MmapError::BadDescriptor);
        }
        let kind = flags.bits() & TYPE;
        let shared = kind == MapFlags::SHARED.bits();
        let known = shared || kind == MapFlags::PRIVATE.bits();
        if !known || len == 0 || flags.intersects(MapFlags::FIXED | MapFlags::HUGETLB) {
            return Err(MmapError::Invalid);
        }
        let pages = PageCount::of_bytes(len.checked_next_multiple_of(PAGE_SIZE).ok_or(MmapError::NoSpace)?);
        let Some(file) = file else {
            return Ok(Request { pages, prot, shared: false, file: None, first: PageIndex::ZERO });
        };
        if !self.regions.engine().owns(file.mapping().files()) {
            return Err(MmapError::OtherEngine);
        }
        if file.mapping().huge_page_size().is_some() {
            return Err(MmapError::NotMappable);
        }
        let first = PageIndex::of_byte(offset);
        if file.driver().is_some() {
            return Err(MmapError::NotMappable);
        }
        if !file.fits(first, pages.get()) {
            return Err(MmapError::OffsetOverflow);
        }
        self.may_map(file, prot, shared)?;
        Ok(Request { pages, prot, shared, file: Some(file), first })
    }

    /// Fails if the open file does not allow the mapping.
    fn may_map(&self, file: &File<P>, prot: Prot, shared: bool) -> Result<(), MmapError> {
        let access = file.access();
        if !access.mappable || file.mapping().is_secret() {
            return Err(MmapError::NotMappable);
        }
        let writes = shared && prot.contains(Prot::WRITE);
        if !access.read || (writes && !access.write) || (shared && access.append && access.write) {
            return Err(MmapError::AccessDenied);
        }
        if access.noexec && prot.contains(Prot::EXEC) {
            return Err(MmapError::NotPermitted);
        }
        Ok(())
    }

    /// Returns the region for a mapping, and the address in the region at which the mapping begins.
    fn region(&self, request: &Request<'_, P>) -> Result<(RegionUse<P>, u64), MmapError> {
        let write = request.prot.contains(Prot::WRITE);
        let region = match request.file {
            None => self.memory(request.pages)?,
            Some(file) => {
                let pages = PageRange::at(request.first, request.pages);
                match request.shared {
                    true => self.in_place(file, pages, write, true)?.ok_or(MmapError::NotMappable)?,
                    false if write => Regions::single(&self.regions, copy(file.mapping(), pages)?)?,
                    false => match self.in_place(file, pages, false, false)? {
                        Some(region) => region,
                        None => self.text(file, pages)?,
                    },
                }
            }
        };
        let skipped = region.file_pages().map_or(PageCount::ZERO, |(_, pages)| request.first - pages.start);
        let start = (region.run.numbers().start << PAGE_SHIFT) + skipped.bytes();
        Ok((region, start))
    }

    /// Allocates a region of zeroed anonymous memory.
    fn memory(&self, pages: PageCount) -> Result<RegionUse<P>, MmapError> {
        let run = Run::alloc(self.regions.engine().memory(), pages)?;
        run.zero();
        Ok(Regions::single(&self.regions, run)?)
    }

    /// Returns a region of the file's own pages, if they lie in contiguous frames. If the file is shared
    /// memory without pages, this function first allocates contiguous frames for the whole file.
    fn in_place(
        &self,
        file: &File<P>,
        pages: PageRange,
        write: bool,
        shared: bool,
    ) -> Result<Option<RegionUse<P>>, MmapError> {
        let mapping = file.mapping();
        let mut stay = mapping.pages_stay();
        let mut run = stay.own(pages, write);
        if run.is_none() && mapping.is_shmem() && pages.end <= mapping.end() {
            drop(stay);
            stay = match mapping.lay_out_and_stay() {
                Err(FillError::NoMemory) if !shared => return Ok(None),
                laid_out => laid_out?,
            };
            run = stay.own(pages, write);
        }
        let Some(run) = run else { return Ok(None) };
        let region = match shared {
            true => {
                let pages = FilePages { mapping: mapping.clone(), first: pages.start };
                Regions::shared(&self.regions, &stay, run, pages)?
            }
            false => Regions::single(&self.regions, run)?,
        };
        Ok(Some(region))
    }

    /// Returns a region with a copy that all read-only mappings of these pages share.
    fn text(&self, file: &File<P>, pages: PageRange) -> Result<RegionUse<P>, MmapError> {
        let mapping = file.mapping();
        if let Some(region) = Regions::text(&self.regions, mapping, pages)? {
            return Ok(region);
        }
        // The copy is made without the lock of the regions, because reading the file may wait.
        let run = copy(mapping, pages)?;
        Regions::offer_text(&self.regions, run, FilePages { mapping: mapping.clone(), first: pages.start })
    }
}

/// Returns a copy of the current contents of pages of a file.
fn copy<P: Platform>(mapping: &Mapping<P>, pages: PageRange) -> Result<Run<P>, MmapError> {
    let run = Run::alloc(mapping.files().memory(), pages.len())?;
    for (index, pfn) in pages.into_iter().zip(run.frames()) {
        mapping.copy_page(index, pfn)?;
    }
    Ok(run)
}
