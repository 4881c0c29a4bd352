//! munmap without an MMU: a whole mapping, or a part of anonymous memory.

use super::region::{Region, Source};
use super::{
    NoMmuSpace,
    area::{Area, Areas},
};
use crate::{
    PAGE_SIZE,
    error::{MunmapError, NoMemory},
    platform::Platform,
};
use allocator_api2::boxed::Box;
use core::ops::Range;
use freehold_vmspace::{PageCount, Run};

/// What is to be let go of without the lock.
enum Gone<P: Platform> {
    All(#[expect(dead_code, reason = "held for its drop")] Box<Area<P>>),
    Part(#[expect(dead_code, reason = "held for its drop")] Run<P>),
}

impl<P: Platform> NoMmuSpace<P> {
    /// Unmaps the pages that `len` bytes from `start` on have a part of: either one whole mapping, or a part
    /// of anonymous memory, whose frames go back and the rest of which stays, in two pieces if the part
    /// is in its middle. Where a file is mapped several times at the same addresses, one of them goes.
    ///
    /// # Errors
    ///
    /// [`Invalid`](MunmapError::Invalid): neither, or `len` is zero.
    /// [`TooManyVmas`](MunmapError::TooManyVmas), [`OutOfMemory`](MunmapError::OutOfMemory): there would
    /// be two pieces. Nothing was changed.
    ///
    /// # Locks
    ///
    /// The space's lock for writing, killably; for a part, the lock of all regions for writing inside it.
    /// After them, for a whole mapping, the lock of all regions and the i_mmap lock of its file for
    /// writing; frames go back without a lock.
    pub fn munmap(&self, start: u64, len: u64) -> Result<(), MunmapError> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).filter(|len| *len > 0);
        let end = len.and_then(|len| start.checked_add(len)).ok_or(MunmapError::Invalid)?;
        let range = start..end;
        let gone = {
            let mut areas = self.areas.write_killable()?;
            match areas.take(&range, |area| area.range == range) {
                Some(area) => Gone::All(area),
                None => Gone::Part(self.cut(&mut areas, range)?),
            }
        };
        drop(gone);
        Ok(())
    }

    /// Takes a part out of anonymous memory; returns its frames.
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
        // Nothing can fail from here on.
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

    /// What will be the mapping of the memory behind `at`, still without frames.
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
