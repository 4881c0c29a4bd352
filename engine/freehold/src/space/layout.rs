//! Where an address space ends, where in it mmap looks for room, and from which end.
//!
//! Page tables of five levels reach to 2^56, but programs keep data of their own in bits of addresses that no
//! processor used for long. So what lies above 2^47 is given only to a caller who asks for an address there.

use super::{AddressSpace, map_flags::MapFlags, placement::PlacementRequest};
use crate::{PAGE_SIZE, platform::Platform};
use core::ops::Range;
use freehold_vmspace::VmSpace;

/// Where the addresses end that mmap gives without being asked for others. With four levels of tables they
/// are all that there are: the last page below the canonical hole stays unused.
pub const DEFAULT_MAP_WINDOW: u64 = (1 << 47) - PAGE_SIZE;

/// Where room is looked for from below, without randomisation: a third of the way up.
pub const LEGACY_BASE: u64 = (DEFAULT_MAP_WINDOW / 3).next_multiple_of(PAGE_SIZE);

/// Where MAP_32BIT places.
const LOW: Range<u64> = 1 << 30..1 << 31;

/// What MAP_ABOVE4G stays above, looking from the top.
const LOW_END: u64 = 1 << 32;

/// From which end mmap looks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Layout {
    /// Downwards from the [base](super::SpaceConfig::mmap_base); where nothing is free there, upwards from
    /// [`LEGACY_BASE`].
    #[default]
    TopDown,
    /// Upwards from the [base](super::SpaceConfig::mmap_base), which is [`LEGACY_BASE`] or a little more: the
    /// legacy layout, of programs with ADDR_COMPAT_LAYOUT.
    BottomUp,
}

/// Where mmap puts what may lie anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Into the first gap that is large enough, as on Linux, always: tasks that map at the same time
    /// come to the same gap.
    FirstFit,
    /// For [range writers](super::locking#writers), into the first gap of an arena of the CPU's
    /// own, with page tables of its own, if there is one: tasks of different CPUs meet neither in a gap nor
    /// in a page table. Otherwise the first fit, so a process with one thread finds Linux's addresses. For
    /// [`Layout::TopDown`].
    #[default]
    PerCpu,
}

impl<P: Platform> AddressSpace<P> {
    /// The end of user space, as far as this format of page tables reaches. Its last page stays unused.
    pub const TASK_SIZE: u64 = {
        let end = VmSpace::<P>::USER_END;
        assert!(end >= DEFAULT_MAP_WINDOW);
        end
    };

    /// The end of where a hint is followed, and of where room is looked for if it is not.
    #[inline]
    pub(super) fn window_end(request: &PlacementRequest) -> u64 {
        if request.flags().contains(MapFlags::BIT32) {
            LOW.end
        } else if request.hint() > DEFAULT_MAP_WINDOW {
            Self::TASK_SIZE
        } else {
            DEFAULT_MAP_WINDOW
        }
    }

    /// Where room is looked for from above, if at all.
    #[inline]
    pub(super) fn window_above(&self, request: &PlacementRequest) -> Option<Range<u64>> {
        if request.flags().contains(MapFlags::BIT32) || self.layout == Layout::BottomUp {
            return None;
        }
        // What is open above the default window lies on top of the base.
        let high = self.mmap_base + (Self::window_end(request) - DEFAULT_MAP_WINDOW);
        let low = if request.flags().contains(MapFlags::ABOVE_4G) { LOW_END } else { PAGE_SIZE };
        Some(low..high)
    }

    /// Where room is looked for from below, if there is none from above.
    #[cold]
    pub(super) fn window_below(&self, request: &PlacementRequest) -> Range<u64> {
        match self.layout {
            _ if request.flags().contains(MapFlags::BIT32) => LOW,
            Layout::BottomUp => self.mmap_base..Self::window_end(request),
            Layout::TopDown => LEGACY_BASE..Self::window_end(request),
        }
    }
}
