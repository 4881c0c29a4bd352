//! Special kinds of files.

mod direct;
pub(super) mod driver;
pub(super) mod foreign;
pub(crate) mod huge;
mod huge_allocate;
mod secret;
pub(super) mod segment;
pub(crate) mod shmem_huge;
pub(super) mod special;
mod zeroes;
