//! Choice of the address of a new mapping.
//!
//! This file handles fixed addresses and the alignment of huge pages. The search for free addresses is in
//! `space/placement.rs`. A range writer calls `place` before it claims the address, so another task may take
//! the address first, and `claim.rs` then repeats the search. `tests/mmap/places.rs` and
//! `tests/mmap/layouts.rs` test places.

use super::request::MmapRequest;
use crate::{
    PAGE_SIZE,
    error::MmapError,
    platform::Platform,
    space::{AddressSpace, locking::WriteGuard, map_flags::MapFlags, placement_request::PlacementRequest},
};

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the fixed address of the mapping, or an address with enough free space. Fails if the fixed
    /// address is not aligned or not permitted, or if there is no free space.
    #[inline(never)]
    pub(super) fn place(&self, request: &MmapRequest<P>) -> Result<u64, MmapError> {
        let &MmapRequest { addr, len, unit, flags, .. } = request;
        if len > AddressSpace::<P>::TASK_SIZE {
            return Err(MmapError::NoSpace);
        }
        if flags.contains(MapFlags::FIXED) {
            if unit > PAGE_SIZE && !addr.is_multiple_of(unit) {
                return Err(MmapError::Invalid);
            }
            if addr > AddressSpace::<P>::TASK_SIZE - len {
                return Err(MmapError::NoSpace);
            }
            if !addr.is_multiple_of(request.unit) {
                return Err(MmapError::Invalid);
            }
            return if self.space.may_map_at(addr) { Ok(addr) } else { Err(MmapError::NotPermitted) };
        }
        let mut placement =
            PlacementRequest::for_object(&request.object, request.is_shared(), addr, len, request.pgoff);
        if unit > PAGE_SIZE {
            // Huge pages of pools are aligned to their size.
            (placement.align, placement.huge_offset) = (unit, None);
        }
        placement.flags = flags;
        self.find_placement(&placement)
    }

    /// Returns the hint of a mapping of small pages, if the mapping may be placed there. Does not check that
    /// the place is free.
    #[inline]
    pub(super) fn unchecked_hint(&self, request: &MmapRequest<P>) -> Option<u64> {
        let &MmapRequest { addr, len, flags, .. } = request;
        let mut placement = PlacementRequest::new(addr, len);
        placement.flags = flags;
        self.allows_hint(&placement).then_some(addr)
    }
}
