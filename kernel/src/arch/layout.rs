//! Where memory is visible, and the format of page tables.

/// Where physical address 0 lies.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// Where a physical address is visible.
#[inline(always)]
pub const fn direct<T>(physical: u64) -> *mut T {
    (physical + DIRECT) as *mut T
}

/// Page tables of this kernel. How many levels they have is said when it is built: where it was asked at run
/// time, a first store to a page took 4 % more instructions on four levels, and walks are everywhere.
#[cfg(not(feature = "five-levels"))]
pub type Tables = freehold::platform::X86_4;
/// Page tables of this kernel.
#[cfg(feature = "five-levels")]
pub type Tables = freehold::platform::X86_5;
