//! Types and words of an address space that do not depend on its locks. Later modules add the operations.

pub(crate) mod arguments;
pub(crate) mod closings;
pub(crate) mod contention;
pub(crate) mod counters;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod mdwe;
pub(crate) mod pkeys;
pub(crate) mod thp;
