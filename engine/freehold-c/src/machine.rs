//! The numbers that describe the memory and the CPUs of the kernel.

use core::ffi::c_void;
use freehold::platform::{Frame, TableMeta};

/// Size of the record of a frame in bytes. Records are aligned to 8 bytes.
pub const FRAME_RECORD_SIZE: usize = 32;
/// Size of the record of a page table in bytes. Records are aligned to 64 bytes.
pub const TABLE_RECORD_SIZE: usize = 64;

const _: () = {
    assert!(size_of::<Frame>() == FRAME_RECORD_SIZE && align_of::<Frame>() <= 8);
    assert!(size_of::<TableMeta>() == TABLE_RECORD_SIZE && align_of::<TableMeta>() <= 64);
};

/// The memory and the CPUs of the kernel. All arrays exist as long as the kernel, and do not move.
///
/// The library writes to a frame of `direct_map` only while it owns the frame, and only the library writes
/// to the records.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Machine {
    /// Size of this structure in bytes: sizeof(struct fh_machine).
    pub size: usize,
    /// The number of CPU numbers, from 1 to 256. cpu_enter returns numbers below it.
    pub cpus: u32,
    /// The number of the first frame. A frame has 4096 bytes; the frame with number n begins at the physical
    /// address 4096 * n.
    pub first_frame: u64,
    /// The number of frames, from 1. Frame numbers stay below 2^40.
    pub frames: u64,
    /// The address at which the kernel reads and writes the first frame. The others follow it.
    pub direct_map: *mut c_void,
    /// One record for each frame: an array of zeroes, FH_FRAME_RECORD_SIZE bytes for each frame.
    pub frame_records: *mut c_void,
    /// One record for each frame that may become a page table: an array of zeroes, FH_TABLE_RECORD_SIZE bytes
    /// for each frame.
    pub table_records: *mut c_void,
}

// SAFETY: the pointers are addresses of memory that all threads share.
#[expect(unsafe_code, reason = "the pointers lead to memory that all threads share")]
unsafe impl Send for Machine {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the pointers lead to memory that all threads share")]
unsafe impl Sync for Machine {}

/// The first number that is too large for a frame: the smallest bound of the page-table formats.
const FRAMES_END: u64 = 1 << 40;

impl Machine {
    /// Returns true if the numbers and the alignment of the arrays are allowed.
    pub(crate) fn is_sound(&self) -> bool {
        let aligned =
            |pointer: *mut c_void, to: usize| !pointer.is_null() && pointer.addr().is_multiple_of(to);
        (1..=freehold_kit::MAX_CPUS).contains(&(self.cpus as usize))
            && self.frames > 0
            && self.first_frame.checked_add(self.frames).is_some_and(|end| end <= FRAMES_END)
            && aligned(self.direct_map, 4096)
            && aligned(self.frame_records, align_of::<Frame>())
            && aligned(self.table_records, align_of::<TableMeta>())
    }
}
