//! The layout of a program in its address space, for reports.
//!
//! exec makes it, PR_SET_MM changes it, and /proc shows it. The program `corners.c` of the tests checks it.

use alloc::vec::Vec;
use core::ops::Range;

/// The places of a program's parts and its auxiliary vector, which /proc shows. The kernel itself does not use
/// the values; PR_SET_MM changes them.
#[derive(Clone, Default)]
pub struct Layout {
    /// The executable segments.
    pub code: Range<u64>,
    /// From the last segment's start to the end of the contents of all segments, as on Linux.
    pub data: Range<u64>,
    /// The first stack pointer.
    pub stack: u64,
    /// The auxiliary vector, including its end.
    pub vector: Vec<u8>,
}
