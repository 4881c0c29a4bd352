//! The direct map, through which the kernel accesses physical memory, and the format of page tables.
//!
//! `boot.s` maps the first 4 GiB of physical memory in the direct map, including the registers of the local
//! APIC. `memory/mod.rs` maps all memory above 4 GiB. Kernel stacks (`memory/stacks.rs`) have addresses of
//! their own. The constants must agree with the tables in `boot.s`. The tests `high-four-levels` and
//! `high-five-levels` check the two formats.

/// The virtual address of physical address 0: the start of the direct map.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// Returns the virtual address of a physical address in the direct map. Does not check that memory exists
/// there.
#[inline(always)]
pub const fn direct<T>(physical: u64) -> *mut T {
    (physical + DIRECT) as *mut T
}

/// The page-table format of this kernel. The number of levels is fixed at build time. A check at run time
/// made a first store to a page take 4 % more instructions on four levels, because many operations walk page
/// tables.
#[cfg(not(feature = "five-levels"))]
pub type Tables = freehold::platform::X86_4;
/// The page-table format of this kernel.
#[cfg(feature = "five-levels")]
pub type Tables = freehold::platform::X86_5;
