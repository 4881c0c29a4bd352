//! The error of this crate.
//!
//! The error has no details, because all callers handle a lack of memory in the same way. Operations that can
//! fail in other ways have an error type of their own, next to the operation. The crate `freehold` converts
//! [`NoMemory`] to the errors of its calls.

use allocator_api2::alloc::AllocError;
use core::fmt;
use freehold_pagetable::OutOfTables;

/// There is no memory for records, tables or frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for NoMemory {}

impl From<AllocError> for NoMemory {
    fn from(_: AllocError) -> Self {
        #[cfg(feature = "log")]
        log::warn!("the global allocator is out of memory");
        NoMemory
    }
}

impl From<OutOfTables> for NoMemory {
    fn from(_: OutOfTables) -> Self {
        NoMemory
    }
}
