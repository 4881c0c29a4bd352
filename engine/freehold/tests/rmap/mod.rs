//! From a page to its entries: pages that move, lose rights, or fail.

mod failure;
mod moves;
mod page_entries;
