//! The mmap hook of a file that is not made of pages: what its driver is told, and what it may answer.
//!
//! The hook sees a request and nothing else: there is no VMA yet, and none of what it answers is published
//! before everything that can fail has been done. So a hook that gives up half-way, or an engine that runs
//! out of memory behind it, has nothing to take back: what the hook made is dropped, and `close` is never
//! called for what was never opened (hazard C-31).

use crate::file::{File, ForeignFrames, Special, VmaInfo};
use crate::{PAGE_SHIFT, Pfn, counted::Counted, error::MmapError, platform::Platform, vma::flags::VmFlags};
use allocator_api2::vec::Vec;
use freehold_vmspace::UserRange;

/// What stands behind a [file](File::with_driver) instead of pages.
pub trait Driver<P: Platform>: Send + Sync + 'static {
    /// The mmap hook: answers `request` with what is to be mapped. A new [`Special`] has private data of its
    /// own; where the same one is given again, neighbours over it may become one VMA, as flags allow.
    ///
    /// Called with the mmap lock held for writing. May be called again for the same call of mmap, if frames
    /// were revoked meanwhile.
    ///
    /// # Errors
    ///
    /// What mmap shall say; nothing is mapped.
    fn mmap(&self, request: &mut MapRequest<'_, P>) -> Result<Counted<Special<P>>, MmapError>;
}

/// Frames that follow each other, for pages that do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Addresses.
    pub range: UserRange,
    /// The first page's frame.
    pub first: Pfn,
}

/// A mapping that somebody asks for.
pub struct MapRequest<'r, P: Platform> {
    file: &'r Counted<File<P>>,
    mmu: &'r P::Mmu,
    /// What the VMA will be.
    info: VmaInfo,
    /// Ascending.
    runs: Vec<Run>,
}

/// What an mmap hook may add.
const MAY_ADD: VmFlags = VmFlags::SPECIAL.union(VmFlags::DONTCOPY).union(VmFlags::DONTDUMP);
/// What it may take away: the right to get rights.
const MAY_TAKE: VmFlags = VmFlags::MAYREAD.union(VmFlags::MAYWRITE).union(VmFlags::MAYEXEC);
/// What every mapping of frames has that nobody counts.
const WHOLE: VmFlags = VmFlags::IO.union(VmFlags::PFNMAP).union(VmFlags::DONTEXPAND).union(VmFlags::DONTDUMP);

impl<'r, P: Platform> MapRequest<'r, P> {
    pub(crate) fn new(file: &'r Counted<File<P>>, mmu: &'r P::Mmu, info: VmaInfo) -> Self {
        MapRequest { file, mmu, info, runs: Vec::new() }
    }

    /// The file that is mapped.
    pub fn file(&self) -> &Counted<File<P>> {
        self.file
    }

    /// The platform's record of the address space.
    pub fn mmu(&self) -> &P::Mmu {
        self.mmu
    }

    /// The VMA as it will be, if it stays one of its own.
    pub fn vma(&self) -> &VmaInfo {
        &self.info
    }

    /// Gives the VMA other flags. Allowed are more of `IO`, `PFNMAP`, `MIXEDMAP`, `DONTEXPAND`, `DONTCOPY`,
    /// `DONTDUMP`, and less of `MAYREAD`, `MAYWRITE`, `MAYEXEC` where the right itself was not asked for.
    ///
    /// # Errors
    ///
    /// `Invalid`: anything else; the flags stay.
    pub fn set_flags(&mut self, flags: VmFlags) -> Result<(), MmapError> {
        let (added, taken) = (flags - self.info.flags, self.info.flags - flags);
        if !MAY_ADD.contains(added) || !MAY_TAKE.contains(taken) || !flags.allows_its_rights() {
            return Err(MmapError::Invalid);
        }
        self.info.flags = flags;
        Ok(())
    }

    /// Maps `frames` behind the pages from `page` on, counted from the start of the mapping (Linux's
    /// `remap_pfn_range`); in ascending order. They are there when mmap returns, in pages that have `IO`,
    /// `PFNMAP`, `DONTEXPAND` and `DONTDUMP`; what is left out is up to the fault hook.
    ///
    /// # Errors
    ///
    /// The range leaves the mapping, or overlaps with one before; or there is no memory.
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

    /// The flags and the frames that the driver wants, if they go together.
    pub(crate) fn answered(self) -> Result<(VmFlags, Vec<Run>), MmapError> {
        let MapRequest { info, runs, .. } = self;
        let mapped: u64 = runs.iter().map(|run| run.range.end() - run.range.start()).sum();
        // As on Linux: what private stores copy is there from the start, or comes by faults.
        if info.flags.is_cow() && !runs.is_empty() && mapped != info.range.end() - info.range.start() {
            return Err(MmapError::Invalid);
        }
        Ok((info.flags, runs))
    }
}
