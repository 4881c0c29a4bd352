//! Changes of a file that affect the page table entries for its pages.

mod drop_clean;
mod exchange;
mod revoke;
mod truncate;
mod unmap;
mod write_back;
