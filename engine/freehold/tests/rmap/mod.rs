//! Reverse map: pages that migrate, are write-protected, or fail.

mod failure;
mod moves;
mod page_entries;
