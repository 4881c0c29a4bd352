//! The end of an address space, and the place and direction of mmap's search for free addresses.
//!
//! Page tables of five levels reach to 2^56. Programs store their own data in address bits that processors
//! did not use for a long time. Addresses above 2^47 are therefore used only if the caller requests an
//! address there.
//!
//! The format of the page tables gives the bounds (`space/bounds.rs`). `SpaceConfig` fixes the other values
//! when the address space is created. `space/placement.rs` uses the values in its search,
//! and `space/cpu_arena.rs` implements `Placement::PerCpu`. The values determine the addresses that mmap
//! returns: the tests of `mmap::layouts` and `mmap::five_levels` (`engine/freehold/tests`) compare these
//! addresses with Linux's.

use crate::PAGE_SIZE;

/// [`MAP_WINDOW_END`](crate::space::AddressSpace::MAP_WINDOW_END) of x86-64.
pub const DEFAULT_MAP_WINDOW: u64 = (1 << 47) - PAGE_SIZE;

/// [`LEGACY_BASE`](crate::space::AddressSpace::LEGACY_BASE) of x86-64.
pub const LEGACY_BASE: u64 = third_of(DEFAULT_MAP_WINDOW);

/// Returns one third of the addresses below `end`, rounded up to a page.
pub(crate) const fn third_of(end: u64) -> u64 {
    (end / 3).next_multiple_of(PAGE_SIZE)
}

/// The direction of mmap's search for free addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Layout {
    /// Downwards from the [base](crate::space::SpaceConfig::mmap_base). If nothing is free there, upwards
    /// from [`LEGACY_BASE`](crate::space::AddressSpace::LEGACY_BASE).
    #[default]
    TopDown,
    /// Upwards from the [base](crate::space::SpaceConfig::mmap_base), which is
    /// [`LEGACY_BASE`](crate::space::AddressSpace::LEGACY_BASE) or a little more: the legacy layout, for
    /// programs with ADDR_COMPAT_LAYOUT.
    BottomUp,
}

/// The policy by which mmap places mappings without a fixed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Always uses the first gap that is large enough, as on Linux. Tasks that map concurrently then use the
    /// same gap.
    FirstFit,
    /// [Range writers](crate::space::locking#writers) use the first gap in an arena of their CPU. Each arena
    /// has its own page tables, so that tasks on different CPUs share neither a gap nor a page table.
    ///
    /// If the arena has no such gap, or the caller is an exclusive writer, mmap uses the first gap as on
    /// Linux. A process with one thread therefore gets the same addresses as on Linux. Applies to
    /// [`Layout::TopDown`].
    #[default]
    PerCpu,
}
