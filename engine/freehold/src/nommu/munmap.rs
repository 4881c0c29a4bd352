//! munmap without an MMU: unmaps a whole mapping or a part of anonymous memory.
//!
//! A part of anonymous memory is cut out under the space's lock: its region changes, and the part's frames
//! are split off. Frames and files are released after the locks, when the removed memory is dropped.
//! `area.rs` has the set of mappings; `region.rs` frees a region with its last user.
//!
//! Everything that can fail must come before the first change of `areas` or of a region, so that a failed
//! call has no effect (`nommu::oom`, `engine/freehold/tests`).

use super::region::{Region, Source};
use super::{
    NoMmuSpace,
    area::{Area, Areas},
};
use crate::{
    PAGE_SIZE,
    error::{MunmapError, NoMemory},
    platform::Platform,
    shortage::ShortageRounds,
};
use allocator_api2::boxed::Box;
use core::ops::Range;
use freehold_vmspace::{PageCount, Run};

/// Unmapped memory that is dropped after the lock is released.
enum Unmapped<P: Platform> {
    All(#[expect(dead_code, reason = "held for its drop")] Box<Area<P>>),
    Part(#[expect(dead_code, reason = "held for its drop")] Run<P>),
}

impl<P: Platform> NoMmuSpace<P> {
    /// Unmaps all pages that overlap the `len` bytes from `start` on. These pages must form one whole mapping
    /// or a part of anonymous memory. Unmapping a part frees its frames and keeps the rest of the mapping, in
    /// two pieces if the part lies in the middle. If several mappings of a file have the same addresses, one
    /// of them is unmapped.
    ///
    /// # Errors
    ///
    /// Nothing is changed after an error.
    /// - [`Invalid`](MunmapError::Invalid): the range is neither a whole mapping nor a part of anonymous
    ///   memory, or `len` is zero.
    /// - [`TooManyVmas`](MunmapError::TooManyVmas), [`OutOfMemory`](MunmapError::OutOfMemory): a mapping
    ///   would have to be split in two.
    ///
    /// # Locks
    ///
    /// The space's lock for writing, killably; to unmap a part, also the lock of all regions for writing
    /// under it. To unmap a whole mapping, the lock of all regions and the i_mmap lock of its file for
    /// writing, after the space's lock is released. Frames are freed without a lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at + 2 * PAGE_SIZE, 2 * PAGE_SIZE).unwrap();
    /// assert_eq!((space.map_count(), space.pages()), (1, 2));
    /// ```
    pub fn munmap(&self, start: u64, len: u64) -> Result<(), MunmapError> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).filter(|len| *len > 0);
        let end = len.and_then(|len| start.checked_add(len)).ok_or(MunmapError::Invalid)?;
        let range = start..end;
        let gone = self.retry_when_short(ShortageRounds::new(), || {
            let mut areas = self.areas.write_killable()?;
            Ok(match areas.take(&range, |area| area.range == range) {
                Some(area) => Unmapped::All(area),
                None => Unmapped::Part(self.cut(&mut areas, range.clone())?),
            })
        });
        gone.map(drop)
    }

    /// Removes a part of anonymous memory from its mapping and returns the frames of the part.
    fn cut(&self, areas: &mut Areas<P>, part: Range<u64>) -> Result<Run<P>, MunmapError> {
        if !part.start.is_multiple_of(PAGE_SIZE) {
            return Err(MunmapError::Invalid);
        }
        let holds = |area: &Area<P>| {
            area.file.is_none() && area.range.start <= part.start && part.end <= area.range.end
        };
        let found = areas.each(&part).find(|area| holds(area)).ok_or(MunmapError::Invalid)?;
        let inside = found.range.start < part.start && part.end < found.range.end;
        let behind = if inside { Some(self.piece(areas, found, part.end)?) } else { None };
        // No step can fail from here on.
        let mut area = areas.take(&part, holds).ok_or(MunmapError::Invalid)?;
        let pages = |from: u64, to: u64| PageCount::of_bytes(to - from);
        if let Some(mut behind) = behind {
            let kept = pages(area.range.start, part.end);
            let rest = area.region.change(|run| run.split_off(kept));
            drop(behind.region.change(|run| core::mem::replace(run, rest)));
            area.range.end = part.end;
            areas.insert(behind);
        }
        let gone = if area.range.start == part.start {
            let kept = pages(part.start, part.end);
            area.range.start = part.end;
            area.region.change(|run| {
                let rest = run.split_off(kept);
                core::mem::replace(run, rest)
            })
        } else {
            let kept = pages(area.range.start, part.start);
            area.range.end = part.start;
            area.region.change(|run| run.split_off(kept))
        };
        areas.insert(area);
        Ok(gone)
    }

    /// Creates the mapping for the memory from `at` to the end of `whole`, without frames.
    fn piece(&self, areas: &Areas<P>, whole: &Area<P>, at: u64) -> Result<Box<Area<P>>, MunmapError> {
        if areas.count() >= self.regions.engine().max_map_count() {
            return Err(MunmapError::TooManyVmas);
        }
        let region =
            Region::alone(&self.regions, Run::empty(self.regions.engine().memory()), Source::Single)?;
        let range = at..whole.range.end;
        Ok(Box::try_new(Area::new(region, range, whole.prot, whole.shared)).map_err(NoMemory::from)?)
    }
}
