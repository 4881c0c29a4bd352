//! Acquires the right to create a mapping, as the exclusive writer or as a range writer.
//!
//! A range writer claims the place of the mapping before it creates the mapping: a free hole, or the VMAs
//! that a fixed mapping replaces. The address is therefore chosen before the claim, and the search is
//! repeated if another task takes the hole first (`try_claim` in `space/claim.rs`). The exclusive writer is
//! needed for files of drivers and for fixed addresses outside user space. For such an address, `place`
//! returns the error.
//!
//! `mod.rs` calls [`lock_for_mmap`](AddressSpace::lock_for_mmap). Before that, `mod.rs` tries to map private
//! anonymous memory without any claim. Before the claim, a range writer reserves the amounts that the mapping
//! may add to the limited sizes ([`limit_demand`](MmapRequest::limit_demand)). The reservation must not be
//! smaller than the amount that the mapping adds. `tests/range_writers.rs` tests claims and limits.

use super::request::MmapRequest;
use crate::{
    file::Object,
    platform::Platform,
    space::{
        AddressSpace,
        claim::RangeClaim,
        locking::WriteGuard,
        map_flags::{MapFlags, PRIVATE, TYPE},
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
    vma::flags::VmFlags,
};
use freehold_range::ClaimError;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Acquires the right to create the requested mapping. With `ranges`, tries to become a range writer
    /// first. Returns the address of the mapping if a range writer has claimed it.
    #[inline]
    pub(super) fn lock_for_mmap<'s>(
        &'s self,
        state: &'s RangeWriterState,
        request: &MmapRequest<P>,
        fixed: Option<UserRange>,
        ranges: bool,
    ) -> Result<(WriteGuard<'s, P>, Option<u64>), Killed> {
        if ranges {
            match self.claim_for_mmap(state, request, fixed) {
                RangeClaim::Granted(guard, start) => return Ok((guard, Some(start))),
                RangeClaim::NeedsExclusive => {}
                RangeClaim::Killed => return Err(Killed),
            }
        }
        let guard = match fixed {
            Some(range) => self.write_exclusive_range(range)?,
            None => self.write_killable()?,
        };
        self.count_exclusive();
        Ok((guard, None))
    }

    /// Becomes a range writer that has claimed the place of the mapping. Returns its address.
    #[inline]
    fn claim_for_mmap<'s>(
        &'s self,
        state: &'s RangeWriterState,
        request: &MmapRequest<P>,
        fixed: Option<UserRange>,
    ) -> RangeClaim<'s, P, u64> {
        if request.object.file().is_some_and(|file| file.driver().is_some()) {
            return RangeClaim::NeedsExclusive;
        }
        let needs = || request.limit_demand(self);
        match fixed {
            Some(range) => self.try_claim(state, needs, |guard| {
                guard.claim_replaced(range)?;
                Ok(range.start())
            }),
            None if request.flags.contains(MapFlags::FIXED) => RangeClaim::NeedsExclusive,
            None => self.try_claim(state, needs, |guard| {
                let start = guard.place(request).map_err(|_| ClaimError::NeedsExclusive)?;
                guard.claim_placement(UserRange::at(start, request.len))?;
                Ok(start)
            }),
        }
    }
}

impl<P: Platform> MmapRequest<P> {
    /// Returns how much the mapping may add to each size that has a limit.
    pub(super) fn limit_demand(&self, space: &AddressSpace<P>) -> LimitDemand {
        let pages = PageCount::of_bytes(self.len);
        let flags = self.vm_flags | VmFlags::from_bits_retain(space.default_flags.load(Relaxed));
        let locked = flags.contains(VmFlags::LOCKED) || self.object.is_secret();
        // One VMA for the mapping, and up to two more if a fixed mapping splits a VMA in two.
        let vmas = if self.flags.contains(MapFlags::FIXED) { 3 } else { 1 };
        LimitDemand { vmas, pages, locked: if locked { pages } else { PageCount::ZERO } }
    }

    /// Returns the fixed range, if there is one. A range that leaves user space is not returned; `place`
    /// rejects it later.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn fixed_range(&self) -> Option<UserRange> {
        if !self.flags.contains(MapFlags::FIXED) {
            return None;
        }
        let range = UserRange::try_new(self.addr, self.addr.wrapping_add(self.len))?;
        (!range.is_empty() && range.end() <= AddressSpace::<P>::TASK_SIZE).then_some(range)
    }

    /// Returns true for private anonymous memory.
    pub(super) fn is_private_anonymous(&self) -> bool {
        matches!(self.object, Object::Anonymous) && self.flags.bits() & TYPE == PRIVATE
    }
}
