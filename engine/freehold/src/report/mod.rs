//! Reports about an address space: the data of files in /proc/PID, and mincore. This folder returns values,
//! or text in Linux's format, from which the embedding kernel makes files.
//!
//! | file | report |
//! | --- | --- |
//! | `maps.rs` | /proc/PID/maps, and the iteration over VMAs that other reports use |
//! | `smaps.rs` | smaps, smaps_rollup, the size of the page tables |
//! | `pagemap.rs` | /proc/PID/pagemap, PAGEMAP_SCAN |
//! | `query.rs` | PROCMAP_QUERY |
//! | `clear_refs.rs` | /proc/PID/clear_refs, which clears accessed bits and soft-dirty bits |
//! | `mincore.rs` | mincore |
//! | `debug.rs` | no report, but the output of `{:?}` |
//! | `check.rs` | no report, but the engine's check of its own invariants |
//!
//! A report must not disturb the program. The reports of /proc hold the lock of one VMA at a time, so the
//! VMAs may change between two of them. mincore holds the mmap lock for reading, for a bounded number of
//! pages. A new report of /proc gets a file here, iterates with `with_next_vma` (`maps.rs`), and passes its
//! result on after the locks are released. The tests are `reports` (`engine/freehold/tests`) and
//! `speculative_lookup` (`shuttle_engine`).

mod check;
pub mod clear_refs;
mod debug;
pub mod maps;
mod mincore;
pub mod pagemap;
mod query;
pub mod smaps;

pub use query::QueryFlags;
