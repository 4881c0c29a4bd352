//! The page cache of a file.

pub(super) mod entry;
pub(super) mod invalidate_lock;
pub(super) mod lookup;
pub(super) mod mthp;
pub(super) mod new_page;
pub(super) mod radix;
