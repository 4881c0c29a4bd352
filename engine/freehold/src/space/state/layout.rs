//! Where an address space ends, where in it mmap looks for room, and from which end.
//!
//! Page tables of five levels reach to 2^56, but programs keep data of their own in bits of addresses that no
//! processor used for long. So what lies above 2^47 is given only to a caller who asks for an address there.

use crate::PAGE_SIZE;

/// Where the addresses end that mmap gives without being asked for others. With four levels of tables they
/// are all that there are: the last page below the canonical hole stays unused.
pub const DEFAULT_MAP_WINDOW: u64 = (1 << 47) - PAGE_SIZE;

/// Where room is looked for from below, without randomisation: a third of the way up.
pub const LEGACY_BASE: u64 = (DEFAULT_MAP_WINDOW / 3).next_multiple_of(PAGE_SIZE);

/// From which end mmap looks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Layout {
    /// Downwards from the [base](crate::space::SpaceConfig::mmap_base); where nothing is free there, upwards
    /// from [`LEGACY_BASE`].
    #[default]
    TopDown,
    /// Upwards from the [base](crate::space::SpaceConfig::mmap_base), which is [`LEGACY_BASE`] or a little
    /// more: the legacy layout, of programs with ADDR_COMPAT_LAYOUT.
    BottomUp,
}

/// Where mmap puts what may lie anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Into the first gap that is large enough, as on Linux, always: tasks that map at the same time
    /// come to the same gap.
    FirstFit,
    /// For [range writers](crate::space::locking#writers), into the first gap of an arena of the CPU's
    /// own, with page tables of its own, if there is one: tasks of different CPUs meet neither in a gap nor
    /// in a page table. Otherwise the first fit, so a process with one thread finds Linux's addresses. For
    /// [`Layout::TopDown`].
    #[default]
    PerCpu,
}
