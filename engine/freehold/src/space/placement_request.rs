//! The description of a search for free addresses: length, hint, alignment, and the offset within a huge page
//! that the mapped object prefers.
//!
//! mmap, mremap and special mappings create a request, and `placement.rs` finds the place. `for_object`
//! decides by Linux's rule which objects are aligned so that huge pages can map them; the tests in
//! `engine/freehold/tests/mmap` compare the resulting addresses with Linux's.

use crate::{PAGE_SIZE, file::Object, platform::Platform, space::map_flags::MapFlags};
use freehold_vmspace::PageIndex;

/// Number of bytes that a 2 MiB page table entry spans. Large anonymous mappings are aligned to this number.
pub(super) const HUGE: u64 = 2 << 20;

/// A request for free addresses.
#[derive(Clone, Copy)]
pub(crate) struct PlacementRequest {
    /// Address that the caller prefers, a multiple of the page size. Zero if the caller prefers none.
    pub(super) hint: u64,
    /// Length in bytes, a multiple of the page size.
    pub(super) len: u64,
    /// Alignment of the address. Does not apply to the hint.
    pub(crate) align: u64,
    /// Offset within a huge page that the address should have. Does not apply to the hint, and is ignored if
    /// no free place has this offset.
    pub(crate) huge_offset: Option<u64>,
    /// Flags of mmap that restrict where to search.
    pub(crate) flags: MapFlags,
}

impl PlacementRequest {
    /// Returns a request with page alignment.
    pub(crate) fn new(hint: u64, len: u64) -> Self {
        PlacementRequest { hint, len, align: PAGE_SIZE, huge_offset: None, flags: MapFlags::empty() }
    }

    /// Returns a request for a mapping of `object` from page `pgoff` on, placed so that huge pages can map
    /// it. A file gets such a place if the mapping contains at least one whole huge page. Private anonymous
    /// memory gets such a place if its length is a multiple of the huge page size and there is no hint.
    #[inline]
    pub(crate) fn for_object<P: Platform>(
        object: &Object<P>,
        shared: bool,
        hint: u64,
        len: u64,
        pgoff: PageIndex,
    ) -> Self {
        let huge_offset = if object.aligns(shared) {
            let offset = pgoff.byte();
            let end = offset.checked_next_multiple_of(HUGE).map(|first| first.saturating_add(HUGE));
            end.filter(|&end| offset.saturating_add(len) >= end).map(|_| offset)
        } else {
            let private = matches!(object, Object::Anonymous) && !shared;
            (private && hint == 0 && len.is_multiple_of(HUGE)).then_some(0)
        };
        PlacementRequest { huge_offset, ..PlacementRequest::new(hint, len) }
    }

    /// Returns the preferred address, or 0.
    pub(super) fn hint(&self) -> u64 {
        self.hint
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the alignment of the address.
    pub(super) fn align(&self) -> u64 {
        self.align
    }

    /// Returns the flags that restrict where to search.
    pub(super) fn flags(&self) -> MapFlags {
        self.flags
    }
}
