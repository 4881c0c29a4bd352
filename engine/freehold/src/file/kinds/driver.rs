//! The mmap hook of a device file: the request that the driver gets, and the answers that the driver may
//! give.
//!
//! The hook sees only the request. There is no VMA yet, and no part of the answer is published before every
//! step that can fail has succeeded. If the hook fails, or if the engine runs out of memory afterwards, there
//! is nothing to undo. The objects that the hook made are dropped, and `close` is never called without a
//! preceding `open` (hazard C-31).
//!
//! `call/mmap/driver.rs` calls the hook and stores the answer. `special.rs` has the object that the hook
//! returns, and the other hooks. An answer with flags or frames that the rules do not allow must be refused
//! here, because the frames become visible to a program; `MAY_ADD` and `MAY_TAKE` list the flags that a
//! driver may change. `tests/special/hooks.rs` and `tests/special/mapping.rs` have the tests.

use crate::file::{File, ForeignFrames, Special, VmaInfo};
use crate::{PAGE_SHIFT, Pfn, counted::Counted, error::MmapError, platform::Platform, vma::flags::VmFlags};
use allocator_api2::vec::Vec;
use freehold_vmspace::UserRange;

/// The driver of a [device file](File::with_driver), which has no pages.
pub trait Driver<P: Platform>: Send + Sync + 'static {
    /// The mmap hook. Answers `request` with the object to map. A new [`Special`] has its own private data.
    /// The driver may also return the `Special` of an earlier request: adjacent VMAs over one `Special` merge
    /// if their flags allow that.
    ///
    /// Called with the mmap lock held for writing. May be called again for the same mmap call if frames were
    /// revoked after the previous call of this hook.
    ///
    /// # Errors
    ///
    /// The error that mmap returns; nothing is then mapped.
    fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError>;
}

/// Contiguous frames that are mapped at contiguous addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The addresses of the pages.
    pub range: UserRange,
    /// The frame of the first page.
    pub first: Pfn,
}

/// A request to map a device.
pub struct MapRequest<'r, P: Platform> {
    /// The device file.
    file: &'r Counted<File<P>>,
    /// The platform's record of the address space.
    mmu: &'r P::Mmu,
    /// Description of the VMA to be created.
    info: VmaInfo,
    /// Frames to map at once, in ascending order of addresses.
    runs: Vec<Run>,
}

/// Flags that an mmap hook may add.
const MAY_ADD: VmFlags = VmFlags::SPECIAL.union(VmFlags::DONTCOPY).union(VmFlags::DONTDUMP);
/// Flags that an mmap hook may remove. Without such a flag, mprotect cannot add the access right later.
const MAY_TAKE: VmFlags = VmFlags::MAYREAD.union(VmFlags::MAYWRITE).union(VmFlags::MAYEXEC);
/// Flags of every mapping of frames that have no reference counts.
const WHOLE: VmFlags = VmFlags::IO.union(VmFlags::PFNMAP).union(VmFlags::DONTEXPAND).union(VmFlags::DONTDUMP);

impl<'r, P: Platform> MapRequest<'r, P> {
    pub(crate) fn new(file: &'r Counted<File<P>>, mmu: &'r P::Mmu, info: VmaInfo) -> Self {
        MapRequest { file, mmu, info, runs: Vec::new() }
    }

    /// Returns the file that is mapped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, error::MmapError, file::*};
    /// # use freehold::{platform::Platform, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// struct Devices;
    /// impl<P: Platform> Driver<P> for Devices {
    ///     fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError> {
    ///         if request.file().name() != "/dev/it" {
    ///             return Err(MmapError::NotMappable);
    ///         }
    ///         Ok(Special::of_file(Frames::new("/dev/it", &[])?, request.file().mapping())?)
    ///     }
    /// }
    /// # let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let map = |name| {
    ///     let device = File::with_driver(&mapping, Devices, FileAccess::READ, name).unwrap();
    ///     space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&device), 0)
    /// };
    /// assert!(map("/dev/it").is_ok());
    /// assert_eq!(map("/dev/tty"), Err(MmapError::NotMappable));
    /// ```
    pub fn file(&self) -> &Counted<File<P>> {
        self.file
    }

    /// Returns the platform's record of the address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, Pfn, counted::Counted, error::MmapError, file::*, space::*};
    /// # use freehold_machine::Machine;
    /// # type Answer = Result<Counted<Special<Machine>>, MmapError>;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// /// A device that only one process can map.
    /// struct Device(Pfn);
    /// impl Driver<Machine> for Device {
    ///     fn mmap(&self, request: &mut MapRequest<'_, Machine>) -> Answer {
    ///         if request.mmu().root() != self.0 {
    ///             return Err(MmapError::NotPermitted);
    ///         }
    ///         Ok(Special::of_file(Frames::new("/dev/it", &[])?, request.file().mapping())?)
    ///     }
    /// }
    /// # let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// # let device = Device(space.mmu().root());
    /// # let device = File::with_driver(&mapping, device, FileAccess::READ, "/dev/it").unwrap();
    /// # let other = space.fork().unwrap();
    /// # let map = |space: &AddressSpace<Machine>| {
    /// #     space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&device), 0)
    /// # };
    /// assert!(map(&space).is_ok());
    /// assert_eq!(map(&other), Err(MmapError::NotPermitted));
    /// ```
    pub fn mmu(&self) -> &P::Mmu {
        self.mmu
    }

    /// Returns the description of the VMA to be created, which may still merge with a neighbour.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, counted::Counted, error::MmapError, file::*};
    /// # use freehold::{platform::Platform, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// /// A device of one page.
    /// struct Device;
    /// impl<P: Platform> Driver<P> for Device {
    ///     fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError> {
    ///         if request.vma().pages() > PageCount::new(1) {
    ///             return Err(MmapError::Invalid);
    ///         }
    ///         Ok(Special::of_file(Frames::new("/dev/it", &[])?, request.file().mapping())?)
    ///     }
    /// }
    /// # let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// # let device = File::with_driver(&mapping, Device, FileAccess::READ, "/dev/it").unwrap();
    /// let map = |len| space.mmap(0, len, Prot::READ, MapFlags::SHARED, Some(&device), 0);
    /// assert!(map(PAGE_SIZE).is_ok());
    /// assert_eq!(map(2 * PAGE_SIZE), Err(MmapError::Invalid));
    /// ```
    pub fn vma(&self) -> &VmaInfo {
        &self.info
    }

    /// Sets the flags of the VMA. A driver may add `IO`, `PFNMAP`, `MIXEDMAP`, `DONTEXPAND`, `DONTCOPY` and
    /// `DONTDUMP`. A driver may remove `MAYREAD`, `MAYWRITE` and `MAYEXEC` if the VMA does not have the
    /// corresponding access right.
    ///
    /// # Errors
    ///
    /// Fails with `Invalid` for any other change; the flags then stay unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, engine::{Config, Engine}, error::MmapError, file::*};
    /// # use freehold::{platform::Platform, space::*, vma::flags::VmFlags};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// # let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// struct Device;
    /// impl<P: Platform> Driver<P> for Device {
    ///     fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError> {
    ///         request.set_flags(request.vma().flags | VmFlags::DONTCOPY)?;
    ///         Ok(Special::of_file(Frames::new("/dev/it", &[])?, request.file().mapping())?)
    ///     }
    /// }
    /// let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let device = File::with_driver(&mapping, Device, FileAccess::READ_WRITE, "/dev/it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&device), 0).unwrap();
    /// assert!(space.fork().unwrap().vma_info(at).is_none(), "a child does not get the mapping");
    /// ```
    pub fn set_flags(&mut self, flags: VmFlags) -> Result<(), MmapError> {
        let (added, taken) = (flags - self.info.flags, self.info.flags - flags);
        if !MAY_ADD.contains(added) || !MAY_TAKE.contains(taken) || !flags.allows_its_rights() {
            return Err(MmapError::Invalid);
        }
        self.info.flags = flags;
        Ok(())
    }

    /// Maps `frames` at consecutive pages of the mapping; the first is page number `page`, counted from 0
    /// (Linux's `remap_pfn_range`). Calls must be in ascending order. The entries exist when mmap returns,
    /// and the VMA gets the flags `IO`, `PFNMAP`, `DONTEXPAND` and `DONTDUMP`. The fault hook serves the
    /// other pages.
    ///
    /// # Errors
    ///
    /// Fails if the range leaves the mapping or overlaps an earlier one, or if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, engine::{Config, Engine}, error::MmapError, file::*};
    /// # use freehold::{platform::{FramePurpose, FrameRequest, Platform}, space::*, Pfn};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// # let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let mut frames = [Pfn::new(0)];
    /// # assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), 1);
    /// struct Screen(ForeignFrames);
    /// impl<P: Platform> Driver<P> for Screen {
    ///     fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError> {
    ///         request.map_frames(0, self.0)?;
    ///         Ok(Special::of_file(Frames::new("/dev/fb0", &[self.0])?, request.file().mapping())?)
    ///     }
    /// }
    /// // SAFETY: the frame is allocated from the machine for this device and is never freed.
    /// let screen = Screen(unsafe { ForeignFrames::new(frames[0], 1) });
    /// let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let device = File::with_driver(&mapping, screen, FileAccess::READ_WRITE, "/dev/fb0").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&device), 0).unwrap();
    /// assert_eq!(space.page_table_bytes(), 3 * PAGE_SIZE, "the entry exists before the first access");
    /// ```
    pub fn map_frames(&mut self, page: u64, frames: ForeignFrames) -> Result<(), MmapError> {
        let (first, pages) = (frames.first(), frames.count());
        let end = page.checked_add(pages).filter(|&end| pages > 0 && end <= self.info.pages().get());
        let end = end.ok_or(MmapError::Invalid)?;
        let address = |page: u64| self.info.range.start() + (page << PAGE_SHIFT);
        let range = UserRange::new(address(page), address(end));
        if self.runs.last().is_some_and(|last| range.start() < last.range.end()) {
            return Err(MmapError::Invalid);
        }
        self.runs.try_reserve(1).map_err(|_| MmapError::OutOfMemory)?;
        self.runs.push(Run { range, first });
        self.info.flags |= WHOLE;
        Ok(())
    }

    /// Returns the flags and frames that the driver chose, if they are consistent.
    pub(crate) fn answered(self) -> Result<(VmFlags, Vec<Run>), MmapError> {
        let MapRequest { info, runs, .. } = self;
        let mapped: u64 = runs.iter().map(|run| run.range.end() - run.range.start()).sum();
        // As on Linux: a private writable mapping either gets all its frames from the start, or gets them by
        // faults.
        if info.flags.is_cow() && !runs.is_empty() && mapped != info.range.end() - info.range.start() {
            return Err(MmapError::Invalid);
        }
        Ok((info.flags, runs))
    }
}
