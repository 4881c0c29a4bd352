//! Special kinds of files: the rules in which they differ from a file with a page cache and a backing store.
//!
//! | file | kind |
//! | --- | --- |
//! | `direct.rs` | files whose pages are frames of the storage (DAX) |
//! | `driver.rs`, `special.rs`, `foreign.rs` | devices: the mmap hook, the mapping with its other hooks, frames that the engine does not own |
//! | `huge.rs`, `huge_allocate.rs` | files of huge pages of pools, and fallocate of such files |
//! | `secret.rs` | secret memory |
//! | `segment.rs`, `segment_state.rs` | System V shared memory |
//! | `shmem_huge.rs` | settings for blocks of shared memory |
//! | `zeroes.rs` | devices of zeroes |
//!
//! `mapping.rs` (in the folder above) has the rules of every file. A file's kind never changes. A new kind
//! gets a file here. If its frames or contents follow other rules, it also gets a variant of `Kind` in
//! `mapping.rs`. No `match` lists these variants: queries such as `is_secret` and `is_direct`, and the
//! functions that call them, must take the new kind into account.

pub(in crate::file) mod direct;
pub(super) mod driver;
pub(super) mod foreign;
pub(crate) mod huge;
mod huge_allocate;
mod secret;
pub(super) mod segment;
mod segment_state;
pub(crate) mod shmem_huge;
pub(super) mod special;
mod zeroes;
