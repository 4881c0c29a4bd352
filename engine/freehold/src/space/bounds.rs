//! The bounds of user space and of mmap's search, which the format of the page tables gives.
//!
//! `state/layout.rs` describes the layout and has the values of x86-64. `SpaceConfig` may name another base
//! of mappings and another heap. `placement.rs` uses the bounds. The tests `mmap::layouts` and
//! `mmap::five_levels` (`engine/freehold/tests`) compare the resulting addresses with Linux's.

use super::{AddressSpace, state::layout::third_of};
use crate::{PAGE_SIZE, platform::Format, platform::Platform};
use freehold_vmspace::VmSpace;

impl<P: Platform> AddressSpace<P> {
    /// End of user space in this format of page tables. The last page below the end of the format stays
    /// unused.
    pub const TASK_SIZE: u64 = VmSpace::<P>::USER_END;

    /// End of the addresses that mmap uses unless the caller requests a higher one (DEFAULT_MAP_WINDOW on
    /// Linux). At most [`TASK_SIZE`](Self::TASK_SIZE).
    pub const MAP_WINDOW_END: u64 = {
        let end = P::Format::MAP_WINDOW_END - PAGE_SIZE;
        assert!(end <= Self::TASK_SIZE);
        end
    };

    /// Start of the bottom-up search without randomisation: one third of the default window.
    pub const LEGACY_BASE: u64 = third_of(Self::MAP_WINDOW_END);

    /// Start of the top-down search if the [settings](crate::space::SpaceConfig::mmap_base) name no other:
    /// 128 MiB below the end of the default window.
    pub const DEFAULT_MMAP_BASE: u64 = Self::MAP_WINDOW_END - (128 << 20);

    /// Start of the heap if the [settings](crate::space::SpaceConfig::brk) name no other: two thirds of the
    /// default window.
    pub const DEFAULT_BRK: u64 = (P::Format::MAP_WINDOW_END / 3 * 2).next_multiple_of(PAGE_SIZE);
}
