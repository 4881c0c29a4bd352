//! mseal: makes mappings permanent, so that they cannot be unmapped or changed any more.
//!
//! A sealed VMA has the flag `SEALED`, which is never cleared. This call only sets the flag. The check for
//! holes in the range comes before the first flag is set. Each call that unmaps or changes VMAs checks the
//! flag itself: `space/change/unmap.rs`, `mprotect.rs`, `mremap/mod.rs`, and for discards `check_seal` in
//! `madvise/advice.rs`. A new call of that kind must check it too. The model's `seal.rs` and
//! `lab/freehold-model/cases/seal.txt` have the rules, and `tests/guards.rs` lists calls that fail on a
//! sealed mapping.

use crate::{
    error::MsealError,
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
    vma::flags::VmFlags,
};
use core::cell::Cell;
use freehold_vmspace::UserRange;

impl From<SplitMergeError> for MsealError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MsealError::TooManyVmas,
            SplitMergeError::NoMemory => MsealError::OutOfMemory,
            SplitMergeError::NotSplittable => MsealError::Invalid,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Seals `len` bytes at `addr` permanently. Sealed mappings cannot be unmapped, moved, replaced or given
    /// other access rights. Their pages cannot be discarded if the mapping is not writable. Sealing again has
    /// no effect. No `flags` are defined; the argument must be 0.
    ///
    /// # Errors
    ///
    /// See [`MsealError`]. If the range has a hole, nothing is sealed.
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
    /// space.mseal(at, PAGE_SIZE, 0).unwrap();
    /// assert!(space.munmap(at, PAGE_SIZE).is_err() && space.mprotect(at, PAGE_SIZE, Prot::READ).is_err());
    /// ```
    pub fn mseal(&self, addr: u64, len: u64, flags: u64) -> Result<(), MsealError> {
        let range = UserRange::decode(addr, len).filter(|_| flags == 0).ok_or(MsealError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        // The part that is not sealed yet.
        let rest = Cell::new(range);
        self.retry_when_short(|| {
            let (state, range) = (RangeWriterState::default(), rest.get());
            let guard = self.write_range(&state, range, LimitDemand::CUTS)?;
            if !guard.for_each_vma_range(range, HolePolicy::Stop, |_, _| Ok::<(), MsealError>(()))? {
                return Err(MsealError::NotMapped);
            }
            guard.for_each_vma_range(range, HolePolicy::Stop, |vma, part| {
                if !vma.flags().contains(VmFlags::SEALED) {
                    let change = VmaChange { flags: vma.flags() | VmFlags::SEALED, policy: vma.policy() };
                    let _ = guard.modify(vma, part, change)?;
                }
                rest.set(range.rest(part.end()));
                Ok::<(), MsealError>(())
            })?;
            Ok(())
        })
    }
}
