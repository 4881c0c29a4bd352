//! What a search for a placement asks for.

use crate::{PAGE_SIZE, file::Object, platform::Platform, space::map_flags::MapFlags};
use freehold_vmspace::PageIndex;

/// What a 2 MiB page table entry spans: large anonymous mappings are aligned to it.
pub(super) const HUGE: u64 = 2 << 20;

/// Room that is looked for.
#[derive(Clone, Copy)]
pub(crate) struct PlacementRequest {
    /// Where the caller would have it, in whole pages; zero anywhere.
    pub(super) hint: u64,
    /// Whole pages.
    pub(super) len: u64,
    /// What the address is a multiple of, unless it is the hint.
    pub(crate) align: u64,
    /// What it agrees with within huge pages, unless it is the hint, or there is no such room.
    pub(crate) huge_offset: Option<u64>,
    /// Of these, those that say where to look.
    pub(crate) flags: MapFlags,
}

impl PlacementRequest {
    /// For pages.
    pub(crate) fn new(hint: u64, len: u64) -> Self {
        PlacementRequest { hint, len, align: PAGE_SIZE, huge_offset: None, flags: MapFlags::empty() }
    }

    /// For what an object has from page `pgoff` on: where huge pages can map it. Of a file, that is if there
    /// is a whole one. Private memory has to be whole ones, without a hint.
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

    /// The hint, if there is one.
    pub(super) fn hint(&self) -> u64 {
        self.hint
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What the address is a multiple of.
    pub(super) fn align(&self) -> u64 {
        self.align
    }

    /// Flags that say where to look.
    pub(super) fn flags(&self) -> MapFlags {
        self.flags
    }
}
