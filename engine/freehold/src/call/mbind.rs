//! mbind: records NUMA policies in VMAs.
//!
//! A policy is a tag, a number whose meaning only the embedder knows. The engine stores the tag in each VMA
//! and never merges VMAs with different tags. Requests for frames of anonymous pages carry the tag
//! (`NodeChoice::Policy`). A range that covers a part of a VMA splits the VMA
//! (`space/change/split_merge.rs`). All checks for holes come before the first change.
//!
//! `tests/every_call/lengths.rs` has the answers of Linux, and `tests/special/random.rs` sets policies among
//! other random calls.

use crate::{
    error::MbindError,
    platform::Platform,
    space::{
        AddressSpace,
        change::{
            split_merge::{SplitMergeError, VmaChange},
            vma_ranges::{HolePolicy, VmaRanges},
        },
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
};
use core::cell::Cell;
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
    /// Sets the NUMA policy of all mappings in `len` bytes at `addr` to `tag`. Zero is the default policy.
    /// Later requests for frames of anonymous pages carry the tag
    /// ([`NodeChoice::Policy`](crate::platform::NodeChoice)); pages that exist stay where they are
    /// ([`Engine::migrate_to`](crate::engine::Engine::migrate_to) moves them). Huge pages of pools come from
    /// any node, whatever the tag. VMAs with different tags do not merge. As on Linux, a length that
    /// overflows when it is rounded up to whole pages counts as zero.
    ///
    /// # Errors
    ///
    /// See [`MbindError`]. Fails if the range has a hole. With the default policy, fails only if no byte of
    /// the range is mapped. If a VMA cannot be split, the mappings below it already have the new tag.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_policy(at, 2 * PAGE_SIZE, 7).unwrap();
    /// assert_eq!(space.counts().map_count, 2, "VMAs with different tags");
    /// space.set_policy(at, 2 * PAGE_SIZE, 0).unwrap();
    /// assert_eq!(space.counts().map_count, 1);
    /// ```
    pub fn set_policy(&self, addr: u64, len: u64, tag: u64) -> Result<(), MbindError> {
        let range = UserRange::decode_wrapping(addr, len).ok_or(MbindError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        // The part that has no new policy yet.
        let rest = Cell::new(range);
        self.retry_when_short(|| {
            let (state, range) = (RangeWriterState::default(), rest.get());
            let guard = self.write_range(&state, range, LimitDemand::CUTS)?;
            // The check for holes precedes all changes.
            let whole = guard.for_each_vma_range(range, HolePolicy::Stop, |_, _| Ok::<(), MbindError>(()))?;
            if guard.first_range(range).is_none() || (tag != 0 && !whole) {
                return Err(MbindError::NotMapped);
            }
            guard.for_each_vma_range(range, HolePolicy::Skip, |vma, part| {
                if vma.policy() != tag {
                    let _ = guard.modify(vma, part, VmaChange { flags: vma.flags(), policy: tag })?;
                }
                rest.set(range.rest(part.end()));
                Ok::<(), MbindError>(())
            })?;
            Ok(())
        })
    }
}
