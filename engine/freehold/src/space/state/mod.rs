//! What an address space keeps besides VMAs and page tables: types and words that know of no lock.

pub(crate) mod arguments;
pub(crate) mod closings;
pub(crate) mod contention;
pub(crate) mod counters;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod mdwe;
pub(crate) mod pkeys;
pub(crate) mod thp;
