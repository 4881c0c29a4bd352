//! mbind, as far as it keeps VMAs apart: which policy a tag stands for is the embedder's business.

use super::{
    AddressSpace,
    counters::Needs,
    part::PartRoom,
    parts::{Holes, Parts},
    split_merge::{Change, SplitMergeError},
};
use crate::{PAGE_SIZE, error::MbindError, platform::Platform};
use core::ops::Range;
use freehold_vmspace::UserRange;

impl From<SplitMergeError> for MbindError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MbindError::TooManyVmas,
            SplitMergeError::NoMemory => MbindError::OutOfMemory,
            SplitMergeError::NotSplittable => MbindError::Invalid,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Gives everything mapped in `range` the NUMA policy `tag`; zero is the default policy. VMAs with
    /// different tags do not merge. An end inside a page counts as its end.
    ///
    /// # Errors
    ///
    /// See [`MbindError`]. Holes are an error unless the default policy is asked for; then only a range that
    /// is nothing but a hole is. What lies left of a failure to cut a VMA has the new tag.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn set_policy(&self, range: Range<u64>, tag: u64) -> Result<(), MbindError> {
        let end = range.end.checked_next_multiple_of(PAGE_SIZE).ok_or(MbindError::Invalid)?;
        if !range.start.is_multiple_of(PAGE_SIZE) || end < range.start {
            return Err(MbindError::Invalid);
        }
        let range = UserRange::new(range.start, end);
        if range.is_empty() {
            return Ok(());
        }
        let room = PartRoom::default();
        let guard = self.write_part(&room, range, Needs::CUTS)?;
        // Holes are looked for before anything changes.
        let whole = guard.for_each_vma_range(range, Holes::Stop, |_, _| Ok::<(), MbindError>(()))?;
        if guard.first_part(range).is_none() || (tag != 0 && !whole) {
            return Err(MbindError::NotMapped);
        }
        guard.for_each_vma_range(range, Holes::Skip, |vma, part| {
            if vma.policy() != tag {
                let _ = guard.modify(vma, part, Change { flags: vma.flags(), policy: tag })?;
            }
            Ok::<(), MbindError>(())
        })?;
        Ok(())
    }
}
